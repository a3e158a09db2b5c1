//! A TCP listener.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::accept::Acceptor;
use super::addr::ToSocketAddrs;
use super::builder::TcpBuilder;
use super::incoming::Incoming;
use super::socket::debug_socket;
use super::stream::TcpStream;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};

/// A listening TCP socket.
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
    /// Listens on the first usable address of a name; port 0 lets the system choose one.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::builder().listen(addr).await
    }

    /// Listens with options: backlog, shared port, options of the accepted connections.
    pub fn builder() -> TcpBuilder {
        TcpBuilder::new()
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    ///
    /// Errors of a single connection (aborted, network down, ...) are skipped. When descriptors or memory are
    /// exhausted, `accept` waits until some are free instead of failing, and reports this once to the exception
    /// handler. `EPERM` and `EOPNOTSUPP` may concern one connection or the listener: they are returned when they
    /// repeat. All other errors concern the listener.
    ///
    /// **Cancel safety:** no connection is lost; the next `accept` returns it.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.acceptor.accept(admit).await
    }

    /// Ends the accept in flight and returns the connections that it has accepted.
    pub(crate) async fn drain(&self) -> Vec<(TcpStream, SocketAddr)> {
        self.acceptor.drain(admit).await
    }

    /// The connections that were accepted ahead of the program, or for an `accept` that was dropped.
    pub(crate) fn take_accepted(&self) -> Vec<(TcpStream, SocketAddr)> {
        self.acceptor.take_accepted(admit)
    }

    /// A stream of the accepted connections, without their peers' addresses, as std's `incoming`. It never ends, also
    /// not after an error. [`into_incoming`](TcpListener::into_incoming) owns the listener.
    ///
    /// **Cancel safety:** dropping the stream loses no connection; the next `accept` returns it.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use windlass::net::{TcpListener, TcpStream};
    /// windlass::run(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
    ///     let addr = listener.local_addr()?;
    ///     let clients = async { (TcpStream::connect(addr).await, TcpStream::connect(addr).await) };
    ///     let served = listener.incoming().take(2).for_each_concurrent(None, async |stream| {
    ///         println!("{stream:?}");
    ///     });
    ///     windlass::task::join((served, clients)).await;
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming::new(async || Ok(self.accept().await?.0))
    }

    /// As [`incoming`](TcpListener::incoming), for a stream that owns the listener.
    pub fn into_incoming(self) -> Incoming<'static> {
        Incoming::new(async move || Ok(self.accept().await?.0))
    }

    /// Sets how many connections the listener may accept at a time. The default is 1; 0 means 1.
    ///
    /// On io_uring one system call can submit several accepts, so during a burst the listener accepts ahead of the
    /// program: it holds at most this many connections that no `accept` call has returned yet; the rest stay in the
    /// kernel's backlog. With 1, and on other drivers, it accepts only on request: a dropped `accept` leaves at most
    /// one connection for the next call.
    /// [`Metrics::accepted_waiting`](crate::diagnostics::metrics::Metrics::accepted_waiting) counts the held
    /// connections; dropping the listener resets them.
    ///
    /// Lowering the limit does not cancel accepts in flight. [`TcpBuilder::accept_ahead`] sets it before the first one.
    pub fn set_accept_ahead(&self, connections: u32) {
        self.acceptor.set_ahead(connections);
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Converts a std listener and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        Ok(TcpListener::from_socket(OwnedDescriptor::adopt(listener)?))
    }

    /// Converts to a non-blocking std listener after cancelling the accepts in flight. Fails, and returns the listener
    /// in the error, if it holds accepted connections, which would be lost: accept them first.
    pub async fn into_std(self) -> Result<std::net::TcpListener, IntoStdError<TcpListener>> {
        let released = self.acceptor.release().await;
        IntoStdError::convert(self, released)
    }

    pub(crate) fn from_socket(socket: OwnedDescriptor) -> TcpListener {
        TcpListener {
            acceptor: Acceptor::new(socket),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.acceptor.owned
    }
}

/// A connection that the peer has already reset has no address any more, and is skipped.
fn admit(socket: OwnedDescriptor) -> Option<(TcpStream, SocketAddr)> {
    let peer = socket.peer_addr().ok()?;
    Some((TcpStream::from_socket(socket), peer))
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "TcpListener", self.socket())
    }
}
