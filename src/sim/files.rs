//! The open files of one simulated host, and the file operations on its disk.
//!
//! [`Files::perform`] executes a [`FileOp`] as the kernel would, through the operation's pointers. Open files have numbers
//! of their own, from [`FIRST`] on, so that sockets and files cannot be confused.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, OsString};
use std::io::SeekFrom;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use libc::{EBADF, EINVAL, EIO, EISDIR, ENOENT, EOPNOTSUPP, O_ACCMODE, O_APPEND, O_DSYNC, O_RDONLY, O_SYNC, O_WRONLY};

use super::disk::FileSystem;
use super::disk::faults::Faults;
use super::disk::inode::{Ino, Piece};
use crate::driver::FdSpace;
use crate::sys::{CURRENT, DIRECT, DirItem, DirList, Fd, FileOp, IoVec, OsResult, PathChar};

/// The number of the first open file.
const FIRST: Fd = FdSpace::FIRST_OWN + (1 << 29);

/// The most bytes of one read or write, as on Linux.
const MAX_COUNT: u64 = 0x7fff_f000;

/// A disk with its faults. Hosts and tests share it.
pub(crate) struct Volume {
    pub(crate) fs: FileSystem,
    pub(crate) faults: Option<Faults>,
    /// Counts how often everything on the disk was replaced. Files that were opened before fail.
    pub(super) generation: u64,
}

impl Volume {
    pub(crate) fn new(fs: FileSystem, faults: Option<Faults>) -> Volume {
        Volume {
            fs,
            faults,
            generation: 0,
        }
    }

    fn sync(&mut self, ino: Ino, data_only: bool) -> Result<(), i32> {
        match &mut self.faults {
            Some(faults) => faults.sync(&mut self.fs, ino, data_only),
            None => {
                self.fs.sync(ino, data_only);
                Ok(())
            }
        }
    }
}

/// The open files of one host.
pub(crate) struct Files {
    pub(super) volume: Rc<RefCell<Volume>>,
    pub(super) open: BTreeMap<Fd, OpenFile>,
    /// Numbers that were used and are free again; the last one is the next.
    free: Vec<Fd>,
    /// The first paths that could not be opened because they do not exist.
    missing: BTreeSet<PathBuf>,
}

/// Missing paths that are kept for a report.
const MAX_MISSING: usize = 16;

/// An open file description.
pub(super) struct OpenFile {
    ino: Ino,
    /// The flags of open(2).
    flags: i32,
    position: u64,
    generation: u64,
}

