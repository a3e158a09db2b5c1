//! Injected faults and latencies of a disk. They are data; the state that they need is in [`Faults`].
//!
//! Each fault is one that disks and kernels have, and leaves the state that they leave:
//! - A failed read fails again until the sector is written.
//! - A failed `fsync` loses the pages: they are clean afterwards, and the next `fsync` succeeds without them. Reads still
//!   see them in the page cache until a power loss or [`drop_caches`](super::image::DiskHandle::drop_caches).
//! - Lost, misdirected and rotten sectors show in the same way: the page cache has the right bytes, the disk has not.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use libc::{EIO, ENOSPC};

use super::FileSystem;
use super::inode::{Ino, Sector};
use crate::sim::chaos::DiskError;
use crate::sim::rng::Rng;
use crate::sys::FileOp;

/// The faults of a simulated disk: with which probability each of them happens. The default is none.
///
/// ```
/// use std::time::Duration;
/// use windlass::sim::DiskFaults;
///
/// let faults = DiskFaults::none()
///     .sync_errors(0.01)
///     .short_writes(0.1)
///     .stalls(Duration::from_secs(60), Duration::from_secs(2));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "faults do nothing until they are passed to a disk"]
pub struct DiskFaults {
    read_errors: f64,
    write_errors: f64,
    sync_errors: f64,
    lost_writes: f64,
    misdirected_writes: f64,
    bit_rot: f64,
    short_reads: f64,
    short_writes: f64,
    stalls: Option<(Duration, Duration)>,
    throttles: Option<(Duration, Duration, u32)>,
}

impl DiskFaults {
    /// No faults.
    pub fn none() -> DiskFaults {
        DiskFaults::default()
    }

    /// A read fails with `EIO`, and again until the sector is written.
    pub fn read_errors(mut self, probability: f64) -> DiskFaults {
        self.read_errors = probability;
        self
    }

    /// A write fails with `EIO` and writes nothing.
    pub fn write_errors(mut self, probability: f64) -> DiskFaults {
        self.write_errors = probability;
        self
    }

    /// A sync fails with `EIO`. Its unsynced data is lost, although reads still see it, and the next sync succeeds.
    pub fn sync_errors(mut self, probability: f64) -> DiskFaults {
        self.sync_errors = probability;
        self
    }

    /// Of the sectors of a sync, one is not written, although the sync succeeds. Per sector.
    pub fn lost_writes(mut self, probability: f64) -> DiskFaults {
        self.lost_writes = probability;
        self
    }

    /// Of the sectors of a sync, one is written to the place of another sector of the file. Per sector.
    pub fn misdirected_writes(mut self, probability: f64) -> DiskFaults {
        self.misdirected_writes = probability;
        self
    }

    /// Of the sectors of a sync, one is stored with a wrong bit. Per sector.
    pub fn bit_rot(mut self, probability: f64) -> DiskFaults {
        self.bit_rot = probability;
        self
    }

    /// A read returns fewer bytes than the file has.
    pub fn short_reads(mut self, probability: f64) -> DiskFaults {
        self.short_reads = probability;
        self
    }

    /// A write takes fewer bytes than it is given.
    pub fn short_writes(mut self, probability: f64) -> DiskFaults {
        self.short_writes = probability;
        self
    }

    /// The disk does nothing for about `length`, about every `every`.
    pub fn stalls(mut self, every: Duration, length: Duration) -> DiskFaults {
        self.stalls = Some((every, length));
        self
    }

    /// The disk is slower by this factor for about `length`, about every `every`.
    pub fn throttles(mut self, every: Duration, length: Duration, factor: u32) -> DiskFaults {
        self.throttles = Some((every, length, factor));
        self
    }

    /// Some kinds of faults, each with a rate of its own, as `rng` chooses. Those that lose acknowledged data silently are
    /// left out, since no program survives them on all of its replicas.
    pub fn swarm(rng: &mut Rng) -> DiskFaults {
        let mut rate = |most: f64| match rng.chance(0.5) {
            true => most * rng.unit(),
            false => 0.0,
        };
        let faults = DiskFaults::none()
            .read_errors(rate(0.01))
            .write_errors(rate(0.01))
            .sync_errors(rate(0.02))
            .short_reads(rate(0.2))
            .short_writes(rate(0.2));
        let faults = match rng.chance(0.3) {
            true => faults.stalls(
                Duration::from_secs(rng.range(10..120)),
                Duration::from_millis(rng.range(100..5_000)),
            ),
            false => faults,
        };
        match rng.chance(0.3) {
            true => faults.throttles(Duration::from_secs(rng.range(10..120)), Duration::from_secs(10), 20),
            false => faults,
        }
    }
}

