//! A server in a process of its own, so that its CPU time can be measured, or in one for each core.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Kind;
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::serve::LISTENING;
use crate::workload::Workload;

pub struct Server {
    processes: Vec<Process>,
    pub port: u16,
}

/// The time limit for a server to listen. The one for TLS creates a certificate first.
const PATIENCE: Duration = Duration::from_secs(10);

impl Server {
    /// Starts the server on an ephemeral port, on the machine's core for servers, if it has one. Further processes get the same port.
    pub fn start(workload: Workload, kind: &Kind, machine: &Machine) -> io::Result<Server> {
        let (_, runtime, is_per_core) = *kind;
        let core = machine.server_core();
        let mut server = Server {
            processes: Vec::new(),
            port: 0,
        };
        for _ in 0..if is_per_core { machine.cores } else { 1 } {
            let port = server.port.to_string();
            let mut process = Process::again(&["serve", workload.name(), runtime, &port], core)?;
            let line = process.first_line(PATIENCE)?;
            let addr = line
                .strip_prefix(LISTENING)
                .and_then(|addr| addr.parse::<SocketAddr>().ok());
            let unexpected = || io::Error::other(format!("it printed '{line}' instead of its address"));
            server.port = addr.ok_or_else(unexpected)?.port();
            server.processes.push(process);
        }
        Ok(server)
    }

    /// Its CPU time so far.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        self.processes.iter().map(Process::cpu_time).sum()
    }
}
