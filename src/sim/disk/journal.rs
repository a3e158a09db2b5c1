//! The journal of changes that are not on the disk yet.
//!
//! For each changed sector, size, mode and directory entry it keeps the durable value and every later version in order.
//! [`crash`](super::crash) chooses among them. What has no record here is durable as the page cache has it.
//!
//! Rules:
//! - A sector, a size and a mode take any of their versions since the last sync of their file.
//! - Changes of directory entries are atomic, also a rename with its two entries. Changes of the same entry survive in
//!   order, and renames of directories survive in order, since a subset of them could move a directory into itself.
//! - [`Order::Any`] (POSIX): otherwise any subset of the changes survives. Syncing a file does not make its name durable.
//! - [`Order::Prefix`] (ext4 with `data=ordered`): names, sizes and modes of the whole file system survive as a prefix of
//!   their order. A sync commits everything up to the last change of that inode, its name included. Data that extended a
//!   file is on the disk before the new size is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::inode::{EntryName, Ino, Sector};

/// The most versions that one sector keeps, and the most changes of entries that wait. Older ones become durable, as the
/// kernel writes back dirty pages after a while.
const MAX_VERSIONS: usize = 16;
const MAX_CHANGES: usize = 1024;

/// Which combinations of metadata changes survive a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Any subset that keeps the rules above.
    Any,
    /// A prefix.
    Prefix,
}

#[derive(Clone)]
pub(crate) struct Journal {
    pub(super) order: Order,
    /// The unit in which a sector can tear; `None` if sectors are atomic.
    pub(super) torn: Option<u64>,
    next_seq: u64,
    /// With [`Order::Prefix`]: up to where changes become durable, because a file has too many; or 0.
    overdue: u64,
    /// The durable values of the entries in `changes`.
    pub(super) entries: BTreeMap<EntryKey, Option<Ino>>,
    /// In order.
    pub(super) changes: Vec<Change>,
    pub(super) inodes: BTreeMap<Ino, InodeLog>,
    /// The inodes that `entries` and `changes` name.
    held: BTreeSet<Ino>,
}

/// A directory and a name in it.
pub(super) type EntryKey = (Ino, EntryName);

/// A change of one directory entry: the inodes that it named before and names from now on.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(super) dir: Ino,
    pub(super) name: EntryName,
    old: Option<Ino>,
    pub(super) ino: Option<Ino>,
}

impl Edit {
    pub(super) fn new(dir: Ino, name: EntryName, old: Option<Ino>, ino: Option<Ino>) -> Edit {
        Edit { dir, name, old, ino }
    }

    pub(super) fn key(&self) -> EntryKey {
        (self.dir, self.name.clone())
    }
}

/// An atomic change of directory entries.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) seq: u64,
    pub(super) edits: Vec<Edit>,
    /// Whether it renames a directory.
    moves_dir: bool,
    /// Further changes that must be durable before this one.
    needs: Vec<u64>,
}

/// The changes of one inode.
#[derive(Clone, Default)]
pub(super) struct InodeLog {
    pub(super) sectors: BTreeMap<u64, SectorLog>,
    /// The durable size and time, then later ones.
    pub(super) sizes: Vec<Version<(u64, SystemTime)>>,
    /// The durable mode, then later ones.
    pub(super) modes: Vec<Version<u32>>,
}

/// The changes of one sector; `None` stands for zeros.
#[derive(Clone)]
pub(super) struct SectorLog {
    pub(super) durable: Option<Sector>,
    /// Empty if the disk lost the last write: the page cache and the disk differ, and a sync does not help.
    pub(super) versions: Vec<SectorVersion>,
}

#[derive(Clone)]
pub(super) struct SectorVersion {
    pub(super) seq: u64,
    pub(super) bytes: Option<Sector>,
    /// Whether a write that extended the file made it.
    pub(super) extends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version<T> {
    pub(super) seq: u64,
    pub(super) value: T,
}

impl Journal {
    pub(super) fn new(order: Order, torn: Option<u64>) -> Journal {
        Journal {
            order,
            torn,
            next_seq: 1,
            overdue: 0,
            entries: BTreeMap::new(),
            changes: Vec::new(),
            inodes: BTreeMap::new(),
            held: BTreeSet::new(),
        }
    }

