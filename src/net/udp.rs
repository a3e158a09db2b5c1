//! UDP sockets.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;

use super::addr::{ToSocketAddrs, resolve, try_each};
use super::datagram::{MsgHdrPool, receive, receive_managed, send, truncated_error};
use super::socket::{debug_socket, hops, inet, set_hops};
use super::udp_builder::UdpBuilder;
use crate::inflight::descriptor::{IntoStdError, OwnedDescriptor};
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf};
use crate::sys::{MsgMeta, Name, SocketOption, context};

/// A UDP socket.
///
/// Methods take `&self`, so one task can receive while another sends.
///
/// **Cancel safety:** a dropped receive loses nothing: the next one returns the whole datagram. A dropped send may have
/// sent its datagram.
///
/// ```
/// use windlass::net::UdpSocket;
/// windlass::run(async {
///     let server = UdpSocket::bind("127.0.0.1:0").await?;
///     let client = UdpSocket::bind("127.0.0.1:0").await?;
///     client.send_to("ping", server.local_addr()?).await.0?;
///     let (result, buf) = server.recv_from(vec![0; 1500]).await;
///     let (count, from) = result?;
///     assert_eq!((&buf[..count], from), (&b"ping"[..], client.local_addr()?));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UdpSocket {
    socket: OwnedDescriptor,
    msg_pool: MsgHdrPool,
    /// Whether several datagrams may be waiting: the last batch had more than one.
    expects_more: Cell<bool>,
    /// Whether the kernel coalesces received datagrams.
    is_gro: Cell<bool>,
    /// Whether the kernel splits sent messages into datagrams, once it was asked.
    has_gso: Cell<Option<bool>>,
}

/// A received datagram in a managed buffer: see [`UdpSocket::recv_managed`]. It dereferences to `[u8]`.
///
/// ```
/// use windlass::net::UdpSocket;
/// windlass::run(async {
///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
///     socket.send_to("to myself", socket.local_addr()?).await.0?;
///     let datagram = socket.recv_managed().await?;
///     assert_eq!(&*datagram, b"to myself");
///     assert_eq!(datagram.from(), socket.local_addr()?);
///     assert!(!datagram.is_truncated());
///     // The buffer can be sent back without a copy, and returns to the pool afterwards.
///     let to = datagram.from();
///     socket.send_to(datagram.into_bytes(), to).await.0?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Datagram {
    bytes: ManagedBuf,
    from: SocketAddr,
    is_truncated: bool,
}

