//! Plain system calls, once per OS: the lowest layer, which imports nothing from the rest of the crate.
//!
//! Code that is the same on every OS is in the files of this folder. `unix` and `windows` supply the same items with
//! the same signatures:
//! - `Message`, `Stat`, `PathChar`: types that an operation is made of, with `Fd`, and `IoVec` and `Name` laid out as
//!   the kernel expects; `errno`, the error codes that the layers above distinguish;
//! - `accept`, `connect`, `connected`, `recv`, `send`, `recv_message`, ... (`sockets.rs`): return `None` if the call
//!   would block;
//! - `files::perform`: carries out a `FileOp`, and blocks until it is done; `path_of`, a path for std;
//! - `new_socket`, `new_pair`, `listen`, `adopt`, `close`, `reset`, ...: calls that never block;
//! - `MsgHdrBuf`: the memory of a message header; `recv_batch`, `send_batch` (`udp_linux.rs`, `no_offload.rs`): several
//!   messages with one call;
//! - `path_for_kernel`, `OpenFlags::for_kernel`, `kind`: paths, open flags and file types;
//! - `PoolCall`: a blocking call of a pool thread, cancelled where the OS supports it; `processes`, `signals`;
//! - `monotonic`, the clock; `entropy`, random numbers; `forks` and `count_forks`, which detect a fork;
//! - `current_mask`, `main_mask`, `set_thread_mask`, `CHILDREN_INHERIT_MASK`, `topology`: thread affinity;
//! - `SplicePipe`: moves bytes from socket to socket in the kernel, where the OS supports it;
//! - conversions from and to std's types.

mod affinity;
mod cpu_set;
mod entropy;
mod error;
mod file_op;
mod instant;
mod look_up;
mod msg_batch;
mod msg_meta;
mod name;
mod open_flags;
mod paths;
mod per_process;
mod prefetch;
mod socket_options;
#[cfg(all(feature = "sim", target_os = "linux", not(miri)))]
mod switches;
#[cfg(all(feature = "sim", not(all(target_os = "linux", not(miri)))))]
#[path = "no_switches.rs"]
mod switches;
#[cfg(feature = "console")]
mod thread_number;
mod topology;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use affinity::process_mask;
pub(crate) use cpu_set::CpuSet;
pub(crate) use error::context;
pub use error::os_code;
pub use file_op::FileOp;
pub use instant::Instant;
pub(crate) use look_up::look_up;
pub use look_up::{LookUp, LookUpResult};
pub use msg_batch::MessageEntry;
pub(crate) use msg_batch::{MsgBatchBuf, Outgoing, one_by_one};
pub(crate) use msg_meta::MsgMeta;
pub use name::Name;
pub(crate) use open_flags::OpenFlags;
pub(crate) use paths::shrank;
pub use paths::{CopyResult, DirItem, DirList};
pub(crate) use per_process::PerProcess;
pub(crate) use prefetch::prefetch;
#[cfg(feature = "reactor")]
pub(crate) use socket_options::connected;
pub use socket_options::{Credentials, KeepAlive, SocketKind, SocketOption};
pub(crate) use socket_options::{bind, get_option, listen, local_name, peer_name, reset, set_option, shutdown};
#[cfg(feature = "sim")]
pub(crate) use switches::voluntary_switches;
#[cfg(feature = "console")]
pub(crate) use thread_number::{ThreadNumber, thread_number};
pub(crate) use topology::Topology;
#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(unix)]
pub use unix::{Message, PathChar, Stat};
#[cfg(windows)]
pub(crate) use windows::*;
#[cfg(windows)]
pub use windows::{Message, PathChar, Stat};

/// A descriptor's number: on Windows, of a socket or a handle. Only the driver that gave it out knows what it refers to: see
/// [`Driver::fd_space`](crate::driver::Driver::fd_space). Sockets of the null driver have numbers from
/// [`FdSpace::FIRST_OWN`](crate::driver::FdSpace::FIRST_OWN) on, which every system call refuses.
pub type Fd = i32;

/// The result of a call or operation: a number (of bytes, or of a new descriptor), or the OS's error code.
pub type OsResult = Result<u32, i32>;

/// The offset that stands for the file's own position, which the kernel keeps and advances.
pub const CURRENT: u64 = u64::MAX;

/// A slice of memory; on Unix, laid out as `iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// Where it begins.
    pub base: *mut u8,
    /// How many bytes it has.
    pub len: usize,
}

impl IoVec {
    pub(crate) const EMPTY: IoVec = IoVec {
        base: std::ptr::null_mut(),
        len: 0,
    };
}

/// The kind of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Medium {
    /// A TCP connection.
    Tcp,
    /// A Unix connection. A receive may end early, at bytes that were sent with descriptors.
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

/// The OS's code of an error, or the closest one if it has none.
pub(crate) fn code_of(error: &io::Error) -> i32 {
    os_code(error).unwrap_or(match error.kind() {
        io::ErrorKind::UnexpectedEof => errno::BROKEN_PIPE,
        io::ErrorKind::Unsupported => errno::NOT_SUPPORTED,
        _ => errno::INVALID,
    })
}

/// Locks a mutex whose critical sections leave it consistent even if they panic, or cannot panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first position of a byte. The C library's `memchr` is several times as fast as a loop.
pub(crate) fn find_byte(bytes: &[u8], byte: u8) -> Option<usize> {
    unsafe extern "C" {
        fn memchr(bytes: *const u8, byte: i32, len: usize) -> *const u8;
    }
    // SAFETY: the call reads these bytes only, and keeps no pointer to them.
    let found = unsafe { memchr(bytes.as_ptr(), byte.into(), bytes.len()) };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}
