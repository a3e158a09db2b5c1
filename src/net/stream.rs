//! A TCP connection.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};

use super::addr::ToSocketAddrs;
use super::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::byte_stream::{ByteStream, count, reading_methods, writing_methods};
use crate::descriptor::{IntoStdError, OwnedDescriptor};
use crate::driver::Control;
use crate::error::context;
use crate::flight::{Fate, Flying};
use crate::op::{Medium, Op};
use crate::sys;

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
    /// Connects. If the address is a name with several addresses, they are tried one after the other.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let explain = |error| context(format_args!("connect to {}", addr.shown()), error);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for addr in addr.resolve().await.map_err(explain)? {
            match TcpStream::connect_one(addr).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(explain(last))
    }

    async fn connect_one(addr: SocketAddr) -> io::Result<TcpStream> {
        let socket = OwnedDescriptor::make(Control::Socket { addr })?;
        let descriptor = &socket.descriptor;
        let fd = descriptor.fd;
        let (landing, _) = Flying::launch(
            &descriptor.core,
            &descriptor.write,
            Fate::Discard,
            descriptor.clone(),
            0,
            |_| Op::Connect { fd, addr },
        )
        .await;
        count(landing.outcome)?;
        Ok(TcpStream::from_socket(socket))
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
        self.socket().nodelay()
    }

    /// Lets small writes leave at once (turns Nagle's algorithm off), or not.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket().set_nodelay(on)
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
