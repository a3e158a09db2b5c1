//! The real asyncio: two small scripts for a `python3` that is already there.

use std::process::Command;
use std::time::Duration;

use crate::kit::process::Process;

/// Picks the loop that the first argument names. Asyncio's own is asked for by name, so that no policy can replace it.
const LOOP: &str = "
import asyncio, sys, time
def make_loop(name):
    if name == 'uvloop':
        import uvloop
        return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()
";

/// An echo server as asyncio's documentation writes it: a protocol, which is its fastest way.
const ECHO: &str = "
class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def main():
    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

make_loop(sys.argv[1]).run_until_complete(main())
";

/// Prints how late each sleep was, in nanoseconds.
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

/// Says which interpreter this really is (a `python3` may be a script that starts another), its version, and uvloop's.
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
    /// The version of uvloop, if it is installed.
    pub(crate) uvloop: Option<String>,
}

impl Python {
    /// Looks for `python3`, and notes what is not there.
    pub(crate) fn find(missing: &mut Vec<String>) -> Option<Python> {
        let mut command = Command::new("python3");
        command.args(["-c", ASK]);
        let answer = Process::start(command, None).and_then(|mut child| child.first_line(Duration::from_secs(10)));
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                missing.push(format!("asyncio and uvloop: no python3 ({error})"));
                return None;
            }
        };
        let mut fields = answer.split(';').map(str::to_string);
        let python = Python {
            path: fields.next()?,
            version: fields.next()?,
            uvloop: fields.next().filter(|version| !version.is_empty()),
        };
        if python.uvloop.is_none() {
            missing.push(format!("uvloop: Python {} has none installed", python.version));
        }
        Some(python)
    }

    /// An echo server on the loop of this name.
    pub(crate) fn echo(&self, loop_name: &str) -> Command {
        self.script(ECHO, &[loop_name])
    }

    /// A measurer of sleeps on the loop of this name.
    pub(crate) fn sleep(&self, loop_name: &str, pause: Duration, count: usize) -> Command {
        self.script(SLEEP, &[loop_name, &pause.as_nanos().to_string(), &count.to_string()])
    }

    fn script(&self, body: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("-c").arg(format!("{LOOP}{body}")).args(args);
        command
    }
}
