//! The errors of a closed loop and of a loop used in a forked child, and the conversion of error codes to `io::Error`.

use std::fmt;
use std::io;

use crate::sys;

/// Error: the event loop has closed, or this is a forked child of the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopClosed;

impl fmt::Display for LoopClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the event loop has closed")?;
        match sys::forks() {
            0 => Ok(()),
            _ => f.write_str(", or was made before this process was forked"),
        }
    }
}

impl std::error::Error for LoopClosed {}

impl From<LoopClosed> for io::Error {
    fn from(closed: LoopClosed) -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, closed)
    }
}

/// The loop, or the pool, was made before this process was forked.
#[derive(Debug)]
struct Forked;

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "it was made before this process was forked, and belongs to the parent: make a new one in the child",
        )
    }
}

impl std::error::Error for Forked {}

/// The error of a loop or pool that is used in a forked child.
pub(crate) fn forked_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, Forked)
}

/// Converts an operation's error code. ECANCELED becomes [`LoopClosed`]: a caller that cancels an operation no longer
/// waits for it, so a caller receives this code only if the loop closed before the operation completed.
pub(crate) fn from_code(code: i32) -> io::Error {
    match code {
        sys::errno::CANCELED => LoopClosed.into(),
        code => io::Error::from_raw_os_error(code),
    }
}

/// A copy of an error that several calls return: `io::Error` is not `Clone`.
pub(crate) fn copy_error(error: &io::Error) -> io::Error {
    match (error.raw_os_error(), error.get_ref()) {
        (Some(code), _) => io::Error::from_raw_os_error(code),
        (None, Some(inner)) if inner.is::<LoopClosed>() => LoopClosed.into(),
        _ => io::Error::new(error.kind(), error.to_string()),
    }
}
