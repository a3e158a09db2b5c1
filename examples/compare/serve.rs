//! The echo servers, one process each: starting them, and their main functions.

use std::io;

use windlass::{Builder, DriverChoice};

use super::contender::{Field, Kind};
use super::kit::hand_epoll;
use super::kit::machine::Machine;
use super::kit::process::Process;
use super::kit::server::{PATIENCE, port_of, windlass_echo};

/// A running server, idle between its rounds. Dropping it ends the process.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(kind: Kind, machine: &Machine, field: &Field) -> io::Result<Server> {
        let core = machine.server_core();
        let mut process = match (kind, &field.python) {
            (Kind::Asyncio | Kind::Uvloop, Some(python)) => Process::start(python.echo(kind.name()), core)?,
            _ => Process::again(&["--serve", kind.name()], core)?,
        };
        let port = port_of(&mut process, PATIENCE)?;
        Ok(Server { process, port })
    }
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Proactor => windlass_server(DriverChoice::Proactor),
        Kind::Reactor => windlass_server(DriverChoice::Reactor),
        Kind::Epoll => hand_epoll::serve(),
        // The smallest rings: 4,096 completions, and 256 buffers as in windlass.
        #[cfg(feature = "proactor")]
        Kind::Uring => super::kit::hand_uring::serve(1),
        #[cfg(feature = "proactor")]
        Kind::UringMultishot => super::kit::hand_uring::serve_multishot(1),
        #[cfg(not(feature = "proactor"))]
        Kind::Uring | Kind::UringMultishot => Err(io::Error::other("built without the feature proactor")),
        Kind::Asyncio | Kind::Uvloop => Err(io::Error::other("these servers are Python scripts")),
        Kind::Kernel => Err(io::Error::other("this contender is not a server")),
    }
}

fn windlass_server(driver: DriverChoice) -> io::Result<()> {
    let event_loop = Builder::new().driver(driver).build()?;
    event_loop.run_until_complete(windlass_echo())?
}
