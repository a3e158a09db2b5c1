//! Unix datagram sockets. Unlike UDP they are reliable: a send waits until the receiver's queue has space.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use super::retry::send_with_retry;
use super::socket::{at, name_of_addr, name_of_path};
use super::stream::{Received, too_many};
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::io::{BufResult, IoBuf, IoBufMut};
use crate::net::datagram::{MsgHdrPool, receive, truncated_error};
use crate::net::socket::debug_socket;
use crate::sys::{MOST_DESCRIPTORS, MsgMeta, Name, SocketKind, context};

/// A Unix datagram socket.
///
/// Sharing and cancel safety are as for [`UdpSocket`](crate::net::UdpSocket).
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
    /// The connected address, for error messages: the kernel forgets it when the peer closes.
    peer: RefCell<Option<String>>,
}

impl UnixDatagram {
    /// Binds a socket to a path, which must not exist yet.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        bound(name_of_path("bind", path.as_ref())?)
    }

    /// Binds a socket to a std address, which may be an abstract name.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<UnixDatagram> {
        bound(name_of_addr("bind", addr)?)
    }

    /// Creates a socket without an address: it can send, but receivers cannot reply.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    pub fn unbound() -> io::Result<UnixDatagram> {
        OwnedDescriptor::socket(SocketKind::UnixDatagram).map(UnixDatagram::from_socket)
    }

    /// Creates two connected sockets.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = OwnedDescriptor::pair(SocketKind::UnixDatagram)?;
        Ok((UnixDatagram::from_socket(one), UnixDatagram::from_socket(other)))
    }

    /// Sets the destination of [`send`](UnixDatagram::send); datagrams from other sockets are discarded.
    pub async fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.connect_to(name_of_path("connect to", path.as_ref())?).await
    }

    /// Connects to a std address: see [`connect`](UnixDatagram::connect).
    pub async fn connect_addr(&self, addr: &SocketAddr) -> io::Result<()> {
        self.connect_to(name_of_addr("connect to", addr)?).await
    }

    /// Sends a datagram to the socket at a path and returns its length.
    pub async fn send_to<B: IoBuf>(&self, buf: B, path: impl AsRef<Path>) -> BufResult<usize, B> {
        match name_of_path("send to", path.as_ref()) {
            Ok(name) => self.send_to_name(buf, &name).await,
            Err(error) => (Err(error), buf),
        }
    }

    /// Sends a datagram to a std address, for instance the sender of a received one, and returns its length.
    pub async fn send_to_addr<B: IoBuf>(&self, buf: B, addr: &SocketAddr) -> BufResult<usize, B> {
        match name_of_addr("send to", addr) {
            Ok(name) => self.send_to_name(buf, &name).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn send_to_name<B: IoBuf>(&self, buf: B, name: &Name) -> BufResult<usize, B> {
        let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, Some(name), Vec::new()).await;
        (result.map_err(at("send to", name)), buf)
    }

    /// Sends a datagram to the connected address and returns its length.
    pub async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, None, Vec::new()).await;
        (result.map_err(|error| self.with_peer(error)), buf)
    }

    /// Sends a datagram with descriptors to the connected address and returns its length. The descriptors are then
    /// closed, even on an error: duplicate those to keep.
    pub async fn send_with_fds<B: IoBuf>(&self, buf: B, fds: Vec<OwnedFd>) -> BufResult<usize, B> {
        if fds.len() > MOST_DESCRIPTORS {
            return (Err(too_many(fds.len())), buf);
        }
        let (result, buf) = send_with_retry(&self.socket, &self.msg_pool, buf, None, fds).await;
        (result.map_err(|error| self.with_peer(error)), buf)
    }

    /// Receives a datagram into `buf`, from its start up to its capacity, and returns its length and the sender. A
    /// datagram that does not fit is an error; the buffer contains its beginning, and the rest is lost.
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

    /// Receives a datagram into `buf` and returns its length.
    pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = self.receive(buf, 0).await;
        (result.map(|(count, _)| count), buf)
    }

    /// Receives a datagram with up to `max_fds` descriptors into `buf`. Further descriptors are closed, as are all of a
    /// truncated datagram, and those of a datagram that another method receives.
    pub async fn recv_with_fds<B: IoBufMut>(&self, buf: B, max_fds: usize) -> BufResult<Received, B> {
        let (result, buf) = self.receive(buf, max_fds).await;
        (result.map(Received::new), buf)
    }

    async fn receive<B: IoBufMut>(&self, buf: B, max_fds: usize) -> BufResult<(usize, MsgMeta), B> {
        let (result, buf) = receive(&self.socket, &self.msg_pool, buf, max_fds, false).await;
        let result = result.and_then(|(count, meta)| match meta.is_truncated {
            true => Err(truncated_error(count)),
            false => Ok((count, meta)),
        });
        (result, buf)
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_unix_addr()
    }

    /// The connected address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_unix_addr()
    }

    /// Converts a std socket and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<UnixDatagram> {
        Ok(UnixDatagram::from_socket(OwnedDescriptor::adopt(socket)?))
    }

    /// Converts to a non-blocking std socket. Fails, and returns the socket in the error, while an operation is in
    /// progress or a received datagram is unread: it would be lost.
    pub fn into_std(self) -> Result<std::os::unix::net::UnixDatagram, IntoStdError<UnixDatagram>> {
        let released = self.socket.release();
        IntoStdError::convert(self, released)
    }

    fn from_socket(socket: OwnedDescriptor) -> UnixDatagram {
        UnixDatagram {
            socket,
            msg_pool: MsgHdrPool::default(),
            peer: RefCell::default(),
        }
    }

    async fn connect_to(&self, name: Name) -> io::Result<()> {
        let connected = self.socket.connect(name.clone()).await;
        connected.map_err(at("connect to", &name))?;
        self.peer.replace(Some(name.to_string()));
        Ok(())
    }

    /// Adds the peer of a connected socket to an error.
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
    let socket = OwnedDescriptor::socket(SocketKind::UnixDatagram).map_err(at("bind", &name))?;
    socket.bind(&name).map_err(at("bind", &name))?;
    Ok(UnixDatagram::from_socket(socket))
}

impl fmt::Debug for UnixDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "UnixDatagram", &self.socket)
    }
}
