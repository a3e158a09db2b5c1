//! Inodes: files with sparse contents, directories and symbolic links.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::SystemTime;

/// An inode's number. Numbers are never reused, so a number names one inode in every crash image.
pub(crate) type Ino = u64;

/// A name in a directory, without `/`.
pub(crate) type EntryName = Rc<[u8]>;

/// The bytes of one sector. Versions of a sector that a crash may bring back share their memory.
pub(crate) type Sector = Rc<[u8]>;

#[derive(Clone)]
pub(crate) struct Inode {
    pub(super) node: Node,
    /// The permission bits, without the file type.
    pub(super) mode: u32,
    /// How many directory entries name this inode; for a directory also `.` and the `..` of its subdirectories.
    pub(super) links: u32,
    /// How many open files use this inode. It exists while either count is above zero.
    pub(super) opens: u32,
    pub(super) created: SystemTime,
    pub(super) modified: SystemTime,
    pub(super) accessed: SystemTime,
}

#[derive(Clone)]
pub(crate) enum Node {
    File(Contents),
    Dir(Dir),
    /// A symbolic link and its target.
    Link(Rc<[u8]>),
}

#[derive(Clone, Default)]
pub(crate) struct Dir {
    pub(super) entries: BTreeMap<EntryName, Ino>,
    /// The directory that contains this one; the root contains itself.
    pub(super) parent: Ino,
}

/// A file's bytes. Sectors that were never written are not stored and read as zeros. Stored bytes beyond `size` are zero.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    pub(super) sectors: BTreeMap<u64, Sector>,
    pub(super) size: u64,
    /// Sectors that `Allocate` has reserved.
    pub(super) reserved: Ranges,
}

impl Contents {
    /// How many sectors of the disk the file takes.
    pub(super) fn sectors_used(&self) -> u64 {
        let unreserved = self.sectors.keys().filter(|&&index| !self.reserved.contains(index));
        unreserved.count() as u64 + self.reserved.len()
    }

    /// The bytes from `offset` to `offset + len` or the end of the file, sector by sector. Returns their number.
    pub(super) fn read(&self, sector: u64, offset: u64, len: u64, mut put: impl FnMut(Piece<'_>)) -> u64 {
        let end = self.size.min(offset.saturating_add(len));
        let mut at = offset;
        while at < end {
            let index = at / sector;
            match self.sectors.get(&index) {
                Some(bytes) => {
                    let next = end.min((index + 1) * sector);
                    let from = (at - index * sector) as usize;
                    put(Piece::Bytes(&bytes[from..from + (next - at) as usize]));
                    at = next;
                }
                None => {
                    let stored = self.sectors.range(index..).next();
                    let next = stored.map_or(end, |(&next, _)| end.min(next * sector));
                    put(Piece::Zeros(next - at));
                    at = next;
                }
            }
        }
        end.saturating_sub(offset)
    }
}

/// A part of a file's contents.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

/// A set of sectors, as ranges that neither touch nor overlap.
#[derive(Clone, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn contains(&self, index: u64) -> bool {
        let before = self.0.range(..=index).next_back();
        before.is_some_and(|(_, &end)| index < end)
    }

    fn len(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        let touching: Vec<u64> = self
            .0
            .range(..=end)
            .filter(|&(_, &last)| last >= start)
            .map(|(&first, _)| first)
            .collect();
        for first in touching {
            if let Some(last) = self.0.remove(&first) {
                (start, end) = (start.min(first), end.max(last));
            }
        }
        self.0.insert(start, end);
    }

    /// Removes everything from `end` on.
    pub(super) fn truncate(&mut self, end: u64) {
        self.0.split_off(&end);
        if let Some((_, last)) = self.0.iter_mut().next_back() {
            *last = (*last).min(end);
        }
    }
}

impl Inode {
    pub(super) fn new(node: Node, mode: u32, now: SystemTime) -> Inode {
        Inode {
            node,
            mode,
            links: 0,
            opens: 0,
            created: now,
            modified: now,
            accessed: now,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.node, Node::Dir(_))
    }

    /// As with the mount option `relatime`: at most once after each change, and once a day.
    pub(super) fn touch(&mut self, now: SystemTime) {
        let day = std::time::Duration::from_secs(24 * 60 * 60);
        if self.accessed <= self.modified || self.accessed.checked_add(day).is_none_or(|next| next <= now) {
            self.accessed = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_shrink() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        assert_eq!(
            (ranges.len(), ranges.contains(20), ranges.contains(30)),
            (20, false, true)
        );
        ranges.insert(20, 30);
        assert_eq!((ranges.len(), ranges.0.len()), (30, 1));
        ranges.insert(5, 50);
        assert_eq!((ranges.len(), ranges.0.len()), (45, 1));
        ranges.truncate(6);
        assert_eq!((ranges.len(), ranges.contains(5), ranges.contains(6)), (1, true, false));
    }
}
