//! Listening for connections within the machine.

use std::fmt;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::stream::UnixStream;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::net::accept::{Acceptor, BACKLOG};
use crate::sys::{self, Name, SocketKind, context};

/// A Unix socket that listens.
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
    /// Listens at a path, which must not be there yet.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        let path = path.as_ref();
        let explain = |error| context(format_args!("bind {}", shown(path)), error);
        Name::from_path(path).and_then(listen).map_err(explain)
    }

    /// Listens at one of std's addresses, which may be an abstract name.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<UnixListener> {
        let explain = |error| context(format_args!("bind {addr:?}"), error);
        Name::from_unix(addr).and_then(listen).map_err(explain)
    }

    /// Takes the next connection, with the address of the other end, which is mostly unnamed.
    ///
    /// Dropping the future loses no connection: the next `accept` gets it.
    ///
    /// # Errors
    ///
    /// Errors of one connection are skipped. When the process has no descriptors or the system no memory left, this waits until
    /// there are some instead of failing, and reports that once to the exception handler. `EPERM` and `EOPNOTSUPP` are returned
    /// when they repeat. All other errors are the listener's.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        // A peer that is gone already may have left something to read.
        let admit = |socket: OwnedDescriptor| {
            let peer = socket.peer_unix_addr().or_else(|_| SocketAddr::from_pathname(""));
            Some((UnixStream::from_socket(socket), peer.ok()?))
        };
        self.acceptor.accept(admit).await
    }

    /// Limits how many connections the runtime may accept before the program asks for them (1: none).
    ///
    /// On io_uring several accepts can be submitted with one system call, so while connections come in bursts the runtime
    /// accepts up to this many at a time. At no time does it hold more connections than this that no `accept` call has
    /// returned, whether or not such a call is pending; the rest stay in the kernel's backlog. 0 and 1 mean that the runtime
    /// accepts only what the program asks for: an `accept` that was dropped leaves at most one connection, for the next call.
    /// Other drivers always behave so. [`Metrics::accepted_waiting`](crate::diagnostics::metrics::Metrics::accepted_waiting) counts the
    /// connections that are held; dropping the listener resets them.
    ///
    /// Accepts that have started are not taken back when the limit is lowered.
    pub fn set_accept_ahead(&self, connections: u32) {
        self.acceptor.set_ahead(connections);
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_unix_addr()
    }

    /// Makes a listener of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        Ok(UnixListener {
            acceptor: Acceptor::new(OwnedDescriptor::adopt(listener)?),
        })
    }

    /// Makes it one of std's, non-blocking, once the kernel has stopped handing over connections. Refused, with the
    /// listener, if it had handed over some already: accept them first, or they would be lost.
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

/// A path as messages show it; an abstract name has an `@`.
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
