//! What a call becomes on its way to the kernel.
//!
//! An [`Op`] is plain data: numbers and raw pointers, `Copy`, no generics. The typed layer above (streams, listeners)
//! owns the descriptor and the buffer and puts them into a flight first; only then does it take the pointers that stand
//! here. A driver matches on the whole enum, without a wildcard arm, so that a new operation breaks the build of every
//! driver that does not know it.

use crate::sys::{Fd, IoVec, Message, Name, PathChar, Stat};

/// One operation for the kernel.
///
/// The memory behind every pointer belongs to the flight under whose id the operation is started, and stays where it is
/// until that flight's last completion has landed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Takes one connection off a listening socket. Lands the new descriptor's number.
    Accept {
        /// The listening socket.
        fd: Fd,
    },
    /// Connects a socket. Lands 0.
    Connect {
        /// The socket to connect.
        fd: Fd,
        /// The peer to connect to.
        name: *const Name,
    },
    /// Receives into one buffer. Lands the number of bytes; 0 is the end of the stream.
    Recv {
        /// The socket or pipe.
        fd: Fd,
        /// What it is.
        medium: Medium,
        /// Where the bytes go.
        ptr: *mut u8,
        /// How many may be written there; never 0.
        len: usize,
    },
    /// Receives into a buffer of the driver's pool, chosen when bytes arrive. Lands the number of bytes and the buffer,
    /// or the error `ENOBUFS` when the pool is empty.
    RecvManaged {
        /// The socket or pipe.
        fd: Fd,
        /// What it is.
        medium: Medium,
    },
    /// Receives into several buffers in order. Lands the number of bytes; 0 is the end of the stream.
    RecvVectored {
        /// The socket or pipe.
        fd: Fd,
        /// What it is.
        medium: Medium,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
    },
    /// Sends from one buffer. Lands the number of bytes taken.
    Send {
        /// The socket or pipe.
        fd: Fd,
        /// What it is.
        medium: Medium,
        /// Where the bytes are.
        ptr: *const u8,
        /// How many; never 0.
        len: usize,
    },
    /// Sends from several buffers in order. Lands the number of bytes taken.
    SendVectored {
        /// The socket or pipe.
        fd: Fd,
        /// What it is.
        medium: Medium,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
    },
    /// Receives one message, with its sender's name and the descriptors passed along. Lands the number of its bytes.
    RecvMessage {
        /// The socket.
        fd: Fd,
        /// Its header, which says where everything goes.
        message: *mut Message,
    },
    /// The same into a buffer of the driver's pool, as [`RecvManaged`](Op::RecvManaged).
    RecvMessageManaged {
        /// The socket.
        fd: Fd,
        /// Its header, which has no place for the bytes.
        message: *mut Message,
    },
    /// Sends one message. Lands the number of its bytes.
    SendMessage {
        /// The socket.
        fd: Fd,
        /// Whether to land the error `EAGAIN` instead of waiting for room.
        at_once: bool,
        /// Its header, which says where everything is.
        message: *const Message,
    },
    /// Waits until a descriptor can be read from or written to without waiting, or has an error to tell; moves no
    /// bytes. Lands 0, at the earliest in the next poll.
    Readiness {
        /// Any descriptor that can be waited for.
        fd: Fd,
        /// Which of the two.
        direction: Direction,
    },
    /// Opens a file. Lands the new descriptor's number.
    Open {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// The OS's flags for opening; close-on-exec is added.
        flags: i32,
        /// The permissions of a file that this creates.
        mode: u32,
    },
    /// Reads from a file into one buffer. Lands the number of bytes; 0 is the end of the file.
    ReadAt {
        /// The file.
        fd: Fd,
        /// Where the bytes go.
        ptr: *mut u8,
        /// How many may be written there; never 0.
        len: usize,
        /// Where in the file to begin, or [`CURRENT`].
        offset: u64,
    },
    /// Reads from a file into several buffers in order. Lands the number of bytes; 0 is the end of the file.
    ReadVectoredAt {
        /// The file.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
        /// Where in the file to begin, or [`CURRENT`].
        offset: u64,
    },
    /// Writes to a file from one buffer. Lands the number of bytes taken.
    WriteAt {
        /// The file.
        fd: Fd,
        /// Where the bytes are.
        ptr: *const u8,
        /// How many; never 0.
        len: usize,
        /// Where in the file to begin, or [`CURRENT`].
        offset: u64,
    },
    /// Writes to a file from several buffers in order. Lands the number of bytes taken.
    WriteVectoredAt {
        /// The file.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
        /// Where in the file to begin, or [`CURRENT`].
        offset: u64,
    },
    /// Waits until what was written to a file is on its disk. Lands 0.
    Sync {
        /// The file.
        fd: Fd,
        /// Whether the contents are enough, without times and the like.
        data_only: bool,
    },
    /// Asks what the kernel knows of a file. Lands 0.
    Stat {
        /// The file, if there is no path.
        fd: Fd,
        /// The path, ending in NUL, or null.
        path: *const PathChar,
        /// Whether a link at the end of the path is followed.
        follow: bool,
        /// Where the answer goes.
        out: *mut Stat,
    },
    /// Cuts a file off, or lengthens it with zeroes. Lands 0.
    Truncate {
        /// The file.
        fd: Fd,
        /// Its new length.
        len: u64,
    },
    /// Reserves space on the disk for a file. Lands 0.
    Allocate {
        /// The file.
        fd: Fd,
        /// Where the space begins.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Renames a file or folder. Lands 0.
    Rename {
        /// The old path, ending in NUL.
        from: *const PathChar,
        /// The new path, ending in NUL.
        to: *const PathChar,
    },
    /// Removes a file, or an empty folder. Lands 0.
    Remove {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// Whether it is a folder.
        folder: bool,
    },
    /// Makes a folder. Lands 0.
    MakeFolder {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// Its permissions.
        mode: u32,
    },
    /// Gives a file a second name. Lands 0.
    HardLink {
        /// The name that it has, ending in NUL.
        from: *const PathChar,
        /// The name that it gets, ending in NUL.
        to: *const PathChar,
    },
    /// Makes a link that holds a path. Lands 0.
    SymLink {
        /// The path that it holds, ending in NUL.
        target: *const PathChar,
        /// Its own path, ending in NUL.
        link: *const PathChar,
    },
}

