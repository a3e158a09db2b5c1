//! What a power loss leaves on the disk: one image, chosen at random, or all of them.
//!
//! An image is a file system without a journal of unsynced changes. It combines, by the rules of
//! [`journal`](super::journal), a version of every directory entry, of every size and mode, and of every sector.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::SystemTime;

use super::inode::{Dir, EntryName, Ino, Node, Sector};
use super::journal::{Edit, EntryKey, InodeLog, Journal, Order, SectorLog, Version};
use super::{FileSystem, ROOT};
use crate::sim::rng::Rng;

/// What a power loss changed.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// Unsynced changes of sectors, sizes, modes and names.
    unsynced: u64,
    /// How many of them did not reach the disk in their last version.
    lost: u64,
    /// The paths that they concern, as they were before.
    paths: BTreeSet<String>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { unsynced, lost, paths } = self;
        write!(f, "{lost} of {unsynced} unsynced changes are lost")?;
        for (number, path) in paths.iter().enumerate() {
            match number {
                0 => write!(f, ": {path}")?,
                1..MAX_PATHS => write!(f, ", {path}")?,
                _ => return write!(f, ", and {} more", paths.len() - MAX_PATHS),
            }
        }
        Ok(())
    }
}

/// Paths that the text of a [`Loss`] names.
const MAX_PATHS: usize = 4;

/// The error of [`crash_images`](super::image::DiskHandle::crash_images): there are more images than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooManyImages {
    /// The limit that was given.
    pub limit: usize,
}

impl fmt::Display for TooManyImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit;
        write!(
            f,
            "a power loss now could leave more than {limit} different images: sync more often before this point, write \
             fewer sectors, or raise the limit"
        )
    }
}

impl std::error::Error for TooManyImages {}

/// Versions that were chosen for an inode.
#[derive(Clone, Default)]
struct Choice {
    size: Option<(u64, SystemTime)>,
    mode: Option<u32>,
    sectors: Vec<(u64, Option<Sector>)>,
}

impl FileSystem {
    /// Replaces the page cache by what a power loss leaves. No file is open afterwards. `None` if everything was synced.
    pub(crate) fn power_loss(&mut self, rng: &mut Rng) -> Option<Loss> {
        let journal = self.journal.as_ref()?;
        let mut loss = Loss::default();
        let (survivors, last) = journal.random_survivors(rng);
        loss.unsynced += survivors.len() as u64;
        loss.lost += survivors.iter().filter(|&&survives| !survives).count() as u64;
        let mut lossy = BTreeSet::new();
        let mut choices = BTreeMap::new();
        for (&ino, log) in &journal.inodes {
            let mut choice = Choice::default();
            let lost_before = loss.lost;
            if let Some(newest) = log.sizes.last() {
                let version = pick(journal.possible(&log.sizes, last), rng);
                loss.add(version.seq < newest.seq);
                choice.size = Some(version.value);
            }
            if let Some(newest) = log.modes.last() {
                let version = pick(journal.possible(&log.modes, last), rng);
                loss.add(version.seq < newest.seq);
                choice.mode = Some(version.value);
            }
            // Some crashes lose nearly everything, others nearly nothing.
            let keep = rng.below(5) as f64 / 4.0;
            for (&index, sector) in &log.sectors {
                let possible = journal.sector_versions(sector, last);
                let newest = possible.len() - 1;
                let chosen = if rng.chance(keep) {
                    newest
                } else {
                    rng.below(possible.len() as u64) as usize
                };
                loss.add(chosen < newest);
                let mut bytes = possible[chosen].clone();
                if let Some(unit) = journal.torn
                    && possible.len() > 1
                    && rng.chance(0.25)
                {
                    let other = &possible[rng.below(possible.len() as u64) as usize];
                    let at = rng.below(self.sector / unit) * unit;
                    bytes = splice(&bytes, other, at as usize, self.sector as usize);
                }
                choice.sectors.push((index, bytes));
            }
            choices.insert(ino, choice);
            if loss.lost > lost_before {
                lossy.insert(ino);
            }
        }
        if loss.lost > 0 {
            let changes = journal.changes.iter().zip(&survivors);
            let lost = changes.filter(|(_, survives)| !**survives);
            let names: BTreeSet<EntryKey> = lost
                .flat_map(|(change, _)| change.edits.iter().map(Edit::key))
                .collect();
            self.find_paths(
                ROOT,
                "",
                &mut |dir, name, ino| lossy.contains(&ino) || names.contains(&(dir, name.clone())),
                &mut loss.paths,
            );
        }
        *self = self.assemble(&journal.surviving_entries(&survivors), &choices);
        (loss.unsynced > 0).then_some(loss)
    }

