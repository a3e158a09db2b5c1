//! Unix stream sockets.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::socket::{at, name_of_addr, name_of_path};
use crate::driver::op::Medium;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{BufResult, Halves, IoBuf, IoBufMut, impl_async_read, impl_async_write};
use crate::net::datagram::{MsgHdrPool, receive, send};
use crate::net::socket::debug_socket;
use crate::net::split::{Connection, ReadHalf, WriteHalf, connection_methods};
use crate::sys::{Credentials, MOST_DESCRIPTORS, MsgMeta, Name, SocketKind, errno};
use crate::time::sleep;

/// A Unix stream connection.
///
/// Sharing and cancel safety are as for [`TcpStream`](crate::net::TcpStream).
///
/// ```
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, other) = UnixStream::pair()?;
///     one.write_all("ping").await.0?;
///     assert_eq!(&*other.read_managed().await?, b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixStream {
    bytes: ByteStream,
    msg_pool: MsgHdrPool,
}

/// The result of [`UnixStream::recv_with_fds`] and [`UnixDatagram::recv_with_fds`](super::UnixDatagram::recv_with_fds).
///
/// ```
/// use std::{fs::File, io::Read, os::fd::OwnedFd};
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, other) = UnixStream::pair()?;
///     let file: OwnedFd = File::open("/dev/zero")?.into();
///     one.send_with_fds("here it is", vec![file]).await.0?;
///     let (received, buf) = other.recv_with_fds(vec![0; 64], 1).await;
///     let mut received = received?;
///     assert_eq!(&buf[..received.len], b"here it is");
///     let mut byte = [1];
///     File::from(received.fds.remove(0)).read_exact(&mut byte)?;
///     assert_eq!(byte, [0]);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The number of bytes received; on a stream, 0 means end of stream.
    pub len: usize,
    /// The descriptors received, with close-on-exec set.
    pub fds: Vec<OwnedFd>,
    /// Whether more descriptors were sent than `max_fds`: the kernel has closed them.
    pub lost_fds: bool,
}

impl Received {
    pub(super) fn new((len, meta): (usize, MsgMeta)) -> Received {
        Received {
            len,
            fds: meta.descriptors,
            lost_fds: meta.lost_descriptors,
        }
    }
}

impl UnixStream {
    /// Connects to the listener at a path.
    ///
    /// If the listener's backlog is full, this waits for space on Linux; elsewhere the connection is refused.
    ///
    /// **Cancel safety:** dropping the future cancels the attempt.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        connect(name_of_path("connect to", path.as_ref())?).await
    }

    /// Connects to the listener at a std address, which may be an abstract name.
    pub async fn connect_addr(addr: &SocketAddr) -> io::Result<UnixStream> {
        connect(name_of_addr("connect to", addr)?).await
    }

    /// Creates two connected streams.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = OwnedDescriptor::pair(SocketKind::UnixStream)?;
        Ok((UnixStream::from_socket(one), UnixStream::from_socket(other)))
    }

    pub(super) fn from_socket(socket: OwnedDescriptor) -> UnixStream {
        UnixStream {
            bytes: ByteStream::new(socket, Medium::Unix),
            msg_pool: MsgHdrPool::default(),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.bytes.owned
    }

    reading_methods!();
    writing_methods!();

    /// Sends from `buf` with descriptors and returns the number of bytes sent. The descriptors are attached to the
    /// first byte, so `buf` must not be empty. They are then closed, even on an error: duplicate those to keep.
    ///
    /// **Cancel safety:** the bytes and descriptors may or may not have been sent.
    pub async fn send_with_fds<B: IoBuf>(&self, buf: B, fds: Vec<OwnedFd>) -> BufResult<usize, B> {
        if buf.is_empty() {
            let message = "passing descriptors requires at least one byte of data";
            return (Err(io::Error::new(io::ErrorKind::InvalidInput, message)), buf);
        }
        if fds.len() > MOST_DESCRIPTORS {
            return (Err(too_many(fds.len())), buf);
        }
        send(self.socket(), &self.msg_pool, buf, None, fds).await
    }

    /// Receives into `buf`, like [`read`](UnixStream::read), with up to `max_fds` descriptors. Further descriptors are
    /// closed, as are those attached to bytes that another method reads.
    ///
    /// **Cancel safety:** neither bytes nor descriptors are lost.
    pub async fn recv_with_fds<B: IoBufMut>(&self, buf: B, max_fds: usize) -> BufResult<Received, B> {
        let (result, buf) = receive(self.socket(), &self.msg_pool, buf, max_fds, true).await;
        (result.map(Received::new), buf)
    }

    /// The user, group and process of the peer when it called `connect` or `listen`.
    pub fn peer_credentials(&self) -> io::Result<Credentials> {
        self.socket().peer_credentials()
    }

    connection_methods!();

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_unix_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_unix_addr()
    }

    /// Converts a std stream and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        Ok(UnixStream::from_socket(OwnedDescriptor::adopt(stream)?))
    }

    /// Converts to a non-blocking std stream. Fails, and returns the stream in the error, while an operation is in
    /// progress or received bytes are unread: they would be lost.
    pub fn into_std(self) -> Result<std::os::unix::net::UnixStream, IntoStdError<UnixStream>> {
        let released = self.socket().release();
        IntoStdError::convert(self, released)
    }
}

/// Connects. The kernel does not signal when a full backlog has space again, so it retries with exponential back-off.
async fn connect(name: Name) -> io::Result<UnixStream> {
    let mut pause = Duration::from_millis(1);
    loop {
        let socket = OwnedDescriptor::socket(SocketKind::UnixStream).map_err(at("connect to", &name))?;
        match socket.connect(name.clone()).await {
            Ok(()) => return Ok(UnixStream::from_socket(socket)),
            Err(error) if error.raw_os_error() == Some(errno::AGAIN) => {
                drop(socket);
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(error) => return Err(at("connect to", &name)(error)),
        }
    }
}

pub(super) fn too_many(count: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("cannot send {count} descriptors: one message can pass at most {MOST_DESCRIPTORS}"),
    )
}

impl Connection for UnixStream {
    fn bytes(&self) -> &ByteStream {
        &self.bytes
    }
}

impl fmt::Debug for UnixStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "UnixStream", self.socket())
    }
}

impl_async_read!([], UnixStream);
impl_async_read!([], &UnixStream);
impl_async_write!([], UnixStream);
impl_async_write!([], &UnixStream);

impl Halves for UnixStream {
    type ReadHalf<'a> = ReadHalf<'a, UnixStream>;
    type WriteHalf<'a> = WriteHalf<'a, UnixStream>;

    fn halves(&mut self) -> (ReadHalf<'_, UnixStream>, WriteHalf<'_, UnixStream>) {
        self.split()
    }
}
