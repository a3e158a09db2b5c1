//! Creates sockets, and sets and reads the socket options that differ between systems.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

use socket2::{SockRef, Socket};

use super::{Fd, with};
use crate::sys::{Credentials, SocketKind};

/// Creates a socket, close-on-exec and non-blocking.
pub(crate) fn new_socket(kind: SocketKind) -> io::Result<Fd> {
    let (domain, r#type, protocol) = kind.to_raw();
    // socket2 sets close-on-exec in `new`.
    let socket = Socket::new(domain, r#type, protocol)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into_raw_fd())
}

/// Creates two sockets that are connected to each other.
pub(crate) fn new_pair(kind: SocketKind) -> io::Result<(Fd, Fd)> {
    let (domain, r#type, protocol) = kind.to_raw();
    let (one, other) = Socket::pair(domain, r#type, protocol)?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one.into_raw_fd(), other.into_raw_fd()))
}

/// The credentials of a Unix connection's peer.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn credentials(fd: Fd) -> io::Result<Credentials> {
    with(fd, |socket| {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let place = (&raw mut peer).cast();
        // SAFETY: the kernel fills the local structure, of the given length, and keeps no pointer to it.
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
pub(crate) fn credentials(fd: Fd) -> io::Result<Credentials> {
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

#[cfg(not(target_os = "freebsd"))]
pub(crate) fn set_reuse_port(socket: &SockRef<'_>, on: bool) -> io::Result<()> {
    socket.set_reuse_port(on)
}

#[cfg(not(target_os = "freebsd"))]
pub(crate) fn reuse_port(socket: &SockRef<'_>) -> io::Result<bool> {
    socket.reuse_port()
}

/// `SO_REUSEPORT` of FreeBSD lets several sockets bind but gives everything to one of them; `SO_REUSEPORT_LB` balances.
#[cfg(target_os = "freebsd")]
pub(crate) fn set_reuse_port(socket: &SockRef<'_>, on: bool) -> io::Result<()> {
    socket.set_reuse_port_lb(on)
}

#[cfg(target_os = "freebsd")]
pub(crate) fn reuse_port(socket: &SockRef<'_>) -> io::Result<bool> {
    socket.reuse_port_lb()
}

pub(crate) fn keepalive_idle(socket: &SockRef<'_>) -> io::Result<Duration> {
    socket.tcp_keepalive_time()
}

pub(crate) fn keepalive_interval(socket: &SockRef<'_>) -> io::Result<Duration> {
    socket.tcp_keepalive_interval()
}