    /// The paths below a directory whose entry is wanted.
    fn find_paths(
        &self,
        dir: Ino,
        path: &str,
        is_wanted: &mut dyn FnMut(Ino, &EntryName, Ino) -> bool,
        found: &mut BTreeSet<String>,
    ) {
        let Node::Dir(Dir { entries, .. }) = &self.inode(dir).node else {
            return;
        };
        for (name, &ino) in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            self.find_paths(ino, &path, is_wanted, found);
            if is_wanted(dir, name, ino) {
                found.insert(path);
            }
        }
    }

    /// All images that a power loss could leave now, without duplicates. Times are not compared.
    pub(crate) fn crash_images(&self, limit: usize) -> Result<Vec<FileSystem>, TooManyImages> {
        let Some(journal) = &self.journal else {
            return Ok(vec![self.clone()]);
        };
        let mut seen = BTreeSet::new();
        let mut images = Vec::new();
        for (survivors, last) in journal.all_survivors(limit)? {
            let entries = journal.surviving_entries(&survivors);
            // The other inodes are in no directory, so their contents make no difference.
            let reachable = self.assemble(&entries, &BTreeMap::new());
            let mut combinations = vec![BTreeMap::new()];
            for (&ino, log) in &journal.inodes {
                if !reachable.inodes.contains_key(&ino) {
                    continue;
                }
                let choices = self.choices(journal, log, ino, last, limit)?;
                if combinations.len().saturating_mul(choices.len()) > limit {
                    return Err(TooManyImages { limit });
                }
                let with = |chosen: &BTreeMap<Ino, Choice>, choice: &Choice| {
                    let mut chosen = chosen.clone();
                    chosen.insert(ino, choice.clone());
                    chosen
                };
                combinations = combinations
                    .iter()
                    .flat_map(|chosen| choices.iter().map(|choice| with(chosen, choice)))
                    .collect();
            }
            for choices in combinations {
                let image = self.assemble(&entries, &choices);
                if seen.insert(image.fingerprint()) {
                    images.push(image);
                }
            }
            if images.len() > limit {
                return Err(TooManyImages { limit });
            }
        }
        Ok(images)
    }

    /// All states that one inode can have after a power loss.
    fn choices(
        &self,
        journal: &Journal,
        log: &InodeLog,
        ino: Ino,
        last: u64,
        limit: usize,
    ) -> Result<Vec<Choice>, TooManyImages> {
        let sizes = match log.sizes.is_empty() {
            true => vec![None],
            false => distinct(
                journal
                    .possible(&log.sizes, last)
                    .iter()
                    .map(|version| Some(version.value)),
                |size| size.map(|(size, _)| size),
            ),
        };
        let modes = match log.modes.is_empty() {
            true => vec![None],
            false => distinct(
                journal
                    .possible(&log.modes, last)
                    .iter()
                    .map(|version| Some(version.value)),
                |mode| *mode,
            ),
        };
        let mut choices = Vec::new();
        for size in sizes {
            let end = size.map_or_else(|| self.len(ino), |(size, _)| size);
            let mut sectors = vec![Vec::new()];
            for (&index, sector) in log.sectors.range(..end.div_ceil(self.sector)) {
                let kept = (end - index * self.sector).min(self.sector) as usize;
                let versions = self.visible_versions(journal, sector, last, kept);
                if sectors.len().saturating_mul(versions.len()) > limit {
                    return Err(TooManyImages { limit });
                }
                let with = |chosen: &Vec<(u64, Option<Sector>)>, bytes: &Option<Sector>| {
                    let mut chosen = chosen.clone();
                    chosen.push((index, bytes.clone()));
                    chosen
                };
                sectors = sectors
                    .iter()
                    .flat_map(|chosen| versions.iter().map(|bytes| with(chosen, bytes)))
                    .collect();
            }
            for &mode in &modes {
                choices.extend(sectors.iter().map(|sectors| Choice {
                    size,
                    mode,
                    sectors: sectors.clone(),
                }));
            }
            if choices.len() > limit {
                return Err(TooManyImages { limit });
            }
        }
        Ok(choices)
    }

    /// The versions of a sector that differ in their first `kept` bytes, torn ones included.
    fn visible_versions(&self, journal: &Journal, log: &SectorLog, last: u64, kept: usize) -> Vec<Option<Sector>> {
        let whole = journal.sector_versions(log, last);
        let mut all = whole.clone();
        if let Some(unit) = journal.torn {
            let cuts = (1..self.sector / unit).map(|cut| (cut * unit) as usize);
            for at in cuts {
                for (first, rest) in whole.iter().flat_map(|one| whole.iter().map(move |other| (one, other))) {
                    all.push(splice(first, rest, at, self.sector as usize));
                }
            }
        }
        let visible = |bytes: &Option<Sector>| {
            let bytes = bytes.as_ref().map_or(&[][..], |bytes| &bytes[..kept]);
            let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            bytes[..len].to_vec()
        };
        distinct(all.into_iter(), visible)
    }

    /// The file system with these entries and versions, and the rest as the page cache has it.
    fn assemble(&self, entries: &BTreeMap<EntryKey, Option<Ino>>, choices: &BTreeMap<Ino, Choice>) -> FileSystem {
        let mut image = self.clone();
        image.journal = self
            .journal
            .as_ref()
            .map(|journal| Journal::new(journal.order, journal.torn));
        image.unlinked.clear();
        for ((dir, name), ino) in entries {
            // A directory that is gone was in no directory at any time that can come back.
            let Some(Node::Dir(dir)) = image.inodes.get_mut(dir).map(|inode| &mut inode.node) else {
                continue;
            };
            match ino {
                Some(ino) => dir.entries.insert(name.clone(), *ino),
                None => dir.entries.remove(name),
            };
        }
        for (ino, choice) in choices {
            let Some(inode) = image.inodes.get_mut(ino) else {
                continue;
            };
            inode.mode = choice.mode.unwrap_or(inode.mode);
            let Node::File(contents) = &mut inode.node else {
                continue;
            };
            if let Some((size, time)) = choice.size {
                contents.size = size;
                inode.modified = time;
            }
            for (index, bytes) in &choice.sectors {
                match bytes {
                    Some(bytes) => contents.sectors.insert(*index, bytes.clone()),
                    None => contents.sectors.remove(index),
                };
            }
            let (size, sector) = (contents.size, self.sector);
            contents.sectors.split_off(&size.div_ceil(sector));
            if !size.is_multiple_of(sector)
                && let Some(last) = contents.sectors.get_mut(&(size / sector))
            {
                Rc::make_mut(last)[(size % sector) as usize..].fill(0);
            }
            contents.reserved.truncate(size.div_ceil(sector));
        }
        image.count_links();
        image
    }

    /// Sets the link counts and parents by the entries, and drops the inodes that no entry names.
    pub(super) fn count_links(&mut self) {
        for inode in self.inodes.values_mut() {
            (inode.links, inode.opens) = (0, 0);
        }
        let mut dirs = vec![ROOT];
        self.inode_mut(ROOT).links = 2;
        while let Some(dir) = dirs.pop() {
            let children: Vec<Ino> = match &self.inode(dir).node {
                Node::Dir(Dir { entries, .. }) => entries.values().copied().collect(),
                Node::File(_) | Node::Link(_) => continue,
            };
            for ino in children {
                let child = self.inode_mut(ino);
                child.links += 1;
                if let Node::Dir(child_dir) = &mut child.node {
                    child_dir.parent = dir;
                    child.links += 1;
                    dirs.push(ino);
                    self.inode_mut(dir).links += 1;
                }
            }
        }
        self.inodes.retain(|_, inode| inode.links > 0);
        if !self.inodes.contains_key(&self.cwd) {
            self.cwd = ROOT;
        }
        self.inode_mut(self.cwd).opens = 1;
        let files = self.inodes.values().map(|inode| match &inode.node {
            Node::File(contents) => contents.sectors_used(),
            Node::Dir(_) | Node::Link(_) => 0,
        });
        self.used = files.sum();
    }

    /// Everything that a program can see, except for times and inode numbers.
    pub(super) fn fingerprint(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut first_names: BTreeMap<Ino, u64> = BTreeMap::new();
        self.write_fingerprint(ROOT, &mut first_names, &mut out);
        out
    }

    fn write_fingerprint(&self, ino: Ino, seen: &mut BTreeMap<Ino, u64>, out: &mut Vec<u8>) {
        let number = |out: &mut Vec<u8>, number: u64| out.extend(number.to_le_bytes());
        let next = seen.len() as u64;
        let known = *seen.entry(ino).or_insert(next);
        number(out, known);
        if known < next {
            return;
        }
        let inode = self.inode(ino);
        number(out, u64::from(inode.mode));
        match &inode.node {
            Node::File(contents) => {
                out.push(b'f');
                number(out, contents.size);
                for (&index, bytes) in &contents.sectors {
                    if bytes.iter().any(|&byte| byte != 0) {
                        number(out, index);
                        out.extend(&bytes[..]);
                    }
                }
                number(out, u64::MAX);
            }
            Node::Link(target) => {
                out.push(b'l');
                number(out, target.len() as u64);
                out.extend(&target[..]);
            }
            Node::Dir(dir) => {
                out.push(b'd');
                number(out, dir.entries.len() as u64);
                for (name, &ino) in &dir.entries {
                    number(out, name.len() as u64);
                    out.extend(&name[..]);
                    self.write_fingerprint(ino, seen, out);
                }
            }
        }
    }
}

