//! The operations on files and paths, as plain data. Each OS carries them out in its `files.rs`.

use std::path::PathBuf;

use super::{CopyResult, DirList, Fd, IoVec, PathChar, Stat};

/// An operation on a file or a path. No kernel reports readiness for these: the kernel's completion interface
/// carries them out, or a pool thread.
///
/// Fields with the same name have the same meaning everywhere:
///
/// - `fd`: the file.
/// - `path`, `from`, `to`, `target` and `link`: paths, ending in NUL. `from` is the old or existing one, `to` the new
///   one. `target` is the path that a symbolic link holds, `link` its own path.
/// - `ptr` and `len`: the memory that is read into or written from, and its length in bytes, never 0.
/// - `slices` and `count`: the first of `count` slices, between 1 and [`MAX_SLICES`](crate::driver::MAX_SLICES).
/// - `offset`: where in the file to begin, or [`CURRENT`](super::CURRENT).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the enum's documentation describes fields that recur, a variant's the others"
)]
pub enum FileOp {
    /// Opens a file. Its result is the new descriptor's number.
    Open {
        path: *const PathChar,
        /// The OS's flags; close-on-exec is added.
        flags: i32,
        /// The permissions of a new file.
        mode: u32,
    },
    /// Reads from a file into one buffer. Its result is the number of bytes; 0 is the end of the file.
    ReadAt {
        fd: Fd,
        ptr: *mut u8,
        len: usize,
        offset: u64,
    },
    /// Reads from a file into several buffers in order. Its result is the number of bytes; 0 is the end of the file.
    ReadVectoredAt {
        fd: Fd,
        slices: *const IoVec,
        count: usize,
        offset: u64,
    },
    /// Writes to a file from one buffer. Its result is the number of bytes taken.
    WriteAt {
        fd: Fd,
        ptr: *const u8,
        len: usize,
        offset: u64,
    },
    /// Writes to a file from several buffers in order. Its result is the number of bytes taken.
    WriteVectoredAt {
        fd: Fd,
        slices: *const IoVec,
        count: usize,
        offset: u64,
    },
    /// Waits until written data is on the disk. Its result is 0.
    Sync {
        fd: Fd,
        /// Whether the contents are enough, without metadata such as times.
        data_only: bool,
    },
    /// Reads a file's metadata. Its result is 0.
    Stat {
        /// The file, if there is no path.
        fd: Fd,
        /// The path, or null.
        path: *const PathChar,
        /// Whether a link at the end of the path is followed.
        follow: bool,
        /// Where the metadata goes.
        out: *mut Stat,
    },
    /// Sets a file's length to `len`; bytes that are added are zero. Its result is 0.
    Truncate { fd: Fd, len: u64 },
    /// Reserves space on the disk for `len` bytes of a file from `offset` on. Its result is 0.
    Allocate { fd: Fd, offset: u64, len: u64 },
    /// Renames a file or directory. Its result is 0.
    Rename { from: *const PathChar, to: *const PathChar },
    /// Removes a file or an empty directory. Its result is 0.
    Remove { path: *const PathChar, is_dir: bool },
    /// Creates a directory with these permissions. Its result is 0.
    MakeDir { path: *const PathChar, mode: u32 },
    /// Creates a hard link. Its result is 0.
    HardLink { from: *const PathChar, to: *const PathChar },
    /// Creates a symbolic link. Its result is 0.
    SymLink {
        target: *const PathChar,
        link: *const PathChar,
    },
    /// Reads the path that a symbolic link holds into `out`. Its result is 0.
    ReadLink { path: *const PathChar, out: *mut PathBuf },
    /// Sets a file's permissions. Its result is 0.
    SetMode {
        /// The file, if there is no path.
        fd: Fd,
        /// The path, or null. A link at its end is followed.
        path: *const PathChar,
        /// The permissions, as in `st_mode`; bits of the file type are ignored. On Windows a file without the bits `0o222`
        /// is read-only, and other bits have no meaning.
        mode: u32,
    },
    /// Appends the next entries of a directory to `list`. Its result is 0.
    ReadDir { path: *const PathChar, list: *mut DirList },
    /// Writes the absolute path without links, `.` and `..` to `out`. Its result is 0.
    RealPath { path: *const PathChar, out: *mut PathBuf },
    /// Copies the contents and permissions of a file. Its result is 0, and `out` is the number of bytes or the error.
    ///
    /// A driver that fails this with `EOPNOTSUPP` gets the reads and writes that a copy is composed of.
    Copy {
        from: *const PathChar,
        to: *const PathChar,
        out: *mut CopyResult,
    },
    /// Removes a directory with everything in it, or a link. Its result is 0.
    ///
    /// A driver that fails this with `EOPNOTSUPP` gets the operations that it is composed of.
    RemoveAll { path: *const PathChar },
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
            FileOp::ReadLink { .. } => "read_link",
            FileOp::SetMode { .. } => "set_mode",
            FileOp::ReadDir { .. } => "read_dir",
            FileOp::RealPath { .. } => "real_path",
            FileOp::Copy { .. } => "copy",
            FileOp::RemoveAll { .. } => "remove_all",
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
            FileOp::Stat { fd, path, .. } | FileOp::SetMode { fd, path, .. } => Some(fd).filter(|_| path.is_null()),
            FileOp::Open { .. }
            | FileOp::Rename { .. }
            | FileOp::Remove { .. }
            | FileOp::MakeDir { .. }
            | FileOp::HardLink { .. }
            | FileOp::SymLink { .. }
            | FileOp::ReadLink { .. }
            | FileOp::ReadDir { .. }
            | FileOp::RealPath { .. }
            | FileOp::Copy { .. }
            | FileOp::RemoveAll { .. } => None,
        }
    }
}
