//! Sockets: making, naming, tuning them.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::{Fd, Name, with};
use crate::driver::socket_options::{Credentials, KeepAlive, SocketKind, SocketOption};

/// Makes a socket. It is close-on-exec and non-blocking.
pub(super) fn socket(kind: SocketKind) -> io::Result<Fd> {
    let (domain, r#type, protocol) = what(kind);
    // socket2 sets close-on-exec in `new`.
    let socket = Socket::new(domain, r#type, protocol)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into_raw_fd())
}

/// Makes two that are connected to each other.
pub(super) fn pair(kind: SocketKind) -> io::Result<(Fd, Fd)> {
    let (domain, r#type, protocol) = what(kind);
    let (one, other) = Socket::pair(domain, r#type, protocol)?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one.into_raw_fd(), other.into_raw_fd()))
}

fn what(kind: SocketKind) -> (Domain, Type, Option<Protocol>) {
    match kind {
        SocketKind::TcpV4 => (Domain::IPV4, Type::STREAM, Some(Protocol::TCP)),
        SocketKind::TcpV6 => (Domain::IPV6, Type::STREAM, Some(Protocol::TCP)),
        SocketKind::UdpV4 => (Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)),
        SocketKind::UdpV6 => (Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)),
        SocketKind::UnixStream => (Domain::UNIX, Type::STREAM, None),
        SocketKind::UnixDatagram => (Domain::UNIX, Type::DGRAM, None),
    }
}

pub(super) fn bind(fd: Fd, name: &Name) -> io::Result<()> {
    with(fd, |socket| socket.bind(name.inner()))
}

pub(super) fn local_name(fd: Fd) -> io::Result<Name> {
    with(fd, |socket| socket.local_addr()).map(Name::from)
}

pub(super) fn peer_name(fd: Fd) -> io::Result<Name> {
    with(fd, |socket| socket.peer_addr()).map(Name::from)
}

pub(super) fn set(fd: Fd, option: SocketOption) -> io::Result<()> {
    with(fd, |socket| match option {
        SocketOption::Nodelay(on) => socket.set_tcp_nodelay(on),
        SocketOption::ReuseAddress(on) => socket.set_reuse_address(on),
        SocketOption::ReusePort(on) => socket.set_reuse_port(on),
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

/// The kernel lingers for whole seconds, and for none means: reset. So half a second is one, and ages are what it can count.
fn whole_seconds(time: Duration) -> Duration {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    // Nine hours, which every system's type can hold.
    Duration::from_secs(seconds.min(i16::MAX as u64))
}

/// Reads the option that is like this one.
pub(super) fn get(fd: Fd, like: SocketOption) -> io::Result<SocketOption> {
    with(fd, |socket| {
        Ok(match like {
            SocketOption::Nodelay(_) => SocketOption::Nodelay(socket.tcp_nodelay()?),
            SocketOption::ReuseAddress(_) => SocketOption::ReuseAddress(socket.reuse_address()?),
            SocketOption::ReusePort(_) => SocketOption::ReusePort(socket.reuse_port()?),
            SocketOption::OnlyV6(_) => SocketOption::OnlyV6(socket.only_v6()?),
            SocketOption::KeepAlive(_) => SocketOption::KeepAlive(match socket.keepalive()? {
                true => Some(KeepAlive {
                    idle: Some(socket.tcp_keepalive_time()?),
                    interval: Some(socket.tcp_keepalive_interval()?),
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

/// Who is at the other end of a Unix connection.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn credentials(fd: Fd) -> io::Result<Credentials> {
    with(fd, |socket| {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let place = (&raw mut peer).cast();
        // SAFETY: the kernel fills the local structure, of the length that it is told, and keeps no pointer to it.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut len) };
        match result {
            0 => Ok(Credentials {
                user: peer.uid,
                group: peer.gid,
                process: Some(peer.pid as u32),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn credentials(fd: Fd) -> io::Result<Credentials> {
    with(fd, |socket| {
        let (mut user, mut group) = (0, 0);
        // SAFETY: the kernel fills the two locals and keeps no pointer to them.
        match unsafe { libc::getpeereid(socket.as_raw_fd(), &mut user, &mut group) } {
            0 => Ok(Credentials {
                user,
                group,
                process: None,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    })
}