    /// Makes everything durable.
    pub(super) fn clear(&mut self) {
        *self = Journal::new(self.order, self.torn);
    }

    fn seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// Records that a sector changed.
    pub(super) fn wrote(&mut self, ino: Ino, index: u64, old: Option<Sector>, new: Option<Sector>, extends: bool) {
        let seq = self.seq();
        let sectors = &mut self.inodes.entry(ino).or_default().sectors;
        let log = sectors.entry(index).or_insert_with(|| SectorLog {
            durable: old,
            versions: Vec::new(),
        });
        if log.versions.len() == MAX_VERSIONS {
            log.durable = log.versions.remove(0).bytes;
        }
        let bytes = new;
        log.versions.push(SectorVersion { seq, bytes, extends });
    }

    /// Records that a size changed, with the time of the change.
    pub(super) fn resized(&mut self, ino: Ino, old: (u64, SystemTime), new: (u64, SystemTime)) {
        let seq = self.seq();
        let sizes = &mut self.inodes.entry(ino).or_default().sizes;
        self.overdue = self.overdue.max(push(sizes, seq, old, new, self.order));
    }

    /// Records that permissions changed.
    pub(super) fn changed_mode(&mut self, ino: Ino, old: u32, new: u32) {
        let seq = self.seq();
        let modes = &mut self.inodes.entry(ino).or_default().modes;
        self.overdue = self.overdue.max(push(modes, seq, old, new, self.order));
    }

    /// Records a change of directory entries, which must not become durable before the directories `above`.
    pub(super) fn changed_entries(&mut self, edits: Vec<Edit>, moves_dir: bool, above: Vec<Ino>) {
        let seq = self.seq();
        let link_of = |dir: &Ino| {
            let links = |change: &&Change| change.edits.iter().any(|edit| edit.ino == Some(*dir));
            self.changes.iter().rev().find(links).map(|change| change.seq)
        };
        let needs = above.iter().filter_map(link_of).collect();
        for edit in &edits {
            self.entries.entry(edit.key()).or_insert(edit.old);
            self.held.extend(edit.old.iter().chain(&edit.ino));
        }
        self.changes.push(Change {
            seq,
            edits,
            moves_dir,
            needs,
        });
    }

    /// Makes an inode's contents and size durable, and its mode and entries unless `data_only`; by [`Order::Prefix`] also
    /// everything that comes before.
    pub(super) fn sync(&mut self, ino: Ino, data_only: bool) {
        match self.order {
            Order::Any => {
                let touches = |change: &Change| change.edits.iter().any(|edit| edit.dir == ino);
                self.commit(&self.closure(touches));
            }
            Order::Prefix => {
                let touches = |edit: &Edit| edit.dir == ino || edit.ino == Some(ino);
                let changes = self.changes.iter().filter(|change| change.edits.iter().any(touches));
                let log = self.inodes.get(&ino);
                let size = log.and_then(|log| log.sizes.last()).map(|version| version.seq);
                let mode = log.and_then(|log| log.modes.last()).map(|version| version.seq);
                let last = changes
                    .map(|change| change.seq)
                    .chain(size)
                    .chain(mode.filter(|_| !data_only))
                    .max();
                self.commit_through(last.unwrap_or(0));
            }
        }
        if let Some(log) = self.inodes.get_mut(&ino) {
            log.sectors.retain(|_, sector| sector.versions.is_empty());
            log.sizes.clear();
            if !data_only {
                log.modes.clear();
            }
            self.drop_if_clean(ino);
        }
    }

    /// Whether a crash may bring back an inode that has no links any more.
    pub(super) fn holds(&self, ino: Ino) -> bool {
        self.held.contains(&ino)
    }