impl Loss {
    fn add(&mut self, is_lost: bool) {
        self.unsynced += 1;
        self.lost += u64::from(is_lost);
    }
}

impl Journal {
    /// Which changes of entries survive; with [`Order::Prefix`] also up to which change everything does.
    fn random_survivors(&self, rng: &mut Rng) -> (Vec<bool>, u64) {
        match self.order {
            Order::Any => {
                let keep = rng.below(5) as f64 / 4.0;
                let mut survivors = Vec::new();
                for index in 0..self.changes.len() {
                    let survives = rng.chance(keep) && self.may_survive(index, &survivors);
                    survivors.push(survives);
                }
                (survivors, 0)
            }
            Order::Prefix => {
                let cuts = self.cuts();
                let last = cuts[rng.below(cuts.len() as u64) as usize];
                (self.prefix(last), last)
            }
        }
    }

    fn all_survivors(&self, limit: usize) -> Result<Vec<(Vec<bool>, u64)>, TooManyImages> {
        if self.order == Order::Prefix {
            let cuts = self.cuts();
            return match cuts.len() > limit {
                true => Err(TooManyImages { limit }),
                false => Ok(cuts.into_iter().map(|last| (self.prefix(last), last)).collect()),
            };
        }
        let mut all = vec![(Vec::new(), 0)];
        for index in 0..self.changes.len() {
            for done in 0..all.len() {
                let (survivors, _) = &mut all[done];
                let may_survive = self.may_survive(index, survivors);
                let with = may_survive.then(|| (survivors.iter().copied().chain([true]).collect(), 0));
                survivors.push(false);
                all.extend(with);
            }
            if all.len() > limit {
                return Err(TooManyImages { limit });
            }
        }
        Ok(all)
    }

