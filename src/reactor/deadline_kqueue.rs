//! The deadline of an embedded loop on kqueue: a one-shot timer of the queue that an outer loop watches.

use std::io;
use std::os::fd::AsRawFd;

use mio::{Poll, Token};

use crate::sys::{self, Instant};

/// The longest time that the kernel is asked for; the loop then sets the timer again.
const MAX_NANOS: u128 = 24 * 3600 * 1_000_000_000;

#[derive(Default)]
pub(super) struct DeadlineTimer {
    /// Whether an outer loop has asked for the descriptor.
    is_open: bool,
}

impl DeadlineTimer {
    pub(super) fn open(&mut self, _: &Poll, _: Token) -> io::Result<()> {
        self.is_open = true;
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Sets the timer, in the place of an earlier deadline. Its events have this token. False if it cannot be set.
    pub(super) fn set(&mut self, poll: &Poll, token: Token, deadline: Instant) -> bool {
        if !self.is_open {
            return false;
        }
        let left = deadline - sys::monotonic();
        // SAFETY: every field of a `kevent` may be zero.
        let mut change: libc::kevent = unsafe { std::mem::zeroed() };
        change.ident = token.0 as _;
        change.filter = libc::EVFILT_TIMER;
        change.flags = libc::EV_ADD | libc::EV_ONESHOT;
        change.fflags = libc::NOTE_NSECONDS;
        // At least 1: some systems refuse a time of zero.
        change.data = left.as_nanos().clamp(1, MAX_NANOS) as _;
        change.udata = token.0 as *mut _;
        // SAFETY: the queue is open; the kernel reads the one local change and returns no events.
        unsafe { libc::kevent(poll.as_raw_fd(), &change, 1, std::ptr::null_mut(), 0, std::ptr::null()) == 0 }
    }
}