    /// Drops the records of an inode that is gone: nothing can come back in a directory that cannot.
    pub(super) fn forget(&mut self, ino: Ino) {
        self.inodes.remove(&ino);
        if self
            .entries
            .range((ino, EntryName::default())..)
            .next()
            .is_some_and(|((dir, _), _)| *dir == ino)
        {
            self.changes
                .retain(|change| change.edits.iter().any(|edit| edit.dir != ino));
            self.commit(&vec![false; self.changes.len()]);
        }
    }

    /// The sectors with changes that are not durable.
    pub(super) fn dirty_sectors(&self, ino: Ino) -> Vec<u64> {
        let sectors = self.inodes.get(&ino).map(|log| &log.sectors);
        let dirty = sectors
            .into_iter()
            .flatten()
            .filter(|(_, sector)| !sector.versions.is_empty());
        dirty.map(|(&index, _)| index).collect()
    }

    /// A write of a sector is acknowledged and does not reach the disk, or other bytes do: the page cache differs from now on.
    pub(super) fn lose(&mut self, ino: Ino, index: u64, stored: impl FnOnce(Option<&Sector>) -> Option<Sector>) {
        if let Some(sector) = self.inodes.get_mut(&ino).and_then(|log| log.sectors.get_mut(&index)) {
            sector.durable = stored(sector.durable.as_ref());
            sector.versions.clear();
        }
    }

    /// Sets what is on the disk in place of a sector, unless a write is about to replace it.
    pub(super) fn corrupt(&mut self, ino: Ino, index: u64, cached: Option<Sector>, stored: Option<Sector>) {
        let sectors = &mut self.inodes.entry(ino).or_default().sectors;
        let sector = sectors.entry(index).or_insert_with(|| SectorLog {
            durable: cached,
            versions: Vec::new(),
        });
        sector.durable = stored;
    }

    /// The sectors whose durable bytes differ from the clean page cache, taken out of the journal.
    pub(super) fn take_lost(&mut self) -> Vec<(Ino, u64, Option<Sector>)> {
        let mut lost = Vec::new();
        for (&ino, log) in &mut self.inodes {
            log.sectors.retain(|&index, sector| {
                let is_lost = sector.versions.is_empty();
                if is_lost {
                    lost.push((ino, index, sector.durable.take()));
                }
                !is_lost
            });
        }
        self.inodes.retain(|_, log| !log.is_clean());
        lost
    }

    /// What the disk has in place of a clean sector of the page cache, if that is something else.
    pub(super) fn stored(&self, ino: Ino, index: u64) -> Option<&Option<Sector>> {
        let sector = self.inodes.get(&ino)?.sectors.get(&index)?;
        sector.versions.is_empty().then_some(&sector.durable)
    }

    /// Makes the older half of too many changes durable; true if there were.
    pub(super) fn write_back(&mut self) -> bool {
        let middle = match self.changes.get(MAX_CHANGES) {
            Some(_) => self.changes[MAX_CHANGES / 2].seq,
            None => self.overdue,
        };
        if middle == 0 {
            return false;
        }
        self.overdue = 0;
        match self.order {
            // A prefix keeps every order.
            Order::Any => self.commit(
                &self
                    .changes
                    .iter()
                    .map(|change| change.seq <= middle)
                    .collect::<Vec<_>>(),
            ),
            Order::Prefix => self.commit_through(middle),
        }
        true
    }

    /// The changes that `wanted` selects and all that must be durable before them.
    pub(super) fn closure(&self, wanted: impl Fn(&Change) -> bool) -> Vec<bool> {
        let mut marked = vec![false; self.changes.len()];
        let (mut keys, mut needed, mut moves) = (BTreeSet::new(), BTreeSet::<u64>::new(), false);
        for (mark, change) in marked.iter_mut().zip(&self.changes).rev() {
            *mark = wanted(change)
                || needed.contains(&change.seq)
                || (moves && change.moves_dir)
                || change.edits.iter().any(|edit| keys.contains(&edit.key()));
            if *mark {
                keys.extend(change.edits.iter().map(Edit::key));
                needed.extend(&change.needs);
                moves |= change.moves_dir;
            }
        }
        marked
    }

