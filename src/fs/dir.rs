//! Listing directories.

use std::ffi::OsString;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::metadata::{FileType, Metadata, symlink_metadata};
use super::{at, run_op};
use crate::driver::op::{FileOp, Op};
use crate::event_loop::core::LoopCore;
use crate::sys::{self, DirList, KernelPath};

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
    let path = path.as_ref();
    let first = async { fetch(sys::path_for_kernel(path)?, DirList::new()).await };
    let list = first.await.map_err(at("read directory", path))?;
    Ok(ReadDir {
        path: path.into(),
        list: Some(list),
        fetching: None,
    })
}

/// The entries of a directory in unspecified order, without `.` and `..`. It is a [`Stream`] of them, which ends after an
/// error.
pub struct ReadDir {
    path: Arc<Path>,
    /// `None` while an operation uses it, and after an error.
    list: Option<DirList>,
    /// Stored here, so that a dropped `next_entry` loses nothing.
    fetching: Option<Pin<Box<dyn Future<Output = io::Result<DirList>>>>>,
}

impl ReadDir {
    /// Returns the next entry, or `None` at the end. Dropping the future loses no entry.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        poll_fn(|cx| self.poll_next_entry(cx)).await
    }

    /// [`next_entry`](ReadDir::next_entry) for implementations of `poll`.
    pub fn poll_next_entry(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<DirEntry>>> {
        loop {
            if let Some(fetching) = &mut self.fetching {
                let fetched = std::task::ready!(fetching.as_mut().poll(cx));
                self.fetching = None;
                self.list = Some(fetched.map_err(at("read directory", &self.path))?);
            }
            let Some(list) = &mut self.list else {
                return Poll::Ready(Ok(None));
            };
            if let Some(item) = list.items.pop_front() {
                return Poll::Ready(Ok(Some(DirEntry {
                    dir: self.path.clone(),
                    file_type: (item.kind != 0).then(|| FileType::from_mode(item.kind)),
                    name: item.name,
                })));
            }
            if list.is_complete {
                return Poll::Ready(Ok(None));
            }
            let path = sys::path_for_kernel(&self.path)?;
            if let Some(list) = self.list.take() {
                self.fetching = Some(Box::pin(fetch(path, list)));
            }
        }
    }
}

impl Stream for ReadDir {
    type Item = io::Result<DirEntry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        self.poll_next_entry(cx).map(Result::transpose)
    }
}

/// Runs one operation, which appends the next entries to the list.
async fn fetch(path: KernelPath, list: DirList) -> io::Result<DirList> {
    let core = LoopCore::current("read_dir").rc();
    let plan = |(path, list): &mut (KernelPath, DirList)| {
        let path = path.as_ptr();
        Op::File(FileOp::ReadDir { path, list })
    };
    let (_, (_, list)) = run_op(&core, (path, list), plan).await?;
    Ok(list)
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
    /// The directory.
    dir: Arc<Path>,
    name: OsString,
    file_type: Option<FileType>,
}

impl DirEntry {
    /// The path of the directory joined with the name of the entry.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// The name of the entry.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
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
