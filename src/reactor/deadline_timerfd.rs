//! The deadline of an embedded loop on Linux: a timerfd in the epoll instance, which an outer loop watches.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};

use crate::sys::{self, Instant};

/// Created when an outer loop asks for the descriptor.
#[derive(Default)]
pub(super) struct DeadlineTimer(Option<OwnedFd>);

impl DeadlineTimer {
    /// Creates the timer. Its events have this token.
    pub(super) fn open(&mut self, poll: &Poll, token: Token) -> io::Result<()> {
        if self.0.is_some() {
            return Ok(());
        }
        // SAFETY: the call touches no memory of ours.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(sys::context("cannot get a descriptor for the loop's timerfd", error));
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // Edge-triggered: an expiry is reported once, and the timerfd need not be read.
        let registry = poll.registry();
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        self.0 = Some(timer);
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Sets the timer, in the place of an earlier deadline. False if it cannot be set.
    pub(super) fn set(&mut self, _: &Poll, _: Token, deadline: Instant) -> bool {
        let Some(timer) = &self.0 else { return false };
        let since_origin = deadline.since_origin();
        let time = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: since_origin.as_secs() as _,
                // Zero would disarm it.
                tv_nsec: since_origin.subsec_nanos().max(1) as _,
            },
        };
        // SAFETY: the descriptor is open; the kernel reads the local and writes nothing.
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &time, std::ptr::null_mut()) == 0 }
    }
}
