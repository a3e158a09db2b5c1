//! Batches of datagrams, and their segmentation by the kernel (GSO and GRO), on Linux.

use std::io;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use super::message::RECEIVE_FLAGS;
use super::sockets::{RECV_FLAGS, SEND_FLAGS, attempt};
use crate::sys::{Fd, MessageEntry};

/// The level and type of the control message with the segment size of a send.
pub(super) const SEGMENT: Option<(libc::c_int, libc::c_int)> = Some((libc::SOL_UDP, libc::UDP_SEGMENT));
/// The level and type of the control message with the segment size of a receive.
pub(super) const GRO: Option<(libc::c_int, libc::c_int)> = Some((libc::SOL_UDP, libc::UDP_GRO));

const _: () = {
    assert!(size_of::<MessageEntry>() == size_of::<libc::mmsghdr>());
    assert!(align_of::<MessageEntry>() == align_of::<libc::mmsghdr>());
    assert!(size_of::<super::Message>() == std::mem::offset_of!(libc::mmsghdr, msg_len));
};

/// Receives messages that are waiting, into the entries in order. Returns how many entries have a result; 0 if none is
/// waiting. A failed entry is the last.
///
/// # Safety
///
/// The memory that the messages point to may be written, and nothing else uses it during the call.
pub(crate) unsafe fn recv_batch(fd: Fd, entries: &mut [MessageEntry]) -> usize {
    let (first, count, none) = (entries.as_mut_ptr().cast(), entries.len() as _, std::ptr::null_mut());
    let flags = (RECEIVE_FLAGS | RECV_FLAGS) as _;
    // After an error that follows a received message, the kernel returns the count and keeps the error for the next
    // call.
    // SAFETY: the caller's promise; an entry is an `mmsghdr`.
    let received = attempt(|| unsafe { libc::recvmmsg(fd, first, count, flags, none) } as libc::ssize_t);
    settle(entries, received)
}

/// Sends messages in order. Returns how many entries have a result; 0 if the first would block. A failed entry is the
/// last.
///
/// # Safety
///
/// The memory that the messages point to is valid and does not change during the call.
pub(crate) unsafe fn send_batch(fd: Fd, entries: &mut [MessageEntry]) -> usize {
    let (first, count) = (entries.as_mut_ptr().cast(), entries.len() as _);
    // SAFETY: the caller's promise; an entry is an `mmsghdr`.
    let sent = attempt(|| unsafe { libc::sendmmsg(fd, first, count, SEND_FLAGS as _) } as libc::ssize_t);
    settle(entries, sent)
}

fn settle(entries: &mut [MessageEntry], result: Option<crate::sys::OsResult>) -> usize {
    match result {
        // A system call filter may refuse the call and allow single messages.
        None | Some(Err(libc::ENOSYS)) => 0,
        Some(Ok(count)) => count as usize,
        Some(Err(code)) => {
            entries[0].set_result(Err(code));
            1
        }
    }
}

/// Sets whether the kernel coalesces received datagrams (`UDP_GRO`).
pub(crate) fn set_gro(socket: &SockRef<'_>, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    let (place, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the kernel reads the local, of the given length, and keeps no pointer to it.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, place, len) } {
        0 => Ok(()),
        _ => Err(unsupported(io::Error::last_os_error())),
    }
}

/// Whether the kernel coalesces received datagrams.
pub(crate) fn gro(socket: &SockRef<'_>) -> io::Result<bool> {
    get(socket, libc::UDP_GRO).map(|value| value != 0)
}

/// The segment size of the socket's sends, 0 by default. An error if the kernel cannot split datagrams.
pub(crate) fn segment_size(socket: &SockRef<'_>) -> io::Result<u16> {
    get(socket, libc::UDP_SEGMENT).map(|value| value as u16)
}

fn get(socket: &SockRef<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let (place, mut len) = ((&raw mut value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the kernel fills the local, of the given length, and keeps no pointer to it.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, place, &mut len) } {
        0 => Ok(value),
        _ => Err(unsupported(io::Error::last_os_error())),
    }
}

/// An old kernel does not know the option.
fn unsupported(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel neither splits nor coalesces datagrams",
        ),
        _ => error,
    }
}
