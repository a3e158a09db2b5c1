//! Connections within the machine.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::listener::shown;
use crate::driver::op::Medium;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{BufResult, IoBuf, IoBufMut};
use crate::net::datagram::{MsgHdrPool, receive, send};
use crate::net::split::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::sys::{self, Credentials, MOST_DESCRIPTORS, MsgMeta, Name, SocketKind, context, errno};
use crate::time::sleep;

/// A connection within the machine. What is said of [`TcpStream`](crate::net::TcpStream) about sharing and cancelling
/// holds here too.
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

/// What [`UnixStream::recv_with_fds`] and [`UnixDatagram::recv_with_fds`](super::UnixDatagram::recv_with_fds) give.
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
    /// How many bytes came; 0 on a stream is its end.
    pub len: usize,
    /// The descriptors that came with them, closed on exec.
    pub fds: Vec<OwnedFd>,
    /// Whether there were more descriptors than room was made for: the kernel has closed them.
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
    /// If that has a full backlog, this waits until there is room on Linux; elsewhere it is refused. Dropping the future ends
    /// the attempt.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        let path = path.as_ref();
        let explain = |error| context(format_args!("connect to {}", shown(path)), error);
        let name = Name::from_path(path).map_err(explain)?;
        connect(name).await.map_err(explain)
    }

    /// Connects to the listener at one of std's addresses, which may be an abstract name.
    pub async fn connect_addr(addr: &SocketAddr) -> io::Result<UnixStream> {
        let explain = |error| context(format_args!("connect to {addr:?}"), error);
        let name = Name::from_unix(addr).map_err(explain)?;
        connect(name).await.map_err(explain)
    }

    /// Two that are connected to each other.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
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

    pub(crate) fn bytes(&self) -> &ByteStream {
        &self.bytes
    }

    reading_methods!();
    writing_methods!();

    /// Sends from `buf` and passes descriptors along, and gives how many bytes were taken. The descriptors come with the
    /// first of them; so `buf` must not be empty. They are closed here whether they could be sent or not: duplicate what is
    /// to stay. If the future is dropped, bytes and descriptors may have been sent or not.
    pub async fn send_with_fds<B: IoBuf>(&self, buf: B, fds: Vec<OwnedFd>) -> BufResult<usize, B> {
        if buf.is_empty() {
            let why = "descriptors need at least one byte to come with";
            return (Err(io::Error::new(io::ErrorKind::InvalidInput, why)), buf);
        }
        if fds.len() > MOST_DESCRIPTORS {
            return (Err(too_many(fds.len())), buf);
        }
        send(self.socket(), &self.msg_pool, buf, None, fds).await
    }

    /// Receives into `buf` as [`read`](UnixStream::read), and with it up to `most_fds` descriptors. Reads that make no room
    /// for descriptors lose those that come with what they read.
    ///
    /// Dropping the future loses nothing, neither bytes nor descriptors.
    pub async fn recv_with_fds<B: IoBufMut>(&self, buf: B, most_fds: usize) -> BufResult<Received, B> {
        let (result, buf) = receive(self.socket(), &self.msg_pool, buf, most_fds, true).await;
        (result.map(Received::new), buf)
    }

    /// Who is at the other end: the user, group and process that connected, or listened.
    pub fn peer_credentials(&self) -> io::Result<Credentials> {
        self.socket().peer_credentials()
    }

    /// Shuts down one or both directions. Shutting down the writing side waits for the write that is under way; the
    /// peer then sees the end of the stream.
    ///
    /// With [`AsyncWrite`](crate::io::AsyncWrite) in scope this is the one that is called: the trait's, which takes no
    /// argument and ends the writing side, is `AsyncWrite::shutdown(&mut stream)`.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.bytes.shutdown(how).await
    }

    /// Two borrowed halves, for code that reads and writes at the same time in one task.
    pub fn split(&self) -> (ReadHalf<'_, UnixStream>, WriteHalf<'_, UnixStream>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Two owned halves, for two tasks.
    pub fn into_split(self) -> (OwnedReadHalf<UnixStream>, OwnedWriteHalf<UnixStream>) {
        OwnedReadHalf::pair(self)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_unix_addr()
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_unix_addr()
    }

    /// Makes a stream of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        Ok(UnixStream::from_socket(OwnedDescriptor::adopt(stream)?))
    }

    /// Makes it one of std's, non-blocking. Refused, with the stream, while a read or a write is under way or received
    /// bytes are unread: they would be lost.
    pub fn into_std(self) -> Result<std::os::unix::net::UnixStream, IntoStdError<UnixStream>> {
        match self.bytes.owned.release() {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, socket)) => Err(IntoStdError {
                inner: UnixStream::from_socket(socket),
                error,
            }),
        }
    }
}

/// Connects. A full backlog is no news that a kernel tells of when it ends, so it is tried again, ever less often.
async fn connect(name: Name) -> io::Result<UnixStream> {
    let mut pause = Duration::from_millis(1);
    loop {
        let socket = OwnedDescriptor::socket(SocketKind::UnixStream)?;
        match socket.connect(name.clone()).await {
            Ok(()) => return Ok(UnixStream::from_socket(socket)),
            Err(error) if error.raw_os_error() == Some(errno::AGAIN) => {
                drop(socket);
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn too_many(count: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{count} descriptors at once: at most {MOST_DESCRIPTORS} can be passed with one message"),
    )
}

impl Connection for UnixStream {
    fn bytes(&self) -> &ByteStream {
        &self.bytes
    }
}

impl fmt::Debug for UnixStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixStream")
            .field("fd", &self.socket().fd())
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .finish()
    }
}
