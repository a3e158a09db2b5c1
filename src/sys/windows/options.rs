//! Making sockets, and the socket options that differ between systems.

use std::io;
use std::os::windows::io::{AsRawSocket, IntoRawSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    IPPROTO_TCP, SIO_UDP_CONNRESET, SOCKET, TCP_KEEPIDLE, TCP_KEEPINTVL, WSAIoctl, getsockopt,
};

use super::{Fd, number_of_socket, socket as socket_of};
use crate::sys::{Credentials, SocketKind};

/// Makes a socket. It is not inherited, and non-blocking.
pub(crate) fn new_socket(kind: SocketKind) -> io::Result<Fd> {
    let Some((domain, r#type, protocol)) = what(kind) else {
        return Err(no_unix_sockets());
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

/// Only Unix sockets come in pairs.
pub(crate) fn new_pair(_kind: SocketKind) -> io::Result<(Fd, Fd)> {
    Err(no_unix_sockets())
}

/// Only Unix sockets have credentials.
pub(crate) fn credentials(_fd: Fd) -> io::Result<Credentials> {
    Err(no_unix_sockets())
}

fn no_unix_sockets() -> io::Error {
    let why = "Unix sockets are not served on Windows";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// The same of routes that end nowhere. windows-sys does not have it.
const SIO_UDP_NETRESET: u32 = 0x9800_000f;

/// Whether the ICMP refusal of a sent datagram fails the next receive. On other systems only connected sockets report
/// it.
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

pub(crate) fn set_reuse_port(_socket: &SockRef<'_>, _on: bool) -> io::Result<()> {
    Err(no_shared_ports())
}

pub(crate) fn reuse_port(_socket: &SockRef<'_>) -> io::Result<bool> {
    Err(no_shared_ports())
}

pub(crate) fn keepalive_idle(socket: &SockRef<'_>) -> io::Result<Duration> {
    seconds(socket, TCP_KEEPIDLE)
}

pub(crate) fn keepalive_interval(socket: &SockRef<'_>) -> io::Result<Duration> {
    seconds(socket, TCP_KEEPINTVL)
}

/// An option of TCP that counts seconds.
fn seconds(socket: &SockRef<'_>, option: i32) -> io::Result<Duration> {
    let mut seconds = 0u32;
    let mut len = size_of::<u32>() as i32;
    let raw = socket.as_raw_socket() as SOCKET;
    // SAFETY: Winsock fills the local, of the given length, and keeps no pointer to it.
    match unsafe { getsockopt(raw, IPPROTO_TCP, option, (&raw mut seconds).cast(), &mut len) } {
        0 => Ok(Duration::from_secs(seconds.into())),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_shared_ports() -> io::Error {
    let why = "Windows does not spread connections over several listeners of one port";
    io::Error::new(io::ErrorKind::Unsupported, why)
}
