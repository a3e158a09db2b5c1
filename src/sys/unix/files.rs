//! Operations on files and paths, which block until they are done, and a file's metadata.
//!
//! They return `None` only on a descriptor that another holder has made non-blocking.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::sockets::attempt;
use super::{Fd, errno};
use crate::sys::{CURRENT, FileOp, OpenFlags, OsResult, PathChar, paths};

/// A path, ending in NUL.
pub(crate) type KernelPath = CString;

/// Converts a path.
pub(crate) fn path_for_kernel(path: &Path) -> io::Result<KernelPath> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path cannot contain a NUL byte"))
}

/// The mode for `FileOp::SetMode`.
pub(crate) fn mode_of(permissions: &std::fs::Permissions) -> u32 {
    permissions.mode()
}

/// The path that an operation names.
///
/// # Safety
///
/// `path` ends in NUL.
pub(crate) unsafe fn path_of(path: *const PathChar) -> PathBuf {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    PathBuf::from(OsStr::from_bytes(path.to_bytes()))
}

impl OpenFlags {
    /// The flags of open(2).
    pub(crate) fn for_kernel(&self) -> io::Result<i32> {
        self.check()?;
        let flag = |on: bool, flag: i32| if on { flag } else { 0 };
        let access = match (self.read, self.write || self.append) {
            (true, false) => libc::O_RDONLY,
            (true, true) => libc::O_RDWR,
            (false, _) => libc::O_WRONLY,
        };
        let creation = match self.create_new {
            true => libc::O_CREAT | libc::O_EXCL,
            false => flag(self.create, libc::O_CREAT) | flag(self.truncate, libc::O_TRUNC),
        };
        let Some(direct) = DIRECT.or((!self.direct).then_some(0)) else {
            let why = "this system has no flag to bypass its page cache";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        let append = flag(self.append, libc::O_APPEND);
        Ok(access | append | creation | flag(self.direct, direct) | (self.custom & !libc::O_ACCMODE))
    }

    /// The flags of an open file: only `append` and `direct` are known.
    pub(crate) fn of(fd: Fd) -> OpenFlags {
        // SAFETY: the call touches no memory of ours.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let has = |flag: i32| flags >= 0 && flags & flag != 0;
        OpenFlags {
            append: has(libc::O_APPEND),
            direct: DIRECT.is_some_and(has),
            ..OpenFlags::default()
        }
    }
}

/// The flag that bypasses the page cache.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
pub(crate) const DIRECT: Option<i32> = Some(libc::O_DIRECT);
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
pub(crate) const DIRECT: Option<i32> = None;

/// Carries out a file operation.
///
/// # Safety
///
/// Paths end in NUL. Buffers and slices are valid, of the given length and not used otherwise until this returns.
pub(crate) unsafe fn perform(op: FileOp) -> Option<OsResult> {
    let here = libc::AT_FDCWD;
    // SAFETY: the caller's promise; calls without a pointer touch no memory of ours.
    unsafe {
        match op {
            FileOp::Open { path, flags, mode } => {
                attempt_plain(|| libc::open(path, flags | libc::O_CLOEXEC, mode as libc::c_uint))
            }
            FileOp::ReadAt { fd, ptr, len, offset } => match offset {
                CURRENT => attempt(|| libc::read(fd, ptr.cast(), len)),
                _ => attempt(|| libc::pread(fd, ptr.cast(), len, offset as libc::off_t)),
            },
            FileOp::ReadVectoredAt {
                fd,
                slices,
                count,
                offset,
            } => match offset {
                CURRENT => attempt(|| libc::readv(fd, slices.cast(), count as libc::c_int)),
                _ => attempt(|| libc::preadv(fd, slices.cast(), count as libc::c_int, offset as libc::off_t)),
            },
            FileOp::WriteAt { fd, ptr, len, offset } => match offset {
                CURRENT => attempt(|| libc::write(fd, ptr.cast(), len)),
                _ => attempt(|| libc::pwrite(fd, ptr.cast(), len, offset as libc::off_t)),
            },
            FileOp::WriteVectoredAt {
                fd,
                slices,
                count,
                offset,
            } => match offset {
                CURRENT => attempt(|| libc::writev(fd, slices.cast(), count as libc::c_int)),
                _ => attempt(|| libc::pwritev(fd, slices.cast(), count as libc::c_int, offset as libc::off_t)),
            },
            FileOp::Sync { fd, data_only } => attempt_plain(|| sync(fd, data_only)),
            FileOp::Stat { fd, path, follow, out } => attempt_plain(|| stat(fd, path, follow, out)),
            FileOp::Truncate { fd, len } => attempt_plain(|| libc::ftruncate(fd, len as libc::off_t)),
            FileOp::Allocate { fd, offset, len } => allocate(fd, offset as libc::off_t, len as libc::off_t),
            FileOp::Rename { from, to } => attempt_plain(|| libc::rename(from, to)),
            FileOp::Remove { path, is_dir: true } => attempt_plain(|| libc::rmdir(path)),
            FileOp::Remove { path, is_dir: false } => attempt_plain(|| libc::unlink(path)),
            FileOp::MakeDir { path, mode } => attempt_plain(|| libc::mkdir(path, mode as libc::mode_t)),
            FileOp::HardLink { from, to } => attempt_plain(|| libc::linkat(here, from, here, to, 0)),
            FileOp::SymLink { target, link } => attempt_plain(|| libc::symlink(target, link)),
            FileOp::SetMode { fd, path, mode } if path.is_null() => {
                attempt_plain(|| libc::fchmod(fd, mode as libc::mode_t))
            }
            FileOp::SetMode { path, mode, .. } => attempt_plain(|| libc::chmod(path, mode as libc::mode_t)),
            FileOp::ReadLink { .. }
            | FileOp::ReadDir { .. }
            | FileOp::RealPath { .. }
            | FileOp::Copy { .. }
            | FileOp::RemoveAll { .. } => Some(paths::perform(op)),
        }
    }
}

/// [`attempt`] at a call that transfers no bytes.
fn attempt_plain(mut call: impl FnMut() -> libc::c_int) -> Option<OsResult> {
    attempt(|| call() as libc::ssize_t)
}

#[cfg(not(target_vendor = "apple"))]
fn sync(fd: Fd, data_only: bool) -> libc::c_int {
    // SAFETY: neither call touches memory of ours.
    unsafe {
        if data_only {
            libc::fdatasync(fd)
        } else {
            libc::fsync(fd)
        }
    }
}

/// As in std: on Apple's systems fsync does not flush the disk's own cache.
#[cfg(target_vendor = "apple")]
fn sync(fd: Fd, _data_only: bool) -> libc::c_int {
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::fcntl(fd, libc::F_FULLFSYNC) }
}