/// How long the operations of a simulated disk take: for each class a least time, and the mean of a random time that is
/// added to it.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "latencies do nothing until they are passed to a disk"]
pub struct DiskLatency {
    read: (Duration, Duration),
    write: (Duration, Duration),
    sync: (Duration, Duration),
    metadata: (Duration, Duration),
    /// The least time between two operations; zero is no limit.
    interval: Duration,
}

impl Default for DiskLatency {
    /// A solid-state drive: reads of 50 us, writes of 5 us to the page cache, syncs of 1 ms, on average.
    fn default() -> DiskLatency {
        let micros = Duration::from_micros;
        DiskLatency {
            read: (micros(10), micros(40)),
            write: (micros(2), micros(3)),
            sync: (micros(400), micros(600)),
            metadata: (micros(3), micros(7)),
            interval: Duration::ZERO,
        }
    }
}

impl DiskLatency {
    /// No latency: everything is done at once.
    pub fn none() -> DiskLatency {
        let none = (Duration::ZERO, Duration::ZERO);
        DiskLatency {
            read: none,
            write: none,
            sync: none,
            metadata: none,
            interval: Duration::ZERO,
        }
    }

    /// Of reads.
    pub fn read(mut self, least: Duration, mean_extra: Duration) -> DiskLatency {
        self.read = (least, mean_extra);
        self
    }

    /// Of writes, truncation and allocation.
    pub fn write(mut self, least: Duration, mean_extra: Duration) -> DiskLatency {
        self.write = (least, mean_extra);
        self
    }

    /// Of `sync_all`, `sync_data` and synchronous writes.
    pub fn sync(mut self, least: Duration, mean_extra: Duration) -> DiskLatency {
        self.sync = (least, mean_extra);
        self
    }

    /// Of operations on paths and metadata.
    pub fn metadata(mut self, least: Duration, mean_extra: Duration) -> DiskLatency {
        self.metadata = (least, mean_extra);
        self
    }

    /// At most this many operations per second; more of them wait in a queue.
    pub fn iops(mut self, most: u32) -> DiskLatency {
        self.interval = Duration::from_secs(1) / most.max(1);
        self
    }
}

/// Which latency an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Read,
    Write,
    Sync,
    Metadata,
}

/// The faults of one disk, with their random stream and what they leave behind.
pub(crate) struct Faults {
    config: DiskFaults,
    latency: DiskLatency,
    rng: Rng,
    /// What fails now in episodes of a plan.
    errors: Vec<DiskError>,
    /// When the current stall of a plan ends, in nanoseconds.
    stalled_until: u64,
    /// Sectors that cannot be read until they are written.
    unreadable: BTreeSet<(Ino, u64)>,
    /// When the disk has started all operations that it was given, in nanoseconds.
    busy_until: u64,
    /// What the next operation waits longer, in nanoseconds.
    delay: u64,
    stall: Episode,
    throttle: Episode,
    /// What has happened since the log took it, with its sector.
    happened: Vec<(Happened, u64)>,
}

/// What a disk did wrong. The numbers are those of [`DISK_FAULTS`](crate::sim::log::DISK_FAULTS).
#[derive(Clone, Copy)]
enum Happened {
    ReadError,
    WriteError,
    NoSpace,
    FailedSync,
    LostWrite,
    MisdirectedWrite,
    BitRot,
}

/// The current or next stretch of time in which a disk misbehaves, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Episode {
    from: u64,
    until: u64,
}

impl Faults {
    pub(crate) fn new(config: DiskFaults, latency: DiskLatency, rng: Rng) -> Faults {
        Faults {
            config,
            latency,
            rng,
            errors: Vec::new(),
            stalled_until: 0,
            unreadable: BTreeSet::new(),
            busy_until: 0,
            delay: 0,
            stall: Episode::default(),
            throttle: Episode::default(),
            happened: Vec::new(),
        }
    }

    pub(crate) fn config(&self) -> DiskFaults {
        self.config.clone()
    }

    /// Changes the probabilities. Sectors that cannot be read stay so.
    pub(crate) fn set(&mut self, config: DiskFaults) {
        self.config = config;
    }

