//! User-space instructions per request: the server under valgrind's callgrind, once with so many requests and once with
//! twice as many. The difference is what the requests cost, without the start and the connections.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::contender::Contender;
use crate::kit::load::{Load, Shape};
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::server::port_of;

/// Under valgrind everything takes its time.
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
            "valgrind ended the server too late to tell the two runs apart",
        ));
    }
    Ok(vec![(twice - once) as f64 / (many - few) as f64])
}

/// All instructions of a server's life, and how many echoes the load has seen in it.
fn count(contender: Contender, shape: Shape, requests: u64, machine: &Machine) -> io::Result<(u64, u64)> {
    let log = Log::new();
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--log-file={}", log.path.display()))
        .arg(std::env::current_exe()?)
        .args(["--serve", contender.name()]);
    let start = |error: io::Error| io::Error::new(error.kind(), format!("valgrind: {error}"));
    let mut server = Process::start(command, machine.server_core()).map_err(start)?;
    let port = port_of(&mut server, PATIENCE).map_err(|error| log.explain(error))?;
    let mut load = Load::connect(port, shape).map_err(|error| log.explain(error))?;
    let mut echoes = load.run_for(requests).map_err(|error| log.explain(error))?;
    // SAFETY: the child is ours and not yet waited for, so its number is nobody else's.
    unsafe { libc::kill(server.id() as libc::pid_t, libc::SIGTERM) };
    echoes += echoes_until_gone(&mut load);
    // Killed by a signal is how it is meant to end; what it counted is in the log.
    let _ = server.all_output(PATIENCE);
    Ok((log.collected()?, echoes))
}

/// valgrind does not look for signals when a wait in the ring returns, only after other system calls and every hundred
/// thousand steps. So the load goes on until the server is gone, and what it still answers is counted: all but the last few.
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

/// What valgrind writes, in a file that is gone afterwards.
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

    /// Adds what valgrind complained of, if it did.
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
