//! The event log of a run: what happened, in order, with a rolling hash.
//!
//! Two runs with the same seed must record the same events. Comparing their hashes tells whether they did; comparing
//! their checkpoints, one hash per [`CHECKPOINT`] records, tells where they parted. A record is four words, without
//! addresses or texts, because it is written for each event of the simulation: a million per second. Rare events
//! (crashes, cuts, the user's own notes) carry a text too.
//!
//! Only the last [`TAIL`] records are kept, unless [`LogMode`] asks for a part or all of them. Texts are kept to the same
//! number.

mod kind;
mod output;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

pub(crate) use self::kind::EventKind;
use crate::event_loop::core::LoopCore;
use crate::sim::rng::hash_text;

/// Records per checkpoint.
pub(crate) const CHECKPOINT: u64 = 1_024;

/// Records that are kept by default.
pub(crate) const TAIL: usize = 4_096;

/// Which records are kept. The hash covers all of them, except with `Off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum LogMode {
    /// The last [`TAIL`].
    #[default]
    Tail,
    /// Those with an index in `from..from + len`, with a description of the task that each belongs to.
    Window { from: u64, len: u64 },
    /// All.
    All,
    /// None, and nothing is hashed either: to measure what the log costs.
    Off,
}

/// One event. Its layout is that of `words`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) at_ns: u64,
    /// The task that was running, or 0. Task numbers count up from 1 within a loop.
    pub(crate) task: u32,
    pub(crate) host: u16,
    pub(crate) kind: EventKind,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

const _: () = assert!(size_of::<Record>() == 32);

/// The last [`TAIL`] records: record `i` is at `i % TAIL`. The places that no record has been written to yet have those of
/// an earlier log: its memory is used again, because a short run would spend more time on new memory than on its records.
#[derive(Debug, Clone)]
struct Tail(Option<Box<[Record; TAIL]>>);

thread_local! {
    static SPARE_TAIL: Cell<Option<Box<[Record; TAIL]>>> = const { Cell::new(None) };
}

impl Tail {
    fn new() -> Tail {
        const NONE: Record = Record {
            at_ns: 0,
            host: 0,
            kind: EventKind::Turn,
            task: 0,
            a: 0,
            b: 0,
        };
        let spare = SPARE_TAIL.take();
        Tail(spare.or_else(|| vec![NONE; TAIL].into_boxed_slice().try_into().ok()))
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        if let Some(records) = self.0.take() {
            // Fails at the end of a thread, where it cannot be used again.
            let _ = SPARE_TAIL.try_with(|spare| spare.set(Some(records)));
        }
    }
}

/// A text that belongs to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    index: u64,
    text: String,
}

/// The log of one run: see the module.
#[derive(Debug, Clone)]
pub(crate) struct EventLog {
    mode: LogMode,
    /// The hash of the records before `hashed`: with [`LogMode::Tail`] they are hashed [`CHECKPOINT`] at a time.
    hash: u64,
    hashed: u64,
    /// The number of records so far: the index of the next one.
    len: u64,
    /// With [`LogMode::Tail`].
    tail: Tail,
    /// With the other modes.
    records: Vec<Record>,
    checkpoints: Vec<u64>,
    texts: VecDeque<Text>,
    /// The time that is printed as zero.
    origin_ns: u64,
    /// Names by number.
    hosts: Vec<String>,
    /// Names of operation and control kinds, for printing.
    op_names: &'static [&'static str],
    /// Names of the kinds of quirks, for printing.
    quirk_names: &'static [&'static str],
    /// With [`LogMode::Window`]: name and spawn location of the tasks seen.
    tasks: BTreeMap<(u16, u32), String>,
    /// With [`LogMode::Window`]: what ran in the turns, by the index of their record.
    ran: BTreeMap<u64, String>,
}

