//! A Unix stream listener.

use std::fmt;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::stream::UnixStream;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::net::accept::{Acceptor, BACKLOG};
use crate::sys::{self, Name, SocketKind, context};

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
        let path = path.as_ref();
        let explain = |error| context(format_args!("bind {}", shown(path)), error);
        Name::from_path(path).and_then(listen).map_err(explain)
    }

    /// Listens at a std address, which may be an abstract name.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<UnixListener> {
        let explain = |error| context(format_args!("bind {addr:?}"), error);
        Name::from_unix(addr).and_then(listen).map_err(explain)
    }

    /// Accepts the next connection and returns it with the peer's address, which is usually unnamed.
    ///
    /// # Errors
    ///
    /// Errors of a single connection are skipped. When descriptors or memory are exhausted, `accept` waits until some
    /// are free instead of failing, and reports it once to the exception handler. `EPERM` and `EOPNOTSUPP` are returned
    /// when they repeat. All other errors concern the listener.
    ///
    /// **Cancel safety:** no connection is lost; the next `accept` returns it.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        // A peer that is already gone may have left data to read.
        let admit = |socket: OwnedDescriptor| {
            let peer = socket.peer_unix_addr().or_else(|_| SocketAddr::from_pathname(""));
            Some((UnixStream::from_socket(socket), peer.ok()?))
        };
        self.acceptor.accept(admit).await
    }

    /// Limits how many connections the runtime may accept before the program asks for them (1: none): see
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
        match self.acceptor.release().await {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, acceptor)) => Err(IntoStdError {
                inner: UnixListener { acceptor },
                error,
            }),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.acceptor.owned
    }
}

fn listen(name: Name) -> io::Result<UnixListener> {
    let socket = OwnedDescriptor::socket(SocketKind::UnixStream)?;
    socket.bind(&name)?;
    socket.listen(BACKLOG as i32)?;
    Ok(UnixListener {
        acceptor: Acceptor::new(socket),
    })
}

/// Formats a path for error messages; an abstract name starts with `@`.
pub(super) fn shown(path: &Path) -> String {
    match path.to_string_lossy().strip_prefix('\0') {
        Some(name) => format!("@{name}"),
        None => path.display().to_string(),
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixListener")
            .field("fd", &self.socket().fd())
            .field("local", &self.local_addr().ok())
            .finish()
    }
}
