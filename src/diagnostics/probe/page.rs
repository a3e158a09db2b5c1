//! The page of a loop: what the console's thread may read at any time, also while the loop is stalled.
//!
//! Only the loop's thread writes the atomics, so it adds by a load and a store, without a locked instruction. The entry that
//! runs is published under a sequence lock: `entry.began` is 0 while the fields change.

use std::collections::VecDeque;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
use std::sync::{Mutex, OnceLock};

use super::ticks::{BOUNDS_US, Scale};
use crate::blocking::PoolObserver;
use crate::driver::Description;
use crate::event_loop::handle::LoopHandle;
use crate::sys;

/// The bins of the timeline: the last minute.
pub(crate) const BINS: usize = 240;

/// Bytes of a task's name that are published: four words.
const NAME_LEN: usize = 32;

/// Long turns that are kept until a console has read them.
const MAX_LONG_TURNS: usize = 64;

/// The page of one loop.
pub(crate) struct LoopPage {
    /// Counts the loops of the process.
    pub(crate) id: u64,
    /// The name of the loop's thread.
    pub(crate) name: String,
    pub(crate) shard: OnceLock<(usize, String)>,
    pub(crate) driver: Description,
    pub(crate) handle: LoopHandle,
    /// The pools for `spawn_blocking` and for files. Their threads work while the loop is idle or stalled.
    pub(crate) pools: [PoolObserver; 2],
    /// The thread's id. A loop never moves to another thread.
    pub(crate) thread: sys::ThreadNumber,
    pub(crate) is_closed: AtomicBool,
    /// Turns with entries since a console runs.
    pub(crate) turns: AtomicU64,
    /// Entries of these turns.
    pub(crate) entries: AtomicU64,
    /// Snapshots for consoles among them.
    pub(crate) snapshots: AtomicU64,
    /// Polls of tasks among them.
    pub(crate) polls: AtomicU64,
    /// When the turn's first entry began; 0 between turns.
    pub(crate) turn_began: AtomicU64,
    entry: PublishedEntry,
    pub(crate) turn_times: Histogram,
    pub(crate) wake_times: Histogram,
    pub(crate) timeline: Timeline,
    /// The last turns that took longer than the stall limit.
    long_turns: Mutex<LongTurns>,
}

/// What runs in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Task,
    Callback,
    /// A callback from another thread.
    Remote,
}

/// The task or callback that runs, or that blocked the loop.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: EntryKind,
    /// The task's id.
    pub(crate) task: u64,
    /// Where it was spawned or scheduled.
    pub(crate) at: Option<&'static Location<'static>>,
    /// The task's name; only the beginning of a long one.
    pub(crate) name: Option<String>,
    /// When it began, in ticks.
    pub(crate) began: u64,
}

/// A turn that took longer than the stall limit.
#[derive(Clone, Debug)]
pub(crate) struct LongTurn {
    /// Its number, by `LoopPage::turns`.
    pub(crate) turn: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// How many entries it ran.
    pub(crate) entries: usize,
    /// The entry that took most of it, if there is one.
    pub(crate) culprit: Option<Entry>,
}

#[derive(Default)]
struct LongTurns {
    /// The number of turns ever recorded; the last of them are kept.
    count: u64,
    kept: VecDeque<LongTurn>,
}

impl LoopPage {
    pub(crate) fn new(id: u64, driver: Description, handle: LoopHandle, pools: [PoolObserver; 2]) -> LoopPage {
        LoopPage {
            id,
            name: std::thread::current().name().unwrap_or("unnamed").to_owned(),
            shard: OnceLock::new(),
            driver,
            handle,
            pools,
            thread: sys::thread_number(),
            is_closed: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            turn_began: AtomicU64::new(0),
            entry: PublishedEntry::default(),
            turn_times: Histogram::default(),
            wake_times: Histogram::default(),
            timeline: Timeline::default(),
            long_turns: Mutex::default(),
        }
    }