impl EventLog {
    pub(crate) fn new(mode: LogMode) -> EventLog {
        EventLog {
            mode,
            hash: 0x243f_6a88_85a3_08d3,
            hashed: 0,
            len: 0,
            tail: match mode {
                LogMode::Tail => Tail::new(),
                LogMode::Window { .. } | LogMode::All | LogMode::Off => Tail(None),
            },
            records: Vec::new(),
            checkpoints: Vec::new(),
            texts: VecDeque::new(),
            origin_ns: 0,
            hosts: Vec::new(),
            op_names: &[],
            quirk_names: &[],
            tasks: BTreeMap::new(),
            ran: BTreeMap::new(),
        }
    }

    /// The time that the timeline prints as zero.
    pub(crate) fn set_origin(&mut self, origin_ns: u64) {
        self.origin_ns = origin_ns;
    }

    /// Gives a host its name in the timeline. Part of the hash.
    pub(crate) fn name_host(&mut self, host: u16, name: &str) {
        let index = usize::from(host);
        if self.hosts.len() <= index {
            self.hosts.resize(index + 1, String::new());
        }
        self.hosts[index] = name.to_owned();
        self.hash = absorb(self.hash(), [u64::from(host), hash_text(name), 0, 0]);
        self.hashed = self.len;
    }

