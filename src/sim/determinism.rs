//! The run-twice check: where two runs of one seed parted, and what may be the cause.
//!
//! Two runs keep only hashes and the last events. Once they differ, the seed runs again, with the events kept from the
//! last checkpoint that was equal. These runs may differ from the first two, since the cause is by its nature random, so
//! this is repeated until two of them differ within what they kept.

use crate::sim::log::{CHECKPOINT, EventKind, EventLog, LogMode, Record};
use crate::sim::settings::{Outcome, RunSettings};

/// Pairs of runs before the search gives up.
const MAX_PAIRS: usize = 8;

/// Events kept before the last equal checkpoint, as context.
const CONTEXT: u64 = 16;

/// Events within which two runs are compared for the same events in another order.
const REORDERED_WITHIN: usize = 64;

/// How two runs of one seed differ.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The index of the first differing event, or the first of a checkpoint that differs.
    pub(crate) index: u64,
    /// `None` if the runs could not be made to differ again.
    pub(crate) event: Option<Event>,
    pub(crate) suspects: Vec<&'static str>,
}

/// The first differing event, as text.
#[derive(Debug)]
pub(crate) struct Event {
    /// In each of the two runs. "the run had ended" if there was no such event.
    pub(crate) lines: [String; 2],
    /// The last equal event.
    pub(crate) before: Option<String>,
    /// Name and spawn location of the task that was the last to run on the host, in each run.
    pub(crate) tasks: [Option<String>; 2],
    pub(crate) host: Option<String>,
}

/// Finds the first event in which runs with these settings differ, given two that did.
pub(crate) fn find(
    run: &dyn Fn(&RunSettings) -> Outcome,
    settings: &RunSettings,
    first: Outcome,
    second: Outcome,
) -> Difference {
    let (first_hash, second_hash) = (first.log.hash(), second.log.hash());
    let mut index = equal_checkpoints(&first.log, &second.log) * CHECKPOINT;
    drop((first, second));
    let mut is_always_second = true;
    for _ in 0..MAX_PAIRS {
        let from = index.saturating_sub(CONTEXT);
        let log = LogMode::Window {
            from,
            len: CONTEXT + CHECKPOINT,
        };
        let settings = RunSettings {
            log,
            watches_entries: true,
            ..settings.clone()
        };
        let (one, two) = (run(&settings).log, run(&settings).log);
        is_always_second &= one.hash() == second_hash && two.hash() == second_hash;
        if one.hash() == two.hash() {
            // Not this time. If each of them equals a run before, the next pair may be luckier.
            continue;
        }
        let parted = equal_checkpoints(&one, &two) * CHECKPOINT;
        if let Some(difference) = compare(&one, &two).filter(|_| parted == index || parted + CHECKPOINT > from) {
            return difference;
        }
        index = parted;
    }
    let mut suspects = vec![];
    if is_always_second && first_hash != second_hash {
        suspects.push(
            "state that survives a run: a static, a `OnceLock`, a thread-local (only the first run of the process differed)",
        );
    }
    suspects.extend([FOREIGN_THREAD, STD_TIME, OTHER_RANDOM]);
    Difference {
        index,
        event: None,
        suspects,
    }
}

const HASH_ORDER: &str =
    "the iteration order of a `HashMap` or `HashSet`: use `windlass::rand::RandomState`, or a `BTreeMap`";
const STD_TIME: &str =
    "`std::time::Instant` or `SystemTime`: use `windlass::time::Instant` and `windlass::time::wall_now`";
const OTHER_RANDOM: &str = "another random generator: use `windlass::rand::Rng`";
const FOREIGN_THREAD: &str = "a thread of `std::thread`: use `windlass::spawn_blocking`";
const ADDRESS: &str = "an address used as a key or printed";

/// The number of checkpoints that two logs share.
fn equal_checkpoints(one: &EventLog, two: &EventLog) -> u64 {
    one.checkpoints()
        .iter()
        .zip(two.checkpoints())
        .take_while(|(one, two)| one == two)
        .count() as u64
}

/// The first difference in what two logs kept.
fn compare(one: &EventLog, two: &EventLog) -> Option<Difference> {
    let ones: Vec<(u64, Record)> = one.records().map(|(index, record)| (index, *record)).collect();
    let twos: Vec<(u64, Record)> = two.records().map(|(index, record)| (index, *record)).collect();
    let at = (0..ones.len().max(twos.len())).find(|at| ones.get(*at) != twos.get(*at))?;
    let index = ones.get(at).or(twos.get(at))?.0;
    if at == 0 && index > 0 {
        // They differ at the first event kept, so probably before it too.
        return None;
    }
    let records = [ones.get(at), twos.get(at)];
    let logs = [one, two];
    let lines = [0, 1].map(|run| match records[run] {
        Some((_, record)) => logs[run].line_of(record),
        None => "the run had ended".to_owned(),
    });
    // The network carries an operation out after the turn in which a task has started it.
    let tasks = [(0, &ones), (1, &twos)].map(|(run, all)| {
        let (index, record) = records[run]?;
        let host = record.host;
        if record.kind == EventKind::Turn {
            return logs[run].ran(*index).map(str::to_owned);
        }
        let until_then = all[..=at].iter().rev().map(|(_, record)| record);
        let started = until_then
            .filter(|record| record.host == host)
            .find(|record| record.task != 0)?;
        logs[run].task(started).map(str::to_owned)
    });
    let host = records
        .iter()
        .zip(logs)
        .find_map(|(record, log)| record.map(|(_, record)| log.host_name(record.host).to_owned()));
    let before = at.checked_sub(1).map(|before| one.line_of(&ones[before].1));
    let event = Event {
        lines,
        before,
        tasks,
        host,
    };
    Some(Difference {
        index,
        event: Some(event),
        suspects: suspects(&ones[at.min(ones.len())..], &twos[at.min(twos.len())..]),
    })
}

/// The likely causes, the most likely first.
fn suspects(ones: &[(u64, Record)], twos: &[(u64, Record)]) -> Vec<&'static str> {
    let event = |record: &Record| (record.host, record.kind, record.task, record.a, record.b);
    let (Some((_, one)), Some((_, two))) = (ones.first(), twos.first()) else {
        return vec![STD_TIME, OTHER_RANDOM, FOREIGN_THREAD];
    };
    let comes_later = |record: &Record, others: &[(u64, Record)]| {
        others
            .iter()
            .take(REORDERED_WITHIN)
            .any(|(_, other)| event(other) == event(record))
    };
    if event(one) == event(two) {
        // The same at another time.
        vec![STD_TIME, OTHER_RANDOM, FOREIGN_THREAD]
    } else if comes_later(one, twos) || comes_later(two, ones) || same_shape(one, two) {
        vec![HASH_ORDER, OTHER_RANDOM, FOREIGN_THREAD, ADDRESS]
    } else {
        vec![OTHER_RANDOM, STD_TIME, HASH_ORDER, FOREIGN_THREAD, ADDRESS]
    }
}

/// Whether two events are the same act on another object, as in a loop over a map.
fn same_shape(one: &Record, two: &Record) -> bool {
    (one.host, one.kind, one.task, one.at_ns) == (two.host, two.kind, two.task, two.at_ns)
}
