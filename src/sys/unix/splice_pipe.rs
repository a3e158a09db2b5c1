//! Moving bytes from socket to socket in the kernel: `splice` into a pipe, and `splice` out of it. The kernel passes on
//! the received pages; no byte is copied to user space.
//!
//! - `splice` into a socket has no `MSG_NOSIGNAL`. So SIGPIPE is blocked around the call and then consumed; otherwise a
//!   disconnected peer would end a program that does not ignore SIGPIPE.
//! - The kernel limits the pipe memory of a user. Beyond that a pipe gets one or two pages, which is not worth it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::Fd;
use super::sockets::attempt;

/// The requested pipe capacity. The default of 64 KiB takes a third more CPU time, 1 MiB a fifth less.
const CAPACITY: libc::c_int = 256 * 1024;

/// With less capacity than this, reading and writing is as fast.
const LEAST_CAPACITY: libc::c_int = 64 * 1024;

/// A pipe with both of its ends, and the number of bytes in it.
#[derive(Debug)]
pub(crate) struct SplicePipe {
    inlet: OwnedFd,
    outlet: OwnedFd,
    /// The number of bytes in the pipe.
    buffered: usize,
}

impl SplicePipe {
    /// Creates a pipe. `None` if there are no descriptors left, or not enough pipe memory.
    pub(crate) fn open() -> Option<SplicePipe> {
        let mut ends = [0; 2];
        // SAFETY: the kernel fills the array and keeps no pointer to it.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) } != 0 {
            return None;
        }
        // SAFETY: both descriptors are new and have no other owner.
        let [outlet, inlet] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: the calls access no memory of the process.
        let capacity = unsafe {
            libc::fcntl(inlet.as_raw_fd(), libc::F_SETPIPE_SZ, CAPACITY);
            libc::fcntl(inlet.as_raw_fd(), libc::F_GETPIPE_SZ)
        };
        (capacity >= LEAST_CAPACITY).then_some(SplicePipe {
            inlet,
            outlet,
            buffered: 0,
        })
    }

    /// Whether `splice` would not block on this socket. For a socket it depends on `O_NONBLOCK` alone, and another
    /// holder may have cleared that.
    pub(crate) fn can_serve(socket: Fd) -> bool {
        // SAFETY: the call accesses no memory of the process.
        let flags = unsafe { libc::fcntl(socket, libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK != 0
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffered
    }

    /// Moves received bytes from a socket into the pipe, which must be empty, and returns the count; 0 is the end of
    /// the stream. `WouldBlock` if there is nothing.
    pub(crate) fn splice_from(&mut self, from: Fd) -> io::Result<usize> {
        debug_assert_eq!(self.buffered, 0);
        let count = splice(from, self.inlet.as_raw_fd(), CAPACITY as usize)?;
        self.buffered += count;
        Ok(count)
    }

    /// Sends bytes from the pipe, and returns the count. `WouldBlock` if nothing was sent.
    pub(crate) fn splice_to(&mut self, to: Fd) -> io::Result<usize> {
        let count = without_sigpipe(self.buffered, || splice(self.outlet.as_raw_fd(), to, self.buffered))?;
        self.buffered -= count;
        Ok(count)
    }

    /// Reads the bytes that are left in the pipe.
    pub(crate) fn read_all(&mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.buffered);
        while self.buffered > 0 {
            let (place, room) = (bytes.spare_capacity_mut().as_mut_ptr(), self.buffered);
            // SAFETY: the spare capacity has room for `buffered` bytes, and the kernel keeps no pointer to it.
            let read = attempt(|| unsafe { libc::read(self.outlet.as_raw_fd(), place.cast(), room) });
            let Some(Ok(count @ 1..)) = read else { break };
            // SAFETY: the kernel has initialized this many bytes after the previous ones.
            unsafe { bytes.set_len(bytes.len() + count as usize) };
            self.buffered -= count as usize;
        }
        bytes
    }
}

fn splice(from: Fd, to: Fd, len: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    let none = std::ptr::null_mut();
    // SAFETY: without offsets, the call accesses no memory of the process.
    let spliced = attempt(|| unsafe { libc::splice(from, none, to, none, len, flags) });
    let res = spliced.unwrap_or(Err(libc::EAGAIN));
    res.map(|count| count as usize).map_err(io::Error::from_raw_os_error)
}

/// Blocks SIGPIPE during a call that should move `whole` bytes, and consumes the SIGPIPE that the call caused.
fn without_sigpipe(whole: usize, call: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
    // SAFETY: the sets are plain data, which the calls fill or read; they keep no pointer to it. The kernel sends
    // SIGPIPE to the thread that made the call, so it is pending for this thread.
    unsafe {
        let mut sigpipe: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut sigpipe);
        libc::sigaddset(&mut sigpipe, libc::SIGPIPE);
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe, &mut before);
        let was_blocked = libc::sigismember(&before, libc::SIGPIPE) == 1;
        let was_pending = was_blocked && {
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut pending);
            libc::sigismember(&pending, libc::SIGPIPE) == 1
        };
        let result = call();
        let may_have_come = match &result {
            // The kernel sends in pieces. If a later one fails, it raises SIGPIPE but returns the bytes sent before.
            Ok(count) => *count < whole,
            Err(error) => error.kind() == io::ErrorKind::BrokenPipe,
        };
        if may_have_come && !was_pending {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&sigpipe, std::ptr::null_mut(), &now);
        }
        if !was_blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        result
    }
}
