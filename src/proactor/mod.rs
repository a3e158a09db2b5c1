//! The completion-based drivers: the kernel does the work and says when it is done.

#[cfg(all(feature = "proactor", windows))]
mod iocp;
#[cfg(all(feature = "proactor", target_os = "linux"))]
mod uring;

use std::io;

use crate::driver::{Driver, Settings};

/// Whether this build has a proactor for this platform.
pub(crate) const IS_BUILT: bool = cfg!(all(feature = "proactor", any(target_os = "linux", windows)));

/// Opens this platform's proactor.
#[cfg(all(feature = "proactor", target_os = "linux"))]
pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(uring::Uring::open(settings, reason)?))
}

/// Opens this platform's proactor: a completion port.
#[cfg(all(feature = "proactor", windows))]
pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(iocp::Iocp::open(settings, reason)?))
}

/// There is none in this build.
#[cfg(not(all(feature = "proactor", any(target_os = "linux", windows))))]
pub(crate) fn open(_settings: &Settings, _reason: &str) -> io::Result<Box<dyn Driver>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no proactor: that is for Linux and Windows, with the feature `proactor`",
    ))
}
