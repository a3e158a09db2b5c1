//! Ending a sleep from another thread: an eventfd, with a read on it always in the ring.
//!
//! An outer loop does not sleep in the ring but watches another eventfd, which the kernel signals when something completes.
//! A trap: it does not do so from within a write to an eventfd, but puts it off (by 10 ms and more, on Linux 6.18) or drops
//! it. So a notification signals the outer loop itself.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use io_uring::{opcode, squeue, types};

use crate::driver::Notify;
use crate::sys::Fd;

/// What other threads have of the driver.
pub(super) struct Notifier {
    /// Has a read in the ring.
    pub(super) eventfd: EventFd,
    /// What an outer loop watches, once somebody has asked for it.
    pub(super) outer: OnceLock<EventFd>,
}

impl Notifier {
    pub(super) fn new() -> io::Result<Notifier> {
        Ok(Notifier {
            eventfd: EventFd::new()?,
            outer: OnceLock::new(),
        })
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        self.eventfd.signal();
        if let Some(outer) = self.outer.get() {
            outer.signal();
        }
    }
}

pub(super) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    pub(super) fn new() -> io::Result<EventFd> {
        EventFd::with_flags(libc::EFD_CLOEXEC)
    }

    fn with_flags(flags: libc::c_int) -> io::Result<EventFd> {
        // SAFETY: eventfd(2) touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            return Err(crate::sys::context(
                "no descriptor could be had for the loop's eventfd",
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd { fd })
    }

    /// One for an outer loop, which the kernel signals when something completes.
    pub(super) fn for_outer_loop() -> io::Result<EventFd> {
        EventFd::with_flags(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
    }

    pub(super) fn number(&self) -> Fd {
        self.fd.as_raw_fd()
    }

    /// Takes back what was signalled.
    pub(super) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: the kernel writes eight bytes into the local. The only error is that nothing was signalled.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// A read that completes when the eventfd is written to, and resets it.
    pub(super) fn read_into(&self, count: &mut u64) -> squeue::Entry {
        opcode::Read::new(types::Fd(self.fd.as_raw_fd()), (&raw mut *count).cast(), 8).build()
    }

    pub(super) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads eight bytes of a local array. The only error is a full counter, which wakes too.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}