impl UdpSocket {
    /// Binds a socket to the first usable address of a name; port 0 lets the system choose one.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::builder().bind(addr).await
    }

    /// Sets options before binding or connecting, such as [`reuse_port`](UdpBuilder::reuse_port).
    pub fn builder() -> UdpBuilder {
        UdpBuilder::default()
    }

    /// Sets the destination of [`send`](UdpSocket::send); datagrams from other addresses are discarded. If a name
    /// resolves to several addresses, the first that works is used.
    ///
    /// This sends no packet. If nothing listens there, later sends and receives may return `ConnectionRefused`.
    ///
    /// **Cancel safety:** the socket may or may not be connected.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        try_each("connect to", &addr, async |addr| self.socket.connect(addr.into()).await).await
    }

    /// Sends a datagram, which may be empty, to an address, or to the first address of a name that has the socket's family,
    /// and returns its length.
    pub async fn send_to<B: IoBuf>(&self, buf: B, to: impl ToSocketAddrs) -> BufResult<usize, B> {
        let addr = match self.destination(&to).await {
            Ok(addr) => addr,
            Err(error) => return (Err(error), buf),
        };
        let name = Name::from(addr);
        let (result, buf) = send(&self.socket, &self.msg_pool, buf, Some(&name), Vec::new()).await;
        let explain = |error| context(format_args!("send to {}", to.describe()), error);
        (result.map_err(explain), buf)
    }

    /// The first address of a name that has the socket's family; the first of all if none has.
    pub(super) async fn destination(&self, to: &impl ToSocketAddrs) -> io::Result<SocketAddr> {
        if let Some(addr) = to.literal_addr() {
            // `resolve` would allocate a list for each datagram.
            return Ok(addr);
        }
        let addrs = resolve("send to", to).await?;
        let is_v4 = self.is_v4()?;
        let same_family = addrs.iter().find(|addr| addr.is_ipv4() == is_v4);
        Ok(*same_family.unwrap_or(&addrs[0]))
    }

    /// Sends a datagram to the connected address and returns its length.
    pub async fn send<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = send(&self.socket, &self.msg_pool, buf, None, Vec::new()).await;
        (result.map_err(|error| self.with_peer("send to", error)), buf)
    }

    /// Receives a datagram into `buf`, from its start up to its capacity, and returns its length and the sender. A
    /// datagram that does not fit is an error; the buffer contains its beginning, and the rest is lost.
    pub async fn recv_from<B: IoBufMut>(&self, buf: B) -> BufResult<(usize, SocketAddr), B> {
        let (result, buf) = self.receive(buf).await;
        let result = result.and_then(|(count, meta)| Ok((count, sender(meta)?)));
        (result, buf)
    }

    /// Receives a datagram on a connected socket: see [`recv_from`](UdpSocket::recv_from).
    pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let (result, buf) = self.receive(buf).await;
        (result.map(|(count, _)| count), buf)
    }

    async fn receive<B: IoBufMut>(&self, buf: B) -> BufResult<(usize, MsgMeta), B> {
        if let Err(error) = self.check_not_coalesced() {
            return (Err(error), buf);
        }
        let (result, buf) = receive(&self.socket, &self.msg_pool, buf, 0, false).await;
        let result = match result {
            Ok((count, meta)) if meta.is_truncated => Err(truncated_error(count)),
            Ok(received) => Ok(received),
            Err(error) => Err(self.with_peer("receive from", error)),
        };
        (result, buf)
    }

    /// Adds the peer of a connected socket to an error.
    pub(super) fn with_peer(&self, action: &str, error: io::Error) -> io::Error {
        match self.peer_addr() {
            Ok(peer) => context(format_args!("{action} {peer}"), error),
            Err(_) => error,
        }
    }

    /// Receives a datagram into a buffer that the runtime provides, so a waiting socket holds no buffer. A datagram
    /// that does not fit is [truncated](Datagram::is_truncated), which is not an error:
    /// [`Builder::managed_buffers`](crate::Builder::managed_buffers) sets the size.
    pub async fn recv_managed(&self) -> io::Result<Datagram> {
        self.check_not_coalesced()?;
        let received = receive_managed(&self.socket, &self.msg_pool).await;
        let (bytes, meta) = received.map_err(|error| self.with_peer("receive from", error))?;
        let is_truncated = meta.is_truncated;
        Ok(Datagram {
            bytes,
            from: sender(meta)?,
            is_truncated,
        })
    }

    /// The local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The connected address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Converts a std socket and sets it to non-blocking mode.
    ///
    /// # Panics
    ///
    /// Outside a loop.
    #[track_caller]
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        let socket = UdpSocket::from_socket(OwnedDescriptor::adopt(socket)?);
        let gro = socket.socket.get(SocketOption::UdpGro(false));
        socket.is_gro.set(matches!(gro, Ok(SocketOption::UdpGro(true))));
        Ok(socket)
    }

    /// Converts to a non-blocking std socket. Fails, and returns the socket in the error, while an operation is in
    /// progress or a received datagram is unread: it would be lost.
    pub fn into_std(self) -> Result<std::net::UdpSocket, IntoStdError<UdpSocket>> {
        let released = self.socket.release();
        IntoStdError::convert(self, released)
    }

    pub(crate) fn from_socket(socket: OwnedDescriptor) -> UdpSocket {
        UdpSocket {
            socket,
            msg_pool: MsgHdrPool::default(),
            expects_more: Cell::new(true),
            is_gro: Cell::new(false),
            has_gso: Cell::new(None),
        }
    }

    pub(super) fn msg_pool(&self) -> &MsgHdrPool {
        &self.msg_pool
    }

    pub(super) fn expects_more(&self) -> bool {
        self.expects_more.get()
    }

    pub(super) fn set_expects_more(&self, expects: bool) {
        self.expects_more.set(expects);
    }

    pub(super) fn is_gro(&self) -> bool {
        self.is_gro.get()
    }

    /// Whether the kernel splits sent messages into datagrams.
    pub(super) fn has_gso(&self) -> bool {
        self.has_gso.get().unwrap_or_else(|| {
            let has_gso = self.socket.get(SocketOption::UdpSegment(0)).is_ok();
            self.has_gso.set(Some(has_gso));
            has_gso
        })
    }

    /// The interface cannot send what the kernel splits.
    pub(super) fn set_no_gso(&self) {
        self.has_gso.set(Some(false));
    }

    /// An error if a receive would return several datagrams as one.
    fn check_not_coalesced(&self) -> io::Result<()> {
        match self.is_gro.get() {
            false => Ok(()),
            true => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "received datagrams are coalesced (GRO): only `recv_batch` tells them apart",
            )),
        }
    }

    pub(crate) fn socket(&self) -> &OwnedDescriptor {
        &self.socket
    }
}

