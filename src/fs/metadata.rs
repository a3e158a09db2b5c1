//! What the kernel knows of a file.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::SystemTime;

use super::{at, carry_out};
use crate::driver::op::{FileOp, Op};
use crate::event_loop::core::LoopCore;
use crate::sys::{self, Fd, PathChar, Stat, kind, kind_of};

/// Asks about a file or folder, and where it is a link, about what that leads to.
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    of_path(path, true).await.map_err(at("metadata of", path))
}

/// Asks about a file, folder or link itself.
pub async fn symlink_metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref();
    of_path(path, false).await.map_err(at("metadata of", path))
}

async fn of_path(path: &Path, follow: bool) -> io::Result<Metadata> {
    let core = LoopCore::current("metadata").rc();
    let path = sys::path_for_kernel(path)?;
    let payload = (path, Box::new(MaybeUninit::<Stat>::zeroed()));
    ask(&core, payload, |(path, out)| {
        (-1, path.as_ptr(), follow, out.as_mut_ptr())
    })
    .await
}

/// Asks about an open file; `hold` keeps it open.
pub(super) async fn of_file<H: 'static>(core: &LoopCore, hold: H, fd: Fd) -> io::Result<Metadata> {
    let payload = (hold, Box::new(MaybeUninit::<Stat>::zeroed()));
    ask(core, payload, |(_, out)| (fd, std::ptr::null(), true, out.as_mut_ptr())).await
}

async fn ask<H: 'static>(
    core: &LoopCore,
    payload: (H, Box<MaybeUninit<Stat>>),
    arguments: impl FnOnce(&mut (H, Box<MaybeUninit<Stat>>)) -> (Fd, *const PathChar, bool, *mut Stat),
) -> io::Result<Metadata> {
    let plan = |payload: &mut (H, Box<MaybeUninit<Stat>>)| {
        let (fd, path, follow, out) = arguments(payload);
        Op::File(FileOp::Stat { fd, path, follow, out })
    };
    let (_, (_, stat)) = carry_out(core, payload, plan).await?;
    // SAFETY: the operation has succeeded, so it has filled the answer; what this kernel does not know of is zero.
    Ok(Metadata(*unsafe { stat.assume_init() }))
}

/// What the kernel knows of a file: std's `Metadata`, and what std has in extension traits.
#[derive(Clone)]
pub struct Metadata(Stat);

impl Metadata {
    /// What it is.
    pub fn file_type(&self) -> FileType {
        FileType(self.0.mode() & kind::MASK)
    }

    /// Whether it is a folder.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is an ordinary file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a link; only [`symlink_metadata`] can tell.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// How many bytes it has.
    #[allow(clippy::len_without_is_empty, reason = "as in std")]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Who may do what with it.
    pub fn permissions(&self) -> std::fs::Permissions {
        self.0.permissions()
    }

    /// When it was last written to.
    pub fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.0.modified())
    }

    /// When it was last read.
    pub fn accessed(&self) -> io::Result<SystemTime> {
        Ok(self.0.accessed())
    }

    /// When it was made, where the file system keeps that.
    pub fn created(&self) -> io::Result<SystemTime> {
        let unknown = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the file system does not keep when a file was made",
            )
        };
        self.0.created().ok_or_else(unknown)
    }
}

/// What Unix knows besides.
#[cfg(unix)]
impl Metadata {
    /// The type and permission bits, as Unix has them.
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }

    /// The number of the device that it is on.
    pub fn dev(&self) -> u64 {
        self.0.device()
    }

    /// Its number on that device.
    pub fn ino(&self) -> u64 {
        self.0.inode()
    }

    /// How many names it has.
    pub fn nlink(&self) -> u64 {
        self.0.links()
    }

    /// The number of the user that owns it.
    pub fn uid(&self) -> u32 {
        self.0.user()
    }

    /// The number of the group that owns it.
    pub fn gid(&self) -> u32 {
        self.0.group()
    }

    /// How much it takes on the disk, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    /// How much is best read or written at once.
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

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(u32);

impl FileType {
    pub(super) fn from_std(file_type: std::fs::FileType) -> FileType {
        FileType(kind_of(file_type))
    }

    fn is(self, kind: u32) -> bool {
        self.0 == kind
    }

    /// Whether it is a folder.
    pub fn is_dir(&self) -> bool {
        self.is(kind::FOLDER)
    }

    /// Whether it is an ordinary file.
    pub fn is_file(&self) -> bool {
        self.is(kind::FILE)
    }

    /// Whether it is a link.
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

    /// Whether it is a device of characters, such as a terminal.
    pub fn is_char_device(&self) -> bool {
        self.is(kind::CHARACTERS)
    }

    /// Whether it is a device of blocks, such as a disk.
    pub fn is_block_device(&self) -> bool {
        self.is(kind::BLOCKS)
    }
}

impl fmt::Debug for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (kind::FILE, "file"),
            (kind::FOLDER, "folder"),
            (kind::LINK, "link"),
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
