//! A test's access to simulated disks: reading and writing them from outside, and their images.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use libc::{ENOENT, ENOSPC, ENOTDIR, O_CREAT, O_TRUNC, O_WRONLY};

use super::crash::TooManyImages;
use super::faults::{DiskFaults, flip_bit};
use super::inode::{Dir, Ino, Node, Piece};
use super::{FileSystem, ROOT};
use crate::sim::files::Volume;

/// A simulated host's disk, in the hands of the test.
///
/// What the test reads is what the host reads: the page cache. What it writes is durable.
#[derive(Clone)]
pub struct DiskHandle {
    volume: Rc<RefCell<Volume>>,
}

impl DiskHandle {
    pub(crate) fn new(volume: Rc<RefCell<Volume>>) -> DiskHandle {
        DiskHandle { volume }
    }

    /// Reads a whole file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.volume.borrow().fs.read_file(path.as_ref())
    }

    /// Replaces a file's contents, and creates it and its directories if they are missing. All of it is durable.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        let fs = &mut self.volume.borrow_mut().fs;
        fs.write_file(bytes_of(path.as_ref()), contents.as_ref())
            .map_err(io::Error::from_raw_os_error)
    }

    /// The names in a directory, sorted.
    pub fn list(&self, path: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
        self.volume.borrow().fs.list(path.as_ref())
    }

    /// Whether a path exists.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.volume.borrow().fs.look_up(bytes_of(path.as_ref()), true).is_ok()
    }

    /// A copy of the disk as the host sees it now, everything durable.
    pub fn image(&self) -> DiskImage {
        DiskImage(self.volume.borrow().fs.synced())
    }

    /// All images that a power loss could leave at this moment, without duplicates.
    ///
    /// Their number grows exponentially with the number of unsynced changes, so this is for short tests with few of
    /// them. Load each into a disk with [`load`](DiskHandle::load), start the program on it, and check what it recovers.
    ///
    /// # Errors
    ///
    /// If there are more than `limit`.
    pub fn crash_images(&self, limit: usize) -> Result<Vec<DiskImage>, TooManyImages> {
        let images = self.volume.borrow().fs.crash_images(limit)?;
        Ok(images.into_iter().map(DiskImage).collect())
    }

    /// Replaces everything on the disk. Files that are open now fail with `EIO` from now on.
    pub fn load(&self, image: &DiskImage) {
        self.volume.borrow_mut().replace(image.0.clone());
    }

    /// Removes everything from the disk, as if it was replaced by a new one. Files that are open now fail with `EIO` from
    /// now on.
    pub fn wipe(&self) {
        let volume = &mut *self.volume.borrow_mut();
        let empty = volume.fs.emptied();
        volume.replace(empty);
    }

    /// The disk's faults.
    pub fn faults(&self) -> DiskFaults {
        let volume = self.volume.borrow();
        volume
            .faults
            .as_ref()
            .map_or(DiskFaults::none(), |faults| faults.config())
    }

    /// Changes the disk's size in bytes; `None` is no limit. Writes fail with `ENOSPC` when it is full.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        let fs = &mut self.volume.borrow_mut().fs;
        fs.capacity = (bytes.map_or(u64::MAX, |bytes| bytes / fs.sector), ENOSPC);
    }

    /// Replaces the disk's faults.
    pub fn set_faults(&self, faults: DiskFaults) {
        if let Some(state) = &mut self.volume.borrow_mut().faults {
            state.set(faults);
        }
    }

    /// Drops the clean part of the page cache, so that reads see what is on the disk: lost, misdirected and rotten sectors
    /// show.
    pub fn drop_caches(&self) {
        self.volume.borrow_mut().fs.drop_caches();
    }

    /// Flips one bit of a file on the disk. The page cache keeps the right one until a power loss or
    /// [`drop_caches`](DiskHandle::drop_caches).
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u8) -> io::Result<()> {
        let fs = &mut self.volume.borrow_mut().fs;
        fs.rot(bytes_of(path.as_ref()), offset * 8 + u64::from(bit % 8))
            .map_err(io::Error::from_raw_os_error)
    }

    /// Makes reads of these bytes of a file fail with `EIO` until they are written.
    pub fn break_sectors(&self, path: impl AsRef<Path>, range: Range<u64>) -> io::Result<()> {
        let volume = &mut *self.volume.borrow_mut();
        let ino = volume.fs.look_up(bytes_of(path.as_ref()), true);
        let ino = ino.map_err(io::Error::from_raw_os_error)?;
        let sector = volume.fs.sector();
        if let Some(faults) = &mut volume.faults {
            for index in range.start / sector..range.end.div_ceil(sector) {
                faults.break_sector(ino, index);
            }
        }
        Ok(())
    }

    /// Delays the next operation, and those that are queued behind it, by this much more.
    pub fn stall(&self, length: Duration) {
        self.volume.borrow_mut().stall(length);
    }
}

