//! Socket kinds and options: their types, and setting and reading them, once for all systems.
//!
//! The few calls that differ are in each system's `options.rs`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::Duration;

use socket2::TcpKeepalive;

use super::options as os;
use super::{Fd, Name, with};

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

/// Who is at the other end of a Unix connection: see
/// [`UnixStream::peer_credentials`](super::UnixStream::peer_credentials).
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

pub(crate) fn bind(fd: Fd, name: &Name) -> io::Result<()> {
    with(fd, |socket| socket.bind(name.inner()))
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
        // The kernel's number is an int, and what is too large for it would wrap around.
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
    })
}

/// The kernel lingers for whole seconds, and for none means: reset. So half a second is one, and ages are what it can
/// count.
fn whole_seconds(time: Duration) -> Duration {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    // Nine hours, which every system's type can hold.
    Duration::from_secs(seconds.min(i16::MAX as u64))
}

/// Reads the option that is like this one.
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
