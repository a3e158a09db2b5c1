//! A TCP connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::addr::ToSocketAddrs;
use super::builder::TcpBuilder;
use super::socket::{debug_socket, hops, set_hops};
use super::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf, connection_methods};
use crate::driver::op::Medium;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{Halves, impl_async_read, impl_async_write};
use crate::sys::{KeepAlive, SocketOption};

/// A TCP connection.
///
/// Reads and writes take `&self`, so two tasks can use both directions at once. Concurrent calls in the same direction
/// are served in FIFO order and never interleave. Dropping the stream cancels its operations and closes it.
///
/// **Cancel safety:** a dropped read loses nothing, [`read_exact`](TcpStream::read_exact) included: the next read
/// returns the bytes. A dropped write may have sent any prefix of its buffer; the next write waits for it to finish.
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
    /// Connects to an address. If a name resolves to several, the first that answers is used: attempts start 250 ms
    /// apart, or when the previous one has failed, alternating between IPv6 and IPv4 (RFC 8305, "Happy Eyeballs"). If
    /// all fail, the last error is returned. Dropping the future cancels all attempts.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        TcpStream::builder().connect(addr).await
    }

    /// Connects with options, for instance from a given local address.
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

    reading_methods!();
    writing_methods!();

    connection_methods!();

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Whether small writes are sent immediately (`TCP_NODELAY`, Nagle's algorithm off).
    pub fn nodelay(&self) -> io::Result<bool> {
        let is_on = |option| matches!(option, SocketOption::Nodelay(true));
        self.socket().get(SocketOption::Nodelay(false)).map(is_on)
    }

    /// Sets whether small writes are sent immediately (`TCP_NODELAY`).
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket().set(SocketOption::Nodelay(on))
    }

    /// The keepalive times, or `None` if keepalive is off.
    pub fn keepalive(&self) -> io::Result<Option<KeepAlive>> {
        match self.socket().get(SocketOption::KeepAlive(None))? {
            SocketOption::KeepAlive(times) => Ok(times),
            other => unreachable!("keepalive is {other:?}"),
        }
    }

    /// Sets or turns off keepalive probes on an idle connection.
    pub fn set_keepalive(&self, times: Option<KeepAlive>) -> io::Result<()> {
        self.socket().set(SocketOption::KeepAlive(times))
    }

    /// How long closing waits for unsent data (`SO_LINGER`).
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match self.socket().get(SocketOption::Linger(None))? {
            SocketOption::Linger(time) => Ok(time),
            other => unreachable!("linger is {other:?}"),
        }
    }

    /// Sets how long closing waits for unsent data: see [`TcpBuilder::linger`].
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket().set(SocketOption::Linger(time))
    }

    /// The maximum number of hops of a packet.
    pub fn ttl(&self) -> io::Result<u32> {
        hops(self.socket())
    }

    /// Sets the maximum number of hops of a packet.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        set_hops(self.socket(), ttl)
    }

    /// Converts a std stream and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        Ok(TcpStream::from_socket(OwnedDescriptor::adopt(stream)?))
    }

    /// Converts to a non-blocking std stream. Fails, and returns the stream in the error, while an operation is in
    /// progress or received bytes are unread: they would be lost.
    pub fn into_std(self) -> Result<std::net::TcpStream, IntoStdError<TcpStream>> {
        let released = self.socket().release();
        IntoStdError::convert(self, released)
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "TcpStream", self.socket())
    }
}

impl Connection for TcpStream {
    fn bytes(&self) -> &ByteStream {
        &self.bytes
    }
}

impl_async_read!([], TcpStream);
impl_async_read!([], &TcpStream);
impl_async_write!([], TcpStream);
impl_async_write!([], &TcpStream);

impl Halves for TcpStream {
    type ReadHalf<'a> = ReadHalf<'a>;
    type WriteHalf<'a> = WriteHalf<'a>;

    fn halves(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.split()
    }
}

impl OwnedReadHalf {
    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl OwnedWriteHalf {
    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream().peer_addr()
    }
}
