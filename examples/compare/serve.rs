//! The echo servers, each the whole of a process: how it is started, and then what it does.

use std::io;
use std::time::Duration;

use windlass::{Builder, DriverChoice};

use super::contender::{Field, Kind};
use super::kit::hand_epoll::{self, print_port};
use super::kit::machine::Machine;
use super::kit::process::Process;

/// A server that waits, asleep, for its turns. Dropping it ends it.
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
        let line = process.first_line(Duration::from_secs(10))?;
        let port = line.trim().parse();
        let port = port.map_err(|_| io::Error::other(format!("'{line}' is no port")))?;
        Ok(Server { process, port })
    }
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Proactor => windlass_server(DriverChoice::Proactor),
        Kind::Reactor => windlass_server(DriverChoice::Reactor),
        Kind::Epoll => hand_epoll::serve(),
        #[cfg(feature = "proactor")]
        Kind::Uring => super::kit::hand_uring::serve(),
        #[cfg(feature = "proactor")]
        Kind::UringMultishot => super::kit::hand_uring::serve_multishot(),
        #[cfg(not(feature = "proactor"))]
        Kind::Uring | Kind::UringMultishot => Err(io::Error::other("built without the feature proactor")),
        Kind::Asyncio | Kind::Uvloop => Err(io::Error::other("Python serves these")),
        Kind::Kernel => Err(io::Error::other("it only sleeps")),
    }
}

/// The README's server, as anybody would write it.
fn windlass_server(driver: DriverChoice) -> io::Result<()> {
    use windlass::net::{TcpListener, TcpStream};

    async fn echo(stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let bytes = stream.read_managed().await?;
            if bytes.is_empty() {
                return Ok(());
            }
            stream.write_all(bytes).await.0?;
        }
    }

    let event_loop = Builder::new().driver(driver).build()?;
    event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_port(listener.local_addr()?.port())?;
        loop {
            let (stream, _) = listener.accept().await?;
            // A peer that resets its connection ends its own task, and nothing else.
            windlass::spawn(async move {
                let _ = echo(stream).await;
            });
        }
    })?
}
