//! Files and folders, without blocking the loop.
//!
//! The names and the results are std's; buffers are lent as everywhere in this crate. On io_uring each call is the kernel's
//! own operation where it has one, and a read of cached bytes completes at once; what no kernel offers without blocking is
//! done by the loop's own threads. On the reactor all of it is, with the same results.
//!
//! Errors have std's kind, keep the OS's code ([`os_code`](crate::os_code)) and name the path.
//!
//! ```
//! use windlass::fs;
//! # let folder = std::env::temp_dir().join(format!("windlass-doc-fs-{}", std::process::id()));
//! windlass::run(async {
//!     fs::create_dir_all(folder.join("deep")).await?;
//!     fs::write(folder.join("deep/note"), "hello").await?;
//!     assert_eq!(fs::read_to_string(folder.join("deep/note")).await?, "hello");
//!     fs::remove_dir_all(&folder).await
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```

mod dir;
mod file;
mod metadata;
mod options;
mod reader;
mod scan;
mod traits;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

pub use self::dir::{DirEntry, ReadDir, read_dir};
pub use self::file::File;
pub use self::metadata::{FileType, Metadata, metadata, symlink_metadata};
pub use self::options::OpenOptions;
pub use self::reader::Reader;
pub use self::scan::{Chunk, Scan};
use crate::blocking::off_loop;
use crate::driver::op::{FileOp, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::IoBuf;
use crate::sys::{self, context};

/// Says what was being done to which path.
fn at<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| context(format_args!("{what} {}", path.display()), error)
}

/// The same for two paths.
fn between<'a>(what: &'a str, from: &'a Path, to: &'a Path) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| context(format_args!("{what} {} to {}", from.display(), to.display()), error)
}

/// Carries out one operation that needs no lane. If it is dropped, what it opened is closed again.
async fn carry_out<T: 'static>(core: &LoopCore, payload: T, plan: impl FnOnce(&mut T) -> Op) -> io::Result<(u32, T)> {
    let queue = IoQueue::default();
    let (op_result, payload) = OpFuture::start_op(core, &queue, OnOrphan::Discard, payload, 0, plan).await;
    op_result.res.map(|count| (count, payload)).map_err(from_code)
}

/// An operation on one path of the current loop.
async fn on_path(what: &str, path: &Path, plan: impl FnOnce(*const sys::PathChar) -> Op) -> io::Result<()> {
    let call = async {
        let core = LoopCore::current(what).rc();
        let payload = sys::path_for_kernel(path)?;
        carry_out(&core, payload, |payload| plan(payload.as_ptr())).await
    };
    call.await.map(drop).map_err(at(what, path))
}

/// An operation on two paths of the current loop.
async fn on_paths(
    what: &str,
    from: &Path,
    to: &Path,
    plan: impl FnOnce(*const sys::PathChar, *const sys::PathChar) -> Op,
) -> io::Result<()> {
    let call = async {
        let core = LoopCore::current(what).rc();
        let payload = (sys::path_for_kernel(from)?, sys::path_for_kernel(to)?);
        carry_out(&core, payload, |(from, to)| plan(from.as_ptr(), to.as_ptr())).await
    };
    call.await.map(drop).map_err(between(what, from, to))
}

/// What no kernel offers without blocking.
fn blocking<T: Send + 'static>(
    what: &'static str,
    path: PathBuf,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> impl Future<Output = io::Result<T>> {
    off_loop(move || call(&path).map_err(at(what, &path)))
}

/// Reads a whole file.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    File::open(path).await?.read_whole().await
}

/// Reads a whole file of UTF-8 text. Other bytes are an error of kind `InvalidData`.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let bytes = read(path).await?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let what = format!("read {}: it is not UTF-8 text, from byte {at} on", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Writes a whole file: makes it, or replaces what is in it.
pub async fn write(path: impl AsRef<Path>, contents: impl IoBuf) -> io::Result<()> {
    let file = File::create(path).await?;
    file.write_all_at(contents, 0).await.0
}

/// Copies a file's contents and permissions, and gives how many bytes that were. Where the file system can share the
/// contents between both files, it does.
///
/// If the source shrinks while it is copied, this fails with [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) and leaves an
/// incomplete copy. If it grows, the new bytes may be included.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    off_loop(move || copy_whole(&from, &to).map_err(between("copy", &from, &to))).await
}

fn copy_whole(from: &Path, to: &Path) -> io::Result<u64> {
    // Open throughout, so that another file that takes its name is not taken for this one.
    let source = std::fs::File::open(from)?;
    let before = source.metadata()?.len();
    let count = std::fs::copy(from, to)?;
    if count < before {
        let now = source.metadata()?.len();
        // A copy of a file onto itself truncates it first: std returns 0 for that, not an error.
        if now < before && std::fs::canonicalize(from)? != std::fs::canonicalize(to)? {
            return Err(file::shrank(before, now));
        }
    }
    Ok(count)
}

/// Renames a file or folder, replacing a file that has the new name.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let plan = |from, to| Op::File(FileOp::Rename { from, to });
    on_paths("rename", from.as_ref(), to.as_ref(), plan).await
}

/// Gives a file a second name.
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let plan = |from, to| Op::File(FileOp::HardLink { from, to });
    on_paths("link", original.as_ref(), link.as_ref(), plan).await
}

/// Makes a link that leads to `original`.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let plan = |target, link| Op::File(FileOp::SymLink { target, link });
    on_paths("symlink", original.as_ref(), link.as_ref(), plan).await
}

/// Where a link leads.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    blocking("read link", path.as_ref().to_owned(), |path| std::fs::read_link(path)).await
}

/// The absolute path, with every link resolved.
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    blocking("canonicalize", path.as_ref().to_owned(), |path| {
        std::fs::canonicalize(path)
    })
    .await
}

/// Sets the permissions of a file or folder.
pub async fn set_permissions(path: impl AsRef<Path>, permissions: std::fs::Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking("set permissions of", path, move |path| {
        std::fs::set_permissions(path, permissions)
    })
    .await
}

/// Removes a file.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::Remove { path, is_dir: false });
    on_path("remove file", path.as_ref(), plan).await
}

/// Removes an empty folder.
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::Remove { path, is_dir: true });
    on_path("remove folder", path.as_ref(), plan).await
}

/// Removes a folder and everything in it. Links in it are removed, not followed, even if somebody swaps folders for links
/// meanwhile.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    blocking("remove folder", path, |path| std::fs::remove_dir_all(path)).await
}

/// Makes a folder.
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    make_folder(path.as_ref()).await
}

/// Makes a folder, and those above it that are missing. One that is there already is no error.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    // From the bottom up until one can be made, then down again.
    let mut missing = Vec::new();
    let mut next = Some(path).filter(|path| !path.as_os_str().is_empty());
    while let Some(folder) = next {
        match make_folder(folder).await {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(folder);
                next = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
                if next.is_none() {
                    return Err(error);
                }
            }
            Err(error) => {
                if !is_folder(folder).await {
                    return Err(error);
                }
                break;
            }
        }
    }
    for folder in missing.into_iter().rev() {
        match make_folder(folder).await {
            Err(error) if !is_folder(folder).await => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn make_folder(path: &Path) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::MakeDir { path, mode: 0o777 });
    on_path("make folder", path, plan).await
}

async fn is_folder(path: &Path) -> bool {
    metadata(path).await.is_ok_and(|metadata| metadata.is_dir())
}

/// Whether something is there. An error that is not "not found" is told.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A path in a `Debug` output, if it is known.
fn show_path(debug: &mut fmt::DebugStruct<'_, '_>, path: &Path) {
    if !path.as_os_str().is_empty() {
        debug.field("path", &path);
    }
}