    pub(super) fn begin_error(&mut self, error: DiskError) {
        self.errors.push(error);
    }

    pub(super) fn end_error(&mut self, error: DiskError) {
        self.errors.retain(|other| *other != error);
    }

    pub(super) fn stall_until(&mut self, until_ns: u64) {
        self.stalled_until = until_ns;
    }

    /// Ends all faults; what they have destroyed stays so.
    pub(super) fn calm(&mut self) {
        self.config = DiskFaults::none();
        self.errors.clear();
        self.stalled_until = 0;
        self.unreadable.clear();
    }

    /// Hands over what has happened since the last call.
    pub(crate) fn take_happened(&mut self, mut record: impl FnMut(u64, u64)) {
        for (what, sector) in self.happened.drain(..) {
            record(what as u64, sector);
        }
    }

    fn has(&self, error: DiskError) -> bool {
        self.errors.contains(&error)
    }

    /// Makes a sector unreadable.
    pub(crate) fn break_sector(&mut self, ino: Ino, index: u64) {
        self.unreadable.insert((ino, index));
    }

    /// Forgets everything about a disk that was replaced.
    pub(crate) fn replaced(&mut self) {
        self.unreadable.clear();
    }

    /// Delays the next operation and those behind it.
    pub(crate) fn delay_next(&mut self, delay: Duration) {
        self.delay += nanoseconds(delay);
    }

    /// How many bytes a read may return.
    pub(crate) fn before_read(&mut self, fs: &FileSystem, ino: Ino, offset: u64, len: u64) -> Result<u64, i32> {
        let end = fs.len(ino).min(offset.saturating_add(len));
        if offset >= end {
            return Ok(len);
        }
        let (first, last) = (offset / fs.sector(), (end - 1) / fs.sector());
        if self.has(DiskError::Read) {
            self.happened.push((Happened::ReadError, first));
            return Err(EIO);
        }
        if self.rng.chance(self.config.read_errors) {
            self.unreadable.insert((ino, self.rng.range(first..=last)));
        }
        if let Some(&(_, sector)) = self.unreadable.range((ino, first)..=(ino, last)).next() {
            self.happened.push((Happened::ReadError, sector));
            return Err(EIO);
        }
        Ok(self.shorten(self.config.short_reads, end - offset).unwrap_or(len))
    }

    /// How many bytes a write may take.
    pub(crate) fn before_write(&mut self, fs: &FileSystem, ino: Ino, offset: u64, len: u64) -> Result<u64, i32> {
        let first = offset / fs.sector();
        if self.rng.chance(self.config.write_errors) || self.has(DiskError::Write) {
            self.happened.push((Happened::WriteError, first));
            return Err(EIO);
        }
        if self.has(DiskError::NoSpace) {
            self.happened.push((Happened::NoSpace, first));
            return Err(ENOSPC);
        }
        let len = self.shorten(self.config.short_writes, len).unwrap_or(len);
        let last = offset.saturating_add(len - 1) / fs.sector();
        let written: Vec<_> = self.unreadable.range((ino, first)..=(ino, last)).copied().collect();
        for sector in written {
            self.unreadable.remove(&sector);
        }
        Ok(len)
    }

    fn shorten(&mut self, probability: f64, len: u64) -> Option<u64> {
        (len > 1 && self.rng.chance(probability)).then(|| self.rng.range(1..len))
    }

    /// Makes an inode durable, or not.
    pub(crate) fn sync(&mut self, fs: &mut FileSystem, ino: Ino, data_only: bool) -> Result<(), i32> {
        let Some(journal) = &mut fs.journal else {
            return Ok(());
        };
        let dirty = journal.dirty_sectors(ino);
        if self.rng.chance(self.config.sync_errors) || self.has(DiskError::Sync) {
            let first = dirty.first().copied().unwrap_or_default();
            self.happened.push((Happened::FailedSync, first));
            for index in dirty {
                journal.lose(ino, index, |stored| stored.cloned());
            }
            return Err(EIO);
        }
        for index in dirty {
            self.store(fs, ino, index)?;
        }
        fs.sync(ino, data_only);
        Ok(())
    }