    /// Whether the change at `index` may survive if of those before it exactly `survivors` do.
    pub(super) fn may_survive(&self, index: usize, survivors: &[bool]) -> bool {
        let change = &self.changes[index];
        let precedes = |earlier: &Change| {
            change.needs.contains(&earlier.seq)
                || (change.moves_dir && earlier.moves_dir)
                || (change.edits.iter()).any(|edit| {
                    let same = |other: &Edit| other.dir == edit.dir && other.name == edit.name;
                    earlier.edits.iter().any(same)
                })
        };
        let earlier = self.changes[..index].iter().zip(survivors);
        earlier
            .into_iter()
            .all(|(earlier, &survives)| survives || !precedes(earlier))
    }

    /// Makes the marked changes of entries durable.
    fn commit(&mut self, marked: &[bool]) {
        let mut marks = marked.iter();
        let entries = &mut self.entries;
        self.changes.retain(|change| {
            let is_durable = marks.next() == Some(&true);
            if is_durable {
                entries.extend(change.edits.iter().map(|edit| (edit.key(), edit.ino)));
            }
            !is_durable
        });
        let pending: BTreeSet<EntryKey> = self
            .changes
            .iter()
            .flat_map(|change| change.edits.iter().map(Edit::key))
            .collect();
        self.entries.retain(|key, _| pending.contains(key));
        let later = self.changes.iter().flat_map(|change| &change.edits);
        let later = later.filter_map(|edit| edit.ino);
        self.held = self.entries.values().flatten().copied().chain(later).collect();
    }

    /// Makes all names, sizes and modes up to `last` durable, and the data that extended files by then.
    fn commit_through(&mut self, last: u64) {
        self.commit(&self.changes.iter().map(|change| change.seq <= last).collect::<Vec<_>>());
        for log in self.inodes.values_mut() {
            drop_before(&mut log.sizes, last);
            drop_before(&mut log.modes, last);
            log.sectors.retain(|_, sector| {
                let was_lost = sector.versions.is_empty();
                if let Some(first) = sector.first_possible(last) {
                    sector.durable = sector
                        .versions
                        .drain(..=first)
                        .next_back()
                        .and_then(|version| version.bytes);
                }
                was_lost || !sector.versions.is_empty()
            });
        }
        self.inodes.retain(|_, log| !log.is_clean());
    }

    pub(super) fn drop_if_clean(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(InodeLog::is_clean) {
            self.inodes.remove(&ino);
        }
    }
}

impl InodeLog {
    fn is_clean(&self) -> bool {
        self.sectors.is_empty() && self.sizes.is_empty() && self.modes.is_empty()
    }
}

impl SectorLog {
    /// With data before sizes, and sizes durable up to `last`: the first version that the sector can have. `None` if the
    /// durable one is possible.
    pub(super) fn first_possible(&self, last: u64) -> Option<usize> {
        self.versions
            .iter()
            .rposition(|version| version.extends && version.seq <= last)
    }
}

/// Adds a version. If there are too many, the oldest become durable, by [`Order::Prefix`] with all others up to the change
/// that is returned.
fn push<T: Copy>(versions: &mut Vec<Version<T>>, seq: u64, old: T, new: T, order: Order) -> u64 {
    if versions.is_empty() {
        versions.push(Version { seq: 0, value: old });
    }
    versions.push(Version { seq, value: new });
    if versions.len() <= MAX_CHANGES {
        return 0;
    }
    match order {
        Order::Any => {
            versions.drain(..MAX_CHANGES / 2);
            0
        }
        Order::Prefix => versions[MAX_CHANGES / 2].seq,
    }
}

/// Drops the versions that one up to `last` replaces; all of them if the newest is left.
fn drop_before<T>(versions: &mut Vec<Version<T>>, last: u64) {
    let durable = versions.iter().rposition(|version| version.seq <= last).unwrap_or(0);
    versions.drain(..durable);
    if versions.len() == 1 {
        versions.clear();
    }
}
