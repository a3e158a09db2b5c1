//! Waking the loop from another thread: an eventfd on which the driver always keeps a read in flight.
//!
//! An outer loop does not block in the ring. It watches a second eventfd, which the kernel signals for each completion.
//! The trap: when a write to an eventfd causes the completion, the kernel defers that signal (by 10 ms and more on
//! Linux 6.18) or drops it. So a notification also writes to the outer loop's eventfd itself.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use io_uring::{opcode, squeue, types};

use crate::driver::Notify;
use crate::sys::Fd;

/// The part of the driver that other threads share.
pub(super) struct Notifier {
    /// The ring has a read of it in flight.
    pub(super) eventfd: EventFd,
    /// The eventfd for an outer loop, created by `Driver::descriptor`.
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
                "cannot get a descriptor for the loop's eventfd",
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd { fd })
    }

    /// An eventfd for an outer loop, which the kernel signals when an operation completes.
    pub(super) fn for_outer_loop() -> io::Result<EventFd> {
        EventFd::with_flags(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
    }

    pub(super) fn number(&self) -> Fd {
        self.fd.as_raw_fd()
    }

    /// Resets the counter.
    pub(super) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: the kernel writes eight bytes into the local. The only error is EAGAIN: the counter is zero already.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// A read that completes when the eventfd is written to, and resets it.
    pub(super) fn read_into(&self, count: &mut u64) -> squeue::Entry {
        opcode::Read::new(types::Fd(self.fd.as_raw_fd()), (&raw mut *count).cast(), 8).build()
    }

    pub(super) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads eight bytes of a local array. The only error is a full counter, which also wakes.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}
