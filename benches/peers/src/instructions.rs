//! User-space instructions per request: the server under valgrind's callgrind, with a number of requests and with twice
//! that number. The difference is the cost of the requests, without the start and the connections.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::contender::Contender;
use crate::kit::load::{Load, Shape};
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::server::port_of;

/// A long time limit: valgrind is slow.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn per_request(
    contender: Contender,
    shape: Shape,
    requests: u64,
    machine: &Machine,
) -> io::Result<Vec<f64>> {
    let (once, few) = count(contender, shape, requests, machine)?;
    let (twice, many) = count(contender, shape, 2 * requests, machine)?;
    if many <= few || twice <= once {
        return Err(io::Error::other(
            "valgrind ended the server too late to distinguish the two runs",
        ));
    }
    Ok(vec![(twice - once) as f64 / (many - few) as f64])
}

/// All instructions of a server process, and the number of echoes that the load received from it.
fn count(contender: Contender, shape: Shape, requests: u64, machine: &Machine) -> io::Result<(u64, u64)> {
    let log = Log::new();
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--log-file={}", log.path.display()))
        .arg(std::env::current_exe()?)
        .args(["--serve", contender.name(), &shape.connections.to_string()]);
    let start = |error: io::Error| io::Error::new(error.kind(), format!("valgrind: {error}"));
    let mut server = Process::start(command, machine.server_core()).map_err(start)?;
    let port = port_of(&mut server, PATIENCE).map_err(|error| log.explain(error))?;
    let mut load = Load::connect(port, shape).map_err(|error| log.explain(error))?;
    let mut echoes = load.run_for(requests).map_err(|error| log.explain(error))?;
    // SAFETY: the child is ours and not yet waited for, so its id has not been reused.
    unsafe { libc::kill(server.id() as libc::pid_t, libc::SIGTERM) };
    echoes += echoes_until_gone(&mut load);
    // The server is expected to be killed by the signal; the count is in the log.
    let _ = server.all_output(PATIENCE);
    Ok((log.collected()?, echoes))
}

/// valgrind does not check for signals when a wait in the ring returns, only after other system calls and every hundred
/// thousand steps. So the load continues until the server is gone, and the remaining answers are counted: all but the
/// last few.
fn echoes_until_gone(load: &mut Load) -> u64 {
    let end = Instant::now() + PATIENCE;
    let mut echoes = 0;
    while Instant::now() < end
        && let Ok(more) = load.step(100)
    {
        echoes += more;
    }
    echoes
}

/// valgrind's log, in a temporary file.
struct Log {
    path: PathBuf,
}

impl Log {
    fn new() -> Log {
        let name = format!("windlass-peers-{}.callgrind", std::process::id());
        Log {
            path: std::env::temp_dir().join(name),
        }
    }

    /// The number after "Collected :".
    fn collected(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(&self.path)?;
        let line = text.lines().find(|line| line.contains("Collected :"));
        let number = line.and_then(|line| line.rsplit(' ').next());
        number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| self.explain(io::Error::other("callgrind counted nothing")))
    }

    /// Adds valgrind's warning to an error, if there is one.
    fn explain(&self, error: io::Error) -> io::Error {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let complaint = text
            .lines()
            .find(|line| line.contains("WARNING") || line.contains("unhandled"));
        match complaint {
            Some(line) => io::Error::new(error.kind(), format!("{error} (valgrind: {})", line.trim())),
            None => io::Error::new(error.kind(), format!("{error} (under valgrind)")),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