    /// Spoils the write of one sector, if its draws say so. A misdirected one replaces another sector of the file.
    fn store(&mut self, fs: &mut FileSystem, ino: Ino, index: u64) -> Result<(), i32> {
        let is_lost = self.rng.chance(self.config.lost_writes);
        let is_misdirected = self.rng.chance(self.config.misdirected_writes);
        let is_rotten = self.rng.chance(self.config.bit_rot);
        let (sector, sectors) = (fs.sector, &fs.contents(ino)?.sectors);
        let bytes = sectors.get(&index).cloned();
        let others: Vec<u64> = sectors.keys().copied().filter(|&other| other != index).collect();
        let other = self
            .rng
            .pick(&others)
            .filter(|_| is_misdirected)
            .map(|&other| (other, sectors[&other].clone()));
        let Some(journal) = &mut fs.journal else {
            return Ok(());
        };
        let happened = match () {
            () if is_misdirected => Some(Happened::MisdirectedWrite),
            () if is_lost => Some(Happened::LostWrite),
            () if is_rotten => Some(Happened::BitRot),
            () => None,
        };
        self.happened.extend(happened.map(|what| (what, index)));
        if is_lost || is_misdirected {
            journal.lose(ino, index, |stored| stored.cloned());
        } else if is_rotten {
            let rotten = flip_bit(bytes.clone(), sector, self.rng.below(sector * 8));
            journal.lose(ino, index, |_| Some(rotten));
        }
        if let Some((other, cached)) = other {
            journal.corrupt(ino, other, Some(cached), bytes);
        }
        Ok(())
    }

    /// When an operation that starts now is done.
    pub(crate) fn done_at(&mut self, op: &FileOp, now_ns: u64) -> u64 {
        let (least, mean_extra) = match class(op) {
            Class::Read => self.latency.read,
            Class::Write => self.latency.write,
            Class::Sync => self.latency.sync,
            Class::Metadata => self.latency.metadata,
        };
        let extra = match mean_extra.is_zero() {
            true => 0,
            false => self.rng.exponential(nanoseconds(mean_extra) as f64) as u64,
        };
        let mut duration = nanoseconds(least).saturating_add(extra);
        let delay = std::mem::take(&mut self.delay);
        let mut start = now_ns
            .max(self.busy_until)
            .max(self.stalled_until)
            .saturating_add(delay);
        if let Some((every, length, factor)) = self.config.throttles
            && self.throttle.covers(start, every, length, &mut self.rng)
        {
            duration = duration.saturating_mul(u64::from(factor));
        }
        if let Some((every, length)) = self.config.stalls
            && self.stall.covers(start, every, length, &mut self.rng)
        {
            start = self.stall.until;
        }
        match nanoseconds(self.latency.interval) {
            0 if delay == 0 => {}
            interval => self.busy_until = start.saturating_add(interval),
        }
        start.saturating_add(duration)
    }
}

impl Episode {
    /// Whether `now` is in an episode. Episodes are drawn as time passes.
    fn covers(&mut self, now: u64, every: Duration, length: Duration, rng: &mut Rng) -> bool {
        while self.until <= now {
            let pause = rng.exponential(nanoseconds(every) as f64) as u64;
            self.from = self.until.saturating_add(pause.max(1));
            self.until = self
                .from
                .saturating_add((rng.exponential(nanoseconds(length) as f64) as u64).max(1));
        }
        self.from <= now
    }
}

/// Which latency an operation has.
fn class(op: &FileOp) -> Class {
    match op {
        FileOp::ReadAt { .. } | FileOp::ReadVectoredAt { .. } => Class::Read,
        FileOp::WriteAt { .. } | FileOp::WriteVectoredAt { .. } | FileOp::Truncate { .. } | FileOp::Allocate { .. } => {
            Class::Write
        }
        FileOp::Sync { .. } => Class::Sync,
        FileOp::Open { .. }
        | FileOp::Stat { .. }
        | FileOp::Rename { .. }
        | FileOp::Remove { .. }
        | FileOp::MakeDir { .. }
        | FileOp::HardLink { .. }
        | FileOp::SymLink { .. }
        | FileOp::ReadLink { .. }
        | FileOp::SetMode { .. }
        | FileOp::ReadDir { .. }
        | FileOp::RealPath { .. }
        | FileOp::Copy { .. }
        | FileOp::RemoveAll { .. } => Class::Metadata,
    }
}

/// A sector with one wrong bit.
pub(super) fn flip_bit(bytes: Option<Sector>, sector: u64, bit: u64) -> Sector {
    let mut bytes = bytes.unwrap_or_else(|| Rc::from(vec![0; sector as usize]));
    Rc::make_mut(&mut bytes)[(bit / 8) as usize] ^= 1 << (bit % 8);
    bytes
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
