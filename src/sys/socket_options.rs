//! Socket kinds and options, and the calls on sockets that are the same on all systems.
//!
//! The few calls that differ are in each system's `options.rs`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, TcpKeepalive, Type};

use super::options as os;
use super::{Fd, Name, close, with};
#[cfg(feature = "reactor")]
use super::{OsResult, code_of, errno};

/// The kind of a socket: protocol and address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4.
    UdpV4,
    /// UDP over IPv6.
    UdpV6,
    /// A Unix stream socket.
    UnixStream,
    /// A Unix datagram socket.
    UnixDatagram,
}

impl SocketKind {
    /// TCP for this address's family.
    pub(crate) fn tcp_for(addr: SocketAddr) -> SocketKind {
        match addr {
            SocketAddr::V4(_) => SocketKind::TcpV4,
            SocketAddr::V6(_) => SocketKind::TcpV6,
        }
    }

    /// The arguments of socket(2).
    pub(super) fn to_raw(self) -> (Domain, Type, Option<Protocol>) {
        match self {
            SocketKind::TcpV4 => (Domain::IPV4, Type::STREAM, Some(Protocol::TCP)),
            SocketKind::TcpV6 => (Domain::IPV6, Type::STREAM, Some(Protocol::TCP)),
            SocketKind::UdpV4 => (Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)),
            SocketKind::UdpV6 => (Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)),
            SocketKind::UnixStream => (Domain::UNIX, Type::STREAM, None),
            SocketKind::UnixDatagram => (Domain::UNIX, Type::DGRAM, None),
        }
    }

    /// UDP for this address's family.
    pub(crate) fn udp_for(addr: SocketAddr) -> SocketKind {
        match addr {
            SocketAddr::V4(_) => SocketKind::UdpV4,
            SocketAddr::V6(_) => SocketKind::UdpV6,
        }
    }
}

/// A socket option with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the documentation of a variant describes its fields")]
pub enum SocketOption {
    /// `TCP_NODELAY`: Nagle's algorithm is off.
    Nodelay(bool),
    /// `SO_REUSEADDR`: an address may be bound while connections of an earlier listener are in TIME_WAIT.
    ReuseAddress(bool),
    /// `SO_REUSEPORT`: several sockets may be bound to one address and share its connections or datagrams.
    ReusePort(bool),
    /// `IPV6_V6ONLY`: an IPv6 socket does not accept IPv4.
    OnlyV6(bool),
    /// `SO_KEEPALIVE`: an idle connection is probed.
    KeepAlive(Option<KeepAlive>),
    /// `SO_LINGER`: how long a close waits until written data has arrived; zero resets the connection.
    Linger(Option<Duration>),
    /// `SO_SNDBUF`: the size of the kernel's send buffer. Linux doubles the number.
    SendBuffer(usize),
    /// `SO_RCVBUF`: the size of the kernel's receive buffer. Linux doubles the number.
    RecvBuffer(usize),
    /// `SO_BROADCAST`: datagrams may be sent to broadcast addresses.
    Broadcast(bool),
    /// The time to live of IPv4 packets.
    TtlV4(u32),
    /// The hop limit of IPv6 packets.
    HopsV6(u32),
    /// IPv4 multicast packets are looped back to this machine.
    MulticastLoopV4(bool),
    /// IPv6 multicast packets are looped back to this machine.
    MulticastLoopV6(bool),
    /// The time to live of IPv4 multicast packets.
    MulticastTtlV4(u32),
    /// The hop limit of IPv6 multicast packets.
    MulticastHopsV6(u32),
    /// The interface through which IPv4 multicast packets are sent.
    MulticastInterfaceV4(Ipv4Addr),
    /// The interface through which IPv6 multicast packets are sent.
    MulticastInterfaceV6(u32),
    /// Joins a multicast group on the interface with this address; unspecified lets the kernel choose.
    JoinV4 { group: Ipv4Addr, interface: Ipv4Addr },
    /// Leaves a multicast group on the interface with this address.
    LeaveV4 { group: Ipv4Addr, interface: Ipv4Addr },
    /// Joins a multicast group on the interface with this index; 0 lets the kernel choose.
    JoinV6 { group: Ipv6Addr, interface: u32 },
    /// Leaves a multicast group on the interface with this index.
    LeaveV6 { group: Ipv6Addr, interface: u32 },
    /// `UDP_GRO`: received datagrams of one sender may be coalesced into one message, with their length in a control
    /// message.
    UdpGro(bool),
    /// `UDP_SEGMENT`: the length of the datagrams that a sent message is split into, 0 by default. The loop only reads it:
    /// a driver that answers without an error gets [`Op::SendMessage`](crate::driver::Op::SendMessage) with a control
    /// message of this kind. From other drivers the loop splits messages itself.
    UdpSegment(u16),
}