// SAFETY: an op is plain data: sending it to another thread sends numbers. What its pointers point to belongs to its
// flight, which leaves it alone until it lands; so whoever carries the op out is the only one to use it, on whichever
// thread.
unsafe impl Send for Op {}

/// The offset that means: where the file is read from or written to next, as the kernel keeps it.
pub const CURRENT: u64 = u64::MAX;

/// What bytes in order go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A TCP connection.
    Tcp,
    /// A Unix connection. A receive may end where somebody has passed descriptors, though there are more bytes.
    Unix,
    /// A pipe, or whatever else is read and written but is no socket.
    Pipe,
}

/// Reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Bytes come in; for a listener, connections.
    Read,
    /// Bytes go out; for a connect, its end.
    Write,
}

/// The most slices that one vectored operation carries: the kernel's `IOV_MAX`.
pub const MAX_SLICES: usize = 1024;

/// The most bytes that one operation carries. Linux moves no more than this in one call, and it fits every kernel's
/// length field, so a length of 2 GiB or 4 GiB never wraps around on its way down.
pub const MAX_LEN: usize = 0x7fff_f000;

impl Op {
    /// The operation's name, as counters and dumps print it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Accept { .. } => "accept",
            Op::Connect { .. } => "connect",
            Op::Recv { .. } => "recv",
            Op::RecvManaged { .. } => "recv_managed",
            Op::RecvVectored { .. } => "recv_vectored",
            Op::Send { .. } => "send",
            Op::SendVectored { .. } => "send_vectored",
            Op::RecvMessage { .. } => "recv_message",
            Op::RecvMessageManaged { .. } => "recv_message_managed",
            Op::SendMessage { .. } => "send_message",
            Op::Readiness { .. } => "readiness",
            Op::Open { .. } => "open",
            Op::ReadAt { .. } => "read",
            Op::ReadVectoredAt { .. } => "read_vectored",
            Op::WriteAt { .. } => "write",
            Op::WriteVectoredAt { .. } => "write_vectored",
            Op::Sync { .. } => "sync",
            Op::Stat { .. } => "stat",
            Op::Truncate { .. } => "truncate",
            Op::Allocate { .. } => "allocate",
            Op::Rename { .. } => "rename",
            Op::Remove { .. } => "remove",
            Op::MakeFolder { .. } => "make_folder",
            Op::HardLink { .. } => "hard_link",
            Op::SymLink { .. } => "sym_link",
        }
    }

    /// The descriptor that the operation is for; `None` if it has none, or names a file by its path.
    pub fn fd(&self) -> Option<Fd> {
        match *self {
            Op::ReadAt { fd, .. }
            | Op::ReadVectoredAt { fd, .. }
            | Op::WriteAt { fd, .. }
            | Op::WriteVectoredAt { fd, .. }
            | Op::Sync { fd, .. }
            | Op::Truncate { fd, .. }
            | Op::Allocate { fd, .. } => Some(fd),
            Op::Stat { fd, path, .. } if path.is_null() => Some(fd),
            _ => self.waits_for().map(|(fd, _)| fd),
        }
    }

    /// The descriptor that the operation waits for, and for what. `None` for file work: no kernel tells when that will
    /// not block, so it is done by a completion-based kernel or by a thread.
    pub fn waits_for(&self) -> Option<(Fd, Direction)> {
        match *self {
            Op::Accept { fd }
            | Op::Recv { fd, .. }
            | Op::RecvManaged { fd, .. }
            | Op::RecvVectored { fd, .. }
            | Op::RecvMessage { fd, .. }
            | Op::RecvMessageManaged { fd, .. } => Some((fd, Direction::Read)),
            Op::Connect { fd, .. } | Op::Send { fd, .. } | Op::SendVectored { fd, .. } | Op::SendMessage { fd, .. } => {
                Some((fd, Direction::Write))
            }
            Op::Readiness { fd, direction } => Some((fd, direction)),
            Op::Open { .. }
            | Op::ReadAt { .. }
            | Op::ReadVectoredAt { .. }
            | Op::WriteAt { .. }
            | Op::WriteVectoredAt { .. }
            | Op::Sync { .. }
            | Op::Stat { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::Rename { .. }
            | Op::Remove { .. }
            | Op::MakeFolder { .. }
            | Op::HardLink { .. }
            | Op::SymLink { .. } => None,
        }
    }
}
