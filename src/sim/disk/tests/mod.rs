//! Tests of the file system: each rule by itself, random calls compared with the kernel, and crashes.

#[cfg(feature = "sim")]
mod crashes;
#[cfg(feature = "sim")]
mod faults;
#[cfg(all(target_os = "linux", not(miri)))]
mod kernel;
mod rules;
#[cfg(feature = "sim")]
mod write_ahead_log;

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use super::FileSystem;
use crate::sim::files::{Files, Volume};
use crate::sys::{CURRENT, Fd, FileOp, OsResult, Stat};

/// A process with files of its own, for calls as a program makes them.
pub(super) struct Process {
    pub(super) files: Files,
    now: SystemTime,
}

pub(super) fn path(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

impl Process {
    /// On a file system in which nothing is ever lost.
    pub(super) fn new() -> Process {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        Process::on(Files::new(Volume::new(FileSystem::new(4096, now), None)))
    }

    pub(super) fn on(files: Files) -> Process {
        Process {
            files,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
        }
    }

    /// Executes an operation, one second after the last one.
    ///
    /// # Safety
    ///
    /// The operation's pointers are valid.
    pub(super) unsafe fn perform(&mut self, op: FileOp) -> OsResult {
        self.now += Duration::from_secs(1);
        // SAFETY: the caller's promise.
        unsafe { self.files.perform(&op, self.now) }
    }

    pub(super) fn open(&mut self, name: &str, flags: i32) -> Result<Fd, i32> {
        let (name, mode) = (path(name), 0o666);
        let path = name.as_ptr();
        // SAFETY: the path lives until the call has returned.
        unsafe { self.perform(FileOp::Open { path, flags, mode }) }.map(|fd| fd as Fd)
    }

    pub(super) fn create(&mut self, name: &str) -> Fd {
        self.open(name, libc::O_RDWR | libc::O_CREAT)
            .expect("it can be created")
    }

    pub(super) fn close(&mut self, fd: Fd) {
        assert!(self.files.close(fd));
    }

    pub(super) fn write_at(&mut self, fd: Fd, bytes: &[u8], offset: u64) -> OsResult {
        let (ptr, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes live until the call has returned.
        unsafe { self.perform(FileOp::WriteAt { fd, ptr, len, offset }) }
    }

    pub(super) fn write(&mut self, fd: Fd, bytes: &[u8]) -> OsResult {
        self.write_at(fd, bytes, CURRENT)
    }

    pub(super) fn read_at(&mut self, fd: Fd, len: usize, offset: u64) -> Result<Vec<u8>, i32> {
        let mut bytes = vec![0xaa; len];
        let ptr = bytes.as_mut_ptr();
        // SAFETY: the vector lives until the call has returned.
        let count = unsafe { self.perform(FileOp::ReadAt { fd, ptr, len, offset }) }?;
        assert!(
            bytes[count as usize..].iter().all(|&byte| byte == 0xaa),
            "written beyond the count"
        );
        bytes.truncate(count as usize);
        Ok(bytes)
    }

    pub(super) fn sync(&mut self, fd: Fd) -> OsResult {
        // SAFETY: there is no pointer.
        unsafe { self.perform(FileOp::Sync { fd, data_only: false }) }
    }

    pub(super) fn sync_data(&mut self, fd: Fd) -> OsResult {
        // SAFETY: there is no pointer.
        unsafe { self.perform(FileOp::Sync { fd, data_only: true }) }
    }

    pub(super) fn sync_dir(&mut self, name: &str) {
        let fd = self
            .open(name, libc::O_RDONLY | libc::O_DIRECTORY)
            .expect("a directory");
        self.sync(fd).expect("it can be synced");
        self.close(fd);
    }

    pub(super) fn truncate(&mut self, fd: Fd, len: u64) -> OsResult {
        // SAFETY: there is no pointer.
        unsafe { self.perform(FileOp::Truncate { fd, len }) }
    }

    pub(super) fn allocate(&mut self, fd: Fd, offset: u64, len: u64) -> OsResult {
        // SAFETY: there is no pointer.
        unsafe { self.perform(FileOp::Allocate { fd, offset, len }) }
    }

    pub(super) fn make_dir(&mut self, name: &str) -> OsResult {
        let (name, mode) = (path(name), 0o777);
        let path = name.as_ptr();
        // SAFETY: the path lives until the call has returned.
        unsafe { self.perform(FileOp::MakeDir { path, mode }) }
    }

    pub(super) fn remove(&mut self, name: &str, is_dir: bool) -> OsResult {
        let name = path(name);
        let path = name.as_ptr();
        // SAFETY: the path lives until the call has returned.
        unsafe { self.perform(FileOp::Remove { path, is_dir }) }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> OsResult {
        let (from, to) = (path(from), path(to));
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: the paths live until the call has returned.
        unsafe { self.perform(FileOp::Rename { from, to }) }
    }

    pub(super) fn hard_link(&mut self, from: &str, to: &str) -> OsResult {
        let (from, to) = (path(from), path(to));
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: the paths live until the call has returned.
        unsafe { self.perform(FileOp::HardLink { from, to }) }
    }

    pub(super) fn symlink(&mut self, target: &str, link: &str) -> OsResult {
        let (target, link) = (path(target), path(link));
        let (target, link) = (target.as_ptr(), link.as_ptr());
        // SAFETY: the paths live until the call has returned.
        unsafe { self.perform(FileOp::SymLink { target, link }) }
    }

    pub(super) fn stat(&mut self, name: &str, follow: bool) -> Result<Stat, i32> {
        let (name, mut stat) = (path(name), MaybeUninit::uninit());
        let (fd, path, out) = (-1, name.as_ptr(), stat.as_mut_ptr());
        // SAFETY: path and result live until the call has returned, which fills the result if it succeeds.
        unsafe {
            self.perform(FileOp::Stat { fd, path, follow, out })?;
            Ok(stat.assume_init())
        }
    }

    pub(super) fn stat_file(&mut self, fd: Fd) -> Result<Stat, i32> {
        let mut stat = MaybeUninit::uninit();
        let (path, follow, out) = (std::ptr::null(), true, stat.as_mut_ptr());
        // SAFETY: the result lives until the call has returned, which fills it if it succeeds.
        unsafe {
            self.perform(FileOp::Stat { fd, path, follow, out })?;
            Ok(stat.assume_init())
        }
    }
}
