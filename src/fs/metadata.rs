//! File metadata.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::SystemTime;

use super::{at, run_op};
use crate::driver::op::{FileOp, Op};
use crate::event_loop::core::LoopCore;
use crate::sys::{self, Fd, PathChar, Stat, kind};

/// Returns the metadata of a file or directory; follows symbolic links.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    of_path(path, true).await.map_err(at("metadata of", path))
}

/// Returns the metadata of a file, directory or symbolic link; does not follow links.
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    of_path(path, false).await.map_err(at("metadata of", path))
}

async fn of_path(path: &Path, follow: bool) -> io::Result<Metadata> {
    let core = LoopCore::current("metadata").rc();
    let path = sys::path_for_kernel(path)?;
    stat(&core, path, |path| (-1, path.as_ptr(), follow)).await
}

/// Returns the metadata of an open file; `owner` keeps it open.
pub(super) async fn of_file<H: 'static>(core: &LoopCore, owner: H, fd: Fd) -> io::Result<Metadata> {
    stat(core, owner, |_| (fd, std::ptr::null(), true)).await
}

/// `target` returns the descriptor, the path and whether to follow a symbolic link.
async fn stat<H: 'static>(
    core: &LoopCore,
    owner: H,
    target: impl FnOnce(&H) -> (Fd, *const PathChar, bool),
) -> io::Result<Metadata> {
    let payload = (owner, Box::new(MaybeUninit::<Stat>::zeroed()));
    let plan = |(owner, out): &mut (H, Box<MaybeUninit<Stat>>)| {
        let (fd, path, follow) = target(owner);
        let out = out.as_mut_ptr();
        Op::File(FileOp::Stat { fd, path, follow, out })
    };
    let (_, (_, stat)) = run_op(core, payload, plan).await?;
    // SAFETY: the operation has succeeded, so the kernel has filled the struct; fields that it does not know are zero.
    Ok(Metadata(*unsafe { stat.assume_init() }))
}

/// The metadata of a file: std's `Metadata`, with the methods of std's extension traits.
#[derive(Clone)]
pub struct Metadata(Stat);

impl Metadata {
    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.0.mode())
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a symbolic link. Only [`symlink_metadata`] can return one.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// The size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as in std")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The permissions.
    pub fn permissions(&self) -> std::fs::Permissions {
        self.0.permissions()
    }

    /// The time of the last modification.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.0.modified())
    }

    /// The time of the last access.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        Ok(self.0.accessed())
    }

    /// The time of creation, if the file system records it.
    pub fn created(&self) -> io::Result<SystemTime> {
        let unknown = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the file system does not record the creation time",
            )
        };
        self.0.created().ok_or_else(unknown)
    }
}

/// Unix metadata.
#[cfg(unix)]
impl Metadata {
    /// The file type and permission bits.
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }

    /// The ID of the device that contains the file.
    pub fn dev(&self) -> u64 {
        self.0.device()
    }

    /// The inode number.
    pub fn ino(&self) -> u64 {
        self.0.inode()
    }

    /// The number of hard links.
    pub fn nlink(&self) -> u64 {
        self.0.links()
    }

    /// The user ID of the owner.
    pub fn uid(&self) -> u32 {
        self.0.user()
    }

    /// The group ID of the owner.
    pub fn gid(&self) -> u32 {
        self.0.group()
    }

    /// The disk space used, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    /// The preferred block size for I/O.
    pub fn blksize(&self) -> u64 {
        self.0.block_len()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("file_type", &self.file_type())
            .field("len", &self.len())
            .field("mode", &format_args!("{:o}", self.0.mode()))
            .field("modified", &self.0.modified())
            .finish_non_exhaustive()
    }
}

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(u32);

impl FileType {
    /// The type in the bits of a mode.
    pub(super) fn from_mode(mode: u32) -> FileType {
        FileType(mode & kind::MASK)
    }

    fn is(self, kind: u32) -> bool {
        self.0 == kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.is(kind::FOLDER)
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.is(kind::FILE)
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.is(kind::LINK)
    }

    /// Whether it is a named pipe.
    pub fn is_fifo(&self) -> bool {
        self.is(kind::PIPE)
    }

    /// Whether it is a Unix socket.
    pub fn is_socket(&self) -> bool {
        self.is(kind::SOCKET)
    }

    /// Whether it is a character device, such as a terminal.
    pub fn is_char_device(&self) -> bool {
        self.is(kind::CHARACTERS)
    }

    /// Whether it is a block device, such as a disk.
    pub fn is_block_device(&self) -> bool {
        self.is(kind::BLOCKS)
    }
}

impl fmt::Debug for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (kind::FILE, "file"),
            (kind::FOLDER, "directory"),
            (kind::LINK, "symlink"),
            (kind::PIPE, "pipe"),
            (kind::SOCKET, "socket"),
            (kind::CHARACTERS, "character device"),
            (kind::BLOCKS, "block device"),
        ];
        let name = kinds
            .iter()
            .find(|(kind, _)| self.is(*kind))
            .map_or("unknown", |(_, name)| name);
        write!(f, "FileType({name})")
    }
}