/// When an idle connection is probed. A field that is `None` keeps the system's default.
///
/// ```
/// use std::time::Duration;
/// use windlass::net::{KeepAlive, TcpListener};
/// windlass::run(async {
///     let probing = KeepAlive { idle: Some(Duration::from_secs(60)), ..KeepAlive::default() };
///     let listener = TcpListener::builder().keepalive(Some(probing)).listen("127.0.0.1:0").await?;
///     drop(listener);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long the connection is idle before the first probe.
    pub idle: Option<Duration>,
    /// The time between two probes.
    pub interval: Option<Duration>,
    /// How many unanswered probes end the connection.
    pub retries: Option<u32>,
}

/// The credentials of a Unix connection's peer: see
/// [`UnixStream::peer_credentials`](crate::net::UnixStream::peer_credentials).
///
/// ```
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, _other) = UnixStream::pair()?;
///     let peer = one.peer_credentials()?;
///     // Not every system reports the process.
///     assert!(peer.process.is_none_or(|process| process == std::process::id()));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The process, on systems that report it.
    pub process: Option<u32>,
}

pub(crate) fn bind(fd: Fd, name: &Name) -> io::Result<()> {
    with(fd, |socket| socket.bind(&name.0))
}

pub(crate) fn listen(fd: Fd, backlog: i32) -> io::Result<()> {
    with(fd, |socket| socket.listen(backlog))
}

pub(crate) fn shutdown(fd: Fd, how: Shutdown) -> io::Result<()> {
    with(fd, |socket| socket.shutdown(how))
}

pub(crate) fn local_name(fd: Fd) -> io::Result<Name> {
    with(fd, |socket| socket.local_addr()).map(Name::from)
}

pub(crate) fn peer_name(fd: Fd) -> io::Result<Name> {
    with(fd, |socket| socket.peer_addr()).map(Name::from)
}

/// The result of a connect that had to wait; `None` while it is in progress. A writable socket may still be connecting.
#[cfg(feature = "reactor")]
pub(crate) fn connected(fd: Fd) -> Option<OsResult> {
    match with(fd, |socket| socket.take_error()) {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return Some(Err(code_of(&error))),
    }
    match with(fd, |socket| socket.peer_addr()) {
        Ok(_) => Some(Ok(0)),
        Err(error) if error.raw_os_error() == Some(errno::NOT_CONNECTED) => None,
        Err(error) => Some(Err(code_of(&error))),
    }
}

/// Closes a connection with an RST instead of a FIN, so that its peer learns at once that it will not be served.
pub(crate) fn reset(fd: Fd) {
    // A descriptor without this option is closed the ordinary way.
    let _ = with(fd, |socket| socket.set_linger(Some(Duration::ZERO)));
    close(fd);
}

pub(crate) fn set_option(fd: Fd, option: SocketOption) -> io::Result<()> {
    with(fd, |socket| match option {
        SocketOption::Nodelay(on) => socket.set_tcp_nodelay(on),
        SocketOption::ReuseAddress(on) => socket.set_reuse_address(on),
        SocketOption::ReusePort(on) => os::set_reuse_port(&socket, on),
        SocketOption::OnlyV6(on) => socket.set_only_v6(on),
        SocketOption::KeepAlive(None) => socket.set_keepalive(false),
        SocketOption::KeepAlive(Some(times)) => {
            let mut keepalive = TcpKeepalive::new();
            if let Some(idle) = times.idle {
                keepalive = keepalive.with_time(idle);
            }
            if let Some(interval) = times.interval {
                keepalive = keepalive.with_interval(interval);
            }
            if let Some(retries) = times.retries {
                keepalive = keepalive.with_retries(retries);
            }
            socket.set_tcp_keepalive(&keepalive)
        }
        SocketOption::Linger(time) => socket.set_linger(time.map(whole_seconds)),
        // The kernel's length is an int; a larger number would wrap around.
        SocketOption::SendBuffer(len) => socket.set_send_buffer_size(len.min(i32::MAX as usize)),
        SocketOption::RecvBuffer(len) => socket.set_recv_buffer_size(len.min(i32::MAX as usize)),
        SocketOption::Broadcast(on) => socket.set_broadcast(on),
        SocketOption::TtlV4(hops) => socket.set_ttl_v4(hops),
        SocketOption::HopsV6(hops) => socket.set_unicast_hops_v6(hops),
        SocketOption::MulticastLoopV4(on) => socket.set_multicast_loop_v4(on),
        SocketOption::MulticastLoopV6(on) => socket.set_multicast_loop_v6(on),
        SocketOption::MulticastTtlV4(hops) => socket.set_multicast_ttl_v4(hops),
        SocketOption::MulticastHopsV6(hops) => socket.set_multicast_hops_v6(hops),
        SocketOption::MulticastInterfaceV4(addr) => socket.set_multicast_if_v4(&addr),
        SocketOption::MulticastInterfaceV6(index) => socket.set_multicast_if_v6(index),
        SocketOption::JoinV4 { group, interface } => socket.join_multicast_v4(&group, &interface),
        SocketOption::LeaveV4 { group, interface } => socket.leave_multicast_v4(&group, &interface),
        SocketOption::JoinV6 { group, interface } => socket.join_multicast_v6(&group, interface),
        SocketOption::LeaveV6 { group, interface } => socket.leave_multicast_v6(&group, interface),
        SocketOption::UdpGro(on) => super::set_gro(&socket, on),
        SocketOption::UdpSegment(_) => {
            let why = "the segment size is set for each send";
            Err(io::Error::new(io::ErrorKind::Unsupported, why))
        }
    })
}

