//! Datagrams within the machine. Unlike UDP's they do not get lost: a send waits until there is room.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::listener::shown;
use super::retry::send_with_retry;
use super::stream::{Received, too_many};
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::io::{BufResult, IoBuf, IoBufMut};
use crate::net::datagram::{MsgHdrPool, cut_off, receive};
use crate::sys::{self, MOST_DESCRIPTORS, MsgMeta, Name, SocketKind, context};

/// A Unix socket for datagrams. What is said of [`UdpSocket`](crate::net::UdpSocket) about sharing and cancelling holds
/// here too.
///
/// ```
/// use windlass::net::UnixDatagram;
/// windlass::run(async {
///     let (one, other) = UnixDatagram::pair()?;
///     one.send("ping").await.0?;
///     one.send("pong").await.0?;
///     let (result, buf) = other.recv(vec![0; 64]).await;
///     assert_eq!(&buf[..result?], b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UnixDatagram {
    socket: OwnedDescriptor,
    msg_pool: MsgHdrPool,
    /// Whom it was connected to, for messages: when that is gone, the kernel has forgotten it.
    peer: RefCell<Option<String>>,
}

impl UnixDatagram {
    /// A socket at a path, which must not be there yet.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let path = path.as_ref();
        let explain = |error| context(format_args!("bind {}", shown(path)), error);
        Name::from_path(path).and_then(bound).map_err(explain)
    }

    /// A socket at one of std's addresses, which may be an abstract name.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<UnixDatagram> {
        let explain = |error| context(format_args!("bind {addr:?}"), error);
        Name::from_unix(addr).and_then(bound).map_err(explain)
    }

    /// A socket without an address: it can send, and nobody can answer.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    pub fn unbound() -> io::Result<UnixDatagram> {
        OwnedDescriptor::socket(SocketKind::UnixDatagram).map(UnixDatagram::from_socket)
    }

    /// Two that are connected to each other.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = OwnedDescriptor::pair(SocketKind::UnixDatagram)?;
        Ok((UnixDatagram::from_socket(one), UnixDatagram::from_socket(other)))
    }

    /// Sets whom [`send`](UnixDatagram::send) sends to; datagrams from others are not received any more.
    pub async fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let explain = |error| context(format_args!("connect to {}", shown(path)), error);
        let name = Name::from_path(path).map_err(explain)?;
        self.connect_to(name).await.map_err(explain)
    }

    /// The same, with one of std's addresses.
    pub async fn connect_addr(&self, addr: &SocketAddr) -> io::Result<()> {
        let explain = |error| context(format_args!("connect to {addr:?}"), error);
        let name = Name::from_unix(addr).map_err(explain)?;
        self.connect_to(name).await.map_err(explain)
    }

    /// Sends a datagram to the socket at a path, and gives its length.
    pub async fn send_to<B: IoBuf>(&self, buf: B, path: impl AsRef<Path>) -> BufResult<usize, B> {
        let path = path.as_ref();
        let explain = |error| context(format_args!("send to {}", shown(path)), error);
        match Name::from_path(path) {
            Ok(name) => {
                let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, Some(&name), Vec::new()).await;
                (result.map_err(explain), buf)
            }
            Err(error) => (Err(explain(error)), buf),
        }
    }

    /// The same, with one of std's addresses: that of a received datagram's sender, for instance.
    pub async fn send_to_addr<B: IoBuf>(&self, buf: B, addr: &SocketAddr) -> BufResult<usize, B> {
        let explain = |error| context(format_args!("send to {addr:?}"), error);
        match Name::from_unix(addr) {
            Ok(name) => {
                let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, Some(&name), Vec::new()).await;
                (result.map_err(explain), buf)
            }
            Err(error) => (Err(explain(error)), buf),
        }
    }

    /// Sends a datagram to who the socket is connected to, and gives its length.
    pub async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, None, Vec::new()).await;
        (result.map_err(|error| self.with_peer(error)), buf)
    }

    /// Sends a datagram to who the socket is connected to, and passes descriptors along. They are closed here whether they
    /// could be sent or not: duplicate what is to stay.
    pub async fn send_with_fds<B: IoBuf>(&self, buf: B, fds: Vec<OwnedFd>) -> BufResult<usize, B> {
        if fds.len() > MOST_DESCRIPTORS {
            return (Err(too_many(fds.len())), buf);
        }
        let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, None, fds).await;
        (result.map_err(|error| self.with_peer(error)), buf)
    }

    /// Receives a datagram into `buf`, from its start and up to its capacity, and gives its length and who sent it.
    ///
    /// One that does not fit is an error, with what did fit in the buffer; the rest is lost.
    pub async fn recv_from<B: IoBufMut>(&self, buf: B) -> BufResult<(usize, SocketAddr), B> {
        let (result, buf) = self.receive(buf, 0).await;
        let result = result.and_then(|(count, meta)| {
            let sender = match meta.sender {
                Some(name) => name.to_unix(),
                None => SocketAddr::from_pathname("")?,
            };
            Ok((count, sender))
        });
        (result, buf)
    }

    /// Receives a datagram into `buf`, and gives its length.
    pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = self.receive(buf, 0).await;
        (result.map(|(count, _)| count), buf)
    }

    /// Receives a datagram into `buf`, and with it up to `most_fds` descriptors. Receives that make no room for descriptors
    /// lose them, and so does one whose datagram is cut off.
    pub async fn recv_with_fds<B: IoBufMut>(&self, buf: B, most_fds: usize) -> BufResult<Received, B> {
        let (result, buf) = self.receive(buf, most_fds).await;
        (result.map(Received::new), buf)
    }

    async fn receive<B: IoBufMut>(&self, buf: B, most_fds: usize) -> BufResult<(usize, MsgMeta), B> {
        let (result, buf) = receive(&self.socket, &self.msg_pool, buf, most_fds, false).await;
        let result = result.and_then(|(count, meta)| match meta.is_truncated {
            true => Err(cut_off(count)),
            false => Ok((count, meta)),
        });
        (result, buf)
    }

    /// The address of this socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_unix_addr()
    }

    /// The address that the socket is connected to.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_unix_addr()
    }

    /// Makes a socket of one of std's; it becomes non-blocking.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<UnixDatagram> {
        Ok(UnixDatagram::from_socket(OwnedDescriptor::adopt(socket)?))
    }

    /// Makes it one of std's, non-blocking. Refused, with the socket, while a call is under way or a received datagram is
    /// unread: it would be lost.
    pub fn into_std(self) -> Result<std::os::unix::net::UnixDatagram, IntoStdError<UnixDatagram>> {
        match self.socket.release() {
            Ok(fd) => Ok(sys::into_std(fd)),
            Err((error, socket)) => Err(IntoStdError {
                inner: UnixDatagram::from_socket(socket),
                error,
            }),
        }
    }

    fn from_socket(socket: OwnedDescriptor) -> UnixDatagram {
        UnixDatagram {
            socket,
            msg_pool: MsgHdrPool::default(),
            peer: RefCell::default(),
        }
    }

    async fn connect_to(&self, name: Name) -> io::Result<()> {
        let shown = name.to_string();
        self.socket.connect(name).await?;
        self.peer.replace(Some(shown));
        Ok(())
    }

    /// An error of a socket that is connected names its peer.
    fn with_peer(&self, error: io::Error) -> io::Error {
        match &*self.peer.borrow() {
            Some(peer) => context(format_args!("send to {peer}"), error),
            None => error,
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.socket
    }
}

fn bound(name: Name) -> io::Result<UnixDatagram> {
    let socket = OwnedDescriptor::socket(SocketKind::UnixDatagram)?;
    socket.bind(&name)?;
    Ok(UnixDatagram::from_socket(socket))
}

impl fmt::Debug for UnixDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixDatagram")
            .field("fd", &self.socket.fd())
            .field("local", &self.local_addr().ok())
            .field("peer", &self.peer_addr().ok())
            .finish()
    }
}