/// Socket options.
impl UdpSocket {
    /// Whether datagrams may be sent to broadcast addresses.
    pub fn broadcast(&self) -> io::Result<bool> {
        let is_on = |option| matches!(option, SocketOption::Broadcast(true));
        self.socket.get(SocketOption::Broadcast(false)).map(is_on)
    }

    /// Sets whether datagrams may be sent to broadcast addresses.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.socket.set(SocketOption::Broadcast(on))
    }

    /// The maximum number of hops of a datagram.
    pub fn ttl(&self) -> io::Result<u32> {
        hops(&self.socket)
    }

    /// Sets the maximum number of hops of a datagram.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        set_hops(&self.socket, ttl)
    }

    /// Joins an IPv4 multicast group on the interface with this address, or one chosen by the system if unspecified.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        let joined = self.socket.set(SocketOption::JoinV4 { group, interface });
        joined.map_err(|error| context(format_args!("join {group} on {interface}"), error))
    }

    /// Leaves an IPv4 multicast group.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        let left = self.socket.set(SocketOption::LeaveV4 { group, interface });
        left.map_err(|error| context(format_args!("leave {group} on {interface}"), error))
    }

    /// Joins an IPv6 multicast group on the interface with this index; 0 lets the system choose.
    pub fn join_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        let joined = self.socket.set(SocketOption::JoinV6 { group, interface });
        joined.map_err(|error| context(format_args!("join {group} on interface {interface}"), error))
    }

    /// Leaves an IPv6 multicast group.
    pub fn leave_multicast_v6(&self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        let left = self.socket.set(SocketOption::LeaveV6 { group, interface });
        left.map_err(|error| context(format_args!("leave {group} on interface {interface}"), error))
    }

    /// Whether multicast datagrams are looped back to this host.
    pub fn multicast_loop(&self) -> io::Result<bool> {
        let like = match self.is_v4()? {
            true => SocketOption::MulticastLoopV4(false),
            false => SocketOption::MulticastLoopV6(false),
        };
        match self.socket.get(like)? {
            SocketOption::MulticastLoopV4(on) | SocketOption::MulticastLoopV6(on) => Ok(on),
            other => unreachable!("unexpected reply for the multicast loop: {other:?}"),
        }
    }

    /// Sets whether multicast datagrams are looped back to this host.
    pub fn set_multicast_loop(&self, on: bool) -> io::Result<()> {
        self.socket.set(match self.is_v4()? {
            true => SocketOption::MulticastLoopV4(on),
            false => SocketOption::MulticastLoopV6(on),
        })
    }

    /// The maximum number of hops of a multicast datagram. The default is 1.
    pub fn multicast_ttl(&self) -> io::Result<u32> {
        let like = match self.is_v4()? {
            true => SocketOption::MulticastTtlV4(0),
            false => SocketOption::MulticastHopsV6(0),
        };
        match self.socket.get(like)? {
            SocketOption::MulticastTtlV4(hops) | SocketOption::MulticastHopsV6(hops) => Ok(hops),
            other => unreachable!("unexpected reply for the hop limit: {other:?}"),
        }
    }

    /// Sets the maximum number of hops of a multicast datagram.
    pub fn set_multicast_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set(match self.is_v4()? {
            true => SocketOption::MulticastTtlV4(ttl),
            false => SocketOption::MulticastHopsV6(ttl),
        })
    }

    /// Sets the outgoing interface for IPv4 multicast, by its address.
    pub fn set_multicast_interface_v4(&self, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.set(SocketOption::MulticastInterfaceV4(interface))
    }

    /// Sets the outgoing interface for IPv6 multicast, by its index.
    pub fn set_multicast_interface_v6(&self, interface: u32) -> io::Result<()> {
        self.socket.set(SocketOption::MulticastInterfaceV6(interface))
    }

    /// Sets the size of the kernel's send buffer. Linux doubles the number.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        self.socket.set(SocketOption::SendBuffer(bytes))
    }

    /// Sets the size of the kernel's receive buffer. Linux doubles the number. When it is full, datagrams are lost.
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        self.socket.set(SocketOption::RecvBuffer(bytes))
    }

    /// Sets whether the system may coalesce received datagrams of one sender (generic receive offload, GRO), so that many
    /// pass through the network stack as one. [`recv_batch`](UdpSocket::recv_batch) returns them separately. Other
    /// receives fail on such a socket, even after GRO was turned off again, because coalesced datagrams may be waiting.
    /// Linux has this since 5.0; elsewhere turning it on is an error of the kind `Unsupported`. While a receive is in flight it
    /// is an error of the kind `WouldBlock`: that receive could not separate the datagrams.
    ///
    /// ```
    /// use windlass::net::{RecvBatch, UdpSocket};
    /// windlass::run(async {
    ///     let socket = UdpSocket::bind("127.0.0.1:0").await?;
    ///     // Without it, the same datagrams are received.
    ///     let _ = socket.set_gro(true);
    ///     socket.send_to_segmented("onetwo", 3, socket.local_addr()?).await.0?;
    ///     let (mut batch, mut texts) = (RecvBatch::new(8, 65_535), Vec::new());
    ///     while texts.len() < 2 {
    ///         socket.recv_batch(&mut batch).await?;
    ///         texts.extend(batch.iter().map(|datagram| datagram.to_vec()));
    ///     }
    ///     assert_eq!(texts, [b"one", b"two"]);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[doc(alias = "UDP_GRO")]
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        let descriptor = &self.socket.descriptor;
        descriptor.read.absorb_if_free(&descriptor.core);
        if on && descriptor.read.op.get().is_some() {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "a receive is in flight, which would not separate coalesced datagrams: call set_gro before the first receive",
            ));
        }
        self.socket.set(SocketOption::UdpGro(on))?;
        // Coalesced datagrams may be in the queue after it was turned off.
        self.is_gro.set(self.is_gro.get() || on);
        Ok(())
    }

    fn is_v4(&self) -> io::Result<bool> {
        Ok(self.local_addr()?.is_ipv4())
    }
}

fn sender(meta: MsgMeta) -> io::Result<SocketAddr> {
    let no_sender = || io::Error::new(io::ErrorKind::InvalidData, "the datagram has no sender");
    inet(&meta.sender.ok_or_else(no_sender)?)
}

impl Datagram {
    /// The address of the sender.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Whether the datagram was longer than the buffer; the rest is lost.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns the buffer.
    pub fn into_bytes(self) -> ManagedBuf {
        self.bytes
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_socket(f, "UdpSocket", &self.socket)
    }
}
