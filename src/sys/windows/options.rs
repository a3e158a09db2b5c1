//! Sockets: making, naming, tuning them.

use std::io;
use std::os::windows::io::{AsRawSocket, IntoRawSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use windows_sys::Win32::Networking::WinSock::{
    IPPROTO_TCP, SIO_UDP_CONNRESET, SOCKET, TCP_KEEPIDLE, TCP_KEEPINTVL, WSAIoctl, getsockopt,
};

use super::{Fd, Name, number_of_socket, socket as socket_of, with};
use crate::driver::socket_options::{KeepAlive, SocketKind, SocketOption};

/// Makes a socket. It is not inherited, and non-blocking.
pub(super) fn socket(kind: SocketKind) -> io::Result<Fd> {
    let Some((domain, r#type, protocol)) = what(kind) else {
        let why = "Unix sockets are not served on Windows";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    };
    // socket2 keeps it from being inherited.
    let socket = Socket::new(domain, r#type, Some(protocol))?;
    socket.set_nonblocking(true)?;
    let fd = number_of_socket(socket.into_raw_socket());
    if r#type == Type::DGRAM {
        report_refusals(fd, false);
    }
    Ok(fd)
}

/// The same of routes that end nowhere. windows-sys does not have it.
const SIO_UDP_NETRESET: u32 = 0x9800_000f;

/// Whether a datagram that nobody took is told to the next receive. Elsewhere only sockets that are connected are told.
pub(super) fn report_refusals(fd: Fd, on: bool) {
    let (on, mut written) = (u32::from(on), 0);
    let len = size_of::<u32>() as u32;
    let none = std::ptr::null_mut();
    // An old system that does not know this tells.
    // SAFETY: Winsock reads the first local and writes the other.
    unsafe {
        let value = (&raw const on).cast();
        for what in [SIO_UDP_CONNRESET, SIO_UDP_NETRESET] {
            WSAIoctl(
                socket_of(fd),
                what,
                value,
                len,
                none,
                0,
                &mut written,
                none.cast(),
                None,
            );
        }
    }
}

fn what(kind: SocketKind) -> Option<(Domain, Type, Protocol)> {
    match kind {
        SocketKind::TcpV4 => Some((Domain::IPV4, Type::STREAM, Protocol::TCP)),
        SocketKind::TcpV6 => Some((Domain::IPV6, Type::STREAM, Protocol::TCP)),
        SocketKind::UdpV4 => Some((Domain::IPV4, Type::DGRAM, Protocol::UDP)),
        SocketKind::UdpV6 => Some((Domain::IPV6, Type::DGRAM, Protocol::UDP)),
        SocketKind::UnixStream | SocketKind::UnixDatagram => None,
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
        SocketOption::ReusePort(_) => Err(no_shared_ports()),
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
            SocketOption::ReusePort(_) => return Err(no_shared_ports()),
            SocketOption::OnlyV6(_) => SocketOption::OnlyV6(socket.only_v6()?),
            SocketOption::KeepAlive(_) => SocketOption::KeepAlive(match socket.keepalive()? {
                true => Some(KeepAlive {
                    idle: Some(seconds(&socket, TCP_KEEPIDLE)?),
                    interval: Some(seconds(&socket, TCP_KEEPINTVL)?),
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

/// An option of TCP that counts seconds.
fn seconds(socket: &SockRef<'_>, option: i32) -> io::Result<Duration> {
    let mut seconds = 0u32;
    let mut len = size_of::<u32>() as i32;
    let raw = socket.as_raw_socket() as SOCKET;
    // SAFETY: Winsock fills the local, of the length that it is told, and keeps no pointer to it.
    match unsafe { getsockopt(raw, IPPROTO_TCP, option, (&raw mut seconds).cast(), &mut len) } {
        0 => Ok(Duration::from_secs(seconds.into())),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_shared_ports() -> io::Error {
    let why = "Windows does not spread connections over several listeners of one port";
    io::Error::new(io::ErrorKind::Unsupported, why)
}