#[cfg(target_os = "linux")]
fn allocate(fd: Fd, offset: libc::off_t, len: libc::off_t) -> Option<OsResult> {
    // SAFETY: the call touches no memory of ours.
    attempt_plain(|| unsafe { libc::fallocate(fd, 0, offset, len) })
}

#[cfg(target_os = "freebsd")]
fn allocate(fd: Fd, offset: libc::off_t, len: libc::off_t) -> Option<OsResult> {
    // SAFETY: the call touches no memory of ours.
    match unsafe { libc::posix_fallocate(fd, offset, len) } {
        0 => Some(Ok(0)),
        code => Some(Err(code)),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
fn allocate(_fd: Fd, _offset: libc::off_t, _len: libc::off_t) -> Option<OsResult> {
    Some(Err(libc::ENOTSUP))
}

/// Moves a file's position.
pub(crate) fn seek(fd: Fd, to: SeekFrom) -> io::Result<u64> {
    let too_far = |_| io::Error::from_raw_os_error(errno::INVALID);
    let (offset, whence) = match to {
        SeekFrom::Start(offset) => (i64::try_from(offset).map_err(too_far)?, libc::SEEK_SET),
        SeekFrom::End(offset) => (offset, libc::SEEK_END),
        SeekFrom::Current(offset) => (offset, libc::SEEK_CUR),
    };
    // SAFETY: the call touches no memory of ours.
    match unsafe { libc::lseek(fd, offset as libc::off_t, whence) } {
        position if position >= 0 => Ok(position as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The file types, in the bits of a mode.
#[allow(clippy::unnecessary_cast, reason = "the type is narrower on other systems")]
pub(crate) mod kind {
    pub(crate) const MASK: u32 = libc::S_IFMT as u32;
    pub(crate) const FILE: u32 = libc::S_IFREG as u32;
    pub(crate) const FOLDER: u32 = libc::S_IFDIR as u32;
    pub(crate) const LINK: u32 = libc::S_IFLNK as u32;
    pub(crate) const PIPE: u32 = libc::S_IFIFO as u32;
    pub(crate) const SOCKET: u32 = libc::S_IFSOCK as u32;
    pub(crate) const CHARACTERS: u32 = libc::S_IFCHR as u32;
    pub(crate) const BLOCKS: u32 = libc::S_IFBLK as u32;
}

/// The type that std reports.
pub(crate) fn kind_of(file_type: std::fs::FileType) -> u32 {
    let kinds = [
        (file_type.is_file(), kind::FILE),
        (file_type.is_dir(), kind::FOLDER),
        (file_type.is_symlink(), kind::LINK),
        (file_type.is_fifo(), kind::PIPE),
        (file_type.is_socket(), kind::SOCKET),
        (file_type.is_char_device(), kind::CHARACTERS),
        (file_type.is_block_device(), kind::BLOCKS),
    ];
    kinds.iter().find(|(is_it, _)| *is_it).map_or(0, |&(_, kind)| kind)
}

/// A file's metadata. On Linux it has the layout of `statx`, so that the kernel can fill it. A custom driver
/// creates one with [`Stat::new`].
#[derive(Clone, Copy)]
pub struct Stat(RawStat);

#[cfg(target_os = "linux")]
type RawStat = libc::statx;

/// The fields of Linux's `statx` that [`Stat`] uses.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy)]
struct RawStat {
    stx_mask: u32,
    stx_mode: u16,
    stx_nlink: u32,
    stx_uid: u32,
    stx_gid: u32,
    stx_blksize: u32,
    stx_dev_major: u32,
    stx_dev_minor: u32,
    stx_ino: u64,
    stx_size: u64,
    stx_blocks: u64,
    stx_mtime: Timestamp,
    stx_atime: Timestamp,
    stx_btime: Timestamp,
}

#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy)]
struct Timestamp {
    tv_sec: i64,
    tv_nsec: u32,
}

/// The bit of `stx_mask` that says that the creation time is known.
#[cfg(target_os = "linux")]
const BIRTH_TIME: u32 = libc::STATX_BTIME;
#[cfg(not(target_os = "linux"))]
const BIRTH_TIME: u32 = 1;

/// The fields that [`Stat`] requests from `statx`.
#[cfg(target_os = "linux")]
pub(crate) const STAT_MASK: u32 = libc::STATX_BASIC_STATS | BIRTH_TIME;

/// # Safety
///
/// `path` is null or ends in NUL; `out` may be written.
#[cfg(target_os = "linux")]
unsafe fn stat(fd: Fd, path: *const libc::c_char, follow: bool, out: *mut Stat) -> libc::c_int {
    let (fd, path, flags) = stat_arguments(fd, path, follow);
    // SAFETY: the caller's promise.
    unsafe { libc::statx(fd, path, flags, STAT_MASK, out.cast()) }
}

/// The arguments of statx for a descriptor or a path.
#[cfg(target_os = "linux")]
pub(crate) fn stat_arguments(fd: Fd, path: *const libc::c_char, follow: bool) -> (Fd, *const libc::c_char, i32) {
    match (path.is_null(), follow) {
        (true, _) => (fd, c"".as_ptr(), libc::AT_EMPTY_PATH),
        (false, true) => (libc::AT_FDCWD, path, 0),
        (false, false) => (libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW),
    }
}

/// # Safety
///
/// `path` is null or ends in NUL; `out` may be written.
#[cfg(not(target_os = "linux"))]
unsafe fn stat(fd: Fd, path: *const libc::c_char, follow: bool, out: *mut Stat) -> libc::c_int {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the caller's promise; the kernel fills the local and keeps no pointer to it.
    let result = unsafe {
        match (path.is_null(), follow) {
            (true, _) => libc::fstat(fd, stat.as_mut_ptr()),
            (false, true) => libc::stat(path, stat.as_mut_ptr()),
            (false, false) => libc::lstat(path, stat.as_mut_ptr()),
        }
    };
    if result == 0 {
        // SAFETY: the call has filled the local; `out` is the caller's promise.
        unsafe { out.write(Stat(RawStat::from(stat.assume_init()))) };
    }
    result
}

#[cfg(not(target_os = "linux"))]
impl From<libc::stat> for RawStat {
    fn from(stat: libc::stat) -> RawStat {
        let time = |seconds, nanoseconds| Timestamp {
            tv_sec: seconds as i64,
            tv_nsec: nanoseconds as u32,
        };
        RawStat {
            stx_mask: BIRTH_TIME,
            stx_mode: stat.st_mode as u16,
            stx_nlink: stat.st_nlink as u32,
            stx_uid: stat.st_uid,
            stx_gid: stat.st_gid,
            stx_blksize: stat.st_blksize as u32,
            stx_dev_major: libc::major(stat.st_dev) as u32,
            stx_dev_minor: libc::minor(stat.st_dev) as u32,
            stx_ino: stat.st_ino,
            stx_size: stat.st_size as u64,
            stx_blocks: stat.st_blocks as u64,
            stx_mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            stx_atime: time(stat.st_atime, stat.st_atime_nsec),
            stx_btime: time(stat.st_birthtime, stat.st_birthtime_nsec),
        }
    }
}

impl Stat {
    /// The file type and the permissions: `st_mode`.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode)
    }
    /// The length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a file's length, as in std")]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }
    /// When the contents last changed.
    pub fn modified(&self) -> SystemTime {
        time(self.0.stx_mtime.tv_sec, self.0.stx_mtime.tv_nsec)
    }
    /// When the file was last read.
    pub fn accessed(&self) -> SystemTime {
        time(self.0.stx_atime.tv_sec, self.0.stx_atime.tv_nsec)
    }
    /// When the file was created, if that is known.
    pub fn created(&self) -> Option<SystemTime> {
        let is_known = self.0.stx_mask & BIRTH_TIME != 0;
        is_known.then(|| time(self.0.stx_btime.tv_sec, self.0.stx_btime.tv_nsec))
    }
    /// The device that contains the file.
    pub fn device(&self) -> u64 {
        libc::makedev(self.0.stx_dev_major as _, self.0.stx_dev_minor as _) as u64
    }
    /// The file's number on its device.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }
    /// The number of hard links.
    pub fn links(&self) -> u64 {
        u64::from(self.0.stx_nlink)
    }
    /// The owner's user id.
    pub fn user(&self) -> u32 {
        self.0.stx_uid
    }
    /// The owner's group id.
    pub fn group(&self) -> u32 {
        self.0.stx_gid
    }
    /// The number of 512-byte blocks allocated.
    pub fn blocks(&self) -> u64 {
        self.0.stx_blocks
    }
    /// The preferred size of reads and writes.
    pub fn block_len(&self) -> u64 {
        u64::from(self.0.stx_blksize)
    }
    pub(crate) fn permissions(&self) -> std::fs::Permissions {
        std::fs::Permissions::from_mode(self.mode())
    }
}

/// Constructors for drivers.
impl Stat {
    /// A file with this mode (`S_IFREG | 0o644`, say) and length, and one link. Times, identity and owner are zero.
    pub fn new(mode: u32, len: u64) -> Stat {
        // SAFETY: zeroes are a valid structure of numbers.
        let mut raw: RawStat = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
        (raw.stx_mode, raw.stx_size) = (mode as u16, len);
        (raw.stx_nlink, raw.stx_blksize, raw.stx_blocks) = (1, 4096, len.div_ceil(512));
        Stat(raw)
    }
    /// Sets when the contents last changed, when the file was last read, and when it was created.
    pub fn with_times(mut self, modified: SystemTime, accessed: SystemTime, created: Option<SystemTime>) -> Stat {
        let raw = &mut self.0;
        (raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec) = since_epoch(modified);
        (raw.stx_atime.tv_sec, raw.stx_atime.tv_nsec) = since_epoch(accessed);
        if let Some(created) = created {
            raw.stx_mask |= BIRTH_TIME;
            (raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec) = since_epoch(created);
        }
        self
    }
    /// Sets the device, the inode number and the number of hard links.
    pub fn with_identity(mut self, device: u64, inode: u64, links: u64) -> Stat {
        let raw = &mut self.0;
        (raw.stx_dev_major, raw.stx_dev_minor) = (libc::major(device as _) as u32, libc::minor(device as _) as u32);
        (raw.stx_ino, raw.stx_nlink) = (inode, links as u32);
        self
    }
    /// Sets the number of 512-byte blocks allocated.
    pub fn with_blocks(mut self, blocks: u64) -> Stat {
        self.0.stx_blocks = blocks;
        self
    }
    /// Sets the owner's user id and group id.
    pub fn with_owner(mut self, user: u32, group: u32) -> Stat {
        (self.0.stx_uid, self.0.stx_gid) = (user, group);
        self
    }
}

/// Whole seconds since 1970, rounded down, and the rest.
fn since_epoch(time: SystemTime) -> (i64, u32) {
    let nanoseconds = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    let (seconds, rest) = (
        nanoseconds.div_euclid(1_000_000_000),
        nanoseconds.rem_euclid(1_000_000_000),
    );
    (seconds as i64, rest as u32)
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = match seconds >= 0 {
        true => UNIX_EPOCH.checked_add(whole),
        false => UNIX_EPOCH.checked_sub(whole),
    };
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(nanoseconds))
}

impl std::fmt::Debug for Stat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stat")
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