    /// The name of the shard, or of the thread.
    pub(crate) fn title(&self) -> &str {
        self.shard.get().map_or(&self.name, |(_, name)| name)
    }

    /// Changes when the loop has run anything but snapshots.
    pub(crate) fn activity(&self) -> u64 {
        self.entries.load(Relaxed).wrapping_sub(self.snapshots.load(Relaxed))
    }

    /// The turn that runs now: its number and when it began.
    pub(crate) fn current_turn(&self) -> Option<(u64, u64)> {
        let turn = self.turns.load(Acquire);
        let began = self.turn_began.load(Acquire);
        // The turn's end stores both; if the number is unchanged, `began` belongs to it.
        fence(Acquire);
        (began != 0 && self.turns.load(Relaxed) == turn).then_some((turn, began))
    }

    /// The entry that runs now.
    pub(crate) fn current_entry(&self) -> Option<Entry> {
        self.entry.read()
    }

    #[inline]
    pub(super) fn publish(
        &self,
        kind: EntryKind,
        task: u64,
        at: Option<&'static Location<'static>>,
        name: Option<&str>,
        began: u64,
    ) {
        self.entry.write(kind, task, at, name, began);
    }

    pub(super) fn add_long_turn(&self, turn: LongTurn) {
        let mut turns = sys::lock(&self.long_turns);
        turns.count += 1;
        turns.kept.push_back(turn);
        if turns.kept.len() > MAX_LONG_TURNS {
            turns.kept.pop_front();
        }
    }

    /// The long turns after the first `seen` ones, as far as they are kept, and the number of all.
    pub(crate) fn long_turns_after(&self, seen: u64) -> (Vec<LongTurn>, u64) {
        let turns = sys::lock(&self.long_turns);
        let fresh = usize::try_from(turns.count.saturating_sub(seen)).unwrap_or(usize::MAX);
        let skipped = turns.kept.len().saturating_sub(fresh);
        (turns.kept.iter().skip(skipped).cloned().collect(), turns.count)
    }
}

/// Adds to a number that only this thread writes.
#[inline]
pub(super) fn add(number: &AtomicU64, value: u64) {
    number.store(number.load(Relaxed).wrapping_add(value), Relaxed);
}

/// The entry that runs.
#[derive(Default)]
struct PublishedEntry {
    began: AtomicU64,
    kind: AtomicU8,
    task: AtomicU64,
    at: AtomicPtr<Location<'static>>,
    name_len: AtomicUsize,
    name: [AtomicU64; NAME_LEN / 8],
}

impl PublishedEntry {
    /// Loop's thread.
    #[inline]
    fn write(
        &self,
        kind: EntryKind,
        task: u64,
        at: Option<&'static Location<'static>>,
        name: Option<&str>,
        began: u64,
    ) {
        self.began.store(0, Relaxed);
        fence(Release);
        self.kind.store(kind as u8, Relaxed);
        self.task.store(task, Relaxed);
        self.at
            .store(at.map_or(ptr::null_mut(), |at| ptr::from_ref(at).cast_mut()), Relaxed);
        self.name_len.store(name.map_or(usize::MAX, str::len), Relaxed);
        if let Some(name) = name {
            for (word, bytes) in self.name.iter().zip(name.as_bytes().chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(padded), Relaxed);
            }
        }
        self.began.store(began, Release);
    }

    /// Any thread. `None` if no entry was published or a new one is being published.
    fn read(&self) -> Option<Entry> {
        let began = self.began.load(Acquire);
        let kind = match self.kind.load(Relaxed) {
            0 => EntryKind::Task,
            1 => EntryKind::Callback,
            _ => EntryKind::Remote,
        };
        let (task, at) = (self.task.load(Relaxed), self.at.load(Relaxed));
        let len = self.name_len.load(Relaxed);
        let bytes: Vec<u8> = self
            .name
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        fence(Acquire);
        if began == 0 || self.began.load(Relaxed) != began {
            return None;
        }
        let name = (len != usize::MAX).then(|| {
            let kept = &bytes[..len.min(NAME_LEN)];
            match len > NAME_LEN {
                // Perhaps cut within a character.
                true => format!("{}…", String::from_utf8_lossy(kept).trim_end_matches('\u{FFFD}')),
                false => String::from_utf8_lossy(kept).into_owned(),
            }
        });
        Some(Entry {
            kind,
            task,
            // SAFETY: null, or a `&'static Location` that `write` stored: a part of the program, which is never freed.
            at: unsafe { at.as_ref() },
            name,
            began,
        })
    }
}

