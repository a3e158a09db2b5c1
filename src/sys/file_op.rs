//! The operations on files and paths, as plain data. Each OS carries them out in its `files.rs`.

use super::{Fd, IoVec, PathChar, Stat};

/// An operation on a file or a path. No kernel reports readiness for these: the kernel's completion interface
/// carries them out, or a pool thread.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum FileOp {
    /// Opens a file. Its result is the new descriptor's number.
    Open {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// The OS's flags; close-on-exec is added.
        flags: i32,
        /// The permissions of a new file.
        mode: u32,
    },
    /// Reads from a file into one buffer. Its result is the number of bytes; 0 is the end of the file.
    ReadAt {
        /// The file.
        fd: Fd,
        /// Where the bytes go.
        ptr: *mut u8,
        /// How many may be written there; never 0.
        len: usize,
        /// Where in the file to begin, or [`CURRENT`](super::CURRENT).
        offset: u64,
    },
    /// Reads from a file into several buffers in order. Its result is the number of bytes; 0 is the end of the file.
    ReadVectoredAt {
        /// The file.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`](crate::driver::MAX_SLICES).
        count: usize,
        /// Where in the file to begin, or [`CURRENT`](super::CURRENT).
        offset: u64,
    },
    /// Writes to a file from one buffer. Its result is the number of bytes taken.
    WriteAt {
        /// The file.
        fd: Fd,
        /// Where the bytes are.
        ptr: *const u8,
        /// How many; never 0.
        len: usize,
        /// Where in the file to begin, or [`CURRENT`](super::CURRENT).
        offset: u64,
    },
    /// Writes to a file from several buffers in order. Its result is the number of bytes taken.
    WriteVectoredAt {
        /// The file.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`](crate::driver::MAX_SLICES).
        count: usize,
        /// Where in the file to begin, or [`CURRENT`](super::CURRENT).
        offset: u64,
    },
    /// Waits until written data is on the disk. Its result is 0.
    Sync {
        /// The file.
        fd: Fd,
        /// Whether the contents are enough, without metadata such as times.
        data_only: bool,
    },
    /// Reads a file's metadata. Its result is 0.
    Stat {
        /// The file, if there is no path.
        fd: Fd,
        /// The path, ending in NUL, or null.
        path: *const PathChar,
        /// Whether a link at the end of the path is followed.
        follow: bool,
        /// Where the metadata goes.
        out: *mut Stat,
    },
    /// Sets a file's length; bytes that are added are zero. Its result is 0.
    Truncate {
        /// The file.
        fd: Fd,
        /// Its new length.
        len: u64,
    },
    /// Reserves space on the disk for a file. Its result is 0.
    Allocate {
        /// The file.
        fd: Fd,
        /// Where the space begins.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Renames a file or directory. Its result is 0.
    Rename {
        /// The old path, ending in NUL.
        from: *const PathChar,
        /// The new path, ending in NUL.
        to: *const PathChar,
    },
    /// Removes a file or an empty directory. Its result is 0.
    Remove {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// Creates a directory. Its result is 0.
    MakeDir {
        /// The path, ending in NUL.
        path: *const PathChar,
        /// Its permissions.
        mode: u32,
    },
    /// Creates a hard link. Its result is 0.
    HardLink {
        /// The existing name, ending in NUL.
        from: *const PathChar,
        /// The new name, ending in NUL.
        to: *const PathChar,
    },
    /// Creates a symbolic link. Its result is 0.
    SymLink {
        /// The path that the link holds, ending in NUL.
        target: *const PathChar,
        /// The link's own path, ending in NUL.
        link: *const PathChar,
    },
}

impl FileOp {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            FileOp::Open { .. } => "open",
            FileOp::ReadAt { .. } => "read",
            FileOp::ReadVectoredAt { .. } => "read_vectored",
            FileOp::WriteAt { .. } => "write",
            FileOp::WriteVectoredAt { .. } => "write_vectored",
            FileOp::Sync { .. } => "sync",
            FileOp::Stat { .. } => "stat",
            FileOp::Truncate { .. } => "truncate",
            FileOp::Allocate { .. } => "allocate",
            FileOp::Rename { .. } => "rename",
            FileOp::Remove { .. } => "remove",
            FileOp::MakeDir { .. } => "make_dir",
            FileOp::HardLink { .. } => "hard_link",
            FileOp::SymLink { .. } => "sym_link",
        }
    }

    pub(crate) fn fd(&self) -> Option<Fd> {
        match *self {
            FileOp::ReadAt { fd, .. }
            | FileOp::ReadVectoredAt { fd, .. }
            | FileOp::WriteAt { fd, .. }
            | FileOp::WriteVectoredAt { fd, .. }
            | FileOp::Sync { fd, .. }
            | FileOp::Truncate { fd, .. }
            | FileOp::Allocate { fd, .. } => Some(fd),
            FileOp::Stat { fd, path, .. } => Some(fd).filter(|_| path.is_null()),
            FileOp::Open { .. }
            | FileOp::Rename { .. }
            | FileOp::Remove { .. }
            | FileOp::MakeDir { .. }
            | FileOp::HardLink { .. }
            | FileOp::SymLink { .. } => None,
        }
    }
}
