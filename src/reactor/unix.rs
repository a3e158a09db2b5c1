//! What mio's reactor is made of on Unix: descriptors, registered once for both directions, edge-triggered.
//!
//! Nothing has to be asked for again, and pipes are waited for as sockets are. So most of this is nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Registry, Token};

use super::poller::Notifier;
use crate::driver::op::{Direction, Op};
use crate::driver::pool::PoolBuffer;
use crate::driver::{Completion, OpId, Scratch, Start};
use crate::sys::Fd;

/// How many of a number's lowest bits say nothing.
pub(super) const SPARE_BITS: u32 = 0;

/// Whether a receive that did not fill its buffer has emptied the socket. Urgent bytes are an exception that only Linux
/// tells of.
pub(super) const SHORT_IS_EMPTY: bool = cfg!(target_os = "linux");

#[cfg(target_os = "linux")]
const INTERESTS: Interest = Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);
#[cfg(not(target_os = "linux"))]
const INTERESTS: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// The driver's name, and what it uses of the kernel.
pub(super) fn describe() -> (&'static str, Vec<&'static str>) {
    match cfg!(target_os = "linux") {
        true => ("epoll", vec!["edge-triggered", "ppoll for short sleeps"]),
        false => ("kqueue", vec!["edge-triggered"]),
    }
}

/// What an outer loop can watch.
pub(super) fn descriptor(poll: &Poll) -> io::Result<Fd> {
    Ok(poll.as_raw_fd())
}

/// That a descriptor is registered.
pub(super) struct Source;

impl Source {
    /// Whether to ask again whenever somebody waits. The kernel tells of each change, unasked.
    pub(super) const HAS_TO_ASK: bool = false;

    #[inline(always)]
    pub(super) fn new(_fd: Fd) -> Source {
        Source
    }

    /// Asks the kernel to tell of a descriptor.
    pub(super) fn register(&mut self, registry: &Registry, fd: Fd, token: Token, _: Direction) -> io::Result<()> {
        match registry.register(&mut SourceFd(&fd), token, INTERESTS) {
            // The same file under the same number as before: somebody waits for it, or it came back behind our back.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.renew(registry, fd, token),
            result => result,
        }
    }

    /// Asks again for one that is waited for already. An error if another file has come under its number.
    pub(super) fn renew(&mut self, registry: &Registry, fd: Fd, token: Token) -> io::Result<()> {
        registry.reregister(&mut SourceFd(&fd), token, INTERESTS)
    }

    /// Takes it back. If it was closed behind our back there is nothing to take back.
    pub(super) fn deregister(self, registry: &Registry, fd: Fd) {
        let _ = registry.deregister(&mut SourceFd(&fd));
    }

    /// Somebody waits.
    #[inline(always)]
    pub(super) fn arm(&mut self, _: &Registry, _: Token, _: Direction) -> io::Result<()> {
        Ok(())
    }

    /// The kernel has told.
    #[inline(always)]
    pub(super) fn told(&mut self, _: Direction) {}
}

/// Pipes that readiness does not serve: there are none.
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

    /// # Safety
    ///
    /// As for [`Driver::start`](crate::driver::Driver::start).
    #[inline(always)]
    pub(super) unsafe fn start(&mut self, _: OpId, _: Op, _: Option<PoolBuffer>, _: *mut Scratch) -> Start {
        unreachable!("no operation is for such a pipe")
    }

    /// Asks for the end of one that is under way; `None` if there is none, else whether it came in time.
    #[inline(always)]
    pub(super) fn cancel(&mut self, _: OpId) -> Option<bool> {
        None
    }

    /// Lands what is over.
    #[inline(always)]
    pub(super) fn complete(&mut self, _: &mut Vec<Completion>) {}
}
