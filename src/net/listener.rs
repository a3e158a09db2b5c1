//! Listening for TCP connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::accept::Acceptor;
use super::addr::ToSocketAddrs;
use super::builder::TcpBuilder;
use super::stream::TcpStream;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::sys;

/// A TCP socket that listens.
///
/// ```no_run
/// use windlass::net::TcpListener;
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:8080").await?;
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer} connected: {stream:?}");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpListener {
    acceptor: Acceptor,
}

impl TcpListener {
    /// Listens on an address; port 0 lets the system choose one. If the address is a name with several addresses, the
    /// first that can be bound is taken.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::builder().listen(addr).await
    }

    /// How to listen otherwise: a longer backlog, a shared port, options of the connections.
    pub fn builder() -> TcpBuilder {
        TcpBuilder::new()
    }

    /// Takes the next connection.
    ///
    /// Dropping the future loses no connection: the next `accept` gets it.
    ///
    /// # Errors
    ///
    /// Errors of one connection (it was aborted, its network is down, ...) are skipped. When the process has no descriptors
    /// or the system no memory left, this waits until there are some instead of failing, and reports that once to the exception
    /// handler. `EPERM` and `EOPNOTSUPP` can be one connection's or the listener's: they are returned when they repeat. All
    /// other errors are the listener's.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        // A peer that has reset the connection has no address any more, and nobody to serve.
        let admit = |socket: OwnedDescriptor| {
            let peer = socket.peer_addr().ok()?;
            Some((TcpStream::from_socket(socket), peer))
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
    /// Accepts that have started are not taken back when the limit is lowered. [`TcpBuilder::accept_ahead`] sets it before the
    /// first one.
    pub fn set_accept_ahead(&self, connections: u32) {
        self.acceptor.set_ahead(connections);
    }

    /// The address that the listener is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Makes a listener of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        Ok(TcpListener::from_socket(OwnedDescriptor::adopt(listener)?))
    }

    /// Makes it one of std's, non-blocking, once the kernel has stopped handing over connections. Refused, with the
    /// listener, if it had handed over some already: accept them first, or they would be lost.
    pub async fn into_std(self) -> Result<std::net::TcpListener, IntoStdError<TcpListener>> {
        match self.acceptor.release().await {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, acceptor)) => Err(IntoStdError {
                inner: TcpListener { acceptor },
                error,
            }),
        }
    }

    pub(super) fn from_socket(socket: OwnedDescriptor) -> TcpListener {
        TcpListener {
            acceptor: Acceptor::new(socket),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.acceptor.owned
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener")
            .field("fd", &self.socket().fd())
            .field("local", &self.socket().local_addr().ok())
            .finish()
    }
}