    /// The names of the numbers that `Start`, `Complete` and `Cancel` have as first word.
    pub(crate) fn name_ops(&mut self, names: &'static [&'static str]) {
        self.op_names = names;
    }

    /// The names of the numbers that `Quirk` has as first word.
    pub(crate) fn name_quirks(&mut self, names: &'static [&'static str]) {
        self.quirk_names = names;
    }

    /// Appends an event, in the name of the task that is running. Not inlined: its arguments fit into registers.
    #[inline(never)]
    pub(crate) fn record(&mut self, at_ns: u64, host: u16, kind: EventKind, a: u64, b: u64) {
        self.record_inline(at_ns, host, kind, a, b);
    }

    /// As `record`, for the events that occur once per message.
    #[inline(always)]
    pub(crate) fn record_inline(&mut self, at_ns: u64, host: u16, kind: EventKind, a: u64, b: u64) {
        let task = LoopCore::running_task().map_or(0, |task| task.id().0 as u32);
        self.append(at_ns, host, kind, task, a, b);
    }

    /// As `record_inline`, between turns, where no task is running.
    #[inline(always)]
    pub(crate) fn record_between_turns(&mut self, at_ns: u64, host: u16, kind: EventKind, a: u64, b: u64) {
        debug_assert!(LoopCore::running_task().is_none());
        self.append(at_ns, host, kind, 0, a, b);
    }

    #[inline(always)]
    fn append(&mut self, at_ns: u64, host: u16, kind: EventKind, task: u32, a: u64, b: u64) {
        let Tail(Some(records)) = &mut self.tail else {
            return self.keep(at_ns, host, kind, task, a, b);
        };
        let record = &mut records[self.len as usize % TAIL];
        // Not as one value, which would be made elsewhere and copied.
        record.at_ns = at_ns;
        record.host = host;
        record.kind = kind;
        record.task = task;
        record.a = a;
        record.b = b;
        self.len += 1;
        if self.len.is_multiple_of(CHECKPOINT) {
            self.set_checkpoint();
        }
    }

    /// With [`LogMode::Tail`]: hashes the records since the last checkpoint, before they are overwritten.
    #[cold]
    fn set_checkpoint(&mut self) {
        self.hash = self.hash();
        self.hashed = self.len;
        self.checkpoints.push(self.hash);
    }

    /// Appends a record, without a limit of those that are kept.
    #[cold]
    fn keep(&mut self, at_ns: u64, host: u16, kind: EventKind, task: u32, a: u64, b: u64) {
        if self.mode == LogMode::Off {
            return;
        }
        let record = Record {
            at_ns,
            host,
            kind,
            task,
            a,
            b,
        };
        let index = self.len;
        self.hash = absorb(self.hash, record.words());
        self.len += 1;
        self.hashed = self.len;
        if self.len.is_multiple_of(CHECKPOINT) {
            self.checkpoints.push(self.hash);
        }
        match self.mode {
            LogMode::All => self.records.push(record),
            LogMode::Window { from, len } => {
                if index >= from && index - from < len {
                    self.records.push(record);
                }
                if let Some(task) = LoopCore::running_task() {
                    let key = (record.host, record.task);
                    self.tasks.entry(key).or_insert_with(|| task.describe());
                }
            }
            LogMode::Tail | LogMode::Off => {}
        }
    }

    /// Appends an event with a text, for rare ones: crashes, cuts, the test's own notes.
    pub(crate) fn note(&mut self, at_ns: u64, host: u16, kind: EventKind, text: impl Into<String>) {
        let text = text.into();
        let index = self.len;
        self.record(at_ns, host, kind, hash_text(&text), 0);
        if self.mode == LogMode::Tail && self.texts.len() == TAIL {
            self.texts.pop_front();
        }
        self.texts.push_back(Text { index, text });
    }

    /// The description of the task of a record, if it was kept.
    pub(crate) fn task(&self, record: &Record) -> Option<&str> {
        self.tasks.get(&(record.host, record.task)).map(String::as_str)
    }

    /// Keeps what ran in the turn that was recorded last. Not part of the hash.
    pub(crate) fn describe_turn(&mut self, ran: String) {
        if let LogMode::Window { from, len } = self.mode
            && let Some(index) = self.len.checked_sub(1)
            && index >= from
            && index - from < len
        {
            self.ran.insert(index, ran);
        }
    }

    /// What ran in a turn, if it was kept.
    pub(crate) fn ran(&self, index: u64) -> Option<&str> {
        self.ran.get(&index).map(String::as_str)
    }

    /// The hash of everything recorded so far.
    pub(crate) fn hash(&self) -> u64 {
        let Tail(Some(records)) = &self.tail else {
            return self.hash;
        };
        // No more than `CHECKPOINT` records, and a checkpoint does not come before the end of the ring.
        let from = self.hashed as usize % TAIL;
        let new = &records[from..from + (self.len - self.hashed) as usize];
        new.iter().fold(self.hash, |hash, record| absorb(hash, record.words()))
    }

    /// The number of records so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The hash after each [`CHECKPOINT`] records.
    pub(crate) fn checkpoints(&self) -> &[u64] {
        &self.checkpoints
    }

    /// The records that are kept, oldest first, with their index.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, &Record)> {
        let (first, older, newer) = match (&self.tail, self.mode) {
            (Tail(Some(records)), _) if self.len < TAIL as u64 => (0, &records[..self.len as usize], &[][..]),
            (Tail(Some(records)), _) => {
                let (newer, older) = records.split_at(self.len as usize % TAIL);
                (self.len - TAIL as u64, older, newer)
            }
            (Tail(None), LogMode::Window { from, .. }) => (from, &self.records[..], &[][..]),
            (Tail(None), _) => (0, &self.records[..], &[][..]),
        };
        (first..).zip(older.iter().chain(newer))
    }

    pub(crate) fn host_name(&self, host: u16) -> &str {
        self.hosts.get(usize::from(host)).map_or("?", String::as_str)
    }
}

impl Record {
    #[inline]
    fn words(&self) -> [u64; 4] {
        let meta = u64::from(self.task) | u64::from(self.host) << 32 | u64::from(self.kind as u16) << 48;
        [self.at_ns, meta, self.a, self.b]
    }
}

