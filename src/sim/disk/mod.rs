//! A file system in memory that behaves like one of Linux: the same results and the same error codes.
//!
//! - [`inode`]: files with sparse contents, directories, symbolic links.
//! - [`path`]: path lookup.
//! - [`dir`]: operations on paths: create, link, rename, remove.
//! - `journal`, `crash`, `faults`, `image`, `config` (feature `sim`): what a power loss brings back, and injected faults.
//!
//! The calling process is the superuser: permissions are kept and reported, and forbid nothing. New files and directories
//! get the umask 022. Times come from the caller's clock. Nothing here depends on addresses, hashes or the real clock, so
//! equal calls give equal results.
//!
//! # Durability
//!
//! Reads see the page cache, which is the state of [`FileSystem`]. The journal records, for every change that is not on
//! the disk yet, what was there before. Without the feature `sim` there is no journal, and nothing can be lost.

pub(crate) mod dir;
pub(crate) mod inode;
mod path;

#[cfg(feature = "sim")]
pub(crate) mod config;
#[cfg(feature = "sim")]
pub(crate) mod crash;
#[cfg(feature = "sim")]
pub(crate) mod faults;
#[cfg(not(feature = "sim"))]
#[path = "no_faults.rs"]
pub(crate) mod faults;
#[cfg(feature = "sim")]
mod host;
#[cfg(feature = "sim")]
pub(crate) mod image;
#[cfg(feature = "sim")]
pub(crate) mod journal;
#[cfg(not(feature = "sim"))]
#[path = "no_journal.rs"]
pub(crate) mod journal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::SystemTime;

use libc::{EFBIG, EINVAL, EISDIR, ENOSPC};

use self::inode::{Contents, Dir, Ino, Inode, Node, Piece, Sector};
use self::journal::Journal;
use crate::sys::{Stat, kind};

/// The largest size of a file.
const MAX_SIZE: u64 = i64::MAX as u64;

/// The inode of `/`.
const ROOT: Ino = 1;

/// The device number that files report.
const DEVICE: u64 = 0x5157;

/// One file system: its page cache and, in a simulation, the journal of changes that are not on the disk.
#[derive(Clone)]
pub(crate) struct FileSystem {
    inodes: BTreeMap<Ino, Inode>,
    next_ino: Ino,
    /// The directory where relative paths start.
    cwd: Ino,
    /// The bytes of a sector: the unit that a power loss keeps or loses, and the alignment of direct I/O.
    sector: u64,
    /// How many sectors are in use.
    used: u64,
    /// How many there are, and the error for one more.
    capacity: (u64, i32),
    /// The time of the current call.
    now: SystemTime,
    journal: Option<Journal>,
    /// Inodes without links and opens that a crash may bring back.
    unlinked: BTreeSet<Ino>,
}

impl FileSystem {
    /// A file system with an empty root.
    pub(crate) fn new(sector: u64, now: SystemTime) -> FileSystem {
        let mut root = Inode::new(Node::Dir(Dir::default()), 0o755, now);
        // The current directory is in use.
        (root.links, root.opens) = (2, 1);
        if let Node::Dir(dir) = &mut root.node {
            dir.parent = ROOT;
        }
        FileSystem {
            inodes: BTreeMap::from([(ROOT, root)]),
            next_ino: ROOT + 1,
            cwd: ROOT,
            sector,
            used: 0,
            capacity: (u64::MAX, ENOSPC),
            now,
            journal: None,
            unlinked: BTreeSet::new(),
        }
    }

    /// Sets the time of the next calls.
    pub(crate) fn set_time(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// The alignment of direct I/O.
    pub(crate) fn sector(&self) -> u64 {
        self.sector
    }

    /// An existing inode. Numbers come from entries and open files, which keep their inode.
    fn inode(&self, ino: Ino) -> &Inode {
        &self.inodes[&ino]
    }

    fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        match self.inodes.get_mut(&ino) {
            Some(inode) => inode,
            None => unreachable!("an entry or an open file keeps inode {ino}"),
        }
    }

    /// A file's contents; `EISDIR` for a directory, `EINVAL` for a link.
    fn contents(&self, ino: Ino) -> Result<&Contents, i32> {
        match &self.inode(ino).node {
            Node::File(contents) => Ok(contents),
            Node::Dir(_) => Err(EISDIR),
            Node::Link(_) => Err(EINVAL),
        }
    }

    fn contents_mut(&mut self, ino: Ino) -> Result<&mut Contents, i32> {
        match &mut self.inode_mut(ino).node {
            Node::File(contents) => Ok(contents),
            Node::Dir(_) => Err(EISDIR),
            Node::Link(_) => Err(EINVAL),
        }
    }