impl fmt::Debug for DiskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.volume.borrow().fs.fmt_tree(f)
    }
}

/// The contents of a simulated disk.
#[derive(Clone)]
pub struct DiskImage(FileSystem);

impl DiskImage {
    /// Reads a whole file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.0.read_file(path.as_ref())
    }

    /// The names in a directory, sorted.
    pub fn list(&self, path: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
        self.0.list(path.as_ref())
    }

    /// Whether a path exists.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.0.look_up(bytes_of(path.as_ref()), true).is_ok()
    }
}

impl PartialEq for DiskImage {
    /// Whether a program sees the same files. Times and inode numbers are not compared.
    fn eq(&self, other: &DiskImage) -> bool {
        self.0.fingerprint() == other.0.fingerprint()
    }
}

impl Eq for DiskImage {}

impl fmt::Debug for DiskImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_tree(f)
    }
}

impl FileSystem {
    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let read = || {
            let contents = self.contents(self.look_up(bytes_of(path), true)?)?;
            let mut bytes = Vec::new();
            contents.read(self.sector, 0, contents.size, |piece| match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                Piece::Zeros(count) => bytes.resize(bytes.len() + count as usize, 0),
            });
            Ok(bytes)
        };
        read().map_err(io::Error::from_raw_os_error)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let list = || {
            let dir = self.dir(self.look_up(bytes_of(path), true)?)?;
            let names = dir.entries.keys().map(|name| PathBuf::from(OsStr::from_bytes(name)));
            Ok(names.collect())
        };
        list().map_err(io::Error::from_raw_os_error)
    }

    fn write_file(&mut self, path: &[u8], contents: &[u8]) -> Result<(), i32> {
        let parent = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        if parent > 0 && !self.make_path(&path[..parent], 0o755) {
            return Err(ENOTDIR);
        }
        let ino = self.open(path, O_WRONLY | O_CREAT | O_TRUNC, 0o644)?;
        if !contents.is_empty() && self.write(ino, 0, contents)? < contents.len() as u64 {
            return Err(self.capacity.1);
        }
        self.sync(ino, false);
        let mut dir = self.parent(path)?.dir;
        loop {
            self.sync(dir, false);
            match self.dir(dir)?.parent {
                parent if parent != dir => dir = parent,
                _ => return Ok(()),
            }
        }
    }

    /// A copy in which everything is durable and no file is open.
    fn synced(&self) -> FileSystem {
        let mut image = self.clone();
        if let Some(journal) = &mut image.journal {
            journal.clear();
        }
        image.count_links();
        image
    }

    /// An empty file system with the same settings.
    fn emptied(&self) -> FileSystem {
        let mut empty = self.clone();
        if let Node::Dir(Dir { entries, .. }) = &mut empty.inode_mut(ROOT).node {
            entries.clear();
        }
        empty.count_links();
        empty.make_path(b"/tmp", 0o1777);
        if let Some(journal) = &mut empty.journal {
            journal.clear();
        }
        empty
    }

    fn drop_caches(&mut self) {
        let lost = self.journal.as_mut().map(|journal| journal.take_lost());
        for (ino, index, bytes) in lost.into_iter().flatten() {
            if let Ok(contents) = self.contents_mut(ino) {
                match bytes {
                    Some(bytes) => contents.sectors.insert(index, bytes),
                    None => contents.sectors.remove(&index),
                };
            }
        }
    }

    /// Flips a bit on the disk.
    fn rot(&mut self, path: &[u8], bit: u64) -> Result<(), i32> {
        let ino = self.look_up(path, true)?;
        let (sector, index) = (self.sector, bit / 8 / self.sector);
        let cached = self.contents(ino)?.sectors.get(&index).cloned();
        let journal = self.journal.as_mut().ok_or(ENOENT)?;
        let stored = match journal.stored(ino, index) {
            Some(stored) => stored.clone(),
            None => cached.clone(),
        };
        let rotten = flip_bit(stored, sector, bit % (sector * 8));
        journal.corrupt(ino, index, cached, Some(rotten));
        Ok(())
    }

    /// All paths with their sizes, for reports.
    fn fmt_tree(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut paths = Vec::new();
        self.paths(ROOT, PathBuf::from("/"), &mut paths);
        let mut map = f.debug_map();
        for (path, ino) in &paths {
            map.key(path);
            match &self.inode(*ino).node {
                Node::File(contents) => map.value(&contents.size),
                Node::Dir(_) => map.value(&"directory"),
                Node::Link(target) => map.value(&OsStr::from_bytes(target)),
            };
        }
        map.finish()
    }

    fn paths(&self, dir: Ino, path: PathBuf, out: &mut Vec<(PathBuf, Ino)>) {
        let Ok(Dir { entries, .. }) = self.dir(dir) else { return };
        for (name, &ino) in entries {
            let path = path.join(OsStr::from_bytes(name));
            out.push((path.clone(), ino));
            self.paths(ino, path, out);
        }
    }
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