    /// The points of the metadata's order where a crash can cut it.
    fn cuts(&self) -> Vec<u64> {
        let sizes = self
            .inodes
            .values()
            .flat_map(|log| log.sizes.iter().map(|version| version.seq));
        let modes = self
            .inodes
            .values()
            .flat_map(|log| log.modes.iter().map(|version| version.seq));
        let entries = self.changes.iter().map(|change| change.seq);
        let all: BTreeSet<u64> = sizes.chain(modes).chain(entries).chain([0]).collect();
        all.into_iter().collect()
    }

    fn prefix(&self, last: u64) -> Vec<bool> {
        self.changes.iter().map(|change| change.seq <= last).collect()
    }

    /// The values of the changed entries if these changes survive.
    fn surviving_entries(&self, survivors: &[bool]) -> BTreeMap<(Ino, EntryName), Option<Ino>> {
        let mut entries = self.entries.clone();
        for (change, _) in self.changes.iter().zip(survivors).filter(|&(_, &survives)| survives) {
            entries.extend(change.edits.iter().map(|edit| (edit.key(), edit.ino)));
        }
        entries
    }

    /// The versions of a size or mode that are possible: all, or by [`Order::Prefix`] the one at the cut.
    fn possible<'a, T>(&self, versions: &'a [Version<T>], last: u64) -> &'a [Version<T>] {
        match self.order {
            Order::Any => versions,
            Order::Prefix => {
                let at = versions.iter().rposition(|version| version.seq <= last).unwrap_or(0);
                &versions[at..=at]
            }
        }
    }

    /// The versions of a sector that are possible, the newest last.
    fn sector_versions(&self, log: &SectorLog, last: u64) -> Vec<Option<Sector>> {
        let first = match self.order {
            Order::Any => None,
            Order::Prefix => log.first_possible(last),
        };
        let later = log
            .versions
            .iter()
            .skip(first.unwrap_or(0))
            .map(|version| version.bytes.clone());
        let durable = first.is_none().then(|| log.durable.clone());
        durable.into_iter().chain(later).collect()
    }
}

fn pick<'a, T>(versions: &'a [Version<T>], rng: &mut Rng) -> &'a Version<T> {
    &versions[rng.below(versions.len() as u64) as usize]
}

/// A torn sector: `first` up to `at`, then `rest`.
fn splice(first: &Option<Sector>, rest: &Option<Sector>, at: usize, sector: usize) -> Option<Sector> {
    let mut bytes = vec![0; sector];
    if let Some(first) = first {
        bytes[..at].copy_from_slice(&first[..at]);
    }
    if let Some(rest) = rest {
        bytes[at..].copy_from_slice(&rest[at..]);
    }
    Some(Rc::from(bytes))
}

/// The values with different keys, in order.
fn distinct<T, K: Ord>(values: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.filter(|value| seen.insert(key(value))).collect()
}
