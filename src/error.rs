//! The errors of a loop that has closed or belongs to another process, and error codes as `io::Error`s.

use std::fmt;
use std::io;

use crate::sys;

/// Error: the event loop has closed, or it belongs to the parent of this forked process.
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

/// Converts an operation's error code. ECANCELED reaches a caller only if the loop closed before the operation
/// completed: a caller that cancels an operation no longer waits for it.
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