/// Mixes one record into a hash: two 64 x 64 bit multiplications, each folded to 64 bits, and a third one for the order
/// of the records. Only the third waits for the record before.
#[inline]
fn absorb(hash: u64, words: [u64; 4]) -> u64 {
    let [a, b, c, d] = words;
    let first = fold(a ^ 0xa409_3822_299f_31d0, b ^ 0x082e_fa98_ec4e_6c89);
    let second = fold(c ^ 0x4528_21e6_38d0_1377, d ^ 0xbe54_66cf_34e9_0c6c);
    // Each step is a bijection of the hash, and of the record's part.
    (hash.rotate_left(29) ^ first ^ second.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Number, name and spawn location of the task that is running.
pub(crate) fn describe_running_task() -> Option<String> {
    LoopCore::running_task().map(|task| task.describe())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(log: &mut EventLog, count: u64, odd_one: Option<u64>) {
        log.name_host(0, "a");
        log.name_host(1, "b");
        for n in 0..count {
            let b = if odd_one == Some(n) { 99 } else { 7 };
            log.record(n * 1_500, (n % 2) as u16, EventKind::Send, 1, b);
        }
    }

    #[test]
    fn the_hash_depends_on_every_word_and_on_the_order() {
        let hash = |records: &[(u64, u16, EventKind, u32, u64, u64)]| {
            let mut log = EventLog::new(LogMode::Tail);
            for &(at_ns, host, kind, task, a, b) in records {
                log.append(at_ns, host, kind, task, a, b);
            }
            log.hash()
        };
        let base = (5, 1, EventKind::Send, 2, 3, 4);
        let variants = [
            base,
            (6, 1, EventKind::Send, 2, 3, 4),
            (5, 2, EventKind::Send, 2, 3, 4),
            (5, 1, EventKind::Deliver, 2, 3, 4),
            (5, 1, EventKind::Send, 3, 3, 4),
            (5, 1, EventKind::Send, 2, 4, 4),
            (5, 1, EventKind::Send, 2, 3, 5),
            (5, 1, EventKind::Send, 2, 4, 3),
        ];
        let hashes: std::collections::BTreeSet<u64> = variants.iter().map(|&record| hash(&[record])).collect();
        assert_eq!(hashes.len(), variants.len());
        assert_ne!(hash(&[variants[0], variants[1]]), hash(&[variants[1], variants[0]]));
        assert_eq!(hash(&variants), hash(&variants));
    }

    #[test]
    fn checkpoints_show_where_two_logs_part() {
        let (mut one, mut two) = (EventLog::new(LogMode::Tail), EventLog::new(LogMode::Tail));
        fill(&mut one, 5_000, None);
        fill(&mut two, 5_000, Some(2_100));
        assert_eq!(one.checkpoints().len(), 4);
        assert_eq!(one.checkpoints()[..2], two.checkpoints()[..2]);
        assert_ne!(one.checkpoints()[2], two.checkpoints()[2]);
        assert_ne!(one.hash(), two.hash());
    }

    #[test]
    fn the_tail_keeps_the_newest_in_order() {
        for count in [3, TAIL as u64 - 1, TAIL as u64, TAIL as u64 + 1, 3 * TAIL as u64 + 17] {
            let mut log = EventLog::new(LogMode::Tail);
            fill(&mut log, count, None);
            let kept: Vec<(u64, u64)> = log
                .records()
                .map(|(index, record)| (index, record.at_ns / 1_500))
                .collect();
            assert_eq!(kept.len() as u64, count.min(TAIL as u64));
            assert_eq!(kept.last().unwrap().0, count - 1);
            assert!(kept.iter().all(|(index, n)| index == n), "{count}");
            assert!(kept.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
        }
    }

    #[test]
    fn a_window_keeps_its_part_and_the_same_hash() {
        let (mut tail, mut window) = (
            EventLog::new(LogMode::Tail),
            EventLog::new(LogMode::Window { from: 1_024, len: 10 }),
        );
        fill(&mut tail, 2_000, None);
        fill(&mut window, 2_000, None);
        assert_eq!(tail.hash(), window.hash());
        let kept: Vec<u64> = window.records().map(|(index, _)| index).collect();
        assert_eq!(kept, (1_024..1_034).collect::<Vec<_>>());
    }
}
