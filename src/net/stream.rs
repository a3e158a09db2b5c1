//! A TCP connection.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use super::addr::ToSocketAddrs;
use super::builder::TcpBuilder;
use super::socket::{hops, set_hops};
use super::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::driver::op::Medium;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::sys::{self, KeepAlive, SocketOption};

/// A TCP connection.
///
/// Reads and writes take `&self`, so two tasks can use both directions at once, and even the same one: calls on one
/// direction happen one after the other, in the order in which they were made, each as a whole.
///
/// **Cancelling** a read (dropping its future) loses nothing: what it would have received goes to the next read. That
/// holds for every reading call, [`read_exact`](TcpStream::read_exact) among them. A cancelled write may have sent any
/// part from the front of its buffer; the next write waits until that is over.
///
/// Dropping the stream cancels what is under way and closes the connection.
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// # windlass::run(async {
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let addr = listener.local_addr()?;
/// let stream = TcpStream::connect(addr).await?;
/// # let (peer, _) = listener.accept().await?;
/// stream.write_all("ping").await.0?;
/// # peer.write_all(peer.read_managed().await?).await.0?;
/// let (result, buf) = stream.read(vec![0; 16]).await;
/// assert_eq!((result?, &buf[..]), (4, &b"ping"[..]));
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpStream {
    bytes: ByteStream,
}

impl TcpStream {
    /// Connects. If the address is a name with several addresses, the first that answers is taken: attempts begin 250 ms
    /// apart, or when the one before has failed, IPv6 and IPv4 in turn (RFC 8305, "Happy Eyeballs").
    ///
    /// Dropping the future ends every attempt.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        TcpStream::builder().connect(addr).await
    }

    /// How to connect otherwise: from a certain address, with options.
    pub fn builder() -> TcpBuilder {
        TcpBuilder::new()
    }

    pub(crate) fn from_socket(socket: OwnedDescriptor) -> TcpStream {
        TcpStream {
            bytes: ByteStream::new(socket, Medium::Tcp),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.bytes.owned
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    reading_methods!();
    writing_methods!();

    /// Shuts down one or both directions. Shutting down the writing side waits for the write that is under way; the
    /// peer then sees the end of the stream.
    ///
    /// With [`AsyncWrite`](crate::io::AsyncWrite) in scope this is the one that is called: the trait's, which takes no
    /// argument and ends the writing side, is `AsyncWrite::shutdown(&mut stream)`.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.bytes.shutdown(how).await
    }

    /// Two borrowed halves, for code that reads and writes at the same time in one task.
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Two owned halves, for two tasks.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        OwnedReadHalf::pair(self)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Whether small writes leave at once (Nagle's algorithm is off).
    pub fn nodelay(&self) -> io::Result<bool> {
        let is_on = |option| matches!(option, SocketOption::Nodelay(true));
        self.socket().get(SocketOption::Nodelay(false)).map(is_on)
    }

    /// Lets small writes leave at once (turns Nagle's algorithm off), or not.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket().set(SocketOption::Nodelay(on))
    }

    /// Whether and when a quiet connection is asked whether it is still there.
    pub fn keepalive(&self) -> io::Result<Option<KeepAlive>> {
        match self.socket().get(SocketOption::KeepAlive(None))? {
            SocketOption::KeepAlive(times) => Ok(times),
            other => unreachable!("keepalive is {other:?}"),
        }
    }

    /// Sets whether and when a quiet connection is asked whether it is still there.
    pub fn set_keepalive(&self, times: Option<KeepAlive>) -> io::Result<()> {
        self.socket().set(SocketOption::KeepAlive(times))
    }

    /// How long closing waits for what was written to arrive.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match self.socket().get(SocketOption::Linger(None))? {
            SocketOption::Linger(time) => Ok(time),
            other => unreachable!("linger is {other:?}"),
        }
    }

    /// Sets how long closing waits, on a thread, for what was written to arrive, in seconds, rounded up. Zero resets the connection when it is
    /// dropped: the peer learns that something went wrong.
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket().set(SocketOption::Linger(time))
    }

    /// How many routers a packet passes at most.
    pub fn ttl(&self) -> io::Result<u32> {
        hops(self.socket())
    }

    /// Sets how many routers a packet passes at most.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        set_hops(self.socket(), ttl)
    }

    /// Makes a stream of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        Ok(TcpStream::from_socket(OwnedDescriptor::adopt(stream)?))
    }

    /// Makes it one of std's, non-blocking. Refused, with the stream, while a read or a write is under way or received
    /// bytes are unread: they would be lost.
    pub fn into_std(self) -> Result<std::net::TcpStream, IntoStdError<TcpStream>> {
        match self.bytes.owned.release() {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, socket)) => Err(IntoStdError {
                inner: TcpStream::from_socket(socket),
                error,
            }),
        }
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("fd", &self.socket().fd())
            .field("local", &self.socket().local_addr().ok())
            .field("peer", &self.socket().peer_addr().ok())
            .finish()
    }
}

impl Connection for TcpStream {
    fn bytes(&self) -> &ByteStream {
        &self.bytes
    }
}

impl OwnedReadHalf {
    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl OwnedWriteHalf {
    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream().peer_addr()
    }
}
