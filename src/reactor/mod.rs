//! The readiness-based driver: the kernel says when a descriptor is ready, and we do the work. epoll, kqueue and Windows'
//! AFD, all through mio.
//!
//! Facts that shape this room:
//!
//! - Readiness is told once per change (edge-triggered), so nobody may wait for news that has already been told. Every
//!   operation is therefore **tried first**; only when it would have to wait is it parked, and when the descriptor is said
//!   to be ready it is tried again. What is told too often costs a try and harms nobody.
//! - A descriptor is registered when its first operation has to wait, once, for both directions, and stays registered
//!   until it is closed or given away. Registering tells what is ready at that moment, so nothing falls in between.
//! - A turn is not a system call: while there is something to run, the kernel is asked at the latest every 64 turns or
//!   50 microseconds (`pace`).
//! - mio rounds a timeout up to a millisecond on Linux; `sleep` does better.
//! - An operation that is parked has not touched its memory. So a cancel always succeeds, and loses nothing.
//!
//! What differs between systems stands in `unix` and `windows`, each of which supplies: `Source`, a registration, with
//! `arm`, which is called when somebody waits if it `HAS_TO_ASK`, and `told`; `Pipes`, for what has no readiness; `describe`, `descriptor`,
//! `SHORT_IS_EMPTY` and `SPARE_BITS`.

#[cfg(feature = "reactor")]
mod fd_table;
#[cfg(feature = "reactor")]
mod parked;
#[cfg(feature = "reactor")]
mod poller;
#[cfg(feature = "reactor")]
mod sleep;
#[cfg(all(feature = "reactor", unix))]
mod unix;
#[cfg(all(feature = "reactor", windows))]
mod windows;

#[cfg(all(feature = "reactor", unix))]
use unix as os;
#[cfg(all(feature = "reactor", windows))]
use windows as os;

use std::io;

use crate::driver::{Driver, Settings};

/// Opens this platform's reactor.
#[cfg(feature = "reactor")]
pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(poller::Reactor::open(settings, reason)?))
}

/// There is none in this build.
#[cfg(not(feature = "reactor"))]
pub(crate) fn open(_settings: &Settings, _reason: &str) -> io::Result<Box<dyn Driver>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no reactor: enable the feature `reactor`",
    ))
}
