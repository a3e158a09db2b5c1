//! The Unix part of the reactor: descriptors are registered once for both directions, edge-triggered.
//!
//! Registrations need no re-arming, and pipes have readiness like sockets, so most functions here do nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Registry, Token};

use super::poller::Notifier;
use crate::driver::op::{Direction, Op};
use crate::driver::pool::ProvidedPool;
use crate::driver::{Completion, DriverCounters, OpId, Scratch, Start};
use crate::sys::Fd;

/// How many low bits of a descriptor's number are always zero.
pub(super) const SPARE_BITS: u32 = 0;

/// Whether a short receive or send means that the next one would block. Urgent data also ends a receive; only Linux
/// reports it (`PRIORITY`).
pub(super) const SHORT_MEANS_DRAINED: bool = cfg!(target_os = "linux");

#[cfg(target_os = "linux")]
const INTERESTS: Interest = Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);
#[cfg(not(target_os = "linux"))]
const INTERESTS: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// The driver's name, and the kernel features that it uses.
pub(super) fn describe() -> (&'static str, Vec<&'static str>) {
    match cfg!(target_os = "linux") {
        true => ("epoll", vec!["edge-triggered", "ppoll for short sleeps"]),
        false => ("kqueue", vec!["edge-triggered"]),
    }
}

/// The descriptor for an outer loop.
pub(super) fn descriptor(poll: &Poll) -> io::Result<Fd> {
    Ok(poll.as_raw_fd())
}

/// A registration.
pub(super) struct Source;

impl Source {
    /// Whether a direction must be armed before an operation waits for it. Not here: the kernel reports every change.
    pub(super) const NEEDS_ARMING: bool = false;

    #[inline(always)]
    pub(super) fn new(_fd: Fd) -> Source {
        Source
    }

    /// Registers a descriptor.
    pub(super) fn register(&mut self, registry: &Registry, fd: Fd, token: Token, _: Direction) -> io::Result<()> {
        match registry.register(&mut SourceFd(&fd), token, INTERESTS) {
            // The file is registered under this number already: a foreign descriptor that is in use or was reopened.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.renew(registry, fd, token),
            result => result,
        }
    }

    /// Registers again while operations wait. An error if the number now belongs to another file.
    pub(super) fn renew(&mut self, registry: &Registry, fd: Fd, token: Token) -> io::Result<()> {
        registry.reregister(&mut SourceFd(&fd), token, INTERESTS)
    }

    /// Deregisters a descriptor. An error means that its owner has closed it already.
    pub(super) fn deregister(self, registry: &Registry, fd: Fd) {
        let _ = registry.deregister(&mut SourceFd(&fd));
    }

    /// An operation is about to wait for this direction.
    #[inline(always)]
    pub(super) fn arm(&mut self, _: &Registry, _: Token, _: Direction) -> io::Result<()> {
        Ok(())
    }

    /// The kernel has reported this direction.
    #[inline(always)]
    pub(super) fn disarm(&mut self, _: Direction) {}
}

/// Pipes without readiness: Unix has none.
pub(super) struct Pipes;

impl Pipes {
    #[inline(always)]
    pub(super) fn new(_: &Arc<Notifier>) -> Pipes {
        Pipes
    }

    /// Whether the operation is for such a pipe.
    #[inline(always)]
    pub(super) fn serves(_: &Op) -> bool {
        false
    }

    /// Safety: as for [`Driver::start`](crate::driver::Driver::start).
    #[inline(always)]
    pub(super) unsafe fn start(
        &mut self,
        _: OpId,
        _: &Op,
        _: *mut Scratch,
        _: &ProvidedPool,
        _: &mut DriverCounters,
    ) -> Start {
        unreachable!("pipes have readiness on Unix")
    }

    /// Requests a cancel: whether it came in time, or `None` if no such call is in flight.
    #[inline(always)]
    pub(super) fn cancel(&mut self, _: OpId) -> Option<bool> {
        None
    }

    /// Reports the calls that have ended.
    #[inline(always)]
    pub(super) fn complete(&mut self, _: &mut Vec<Completion>) {}
}