/// `SO_LINGER` counts whole seconds, and 0 means RST: round up and clamp.
fn whole_seconds(time: Duration) -> Duration {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    // Nine hours, which fits every system's type.
    Duration::from_secs(seconds.min(i16::MAX as u64))
}

/// Reads the option of the same kind as `like`.
pub(crate) fn get_option(fd: Fd, like: SocketOption) -> io::Result<SocketOption> {
    with(fd, |socket| {
        Ok(match like {
            SocketOption::Nodelay(_) => SocketOption::Nodelay(socket.tcp_nodelay()?),
            SocketOption::ReuseAddress(_) => SocketOption::ReuseAddress(socket.reuse_address()?),
            SocketOption::ReusePort(_) => SocketOption::ReusePort(os::reuse_port(&socket)?),
            SocketOption::OnlyV6(_) => SocketOption::OnlyV6(socket.only_v6()?),
            SocketOption::KeepAlive(_) => SocketOption::KeepAlive(match socket.keepalive()? {
                true => Some(KeepAlive {
                    idle: Some(os::keepalive_idle(&socket)?),
                    interval: Some(os::keepalive_interval(&socket)?),
                    retries: Some(socket.tcp_keepalive_retries()?),
                }),
                false => None,
            }),
            SocketOption::Linger(_) => SocketOption::Linger(socket.linger()?),
            SocketOption::SendBuffer(_) => SocketOption::SendBuffer(socket.send_buffer_size()?),
            SocketOption::RecvBuffer(_) => SocketOption::RecvBuffer(socket.recv_buffer_size()?),
            SocketOption::Broadcast(_) => SocketOption::Broadcast(socket.broadcast()?),
            SocketOption::TtlV4(_) => SocketOption::TtlV4(socket.ttl_v4()?),
            SocketOption::HopsV6(_) => SocketOption::HopsV6(socket.unicast_hops_v6()?),
            SocketOption::MulticastLoopV4(_) => SocketOption::MulticastLoopV4(socket.multicast_loop_v4()?),
            SocketOption::MulticastLoopV6(_) => SocketOption::MulticastLoopV6(socket.multicast_loop_v6()?),
            SocketOption::MulticastTtlV4(_) => SocketOption::MulticastTtlV4(socket.multicast_ttl_v4()?),
            SocketOption::MulticastHopsV6(_) => SocketOption::MulticastHopsV6(socket.multicast_hops_v6()?),
            SocketOption::MulticastInterfaceV4(_) => SocketOption::MulticastInterfaceV4(socket.multicast_if_v4()?),
            SocketOption::MulticastInterfaceV6(_) => SocketOption::MulticastInterfaceV6(socket.multicast_if_v6()?),
            SocketOption::UdpGro(_) => SocketOption::UdpGro(super::gro(&socket)?),
            SocketOption::UdpSegment(_) => SocketOption::UdpSegment(super::segment_size(&socket)?),
            SocketOption::JoinV4 { .. }
            | SocketOption::LeaveV4 { .. }
            | SocketOption::JoinV6 { .. }
            | SocketOption::LeaveV6 { .. } => {
                let why = "which groups a socket has joined cannot be asked";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        })
    })
}