    /// Counts an open file.
    pub(crate) fn opened(&mut self, ino: Ino) {
        self.inode_mut(ino).opens += 1;
    }

    /// Ends an open file. An inode without links goes with its last open file.
    pub(crate) fn closed(&mut self, ino: Ino) {
        self.inode_mut(ino).opens -= 1;
        self.release(ino);
    }

    /// Frees an inode that has neither links nor opens, unless a crash may bring it back.
    fn release(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        if inode.links > 0 || inode.opens > 0 {
            return;
        }
        if !self.unlinked.remove(&ino)
            && let Node::File(contents) = &self.inode(ino).node
        {
            self.used -= contents.sectors_used();
        }
        match &mut self.journal {
            Some(journal) if journal.holds(ino) => {
                self.unlinked.insert(ino);
            }
            Some(journal) => {
                journal.forget(ino);
                self.inodes.remove(&ino);
            }
            None => {
                self.inodes.remove(&ino);
            }
        }
    }

    pub(crate) fn len(&self, ino: Ino) -> u64 {
        match &self.inode(ino).node {
            Node::File(contents) => contents.size,
            Node::Dir(_) => 4096,
            Node::Link(target) => target.len() as u64,
        }
    }

    pub(crate) fn is_dir(&self, ino: Ino) -> bool {
        self.inode(ino).is_dir()
    }

