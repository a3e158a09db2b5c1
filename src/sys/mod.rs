//! The plain system calls, once per OS.
//!
//! What each platform's room must supply:
//! - `Fd`, the type of a descriptor's number, `IoVec`, a slice as the kernel wants it, and `errno`, the error codes
//!   that the layers above tell apart;
//! - `Name`, a socket's address, `Message`, the header of a message, and `MsgHdrBuf` and `MsgMeta`, what is put into
//!   one and taken out;
//! - `Stat`, what the kernel says of a file, and `path_for_kernel` and
//!   `OpenFlags`, a path and how to open it, as it wants them; `kind`, the bits that tell files from folders;
//! - `control`, a driver's control calls by plain system calls;
//! - `perform`, an operation by the plain system call: a socket's if it need not wait, a file's until it is done; and
//!   `connected`, how a connect has ended;
//! - `SyncCancel`, which ends such a call where it could wait for ever; `processes` and `signals`;
//! - `monotonic`, the clock;
//! - `forks` and `count_forks`, which tell a forked child from its parent;
//! - `find_byte`, the fastest search that there is;
//! - `SplicePipe`, a way from socket to socket inside of the kernel, where there is one;
//! - the conversions between std's sockets and ours.

mod error;
mod instant;
mod socket_options;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub(crate) use error::context;
pub use error::os_code;
pub use instant::Instant;
pub use socket_options::{Credentials, KeepAlive, SocketKind, SocketOption};
pub(crate) use socket_options::{bind, get_option, local_name, peer_name, set_option};
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(unix)]
pub use unix::{Fd, IoVec, Message, Name, PathChar, Stat};
#[cfg(windows)]
pub(crate) use windows::*;
#[cfg(windows)]
pub use windows::{Fd, IoVec, Message, Name, PathChar, Stat};

/// The result of an operation: a count (bytes, or a descriptor's number), or the OS's error code.
pub type OsResult = Result<u32, i32>;
