//! Creates sockets, and sets and reads the socket options that differ between systems.

use std::io;
use std::os::windows::io::{AsRawSocket, IntoRawSocket};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use windows_sys::Win32::Networking::WinSock::{
    IPPROTO_TCP, SIO_UDP_CONNRESET, SOCKET, TCP_KEEPIDLE, TCP_KEEPINTVL, WSAIoctl, getsockopt,
};

use super::{Fd, last_socket_code, number_of_socket, socket as socket_of};
use crate::sys::{Credentials, SocketKind};

/// Creates a socket, not inherited and non-blocking.
pub(crate) fn new_socket(kind: SocketKind) -> io::Result<Fd> {
    let (domain, r#type, protocol) = kind.to_raw();
    if domain == Domain::UNIX {
        return Err(no_unix_sockets());
    }
    // socket2 keeps it from being inherited.
    let socket = Socket::new(domain, r#type, protocol)?;
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

/// `SIO_UDP_CONNRESET` for unreachable networks; windows-sys does not define it.
const SIO_UDP_NETRESET: u32 = 0x9800_000f;

/// Whether the ICMP refusal of a sent datagram fails the next receive. On other systems only connected sockets report
/// it.
pub(super) fn report_refusals(fd: Fd, on: bool) {
    for code in [SIO_UDP_CONNRESET, SIO_UDP_NETRESET] {
        // An old system that does not know the code reports refusals.
        // SAFETY: both codes take a number and return nothing.
        let _ = unsafe { ioctl(socket_of(fd), code, &u32::from(on), &mut ()) };
    }
}

/// Makes a Winsock control call that does not block.
///
/// # Safety
///
/// The code takes an `I` and returns an `O`, of which any bits are a valid value.
pub(crate) unsafe fn ioctl<I, O>(socket: SOCKET, code: u32, input: &I, output: &mut O) -> Result<(), i32> {
    let (from, from_len) = ((&raw const *input).cast(), size_of::<I>() as u32);
    let (to, to_len) = ((&raw mut *output).cast(), size_of::<O>() as u32);
    let (mut count, none) = (0, std::ptr::null_mut());
    // SAFETY: Winsock reads the input and writes the output, whose lengths it is given; without an OVERLAPPED it keeps
    // no pointer.
    match unsafe { WSAIoctl(socket, code, from, from_len, to, to_len, &mut count, none, None) } {
        0 => Ok(()),
        _ => Err(last_socket_code()),
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
    let why = "Windows does not distribute connections or datagrams over several sockets of one port";
    io::Error::new(io::ErrorKind::Unsupported, why)
}
