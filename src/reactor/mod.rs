//! The readiness-based driver, on epoll, kqueue or Windows' AFD through mio: the kernel reports that a descriptor is
//! ready, and the driver performs the operation.
//!
//! Kernel facts that shape this driver:
//!
//! - Readiness is edge-triggered: the kernel reports each change once. An operation that waited for an edge that has
//!   already been reported would hang. So every operation is **attempted first**, parked only if it would block, and
//!   attempted again when the descriptor is reported ready. A spurious report costs one attempt.
//! - A descriptor is registered when its first operation would block, once and for both directions, until it is closed
//!   or given away. Registering reports the current state, so no edge is lost between the attempt and the registration.
//! - A turn need not make a system call: while tasks are ready, the driver polls the kernel every 64 turns or 50 us,
//!   whichever comes first (`poll_throttle`).
//! - epoll counts timeouts in milliseconds; `sleep` waits for the last fraction with ppoll(2).
//! - A parked operation has not touched its memory, so a cancel always succeeds and loses nothing. Pipes on Windows are
//!   the exception: they have no readiness, and the kernel uses the memory of an overlapped call until that ends.
//!
//! `unix` and `windows` supply the platform's part: `Source`, a registration, with `arm` and `disarm` where
//! `NEEDS_ARMING` is true (events are one-shot); `Pipes`, for pipes without readiness; `describe`, `descriptor`,
//! `SHORT_MEANS_DRAINED` and `SPARE_BITS`. `deadline` is the platform's timer for embedded loops, `events` waits for events.

#[cfg(all(feature = "reactor", unix, not(target_os = "linux")))]
#[path = "deadline_kqueue.rs"]
mod deadline;
#[cfg(all(feature = "reactor", windows))]
#[path = "deadline_none.rs"]
mod deadline;
#[cfg(all(feature = "reactor", target_os = "linux"))]
#[path = "deadline_timerfd.rs"]
mod deadline;
#[cfg(all(feature = "reactor", target_os = "linux"))]
#[path = "events_epoll.rs"]
mod events;
#[cfg(all(feature = "reactor", not(target_os = "linux")))]
#[path = "events_mio.rs"]
mod events;
#[cfg(feature = "reactor")]
mod fd_table;
#[cfg(feature = "reactor")]
mod poller;
#[cfg(feature = "reactor")]
mod sleep;
#[cfg(all(feature = "reactor", unix))]
mod unix;
#[cfg(feature = "reactor")]
mod wait_list;
#[cfg(all(feature = "reactor", windows))]
mod windows;

#[cfg(all(feature = "reactor", unix))]
use unix as os;
#[cfg(all(feature = "reactor", windows))]
use windows as os;

use std::io;

use crate::driver::Driver;

/// Opens this platform's reactor.
#[cfg(feature = "reactor")]
pub(crate) fn open(reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(poller::Reactor::open(reason)?))
}

/// This build has no reactor.
#[cfg(not(feature = "reactor"))]
pub(crate) fn open(_reason: &str) -> io::Result<Box<dyn Driver>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no reactor: enable the feature `reactor`",
    ))
}
