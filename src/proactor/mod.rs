//! Completion-based drivers, where the kernel performs the operation: io_uring on Linux, completion ports on Windows.

#[cfg(all(feature = "proactor", windows))]
mod iocp;
#[cfg(all(feature = "proactor", target_os = "linux"))]
mod uring;

use std::io;

use crate::driver::{Driver, Settings};

/// Whether this build has a proactor for this platform.
pub(crate) const IS_BUILT: bool = cfg!(all(feature = "proactor", any(target_os = "linux", windows)));

/// Opens the io_uring driver.
#[cfg(all(feature = "proactor", target_os = "linux"))]
pub(crate) fn open(settings: &Settings, reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(uring::Uring::open(settings, reason)?))
}

/// Opens the completion-port driver.
#[cfg(all(feature = "proactor", windows))]
pub(crate) fn open(_settings: &Settings, reason: &str) -> io::Result<Box<dyn Driver>> {
    Ok(Box::new(iocp::Iocp::open(reason)?))
}

/// This build has no proactor.
#[cfg(not(all(feature = "proactor", any(target_os = "linux", windows))))]
pub(crate) fn open(_settings: &Settings, _reason: &str) -> io::Result<Box<dyn Driver>> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no proactor: it needs Linux or Windows, and the feature `proactor`",
    ))
}
