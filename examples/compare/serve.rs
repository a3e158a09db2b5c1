//! The echo servers, each the whole of a process.

use std::io;

use windlass::{Builder, DriverChoice};

use crate::kit::hand_epoll::{self, print_port};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Proactor,
    Reactor,
    Epoll,
    Uring,
    UringMultishot,
    Asyncio,
    Uvloop,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Proactor,
        Kind::Reactor,
        Kind::Epoll,
        Kind::Uring,
        Kind::UringMultishot,
        Kind::Asyncio,
        Kind::Uvloop,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Proactor => "proactor",
            Kind::Reactor => "reactor",
            Kind::Epoll => "epoll",
            Kind::Uring => "uring",
            Kind::UringMultishot => "uring-multishot",
            Kind::Asyncio => "asyncio",
            Kind::Uvloop => "uvloop",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Kind::Proactor => "windlass Proactor (io_uring)",
            Kind::Reactor => "windlass Reactor (epoll)",
            Kind::Epoll => "epoll by hand",
            Kind::Uring => "io_uring by hand",
            Kind::UringMultishot => "io_uring by hand, multishot",
            Kind::Asyncio => "asyncio SelectorEventLoop",
            Kind::Uvloop => "uvloop",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or(format!("no server is called '{name}'"))
    }
}

/// Serves until killed. The first line on standard output is the port.
pub(crate) fn serve(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Proactor => windlass_server(DriverChoice::Proactor),
        Kind::Reactor => windlass_server(DriverChoice::Reactor),
        Kind::Epoll => hand_epoll::serve(),
        #[cfg(feature = "proactor")]
        Kind::Uring => crate::kit::hand_uring::serve(),
        #[cfg(feature = "proactor")]
        Kind::UringMultishot => crate::kit::hand_uring::serve_multishot(),
        #[cfg(not(feature = "proactor"))]
        Kind::Uring | Kind::UringMultishot => Err(io::Error::other("built without the feature proactor")),
        Kind::Asyncio | Kind::Uvloop => Err(io::Error::other("Python serves these")),
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
