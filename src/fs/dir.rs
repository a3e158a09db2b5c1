//! Listing directories.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::metadata::{FileType, Metadata, symlink_metadata};
use super::{at, blocking};
use crate::blocking::BlockingHandle;
use crate::event_loop::core::LoopCore;

/// The number of entries that a pool thread fetches at once.
const BATCH: usize = 256;

/// Lists the entries of a directory.
///
/// ```
/// windlass::run(async {
///     let mut entries = windlass::fs::read_dir("src").await?;
///     let mut names = Vec::new();
///     while let Some(entry) = entries.next_entry().await? {
///         names.push(entry.file_name());
///     }
///     assert!(names.contains(&"lib.rs".into()));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let entries = blocking("read directory", path.clone(), |path| std::fs::read_dir(path)).await?;
    Ok(ReadDir {
        path,
        entries: Some(entries),
        fetched: VecDeque::new(),
        fetching: None,
    })
}

/// The entries of a directory in unspecified order, without `.` and `..`.
pub struct ReadDir {
    path: PathBuf,
    /// `None` while a pool thread uses it, and after the end.
    entries: Option<std::fs::ReadDir>,
    fetched: VecDeque<io::Result<DirEntry>>,
    /// Stored here, so that a dropped `next_entry` loses nothing.
    fetching: Option<BlockingHandle<Batch>>,
}

/// The fetched entries, and the rest of the directory if there is more.
type Batch = (VecDeque<io::Result<DirEntry>>, Option<std::fs::ReadDir>);

impl ReadDir {
    /// Returns the next entry, or `None` at the end. Dropping the future loses no entry.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.fetched.pop_front() {
                return entry.map(Some).map_err(at("read directory", &self.path));
            }
            if self.fetching.is_none() {
                let Some(entries) = self.entries.take() else {
                    return Ok(None);
                };
                let files = &LoopCore::current("next_entry").files;
                self.fetching = Some(files.spawn(move || fetch(entries)));
            }
            if let Some(fetching) = &mut self.fetching {
                let batch = fetching.await;
                self.fetching = None;
                (self.fetched, self.entries) = batch.map_err(|error| at("read directory", &self.path)(error.into()))?;
            }
        }
    }
}

fn fetch(mut entries: std::fs::ReadDir) -> Batch {
    let to_entry = |entry: std::fs::DirEntry| DirEntry {
        // Most file systems return the type with the name; for the others this makes a system call, on the pool thread.
        file_type: entry.file_type().ok().map(FileType::from_std),
        entry,
    };
    let fetched: VecDeque<_> = entries.by_ref().take(BATCH).map(|entry| entry.map(to_entry)).collect();
    let more = fetched.len() == BATCH;
    (fetched, more.then_some(entries))
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// One entry of a directory.
pub struct DirEntry {
    entry: std::fs::DirEntry,
    file_type: Option<FileType>,
}

impl DirEntry {
    /// The path of the directory joined with the name of the entry.
    pub fn path(&self) -> PathBuf {
        self.entry.path()
    }

    /// The name of the entry.
    pub fn file_name(&self) -> OsString {
        self.entry.file_name()
    }

    /// The type of the entry; symbolic links are not followed.
    pub async fn file_type(&self) -> io::Result<FileType> {
        match self.file_type {
            Some(file_type) => Ok(file_type),
            None => Ok(self.metadata().await?.file_type()),
        }
    }

    /// The metadata of the entry; symbolic links are not followed.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        symlink_metadata(self.path()).await
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirEntry({:?})", self.path())
    }
}
