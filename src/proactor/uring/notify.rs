//! Waking the loop from another thread: an eventfd on which the driver always keeps a read in flight.
//!
//! An outer loop does not block in the ring. It watches a second eventfd, which the kernel signals for each completion.
//! The trap: when a write to an eventfd causes the completion, the kernel defers that signal (by 10 ms and more on
//! Linux 6.18) or drops it. So a notification also writes to the outer loop's eventfd itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

use io_uring::{opcode, squeue, types};

use crate::driver::Notify;
use crate::sys::{Fd, context};

/// The part of the driver that other threads share.
pub(super) struct Notifier {
    /// The ring has a read of it in flight.
    pub(super) eventfd: EventFd,
    /// The eventfd for an outer loop, created by `Driver::descriptor`. The kernel signals it when an operation completes.
    pub(super) outer: OnceLock<EventFd>,
}

impl Notifier {
    pub(super) fn new() -> io::Result<Notifier> {
        Ok(Notifier {
            eventfd: EventFd::new(0)?,
            outer: OnceLock::new(),
        })
    }

    pub(super) fn signal_outer(&self) {
        if let Some(outer) = self.outer.get() {
            outer.signal();
        }
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        self.eventfd.signal();
        self.signal_outer();
    }
}

pub(super) struct EventFd(File);

impl EventFd {
    /// Creates an eventfd, close-on-exec, with these further flags.
    pub(super) fn new(flags: libc::c_int) -> io::Result<EventFd> {
        // SAFETY: eventfd(2) touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(context("cannot get a descriptor for the loop's eventfd", error));
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(EventFd(unsafe { File::from_raw_fd(fd) }))
    }

    pub(super) fn number(&self) -> Fd {
        self.0.as_raw_fd()
    }

    /// Resets the counter.
    pub(super) fn clear(&self) {
        // The only error is EAGAIN: the counter is zero already.
        let _ = (&self.0).read(&mut [0; 8]);
    }

    /// A read that completes when the eventfd is written to, and resets it.
    pub(super) fn read_into(&self, count: &mut u64) -> squeue::Entry {
        opcode::Read::new(types::Fd(self.number()), (&raw mut *count).cast(), 8).build()
    }

    pub(super) fn signal(&self) {
        // The only error is a full counter, which also wakes.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}