impl OpenFile {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag == flag
    }

    fn check_readable(&self) -> Result<(), i32> {
        match self.flags & O_ACCMODE {
            O_WRONLY => Err(EBADF),
            _ => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<(), i32> {
        match self.flags & O_ACCMODE {
            O_RDONLY => Err(EBADF),
            _ => Ok(()),
        }
    }

    fn is_direct(&self) -> bool {
        DIRECT.is_some_and(|direct| self.has(direct))
    }
}

impl Files {
    pub(crate) fn new(volume: Volume) -> Files {
        Files {
            volume: Rc::new(RefCell::new(volume)),
            open: BTreeMap::new(),
            free: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    /// The files of a host without faults, of which nothing is lost: with the program's temporary and current directories.
    pub(crate) fn in_memory(now: SystemTime) -> Option<Files> {
        let mut fs = FileSystem::new(4096, now);
        fs.make_path(b"/tmp", 0o1777);
        fs.make_path(std::env::temp_dir().as_os_str().as_bytes(), 0o1777);
        if let Ok(current) = std::env::current_dir() {
            fs.enter(current.as_os_str().as_bytes());
        }
        Some(Files::new(Volume::new(fs, None)))
    }

    /// The first paths that could not be opened because they do not exist.
    pub(crate) fn missing(&self) -> impl Iterator<Item = PathBuf> {
        self.missing.iter().cloned()
    }

    /// The faults of the operations since the last call: see `log::DISK_FAULTS`, and the sector.
    pub(crate) fn take_faults(&mut self, record: impl FnMut(u64, u64)) {
        if let Some(faults) = &mut self.volume.borrow_mut().faults {
            faults.take_happened(record);
        }
    }

    /// Whether this number names a file, open or not.
    pub(crate) fn is_file(fd: Fd) -> bool {
        fd >= FIRST
    }

    /// When an operation that starts now is done, in nanoseconds as `now_ns`.
    pub(crate) fn done_at(&self, op: &FileOp, now_ns: u64) -> u64 {
        match &mut self.volume.borrow_mut().faults {
            Some(faults) => faults.done_at(op, now_ns),
            None => now_ns,
        }
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Closes a file; false if there is none with this number.
    pub(crate) fn close(&mut self, fd: Fd) -> bool {
        let Some(file) = self.open.remove(&fd) else {
            return false;
        };
        self.free.push(fd);
        let volume = &mut *self.volume.borrow_mut();
        if file.generation == volume.generation {
            volume.fs.closed(file.ino);
        }
        true
    }

    /// Moves a file's position.
    pub(crate) fn seek(&mut self, fd: Fd, to: SeekFrom) -> Result<u64, i32> {
        let (volume, file) = self.file(fd)?;
        let position = match to {
            SeekFrom::Start(position) => i64::try_from(position).ok(),
            SeekFrom::Current(offset) => (file.position as i64).checked_add(offset),
            SeekFrom::End(offset) => (volume.fs.len(file.ino) as i64).checked_add(offset),
        };
        file.position = position
            .and_then(|position| u64::try_from(position).ok())
            .ok_or(EINVAL)?;
        Ok(file.position)
    }

    /// Carries out an operation at the time `now`.
    ///
    /// # Safety
    ///
    /// The operation owns the memory that it points to, until its completion is reported after this call: paths end in NUL,
    /// buffers and slices are valid and of the given length, results may be written.
    pub(crate) unsafe fn perform(&mut self, op: &FileOp, now: SystemTime) -> OsResult {
        self.volume.borrow_mut().fs.set_time(now);
        // SAFETY: the caller's promise, for every pointer of the operation.
        unsafe {
            match *op {
                FileOp::Open { path, flags, mode } => {
                    let opened = self.open(text(path), flags, mode);
                    if opened == Err(ENOENT) && self.missing.len() < MAX_MISSING {
                        self.missing.insert(OsStr::from_bytes(text(path)).into());
                    }
                    opened
                }
                FileOp::ReadAt { fd, ptr, len, offset } => self.read(fd, &[IoVec { base: ptr, len }], offset),
                FileOp::ReadVectoredAt {
                    fd,
                    slices,
                    count,
                    offset,
                } => self.read(fd, std::slice::from_raw_parts(slices, count), offset),
                FileOp::WriteAt { fd, ptr, len, offset } => {
                    let base = ptr.cast_mut();
                    self.write(fd, &[IoVec { base, len }], offset)
                }
                FileOp::WriteVectoredAt {
                    fd,
                    slices,
                    count,
                    offset,
                } => self.write(fd, std::slice::from_raw_parts(slices, count), offset),
                FileOp::Sync { fd, data_only } => self.sync(fd, data_only),
                FileOp::Stat { fd, path, follow, out } => {
                    let stat = match path.is_null() {
                        true => {
                            let (volume, file) = self.file(fd)?;
                            volume.fs.stat(file.ino)
                        }
                        false => {
                            let volume = self.volume.borrow();
                            volume.fs.stat(volume.fs.look_up(text(path), follow)?)
                        }
                    };
                    out.write(stat);
                    Ok(0)
                }
                FileOp::Truncate { fd, len } => self.truncate(fd, len),
                FileOp::Allocate { fd, offset, len } => self.allocate(fd, offset, len),
                FileOp::Rename { from, to } => self.done(|fs| fs.rename(text(from), text(to))),
                FileOp::Remove { path, is_dir } => self.done(|fs| fs.remove(text(path), is_dir)),
                FileOp::MakeDir { path, mode } => self.done(|fs| fs.make_dir(text(path), mode)),
                FileOp::HardLink { from, to } => self.done(|fs| fs.hard_link(text(from), text(to))),
                FileOp::SymLink { target, link } => self.done(|fs| fs.symlink(text(target), text(link))),
                FileOp::ReadLink { path, out } => self.done(|fs| {
                    *out = as_path(fs.read_link(text(path))?.to_vec());
                    Ok(())
                }),
                FileOp::SetMode { fd, path, mode } => match path.is_null() {
                    true => {
                        let (mut volume, file) = self.file(fd)?;
                        volume.fs.set_mode(file.ino, mode);
                        Ok(0)
                    }
                    false => self.done(|fs| {
                        let ino = fs.look_up(text(path), true)?;
                        fs.set_mode(ino, mode);
                        Ok(())
                    }),
                },
                FileOp::ReadDir { path, list } => self.done(|fs| read_dir(fs, text(path), &mut *list)),
                FileOp::RealPath { path, out } => self.done(|fs| {
                    *out = as_path(fs.real_path(text(path))?);
                    Ok(())
                }),
                // The loop composes these of the operations above.
                FileOp::Copy { .. } | FileOp::RemoveAll { .. } => Err(EOPNOTSUPP),
            }
        }
    }

    fn done(&mut self, call: impl FnOnce(&mut FileSystem) -> Result<(), i32>) -> OsResult {
        call(&mut self.volume.borrow_mut().fs).map(|()| 0)
    }

    /// An open file with its disk.
    fn file(&mut self, fd: Fd) -> Result<(RefMut<'_, Volume>, &mut OpenFile), i32> {
        let volume = self.volume.borrow_mut();
        let file = self.open.get_mut(&fd).ok_or(EBADF)?;
        match file.generation == volume.generation {
            true => Ok((volume, file)),
            false => Err(EIO),
        }
    }

    fn open(&mut self, path: &[u8], flags: i32, mode: u32) -> OsResult {
        let volume = &mut *self.volume.borrow_mut();
        let ino = volume.fs.open(path, flags, mode)?;
        volume.fs.opened(ino);
        let fd = self.free.pop().unwrap_or(FIRST + self.open.len() as Fd);
        let file = OpenFile {
            ino,
            flags,
            position: 0,
            generation: volume.generation,
        };
        self.open.insert(fd, file);
        Ok(fd as u32)
    }

    /// # Safety
    ///
    /// The slices may be written.
    unsafe fn read(&mut self, fd: Fd, slices: &[IoVec], offset: u64) -> OsResult {
        let (mut volume, file) = self.file(fd)?;
        let Volume { fs, faults, .. } = &mut *volume;
        file.check_readable()?;
        let at = start(offset, file.position)?;
        if fs.is_dir(file.ino) {
            return Err(EISDIR);
        }
        if file.is_direct() {
            check_alignment(slices, at, fs.sector())?;
        }
        let mut len = total(slices);
        if let Some(faults) = faults {
            len = faults.before_read(fs, file.ino, at, len)?;
        }
        let mut out = Cursor::new(slices);
        let count = fs.read(file.ino, at, len, |piece| {
            let copy = |from: usize, ptr: *mut u8, len: usize| {
                // SAFETY: the caller's promise: the cursor gives out memory within the slices. The piece is memory of the
                // file system, and has at least `from + len` bytes.
                unsafe {
                    match piece {
                        Piece::Bytes(bytes) => std::ptr::copy_nonoverlapping(bytes[from..].as_ptr(), ptr, len),
                        Piece::Zeros(_) => ptr.write_bytes(0, len),
                    }
                }
            };
            let piece_len = match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Zeros(count) => count as usize,
            };
            out.advance(piece_len, copy);
        })?;
        if offset == CURRENT {
            file.position += count;
        }
        Ok(count as u32)
    }

    /// # Safety
    ///
    /// The slices may be read.
    unsafe fn write(&mut self, fd: Fd, slices: &[IoVec], offset: u64) -> OsResult {
        let (mut volume, file) = self.file(fd)?;
        let Volume { fs, faults, .. } = &mut *volume;
        file.check_writable()?;
        let mut at = start(offset, file.position)?;
        if file.has(O_APPEND) {
            at = fs.len(file.ino);
        }
        if file.is_direct() {
            check_alignment(slices, at, fs.sector())?;
        }
        let mut len = total(slices);
        if len == 0 {
            return Ok(0);
        }
        if let Some(faults) = faults {
            len = faults.before_write(fs, file.ino, at, len)?;
        }
        let (mut written, mut failure) = (0, None);
        let mut from = Cursor::new(slices);
        let ino = file.ino;
        from.advance(len as usize, |_, ptr, len| {
            if failure.is_some() {
                return;
            }
            // SAFETY: the caller's promise: the cursor gives out memory within the slices.
            let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
            match fs.write(ino, at + written, bytes) {
                Ok(count) => {
                    written += count;
                    failure = (count < len as u64).then_some(0);
                }
                Err(code) => failure = Some(code),
            }
        });
        if let (0, Some(code)) = (written, failure) {
            return Err(code);
        }
        if offset == CURRENT {
            file.position = at + written;
        }
        if file.has(O_SYNC) || file.has(O_DSYNC) {
            let data_only = !file.has(O_SYNC);
            volume.sync(ino, data_only)?;
        }
        Ok(written as u32)
    }

    fn sync(&mut self, fd: Fd, data_only: bool) -> OsResult {
        let (mut volume, file) = self.file(fd)?;
        volume.sync(file.ino, data_only).map(|()| 0)
    }

    fn truncate(&mut self, fd: Fd, len: u64) -> OsResult {
        let (mut volume, file) = self.file(fd)?;
        if file.check_writable().is_err() {
            return Err(EINVAL);
        }
        volume.fs.truncate(file.ino, len).map(|()| 0)
    }

    fn allocate(&mut self, fd: Fd, offset: u64, len: u64) -> OsResult {
        let (mut volume, file) = self.file(fd)?;
        file.check_writable()?;
        volume.fs.allocate(file.ino, offset, len).map(|()| 0)
    }
}

/// The bytes of a path.
///
/// # Safety
///
/// It ends in NUL, and is not changed while the result is used.
unsafe fn text<'a>(path: *const PathChar) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

fn as_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// Lists a whole directory: it is in memory, so batches save nothing.
fn read_dir(fs: &FileSystem, path: &[u8], list: &mut DirList) -> Result<(), i32> {
    let entries = fs.entries(fs.look_up(path, true)?)?;
    list.items.extend(entries.map(|(name, kind)| DirItem {
        name: OsString::from_vec(name.to_vec()),
        kind,
    }));
    list.is_complete = true;
    Ok(())
}

/// Where a read or write starts.
fn start(offset: u64, position: u64) -> Result<u64, i32> {
    match offset {
        CURRENT => Ok(position),
        _ if offset > i64::MAX as u64 => Err(EINVAL),
        _ => Ok(offset),
    }
}

fn total(slices: &[IoVec]) -> u64 {
    let lens = slices.iter().map(|slice| slice.len as u64);
    lens.fold(0, u64::saturating_add).min(MAX_COUNT)
}

/// Direct I/O needs aligned memory, offset and length.
fn check_alignment(slices: &[IoVec], offset: u64, sector: u64) -> Result<(), i32> {
    let is_aligned = |number: u64| number.is_multiple_of(sector);
    let memory = |slice: &IoVec| is_aligned(slice.base as usize as u64) && is_aligned(slice.len as u64);
    match is_aligned(offset) && slices.iter().all(memory) {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// A position in a list of slices.
struct Cursor<'a> {
    slices: std::slice::Iter<'a, IoVec>,
    current: IoVec,
}

impl Cursor<'_> {
    fn new(slices: &[IoVec]) -> Cursor<'_> {
        Cursor {
            slices: slices.iter(),
            current: IoVec::EMPTY,
        }
    }

    /// Moves on by `len` bytes. Calls `each` with every stretch of memory: how many bytes of `len` come before it, where it
    /// is and how long.
    fn advance(&mut self, len: usize, mut each: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while done < len {
            if self.current.len == 0 {
                match self.slices.next() {
                    Some(&next) => self.current = next,
                    None => return,
                }
                continue;
            }
            let count = self.current.len.min(len - done);
            each(done, self.current.base, count);
            self.current.base = self.current.base.wrapping_add(count);
            self.current.len -= count;
            done += count;
        }
    }
}
