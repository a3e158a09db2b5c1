//! Ending a sleep from another thread: an eventfd, with a read on it always in the ring.
//!
//! The kernel does not signal one eventfd from within a write to another, lest they go round in circles. It does so a
//! little later, and (seen on 6.18; other kernels were not tried) only the first time. So a loop that an outer one
//! waits for is notified through both: ours, and the one that the outer loop watches.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use io_uring::{opcode, squeue, types};

use crate::driver::Notify;
use crate::sys::Fd;

/// Ends a sleep of the loop, and of the outer loop if there is one.
pub(super) struct Notifier {
    pub(super) own: EventFd,
    pub(super) outer: OnceLock<Arc<EventFd>>,
}

impl Notifier {
    pub(super) fn new() -> io::Result<Notifier> {
        Ok(Notifier {
            own: EventFd::new()?,
            outer: OnceLock::new(),
        })
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        self.own.notify();
        if let Some(outer) = self.outer.get() {
            outer.notify();
        }
    }
}

pub(super) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    fn new() -> io::Result<EventFd> {
        EventFd::with_flags(libc::EFD_CLOEXEC)
    }

    fn with_flags(flags: libc::c_int) -> io::Result<EventFd> {
        // SAFETY: eventfd(2) touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            return Err(crate::error::context(
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
}

impl EventFd {
    pub(super) fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads eight bytes of a local array. The only error is a full counter, which wakes too.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}
