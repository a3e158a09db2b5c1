//! asyncio and uvloop: small scripts for the installed `python3`.

mod environment;

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::kit::process::Process;
use super::kit::progress::Progress;

/// Creates the loop that the first argument names. asyncio's loop is created explicitly, so that no policy can replace
/// it.
const LOOP: &str = "
import asyncio, sys, time
def make_loop(name):
    if name == 'uvloop':
        import uvloop
        return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()
";

/// An echo server as in asyncio's documentation: a protocol, which is its fastest API. The backlog has room for all
/// connections of a load: a client that finds it full retries only after a second.
const ECHO: &str = "
class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def main():
    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

make_loop(sys.argv[1]).run_until_complete(main())
";

/// Prints the lateness of each sleep in nanoseconds.
const SLEEP: &str = "
async def main(nanos, count):
    late = []
    for _ in range(count):
        begin = time.monotonic_ns()
        await asyncio.sleep(nanos / 1e9)
        late.append(time.monotonic_ns() - begin - nanos)
    print('\\n'.join(map(str, late)))

make_loop(sys.argv[1]).run_until_complete(main(int(sys.argv[2]), int(sys.argv[3])))
";

/// Prints, for each scene, p50, p99 and worst lateness of a 10 ms tick in nanoseconds. The work is that of
/// the published figures, scaled to 150 ms on this machine.
const STALL: &str = "
import hashlib
from math import ceil

def compute(rounds):
    hashlib.pbkdf2_hmac('sha256', b'password', b'salt', rounds)

async def ticks(late):
    while True:
        due = time.monotonic_ns() + 10_000_000
        await asyncio.sleep(0.01)
        late.append(max(0, time.monotonic_ns() - due))

async def watch(before, after, request):
    late = []
    ticking = asyncio.ensure_future(ticks(late))
    await asyncio.sleep(before)
    await asyncio.ensure_future(request)
    await asyncio.sleep(after)
    ticking.cancel()
    late.sort()
    print(*(late[ceil(len(late) * share) - 1] for share in (0.5, 0.99, 1)))

async def nothing():
    pass

async def inside(rounds):
    compute(rounds)

async def beside(rounds):
    await asyncio.get_running_loop().run_in_executor(None, compute, rounds)

async def main(before, after):
    begin = time.monotonic()
    compute(50_000)
    rounds = int(50_000 * 0.15 / (time.monotonic() - begin))
    await watch(before, after, nothing())
    await watch(before, after, inside(rounds))
    await watch(before, after, beside(rounds))

make_loop(sys.argv[1]).run_until_complete(main(int(sys.argv[2]) / 1e9, int(sys.argv[3]) / 1e9))
";

/// Prints the path of the real interpreter (a `python3` may be a wrapper script), its version, and uvloop's.
const ASK: &str = "
import sys
print(sys.executable, end=';')
print('.'.join(map(str, sys.version_info[:3])), end=';')
try:
    import uvloop
    print(uvloop.__version__)
except ImportError:
    print()
";

pub(crate) struct Python {
    path: String,
    pub(crate) version: String,
    /// The version of uvloop, if there is one.
    pub(crate) uvloop: Option<String>,
}

impl Python {
    /// Finds `python3` and uvloop: installed, in the environment of an earlier run in this folder, or, if requested, in
    /// a new environment. Records what is missing.
    pub(crate) fn find(
        folder: &Path,
        install: bool,
        progress: &mut Progress,
        missing: &mut Vec<String>,
    ) -> Option<Python> {
        let found = match Python::ask("python3") {
            Ok(found) => found,
            Err(error) => {
                missing.push(format!("asyncio and uvloop: no python3 ({error})"));
                return None;
            }
        };
        if found.uvloop.is_some() {
            return Some(found);
        }
        let own = environment::interpreter(folder);
        if let Some(own) = Python::ask(&own.to_string_lossy())
            .ok()
            .filter(|own| own.uvloop.is_some())
        {
            return Some(own);
        }
        if !install {
            missing.push("uvloop: not installed, and --quick does not install it; a longer run does".into());
            return Some(found);
        }
        let made = environment::make(&found.path, folder, progress);
        match made.and_then(|own| Python::ask(&own.to_string_lossy())) {
            Ok(own) if own.uvloop.is_some() => return Some(own),
            Ok(_) => missing.push("uvloop: installed by pip, but it cannot be imported".into()),
            Err(error) => missing.push(format!("uvloop: could not be installed ({error})")),
        }
        Some(found)
    }

    /// The maximum time for finding Python, for the progress bar.
    pub(crate) fn weight(install: bool) -> f64 {
        match install {
            true => environment::SECONDS_TO_MAKE + environment::SECONDS_TO_INSTALL,
            false => 0.0,
        }
    }

    fn ask(path: &str) -> io::Result<Python> {
        let mut command = Command::new(path);
        command.args(["-c", ASK]);
        keep_to_ourselves(&mut command);
        let answer = Process::start(command, None)?.first_line(Duration::from_secs(10))?;
        let fields: Vec<&str> = answer.split(';').collect();
        let [path, version, uvloop] = fields[..] else {
            return Err(io::Error::other(format!("unexpected output '{answer}'")));
        };
        Ok(Python {
            path: path.into(),
            version: version.into(),
            uvloop: Some(uvloop.to_string()).filter(|version| !version.is_empty()),
        })
    }

    /// An echo server on the loop of this name.
    pub(crate) fn echo(&self, loop_name: &str) -> Command {
        self.script(ECHO, &[loop_name])
    }

    /// Measures sleeps on the loop of this name.
    pub(crate) fn sleep(&self, loop_name: &str, pause: Duration, count: usize) -> Command {
        self.script(SLEEP, &[loop_name, &pause.as_nanos().to_string(), &count.to_string()])
    }

    /// Measures stalls on the loop of this name.
    pub(crate) fn stall(&self, loop_name: &str, before: Duration, after: Duration) -> Command {
        let (before, after) = (before.as_nanos().to_string(), after.as_nanos().to_string());
        self.script(STALL, &[loop_name, &before, &after])
    }

    fn script(&self, body: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("-c").arg(format!("{LOOP}{body}")).args(args);
        keep_to_ourselves(&mut command);
        command
    }
}

/// Prevents Python from writing compiled modules outside of our folder.
fn keep_to_ourselves(command: &mut Command) {
    command.env("PYTHONDONTWRITEBYTECODE", "1");
}
