//! Socket and pipe calls that return `None` instead of blocking.
//!
//! A reactor makes such a call first, and again each time the descriptor is reported ready. `O_NONBLOCK`, which every
//! descriptor has here, is not enough to keep the loop's thread from blocking: it belongs to the open file description,
//! and another holder of that (a duplicate, another process) may clear it at any time. So:
//!
//! - Sends and receives pass `MSG_DONTWAIT`.
//! - An accept has no such flag: it follows a poll that reports a connection. If another process takes that connection
//!   in between *and* has made the description blocking, the accept waits for the next one.
//! - Reads and writes of pipes use `RWF_NOWAIT` on Linux. Pipes have it since 6.4; terminals do not, nor do other
//!   systems. There a pipe that another holder has made blocking blocks.
//! - A connect is the first call on a socket that was made for it and that no other holder has yet.
//!
//! # Safety
//!
//! The unsafe functions require that buffers, slices and messages are valid, of the given length and not used otherwise
//! until the call returns.

use std::io;

use super::calls;
use super::message::RECEIVE_FLAGS;
use super::{Fd, IoVec, Message, Name, message};
use crate::sys::{Direction, Medium, OsResult, errno};

/// A write to a closed connection returns EPIPE instead of raising SIGPIPE. Where the flag is missing, socket2 has set
/// the equivalent socket option.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: libc::c_int = libc::MSG_NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: libc::c_int = 0;

pub(super) const SEND_FLAGS: libc::c_int = NO_SIGNAL | libc::MSG_DONTWAIT;
pub(super) const RECV_FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// Accepts a connection and returns its descriptor, close-on-exec and non-blocking.
pub(crate) fn accept(fd: Fd) -> Option<OsResult> {
    match ready(fd, Direction::Read) {
        None if listens(fd) => None,
        // On a socket that does not listen it fails at once.
        None | Some(Ok(_)) => attempt(|| accept_now(fd)),
        Some(Err(code)) => Some(Err(code)),
    }
}

/// Receives into one buffer.
#[inline(always)]
pub(crate) unsafe fn recv(fd: Fd, medium: Medium, ptr: *mut u8, len: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    unsafe {
        match medium {
            Medium::Tcp | Medium::Unix => attempt(move || calls::recv(fd, ptr.cast(), len, RECV_FLAGS)),
            Medium::Pipe => attempt(move || pipe::read(fd, &IoVec { base: ptr, len }, 1)),
        }
    }
}

/// Receives into several buffers in order.
pub(crate) unsafe fn recv_vectored(fd: Fd, medium: Medium, slices: *const IoVec, count: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    attempt(|| unsafe {
        match medium {
            Medium::Tcp | Medium::Unix => libc::recvmsg(fd, &mut message(slices, count), RECV_FLAGS),
            Medium::Pipe => pipe::read(fd, slices, count),
        }
    })
}

/// Sends from one buffer.
#[inline(always)]
pub(crate) unsafe fn send(fd: Fd, medium: Medium, ptr: *const u8, len: usize) -> Option<OsResult> {
    let base = ptr.cast_mut();
    // SAFETY: the caller's promise.
    unsafe {
        match medium {
            Medium::Tcp | Medium::Unix => attempt(move || calls::send(fd, ptr.cast(), len, SEND_FLAGS)),
            Medium::Pipe => attempt(move || pipe::write(fd, &IoVec { base, len }, 1)),
        }
    }
}

/// Sends from several buffers in order.
pub(crate) unsafe fn send_vectored(fd: Fd, medium: Medium, slices: *const IoVec, count: usize) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    attempt(|| unsafe {
        match medium {
            Medium::Tcp | Medium::Unix => libc::sendmsg(fd, &message(slices, count), SEND_FLAGS),
            Medium::Pipe => pipe::write(fd, slices, count),
        }
    })
}

/// Receives one message.
pub(crate) unsafe fn recv_message(fd: Fd, message: *mut Message) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    attempt(|| unsafe { libc::recvmsg(fd, message.cast(), RECEIVE_FLAGS | RECV_FLAGS) })
}

/// Sends one message.
pub(crate) unsafe fn send_message(fd: Fd, message: *const Message) -> Option<OsResult> {
    // SAFETY: the caller's promise.
    attempt(|| unsafe { libc::sendmsg(fd, message.cast(), SEND_FLAGS) })
}

/// Repeats a call that a signal interrupts; `None` if it would block.
#[inline(always)]
pub(super) fn attempt(mut call: impl FnMut() -> libc::ssize_t) -> Option<OsResult> {
    match call() {
        count if count >= 0 => Some(Ok(count as u32)),
        _ => attempt_again(call),
    }
}