/// Counts durations by size.
#[derive(Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum: AtomicU64,
}

impl Histogram {
    /// Loop's thread.
    #[inline]
    pub(super) fn add(&self, ticks: u64, scale: &Scale) {
        let bucket = scale.bounds.iter().position(|&bound| ticks <= bound);
        add(&self.counts[bucket.unwrap_or(BOUNDS_US.len())], 1);
        add(&self.sum, ticks);
    }

    pub(crate) fn counts(&self) -> [u64; BOUNDS_US.len() + 1] {
        std::array::from_fn(|index| self.counts[index].load(Relaxed))
    }

    /// The sum of all durations, in ticks.
    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

/// The longest turn, and the number of turns, of each bin of the last minute.
pub(crate) struct Timeline {
    /// When the current bin ends, in ticks; 0 before the first turn.
    bin_ends: AtomicU64,
    /// The place of the current bin in the rings.
    current: AtomicUsize,
    longest: [AtomicU64; BINS],
    turns: [AtomicU32; BINS],
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline {
            bin_ends: AtomicU64::new(0),
            current: AtomicUsize::new(0),
            longest: std::array::from_fn(|_| AtomicU64::new(0)),
            turns: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Timeline {
    /// Records a turn that ended now. Loop's thread.
    #[inline]
    pub(super) fn add(&self, now: u64, took: u64, scale: &Scale) {
        if now >= self.bin_ends.load(Relaxed) {
            self.advance(now, scale);
        }
        let current = self.current.load(Relaxed) % BINS;
        if took > self.longest[current].load(Relaxed) {
            self.longest[current].store(took, Relaxed);
        }
        self.turns[current].store(self.turns[current].load(Relaxed).wrapping_add(1), Relaxed);
    }

    #[cold]
    fn advance(&self, now: u64, scale: &Scale) {
        let ends = self.bin_ends.load(Relaxed);
        // A multiple of the bin's length, so that all loops have the same bins.
        let next = (now / scale.bin + 1) * scale.bin;
        let passed = match ends {
            0 => BINS,
            _ => usize::try_from((next - ends) / scale.bin).unwrap_or(BINS).min(BINS),
        };
        let mut current = self.current.load(Relaxed);
        for _ in 0..passed {
            current = (current + 1) % BINS;
            self.longest[current].store(0, Relaxed);
            self.turns[current].store(0, Relaxed);
        }
        self.current.store(current, Relaxed);
        self.bin_ends.store(next, Relaxed);
    }

    /// The bins up to the one of `now`, oldest first: the longest turn in ticks, and the turns.
    pub(crate) fn read(&self, now: u64, scale: &Scale) -> (Vec<u64>, Vec<u32>) {
        let (mut longest, mut turns) = (vec![0; BINS], vec![0; BINS]);
        let ends = self.bin_ends.load(Relaxed);
        if ends == 0 {
            return (longest, turns);
        }
        let current = self.current.load(Relaxed) % BINS;
        // Bins without a turn since the current one.
        let empty = usize::try_from((now + scale.bin).saturating_sub(ends) / scale.bin).unwrap_or(BINS);
        for age in 0..BINS.saturating_sub(empty) {
            let (from, to) = ((current + BINS - age) % BINS, BINS - 1 - empty - age);
            longest[to] = self.longest[from].load(Relaxed);
            turns[to] = self.turns[from].load(Relaxed);
        }
        (longest, turns)
    }
}
