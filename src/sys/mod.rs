//! Plain system calls, once per OS: the lowest layer, which imports nothing from the rest of the crate.
//!
//! `unix` and `windows` supply the same items with the same signatures:
//! - `Fd`, `IoVec`, `Name`, `Message`, `Stat`, `PathChar`: the types that an operation is made of, laid out as the
//!   kernel expects; `errno`, the error codes that the layers above distinguish;
//! - `accept`, `connect`, `connected`, `recv`, `send`, `recv_message`, ... (`sockets.rs`): return `None` if the call
//!   would block;
//! - `files`: operations on files and paths, which block until they are done;
//! - `new_socket`, `new_pair`, `listen`, `adopt`, `close`, `reset`, ...: calls that never block;
//! - `MsgHdrBuf` and `MsgMeta`: building a message header, and the metadata of a received one;
//! - `path_for_kernel`, `OpenFlags`, `kind`: paths, open flags and file types;
//! - `SyncCancel`: ends a blocking call of another thread where the OS supports it; `processes`, `signals`;
//! - `monotonic`, the clock; `forks` and `count_forks`, which detect a fork; `find_byte`, libc's `memchr`;
//! - `SplicePipe`: moves bytes from socket to socket in the kernel, where the OS supports it;
//! - conversions from and to std's types.

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
#[cfg(feature = "reactor")]
pub(crate) use socket_options::connected;
pub use socket_options::{Credentials, KeepAlive, SocketKind, SocketOption};
pub(crate) use socket_options::{bind, get_option, listen, local_name, peer_name, reset, set_option, shutdown};
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(unix)]
pub use unix::{Fd, IoVec, Message, Name, PathChar, Stat};
#[cfg(windows)]
pub(crate) use windows::*;
#[cfg(windows)]
pub use windows::{Fd, IoVec, Message, Name, PathChar, Stat};

/// The result of a call or operation: a count (bytes, or a descriptor's number), or the OS's error code.
pub type OsResult = Result<u32, i32>;

/// The offset that stands for the file's own position, which the kernel keeps and advances.
pub const CURRENT: u64 = u64::MAX;

/// The kind of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A TCP connection.
    Tcp,
    /// A Unix connection. A receive may stop before the last byte where descriptors were passed.
    Unix,
    /// A pipe, a terminal or another descriptor that is not a socket.
    Pipe,
}

/// Reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Receives, and accepts.
    Read,
    /// Sends, and connects.
    Write,
}
