//! Operations on paths that need more than one system call: directory listings, links, copies, removal of directories.
//! They are std's, so they are the same on every OS, and block until they are done.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;

use super::{FileOp, OsResult, code_of, errno, kind_of, path_of};

/// Carries out one of the operations of this module.
///
/// # Safety
///
/// Paths end in NUL. Outputs are valid and not used otherwise until this returns.
pub(super) unsafe fn perform(op: FileOp) -> OsResult {
    // SAFETY: the caller's promise.
    let result = unsafe {
        match op {
            FileOp::ReadLink { path, out } => std::fs::read_link(path_of(path)).map(|target| *out = target),
            FileOp::RealPath { path, out } => std::fs::canonicalize(path_of(path)).map(|path| *out = path),
            FileOp::ReadDir { path, list } => return (*list).read(&path_of(path)),
            FileOp::Copy { from, to, out } => {
                *out = copy(&path_of(from), &path_of(to));
                Ok(())
            }
            FileOp::RemoveAll { path } => std::fs::remove_dir_all(path_of(path)),
            // The others are single system calls, in each OS's `files.rs`.
            _ => return Err(errno::NOT_SUPPORTED),
        }
    };
    result.map(|()| 0).map_err(|error| code_of(&error))
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// Its name.
    pub name: OsString,
    /// Its type, as in the file type bits of [`Stat::mode`](super::Stat::mode); 0 if unknown. Links are not followed.
    pub kind: u32,
}

/// A directory's listing. [`FileOp::ReadDir`](super::FileOp::ReadDir) fills it; a long one in several operations.
#[derive(Default)]
pub struct DirList {
    /// The entries that the loop has not taken yet: an operation appends. Neither `.` nor `..` is an entry.
    pub items: VecDeque<DirItem>,
    /// Whether the end of the directory was reached. The loop starts another operation until it is.
    pub is_complete: bool,
    /// For the driver: where its next operation continues. 0 in the first operation, else as the last one left it.
    pub position: u64,
    /// The kernel's directory stream, and the error that ended it after some entries.
    stream: Option<std::fs::ReadDir>,
    error: Option<i32>,
}

impl DirList {
    /// How many entries one operation should append at most.
    pub const BATCH: usize = 256;

    /// An empty list, for the first operation.
    pub fn new() -> DirList {
        DirList::default()
    }

    /// Appends the next entries of a directory of the kernel's.
    fn read(&mut self, path: &Path) -> OsResult {
        if let Some(code) = self.error.take() {
            self.is_complete = true;
            return Err(code);
        }
        if self.stream.is_none() {
            self.stream = Some(std::fs::read_dir(path).map_err(|error| code_of(&error))?);
        }
        for _ in 0..DirList::BATCH {
            match self.stream.as_mut().and_then(Iterator::next) {
                Some(Ok(entry)) => self.items.push_back(DirItem {
                    // Most file systems return the type with the name; for the others this makes a system call.
                    kind: entry.file_type().map_or(0, kind_of),
                    name: entry.file_name(),
                }),
                Some(Err(error)) => {
                    self.stream = None;
                    self.error = Some(code_of(&error));
                    break;
                }
                None => {
                    self.stream = None;
                    self.is_complete = true;
                    break;
                }
            }
        }
        match self.items.is_empty() {
            true => self.error.take().map_or(Ok(0), Err),
            false => Ok(0),
        }
    }
}

impl fmt::Debug for DirList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirList")
            .field("items", &self.items)
            .field("is_complete", &self.is_complete)
            .finish_non_exhaustive()
    }
}

/// The outcome of a copy: the number of bytes, or an error, which may have no code.
pub type CopyResult = io::Result<u64>;

/// Copies the contents and permissions of a file.
fn copy(from: &Path, to: &Path) -> CopyResult {
    // Kept open, so that the lengths before and after the copy are of the same file.
    let source = std::fs::File::open(from)?;
    let before = source.metadata()?.len();
    let count = std::fs::copy(from, to)?;
    if count < before {
        let now = source.metadata()?.len();
        // Copying a file onto itself truncates it first: std returns 0 for that, not an error.
        if now < before && std::fs::canonicalize(from)? != std::fs::canonicalize(to)? {
            return Err(shrank(before, now));
        }
    }
    Ok(count)
}

/// The error of reading or copying a file that became shorter meanwhile.
pub(crate) fn shrank(before: u64, now: u64) -> io::Error {
    let message = format!("the file shrank from {before} to {now} bytes while it was being read");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}
