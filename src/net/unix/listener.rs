//! A Unix stream listener.

use std::fmt;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::socket::{at, name_of_addr, name_of_path};
use super::stream::UnixStream;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::net::accept::{Acceptor, BACKLOG};
use crate::net::incoming::Incoming;
use crate::net::socket::debug_socket;
use crate::sys::{Name, SocketKind};

/// A listening Unix socket.
///
/// ```
/// use windlass::net::{UnixListener, UnixStream};
/// # let path = std::env::temp_dir().join(format!("windlass-doc-listener-{}", std::process::id()));
/// windlass::run(async {
///     let listener = UnixListener::bind(&path)?;
///     let client = UnixStream::connect(&path).await?;
///     let (server, _) = listener.accept().await?;
///     client.write_all("hello").await.0?;
///     assert_eq!(&*server.read_managed().await?, b"hello");
///     std::fs::remove_file(&path)
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixListener {
    acceptor: Acceptor,
}

impl UnixListener {
    /// Listens at a path, which must not exist yet.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        listen(name_of_path("bind", path.as_ref())?)
    }

    /// Listens at a std address, which may be an abstract name.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<UnixListener> {
        listen(name_of_addr("bind", addr)?)
    }

    /// Accepts the next connection and returns it with the peer's address, which is usually unnamed.
    ///
    /// Errors and cancel safety are as for [`TcpListener::accept`](crate::net::TcpListener::accept).
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        // A peer that has already closed has no address, but may have left data to read.
        let admit = |socket: OwnedDescriptor| {
            let peer = socket.peer_unix_addr().or_else(|_| SocketAddr::from_pathname(""));
            Some((UnixStream::from_socket(socket), peer.ok()?))
        };
        self.acceptor.accept(admit).await
    }

    /// A stream of the accepted connections, without their peers' addresses, as std's `incoming`. It never ends, also
    /// not after an error. [`into_incoming`](UnixListener::into_incoming) owns the listener.
    ///
    /// **Cancel safety:** dropping the stream loses no connection; the next `accept` returns it.
    pub fn incoming(&self) -> Incoming<'_, UnixStream> {
        Incoming::new(async || Ok(self.accept().await?.0))
    }

    /// As [`incoming`](UnixListener::incoming), for a stream that owns the listener.
    pub fn into_incoming(self) -> Incoming<'static, UnixStream> {
        Incoming::new(async move || Ok(self.accept().await?.0))
    }

    /// Sets how many connections the listener may accept at a time: see
    /// [`TcpListener::set_accept_ahead`](crate::net::TcpListener::set_accept_ahead).
    pub fn set_accept_ahead(&self, connections: u32) {
        self.acceptor.set_ahead(connections);
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_unix_addr()
    }

    /// Converts a std listener and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        Ok(UnixListener {
            acceptor: Acceptor::new(OwnedDescriptor::adopt(listener)?),
        })
    }

    /// Converts to a non-blocking std listener after cancelling the accepts in flight. Fails, and returns the listener
    /// in the error, if it holds accepted connections, which would be lost: accept them first.
    pub async fn into_std(self) -> Result<std::os::unix::net::UnixListener, IntoStdError<UnixListener>> {
        let released = self.acceptor.release().await;
        IntoStdError::convert(self, released)
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.acceptor.owned
    }
}

fn listen(name: Name) -> io::Result<UnixListener> {
    let socket = OwnedDescriptor::socket(SocketKind::UnixStream).map_err(at("bind", &name))?;
    let listening = socket.bind(&name).and_then(|()| socket.listen(BACKLOG as i32));
    listening.map_err(at("bind", &name))?;
    Ok(UnixListener {
        acceptor: Acceptor::new(socket),
    })
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "UnixListener", self.socket())
    }
}
