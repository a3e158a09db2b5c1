//! What can be set on a socket, and what kinds of socket there are.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4.
    UdpV4,
    /// UDP over IPv6.
    UdpV6,
    /// Connections within the machine.
    UnixStream,
    /// Datagrams within the machine.
    UnixDatagram,
}

impl SocketKind {
    /// TCP for addresses of this one's family.
    pub(crate) fn tcp_for(addr: SocketAddr) -> SocketKind {
        match addr {
            SocketAddr::V4(_) => SocketKind::TcpV4,
            SocketAddr::V6(_) => SocketKind::TcpV6,
        }
    }

    /// UDP for addresses of this one's family.
    pub(crate) fn udp_for(addr: SocketAddr) -> SocketKind {
        match addr {
            SocketAddr::V4(_) => SocketKind::UdpV4,
            SocketAddr::V6(_) => SocketKind::UdpV6,
        }
    }
}

/// One thing to be set on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// Small writes leave at once: Nagle's algorithm is off.
    Nodelay(bool),
    /// An address may be bound while old connections of an earlier listener are still in TIME_WAIT.
    ReuseAddress(bool),
    /// Several sockets may be bound to one address, and share what comes.
    ReusePort(bool),
    /// A socket for IPv6 does not take IPv4.
    OnlyV6(bool),
    /// A quiet connection is asked now and then whether it is still there.
    KeepAlive(Option<KeepAlive>),
    /// How long a close waits for what was written to arrive; zero resets the connection.
    Linger(Option<Duration>),
    /// How many bytes the kernel holds that were written and not sent. Linux doubles the number.
    SendBuffer(usize),
    /// How many bytes the kernel holds that came and were not read. Linux doubles the number.
    RecvBuffer(usize),
    /// Datagrams may go to broadcast addresses.
    Broadcast(bool),
    /// How many routers a packet passes at most, over IPv4.
    TtlV4(u32),
    /// How many routers a packet passes at most, over IPv6.
    HopsV6(u32),
    /// What is sent to a group comes back to this machine, over IPv4.
    MulticastLoopV4(bool),
    /// What is sent to a group comes back to this machine, over IPv6.
    MulticastLoopV6(bool),
    /// How many routers a packet for a group passes at most, over IPv4.
    MulticastTtlV4(u32),
    /// How many routers a packet for a group passes at most, over IPv6.
    MulticastHopsV6(u32),
    /// Through which interface packets for groups leave, over IPv4.
    MulticastInterfaceV4(Ipv4Addr),
    /// Through which interface packets for groups leave, over IPv6.
    MulticastInterfaceV6(u32),
    /// Joins a group.
    JoinV4 {
        /// The group.
        group: Ipv4Addr,
        /// The interface's address; unspecified lets the kernel choose.
        interface: Ipv4Addr,
    },
    /// Leaves a group.
    LeaveV4 {
        /// The group.
        group: Ipv4Addr,
        /// The interface's address.
        interface: Ipv4Addr,
    },
    /// Joins a group.
    JoinV6 {
        /// The group.
        group: Ipv6Addr,
        /// The interface's index; 0 lets the kernel choose.
        interface: u32,
    },
    /// Leaves a group.
    LeaveV6 {
        /// The group.
        group: Ipv6Addr,
        /// The interface's index.
        interface: u32,
    },
}

/// When a quiet connection is asked whether it is still there. What is `None` stays as the system has it.
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
    /// How long it is quiet before the first question.
    pub idle: Option<Duration>,
    /// How long between two questions.
    pub interval: Option<Duration>,
    /// How many questions without an answer end it.
    pub retries: Option<u32>,
}

/// Who is at the other end of a Unix connection: see [`UnixStream::peer_credentials`](crate::net::UnixStream::peer_credentials).
///
/// ```
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, _other) = UnixStream::pair()?;
///     let peer = one.peer_credentials()?;
///     // Not every system tells which process it is.
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
    /// The process, where the system tells.
    pub process: Option<u32>,
}
