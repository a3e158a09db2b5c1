//! Asynchronous file system operations.
//!
//! Names and results follow `std::fs`; buffers are owned, as everywhere in this crate. On io_uring the kernel performs
//! the operations for which it has an opcode; on IOCP, reads and writes of a single buffer. All others run on the
//! loop's thread pool. On Linux, reading up to 64 KiB of cached bytes completes immediately on every driver,
//! except that io_uring queues the small reads of many tasks and submits them together.
//!
//! Dropping the future of an operation on a path does not undo it: it may or may not be performed.
//!
//! Errors have std's kind, keep the OS error code ([`os_code`](crate::os_code)) and name the path.
//!
//! ```
//! use windlass::fs;
//! # let dir = std::env::temp_dir().join(format!("windlass-doc-fs-{}", std::process::id()));
//! windlass::run(async {
//!     fs::create_dir_all(dir.join("deep")).await?;
//!     fs::write(dir.join("deep/note"), "hello").await?;
//!     assert_eq!(fs::read_to_string(dir.join("deep/note")).await?, "hello");
//!     fs::remove_dir_all(&dir).await
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```

mod compose;
mod dir;
mod file;
mod metadata;
mod options;
mod reader;
mod scan;
mod traits;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use self::dir::{DirEntry, ReadDir, read_dir};
pub use self::file::File;
pub use self::metadata::{FileType, Metadata, metadata, symlink_metadata};
pub use self::options::OpenOptions;
pub use self::reader::Reader;
pub use self::scan::{Chunk, Scan};
use crate::driver::op::{FileOp, Op};
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::queue::IoQueue;
use crate::inflight::{OnOrphan, OpFuture};
use crate::io::IoBuf;
use crate::sys::{self, context};

/// Adds an action and its path to an error.
fn at<'a>(action: &'a str, path: &'a Path) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| context(format_args!("{action} {}", path.display()), error)
}

/// Adds an action and its two paths to an error.
fn between<'a>(action: &'a str, from: &'a Path, to: &'a Path) -> impl Fn(io::Error) -> io::Error + 'a {
    move |error| context(format_args!("{action} {} to {}", from.display(), to.display()), error)
}

/// Runs one operation that needs no queue. If the future is dropped, a descriptor that the operation opened is closed.
async fn run_op<T: 'static>(core: &LoopCore, payload: T, plan: impl FnOnce(&mut T) -> Op) -> io::Result<(u32, T)> {
    let queue = IoQueue::default();
    let (op_result, payload) = OpFuture::start_op(core, &queue, OnOrphan::Discard, payload, plan).await;
    op_result.res().map(|count| (count, payload)).map_err(from_code)
}

/// Runs an operation on one path.
async fn on_path(action: &str, path: &Path, plan: impl FnOnce(*const sys::PathChar) -> Op) -> io::Result<()> {
    let call = async {
        let core = LoopCore::current(action).rc();
        let payload = sys::path_for_kernel(path)?;
        run_op(&core, payload, |payload| plan(payload.as_ptr())).await
    };
    call.await.map(drop).map_err(at(action, path))
}

/// Runs an operation on two paths.
async fn on_paths(
    action: &str,
    from: &Path,
    to: &Path,
    plan: impl FnOnce(*const sys::PathChar, *const sys::PathChar) -> Op,
) -> io::Result<()> {
    let call = async {
        let core = LoopCore::current(action).rc();
        let payload = (sys::path_for_kernel(from)?, sys::path_for_kernel(to)?);
        run_op(&core, payload, |(from, to)| plan(from.as_ptr(), to.as_ptr())).await
    };
    call.await.map(drop).map_err(between(action, from, to))
}

/// Runs an operation on one path that returns another path.
async fn to_path(
    action: &str,
    path: &Path,
    plan: impl FnOnce(*const sys::PathChar, *mut PathBuf) -> Op,
) -> io::Result<PathBuf> {
    let call = async {
        let core = LoopCore::current(action).rc();
        let payload = (sys::path_for_kernel(path)?, PathBuf::new());
        run_op(&core, payload, |(path, out)| plan(path.as_ptr(), out)).await
    };
    let (_, (_, found)) = call.await.map_err(at(action, path))?;
    Ok(found)
}

/// Reads a whole file.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    File::open(path).await?.read_whole().await
}

/// Reads a whole file as UTF-8 text. Invalid text is an error of the kind `InvalidData`.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let bytes = read(path).await?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("read {}: not valid UTF-8 from byte {at} on", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Writes a whole file: creates it, or replaces its contents.
pub async fn write(path: impl AsRef<Path>, contents: impl IoBuf) -> io::Result<()> {
    let file = File::create(path).await?;
    file.write_all_at(contents, 0).await.0
}

/// Copies the contents and permissions of a file and returns the number of bytes. File systems that can share the
/// contents between both files (reflink) do so.
///
/// # Errors
///
/// If the source shrinks during the copy, the error is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) and the copy is
/// incomplete. If it grows, the new bytes may be included.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = match copy_whole(from, to).await {
        Err(error) if is_unsupported(&error) => compose::copy(from, to).await,
        copied => copied,
    };
    copied.map_err(between("copy", from, to))
}

async fn copy_whole(from: &Path, to: &Path) -> io::Result<u64> {
    let core = LoopCore::current("copy").rc();
    let out: sys::CopyResult = Ok(0);
    let from_path = sys::path_for_kernel(from)?;
    let to_path = match sys::path_for_kernel(to) {
        Ok(path) => path,
        Err(error) => {
            // As in std, a missing source is reported first.
            File::open(from).await?;
            return Err(error);
        }
    };
    let payload = (from_path, to_path, out);
    let plan = |(from, to, out): &mut (sys::KernelPath, sys::KernelPath, sys::CopyResult)| {
        let (from, to) = (from.as_ptr(), to.as_ptr());
        Op::File(FileOp::Copy { from, to, out })
    };
    let (_, (_, _, copied)) = run_op(&core, payload, plan).await?;
    copied
}

/// Whether the driver leaves an operation to be composed of others.
fn is_unsupported(error: &io::Error) -> bool {
    sys::os_code(error) == Some(sys::errno::NOT_SUPPORTED)
}

/// Renames a file or directory, replacing an existing file.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let plan = |from, to| Op::File(FileOp::Rename { from, to });
    on_paths("rename", from.as_ref(), to.as_ref(), plan).await
}

/// Creates a hard link to a file.
pub async fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let plan = |from, to| Op::File(FileOp::HardLink { from, to });
    on_paths("link", original.as_ref(), link.as_ref(), plan).await
}

/// Creates a symbolic link to `original`.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let plan = |target, link| Op::File(FileOp::SymLink { target, link });
    on_paths("symlink", original.as_ref(), link.as_ref(), plan).await
}

/// Returns the target of a symbolic link.
pub async fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let plan = |path, out| Op::File(FileOp::ReadLink { path, out });
    to_path("read link", path.as_ref(), plan).await
}

/// Returns the absolute path with all symbolic links resolved.
pub async fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let plan = |path, out| Op::File(FileOp::RealPath { path, out });
    to_path("canonicalize", path.as_ref(), plan).await
}

/// Sets the permissions of a file or directory.
pub async fn set_permissions(path: impl AsRef<Path>, permissions: std::fs::Permissions) -> io::Result<()> {
    let mode = sys::mode_of(&permissions);
    let plan = |path| Op::File(FileOp::SetMode { fd: -1, path, mode });
    on_path("set permissions of", path.as_ref(), plan).await
}

/// Removes a file.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::Remove { path, is_dir: false });
    on_path("remove file", path.as_ref(), plan).await
}

/// Removes an empty directory.
pub async fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::Remove { path, is_dir: true });
    on_path("remove directory", path.as_ref(), plan).await
}

/// Removes a directory and its contents. Symbolic links are removed and never followed, even if another process
/// replaces directories with links in the meantime.
pub async fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let plan = |path| Op::File(FileOp::RemoveAll { path });
    match on_path("remove directory", path, plan).await {
        Err(error) if is_unsupported(&error) => compose::remove_all(path).await,
        removed => removed,
    }
}

/// Creates a directory.
pub async fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    make_dir(path.as_ref()).await
}

/// Creates a directory and its missing parents. An existing directory is not an error.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    // Upwards until a directory can be created or exists, then down again.
    let mut missing = Vec::new();
    let mut next = Some(path).filter(|path| !path.as_os_str().is_empty());
    while let Some(dir) = next {
        match make_dir(dir).await {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(dir);
                next = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
                if next.is_none() {
                    return Err(error);
                }
            }
            Err(error) => {
                if !is_dir(dir).await {
                    return Err(error);
                }
                break;
            }
        }
    }
    for dir in missing.into_iter().rev() {
        match make_dir(dir).await {
            Err(error) if !is_dir(dir).await => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn make_dir(path: &Path) -> io::Result<()> {
    let plan = |path| Op::File(FileOp::MakeDir { path, mode: 0o777 });
    on_path("create directory", path, plan).await
}

async fn is_dir(path: &Path) -> bool {
    metadata(path).await.is_ok_and(|metadata| metadata.is_dir())
}

/// Whether the path exists. Errors other than `NotFound` are returned.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    match metadata(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds the path to a `Debug` output, if it is known.
fn debug_path(debug: &mut fmt::DebugStruct<'_, '_>, path: &Path) {
    if !path.as_os_str().is_empty() {
        debug.field("path", &path);
    }
}