/// The rest of [`attempt`] when the first call has failed.
#[cold]
fn attempt_again(mut call: impl FnMut() -> libc::ssize_t) -> Option<OsResult> {
    loop {
        match last_errno() {
            libc::EINTR => {}
            // Two different codes on some systems.
            code if code == libc::EAGAIN || code == libc::EWOULDBLOCK => return None,
            code => return Some(Err(code)),
        }
        let count = call();
        if count >= 0 {
            return Some(Ok(count as u32));
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Whether a socket listens.
fn listens(fd: Fd) -> bool {
    let mut listens: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let place = (&raw mut listens).cast();
    // SAFETY: the kernel fills the two locals and keeps no pointer to them.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, place, &mut len) };
    result == 0 && listens != 0
}

#[cfg(not(target_vendor = "apple"))]
fn accept_now(fd: Fd) -> libc::ssize_t {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for, so the kernel touches no memory of ours.
    let accepted = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    accepted as libc::ssize_t
}

/// There is no accept4: socket2 sets close-on-exec afterwards.
#[cfg(target_vendor = "apple")]
fn accept_now(fd: Fd) -> libc::ssize_t {
    use std::os::fd::IntoRawFd;
    let accepted = super::with(fd, |listener| {
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        Ok(socket.into_raw_fd())
    });
    // The caller reads the error of the failed call from `errno`.
    accepted.map_or(-1, |fd| fd as libc::ssize_t)
}

/// Reads and writes of pipes that do not block, whatever flags another holder of the description has set. Only Linux
/// has such calls.
mod pipe {
    use super::{Fd, IoVec};

    /// # Safety
    ///
    /// The slices are valid, and the memory that they point to may be written, until this returns.
    pub(super) unsafe fn read(fd: Fd, slices: *const IoVec, count: usize) -> libc::ssize_t {
        let count = count as libc::c_int;
        #[cfg(target_os = "linux")]
        // SAFETY: the caller's promise; -1 stands for the descriptor's position.
        match unsafe { libc::preadv2(fd, slices.cast(), count, -1, libc::RWF_NOWAIT) } {
            -1 if has_no_flag() => {}
            result => return result,
        }
        // SAFETY: the caller's promise.
        unsafe { libc::readv(fd, slices.cast(), count) }
    }

    /// # Safety
    ///
    /// The slices, and the memory that they point to, are valid until this returns.
    pub(super) unsafe fn write(fd: Fd, slices: *const IoVec, count: usize) -> libc::ssize_t {
        let count = count as libc::c_int;
        #[cfg(target_os = "linux")]
        // SAFETY: the caller's promise; -1 stands for the descriptor's position.
        match unsafe { libc::pwritev2(fd, slices.cast(), count, -1, libc::RWF_NOWAIT) } {
            -1 if has_no_flag() => {}
            result => return result,
        }
        // SAFETY: the caller's promise.
        unsafe { libc::writev(fd, slices.cast(), count) }
    }

    /// Whether the last call failed because there is no such flag: a pipe before Linux 6.4, a terminal.
    #[cfg(target_os = "linux")]
    fn has_no_flag() -> bool {
        matches!(super::last_errno(), libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
    }
}

/// Starts to connect; `None` if the connection is in progress.
pub(crate) fn connect(fd: Fd, name: &Name) -> Option<OsResult> {
    // SAFETY: the name is borrowed, and of the length that it says.
    if unsafe { libc::connect(fd, name.as_ptr(), name.len()) } == 0 {
        return Some(Ok(0));
    }
    match last_errno() {
        // After EINTR the connect continues in the background.
        libc::EINPROGRESS | libc::EALREADY | libc::EINTR => None,
        code => Some(Err(code)),
    }
}

/// Whether a descriptor is ready: `None` if not, else `Ok(0)` or the error.
pub(crate) fn ready(fd: Fd, direction: Direction) -> Option<OsResult> {
    let events = match direction {
        Direction::Read => libc::POLLIN,
        Direction::Write => libc::POLLOUT,
    };
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the kernel reads and writes the one local structure.
    let count = attempt(|| unsafe { libc::poll(&mut poll, 1, 0) } as libc::ssize_t)?;
    match count {
        Ok(0) => None,
        Ok(_) if poll.revents & libc::POLLNVAL != 0 => Some(Err(errno::BAD_FD)),
        Ok(_) => Some(Ok(0)),
        Err(code) => Some(Err(code)),
    }
}
