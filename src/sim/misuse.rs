//! Finds programs that leave the simulation: blocking calls, real files, threads of their own.
//!
//! A simulation's thread never waits in the kernel, so a voluntary context switch during a run means that the program has
//! made a blocking call: `std::thread::sleep`, a lock that another thread holds, real I/O. The count does not depend on the
//! load of the machine, which causes involuntary switches only. It costs two system calls per run. The second run of a
//! checked seed then finds the task, by counting around each entry that a loop runs.
//!
//! What is found must not change a run: it is no event of the log.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::sys;

/// Shorter blocking is not reported: a short wait for the allocator's lock, a page fault.
const LEAST: Duration = Duration::from_millis(5);

thread_local! {
    static BLOCKED: RefCell<Vec<Blocked>> = const { RefCell::new(Vec::new()) };
    /// What has run in this turn.
    static RAN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// An entry of a loop that has blocked, with all its later polls.
struct Blocked {
    entry: String,
    time: Duration,
    polls: u32,
}

/// Runs an entry of a loop, and records it and how long it blocks.
pub(crate) fn watch(entry: String, run: impl FnOnce()) {
    RAN.with_borrow_mut(|ran| ran.push(entry.clone()));
    let (switches, began) = (sys::voluntary_switches(), Instant::now());
    run();
    let (took, has_blocked) = (began.elapsed(), sys::voluntary_switches() != switches);
    if !has_blocked || took < LEAST {
        return;
    }
    BLOCKED.with_borrow_mut(
        |blocked| match blocked.iter_mut().find(|blocked| blocked.entry == entry) {
            Some(blocked) => {
                blocked.time += took;
                blocked.polls += 1;
            }
            None => blocked.push(Blocked {
                entry,
                time: took,
                polls: 1,
            }),
        },
    );
}

/// What has run since the last call: in one turn of a loop.
pub(super) fn take_ran() -> String {
    let mut ran = RAN.take();
    ran.dedup();
    ran.iter()
        .map(|entry| entry.trim_end_matches(','))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Warnings about the entries that have blocked since the last call.
pub(super) fn take_blocked() -> Vec<String> {
    let blocked = BLOCKED.take();
    blocked.iter().map(describe).collect()
}

fn describe(blocked: &Blocked) -> String {
    let Blocked { entry, time, polls } = blocked;
    let mut text = format!(
        "{} blocked the simulation for {time:.0?} of real time",
        entry.trim_end_matches(',')
    );
    if *polls > 1 {
        let _ = write!(text, " in {polls} polls");
    }
    text + ": use `windlass::time::sleep` instead of `std::thread::sleep`, `windlass::sync` instead of locks and channels \
            that block, and `windlass::fs` and `windlass::net` instead of blocking I/O"
}

/// The hint for a path that a host's disk does not have, if this machine has it.
pub(super) fn missing_file(host: &str, path: &std::path::Path) -> Option<String> {
    std::fs::symlink_metadata(path).ok()?;
    let path = path.display();
    Some(format!(
        "{host} did not find {path} on its simulated disk, although this machine has it: \
         write it there first, with `sim.disk(\"{host}\").write(\"{path}\", ...)`"
    ))
}

/// The hint for the error of a missing file that no simulated disk has reported.
pub(super) const FOREIGN_FILE: &str = "no simulated disk has reported this error: `std::fs` looks for files on this machine, and `windlass::fs` on the host's disk";

/// The hint of every deadlock.
pub(super) const DEADLOCK: &str = "a task may wait for something that the simulation does not see: a thread of `std::thread` \
                                   (use `windlass::spawn_blocking`), or a signal or a child process of this machine";

/// The warning about a file that was opened by `std::fs`.
pub(super) fn real_file(task: Option<String>) -> String {
    let task = task.unwrap_or_else(|| "a callback".to_owned());
    format!(
        "{} uses a file of this machine, which no fault or power loss reaches: open it with `windlass::fs`",
        task.trim_end_matches(',')
    )
}

/// The failure of a run in which a thread of the program's own has woken a loop.
pub(super) fn foreign_thread(name: &str) -> String {
    format!(
        "the thread '{name}' woke a loop of the simulation, which cannot order it: use `windlass::spawn_blocking`, or a host \
         of its own"
    )
}
