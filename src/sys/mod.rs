//! The plain system calls, once per OS.
//!
//! What each platform's room must supply:
//! - `Fd`, the type of a descriptor's number, `IoVec`, a slice as the kernel wants it, and `errno`, the error codes that the layers above tell apart;
//! - `control`, a driver's control calls by plain system calls;
//! - `monotonic`, the clock;
//! - the conversions between std's sockets and ours.

#[cfg(unix)]
mod unix;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(unix)]
pub use unix::{Fd, IoVec};