    /// Reads up to `len` bytes from `offset` on. Returns their number; 0 is the end of the file.
    pub(crate) fn read(&mut self, ino: Ino, offset: u64, len: u64, put: impl FnMut(Piece<'_>)) -> Result<u64, i32> {
        let (sector, now) = (self.sector, self.now);
        let count = self.contents(ino)?.read(sector, offset, len, put);
        self.inode_mut(ino).touch(now);
        Ok(count)
    }

    /// Writes at `offset`. Returns how many bytes fit on the disk, at least one.
    pub(crate) fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<u64, i32> {
        if offset >= MAX_SIZE {
            return Err(EFBIG);
        }
        let room = usize::try_from(MAX_SIZE - offset).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        let (sector, old_size) = (self.sector, self.contents(ino)?.size);
        let mut written = 0;
        while written < bytes.len() {
            let at = offset + written as u64;
            let index = at / sector;
            let from = (at % sector) as usize;
            let count = (sector as usize - from).min(bytes.len() - written);
            if !self.charge(ino, index)? {
                break;
            }
            let piece = &bytes[written..written + count];
            let extends = at + count as u64 > old_size;
            self.put_sector(ino, index, extends, |old| overwrite(old, sector, from, piece))?;
            written += count;
        }
        if written == 0 && !bytes.is_empty() {
            return Err(self.capacity.1);
        }
        let end = offset + written as u64;
        self.resize(ino, old_size.max(end))?;
        Ok(written as u64)
    }

    /// Takes one more sector of the disk for a file if it needs one; false if the disk is full.
    fn charge(&mut self, ino: Ino, index: u64) -> Result<bool, i32> {
        let contents = self.contents(ino)?;
        if contents.sectors.contains_key(&index) || contents.reserved.contains(index) {
            return Ok(true);
        }
        let fits = self.used < self.capacity.0;
        self.used += u64::from(fits);
        Ok(fits)
    }

    /// Replaces one sector with what `change` makes of it; `None` stands for zeros that are not stored.
    fn put_sector(
        &mut self,
        ino: Ino,
        index: u64,
        extends: bool,
        change: impl FnOnce(Option<Sector>) -> Option<Sector>,
    ) -> Result<(), i32> {
        let keeps = self.journal.is_some();
        let sectors = &mut self.contents_mut(ino)?.sectors;
        let old = sectors.remove(&index);
        let before = old.clone().filter(|_| keeps);
        let new = change(old);
        if let Some(new) = &new {
            sectors.insert(index, new.clone());
        }
        if let Some(journal) = &mut self.journal {
            journal.wrote(ino, index, before, new, extends);
        }
        Ok(())
    }

    /// Sets a file's size and modification time. Bytes beyond the size are zero already.
    fn resize(&mut self, ino: Ino, size: u64) -> Result<(), i32> {
        let now = self.now;
        let old_time = self.inode(ino).modified;
        let old_size = std::mem::replace(&mut self.contents_mut(ino)?.size, size);
        self.inode_mut(ino).modified = now;
        if let Some(journal) = &mut self.journal
            && old_size != size
        {
            journal.resized(ino, (old_size, old_time), (size, now));
        }
        self.write_back();
        Ok(())
    }

    /// Truncates or extends a file.
    pub(crate) fn truncate(&mut self, ino: Ino, len: u64) -> Result<(), i32> {
        if len > MAX_SIZE {
            return Err(EINVAL);
        }
        let sector = self.sector;
        let contents = self.contents_mut(ino)?;
        if len < contents.size {
            let before = contents.sectors_used();
            contents.reserved.truncate(len.div_ceil(sector));
            let beyond: Vec<u64> = contents
                .sectors
                .range(len / sector..)
                .map(|(&index, _)| index)
                .collect();
            for index in beyond {
                let kept = len.saturating_sub(index * sector) as usize;
                self.put_sector(ino, index, false, |old| zero_from(old, kept))?;
            }
            self.used -= before - self.contents(ino)?.sectors_used();
        }
        self.resize(ino, len)
    }

    /// Reserves sectors, and extends the file if the range ends beyond it.
    pub(crate) fn allocate(&mut self, ino: Ino, offset: u64, len: u64) -> Result<(), i32> {
        if len == 0 || offset > MAX_SIZE || len > MAX_SIZE {
            return Err(EINVAL);
        }
        let end = offset + len;
        if end > MAX_SIZE {
            return Err(EFBIG);
        }
        let (sector, free, full) = (self.sector, self.capacity.0.saturating_sub(self.used), self.capacity.1);
        let contents = self.contents_mut(ino)?;
        let (before, old) = (contents.sectors_used(), contents.reserved.clone());
        contents.reserved.insert(offset / sector, end.div_ceil(sector));
        let more = contents.sectors_used() - before;
        if more > free {
            contents.reserved = old;
            return Err(full);
        }
        let size = contents.size.max(end);
        self.used += more;
        self.resize(ino, size)
    }

    /// Sets the permission bits.
    pub(crate) fn set_mode(&mut self, ino: Ino, mode: u32) {
        let old = std::mem::replace(&mut self.inode_mut(ino).mode, mode & 0o7777);
        if let Some(journal) = &mut self.journal
            && old != mode & 0o7777
        {
            journal.changed_mode(ino, old, mode & 0o7777);
        }
    }

    /// Makes an inode durable: contents and size, and unless `data_only` its permissions; of a directory, its entries.
    pub(crate) fn sync(&mut self, ino: Ino, data_only: bool) {
        if let Some(journal) = &mut self.journal {
            journal.sync(ino, data_only);
            self.sweep();
        }
    }

    /// Frees inodes that only the journal kept.
    fn sweep(&mut self) {
        for ino in self.unlinked.clone() {
            self.release(ino);
        }
    }

    /// Lets the oldest changes of a long journal become durable, as the kernel's flusher does.
    fn write_back(&mut self) {
        if let Some(journal) = &mut self.journal
            && journal.write_back()
        {
            self.sweep();
        }
    }

    pub(crate) fn stat(&self, ino: Ino) -> Stat {
        let inode = self.inode(ino);
        let (file_type, blocks) = match &inode.node {
            Node::File(contents) => (kind::FILE, contents.sectors_used() * self.sector / 512),
            Node::Dir(_) => (kind::FOLDER, 8),
            Node::Link(_) => (kind::LINK, 0),
        };
        Stat::new(file_type | inode.mode, self.len(ino))
            .with_times(inode.modified, inode.accessed, Some(inode.created))
            .with_identity(DEVICE, ino, u64::from(inode.links))
            .with_blocks(blocks)
    }

    /// The entries of a directory with their types, in the order of their names.
    pub(crate) fn entries(&self, ino: Ino) -> Result<impl Iterator<Item = (&[u8], u32)>, i32> {
        let entries = &self.dir(ino)?.entries;
        Ok(entries.iter().map(|(name, &ino)| {
            let file_type = match self.inode(ino).node {
                Node::File(_) => kind::FILE,
                Node::Dir(_) => kind::FOLDER,
                Node::Link(_) => kind::LINK,
            };
            (&name[..], file_type)
        }))
    }
}

/// A sector with `piece` written at `from`.
fn overwrite(old: Option<Sector>, sector: u64, from: usize, piece: &[u8]) -> Option<Sector> {
    if piece.len() == sector as usize {
        return Some(Rc::from(piece));
    }
    let mut bytes = old.unwrap_or_else(|| Rc::from(vec![0; sector as usize]));
    Rc::make_mut(&mut bytes)[from..from + piece.len()].copy_from_slice(piece);
    Some(bytes)
}

/// A sector whose bytes from `kept` on are zero; `None` if all are.
fn zero_from(old: Option<Sector>, kept: usize) -> Option<Sector> {
    let mut bytes = old.filter(|_| kept > 0)?;
    if kept < bytes.len() {
        Rc::make_mut(&mut bytes)[kept..].fill(0);
    }
    Some(bytes)
}
