//! What the console measures on a loop's thread, while a console runs: polls, turns, and the latency from wake to poll.
//!
//! The choice is made once per turn: without a console, [`LoopCore::run_batch`] tests one flag. With one, the batch runs here,
//! and reads a clock once per entry: the end of an entry is the beginning of the next.
//!
//! **Wake-to-poll latency** needs no time stamp in each task. The ready queue is FIFO, and the batch is fixed before it runs. So
//! it is enough to note how many entries each poll has pushed, and when that poll began: the next batch consists of these
//! entries in this order, followed by those that completions and timers have pushed after the wait.
//!
//! Without the feature `console`, `no_probe.rs` has the same items and no code.

mod page;
mod registry;
mod snapshot;
mod ticks;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use self::page::add;
pub(crate) use self::page::{Entry, EntryKind, Histogram, LongTurn, LoopPage};
pub(crate) use self::registry::{enable, hide_this_thread, is_hidden_thread, loops};
pub(crate) use self::snapshot::{Snapshot, TaskRecord};
pub(crate) use self::ticks::{BIN, BOUNDS_US, Scale, now as ticks};
use crate::blocking::Pool;
use crate::driver::Driver;
use crate::error::forked_error;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::handle::LoopHandle;
use crate::event_loop::inbox::Inbox;
use crate::event_loop::ready::Ready;
use crate::task::{RawTask, TaskId};

/// The loop's part.
pub(crate) struct Probe {
    /// `None` for a loop that is not shown: the console's own, and loops on a virtual clock.
    page: Option<Arc<LoopPage>>,
    wakes: Cell<Wakes>,
}

/// When the entries of the ready queue were pushed.
#[derive(Default)]
struct Wakes {
    /// The turn whose entries have pushed them.
    turn: u64,
    /// A number of entries and a time, in the order of the queue.
    runs: VecDeque<(usize, u64)>,
}

impl Wakes {
    /// When the next entry was pushed; `None` if it was not by an entry of the last turn, which has pushed `left`.
    #[inline]
    fn next(&mut self, left: &mut usize) -> Option<u64> {
        // The entries after these are pushed by this turn.
        *left = left.checked_sub(1)?;
        let (count, time) = self.runs.front_mut()?;
        let time = *time;
        *count -= 1;
        if *count == 0 {
            self.runs.pop_front();
        }
        Some(time)
    }
}

impl Probe {
    pub(crate) fn new(driver: &dyn Driver, inbox: &Arc<Inbox<RemoteEvent>>, pools: [&Pool; 2]) -> Probe {
        // A simulated loop must get no message from a real thread.
        let page = (!driver.has_virtual_clock()).then(|| {
            let handle = LoopHandle { inbox: inbox.clone() };
            registry::add(driver.describe(), handle, pools.map(Pool::observer))
        });
        Probe {
            page: page.flatten(),
            wakes: Cell::default(),
        }
    }

    /// Whether a console runs.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        registry::is_on()
    }

    pub(crate) fn set_shard(&self, index: usize, name: &str) {
        if let Some(page) = &self.page {
            // Not set before.
            let _ = page.shard.set((index, name.to_owned()));
        }
    }

    pub(crate) fn loop_closed(&self) {
        if let Some(page) = &self.page {
            registry::remove(page);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.loop_closed();
    }
}

/// The task's part. Loop's thread only.
pub(crate) struct TaskProbe {
    spawned_by: Option<TaskId>,
    polls: Cell<u64>,
    busy: Cell<u64>,
    longest: Cell<u64>,
}

impl TaskProbe {
    #[inline]
    pub(crate) fn new(core: &LoopCore) -> TaskProbe {
        TaskProbe {
            spawned_by: core.current_task().map(RawTask::id),
            polls: Cell::new(0),
            busy: Cell::new(0),
            longest: Cell::new(0),
        }
    }

    /// Counts a poll inside of another task's. Its time counts as the other task's.
    #[inline]
    pub(crate) fn count_nested_poll(&self, core: &LoopCore) {
        if core.probe.is_on() {
            self.polls.set(self.polls.get() + 1);
        }
    }

    #[inline]
    fn add(&self, took: u64) {
        self.busy.set(self.busy.get() + took);
        self.longest.set(self.longest.get().max(took));
    }
}

/// The task that created a child set: the parent of its members. By default the current one.
#[derive(Clone, Copy)]
pub(crate) struct Creator(pub(crate) Option<TaskId>);

impl Default for Creator {
    #[inline]
    fn default() -> Creator {
        Creator(LoopCore::running_task().map(RawTask::id))
    }
}

impl LoopCore {
    /// As `run_batch`, with measurements.
    #[inline(never)]
    pub(crate) fn run_batch_probed(&self, batch: usize) -> io::Result<()> {
        match (&self.probe.page, Scale::get()) {
            (Some(page), Some(scale)) if batch > 0 => self.run_measured(batch, page, scale)?,
            _ => {
                for _ in 0..batch {
                    self.run_next()?;
                }
            }
        }
        self.end_batch(batch);
        Ok(())
    }

    /// Runs the next entry.
    fn run_next(&self) -> io::Result<()> {
        match self.ready.pop() {
            Some(next) => self.run_entry(next),
            None => Ok(()),
        }
    }

    #[inline]
    fn run_entry(&self, next: Ready) -> io::Result<()> {
        match self.slow {
            None => self.run_one(next),
            Some(limit) => self.run_timed(next, limit),
        }
        match self.is_forked() {
            true => Err(forked_error()),
            false => Ok(()),
        }
    }

    fn run_measured(&self, batch: usize, page: &LoopPage, scale: &Scale) -> io::Result<()> {
        let turn = self.counters.turns.get();
        let mut wakes = self.probe.wakes.take();
        if wakes.turn + 1 != turn {
            // Measured before the last console ended.
            wakes.runs.clear();
        }
        wakes.turn = turn;
        let mut left = wakes.runs.iter().map(|&(count, _)| count).sum::<usize>();
        debug_assert!(left <= batch);
        let limit = registry::stall_limit();
        let (mut polls, mut culprit) = (0, None);
        let began = ticks();
        let mut last = began;
        page.turns.store(page.turns.load(Relaxed) + 1, Relaxed);
        page.turn_began.store(began, Release);
        for _ in 0..batch {
            let Some(next) = self.ready.pop() else { break };
            let key = match &next {
                Ready::Task(runnable) => {
                    let task = runnable.task();
                    task.probe().polls.set(task.probe().polls.get() + 1);
                    page.publish(EntryKind::Task, task.id().0, Some(task.spawned_at()), task.name(), last);
                    polls += 1;
                    let woken = wakes.next(&mut left).unwrap_or(began);
                    page.wake_times.add(last.saturating_sub(woken), scale);
                    Some(task.key())
                }
                Ready::Call(callback) => {
                    page.publish(EntryKind::Callback, 0, Some(callback.location()), None, last);
                    wakes.next(&mut left);
                    None
                }
                Ready::Remote(_) => {
                    page.publish(EntryKind::Remote, 0, None, None, last);
                    wakes.next(&mut left);
                    None
                }
            };
            let queued = self.ready.len();
            self.run_entry(next)?;
            let now = ticks();
            let took = now.saturating_sub(last);
            // The task may have ended, and its memory be freed: only the list knows.
            if let Some(task) = key.and_then(|key| self.task_of(key)) {
                task.probe().add(took);
            }
            let pushed = self.ready.len().saturating_sub(queued);
            if pushed > 0 {
                wakes.runs.push_back((pushed, last));
            }
            if took > limit / 2 {
                culprit = self.longer(culprit, page, took);
            }
            last = now;
        }
        let took = last.saturating_sub(began);
        page.turn_times.add(took, scale);
        page.timeline.add(last, took, scale);
        add(&page.entries, batch as u64);
        add(&page.polls, polls);
        if took > limit {
            page.add_long_turn(LongTurn {
                turn: page.turns.load(Relaxed),
                began,
                ended: last,
                entries: batch,
                culprit: culprit.map(|(_, entry)| entry),
            });
        }
        page.turn_began.store(0, Release);
        self.probe.wakes.set(wakes);
        Ok(())
    }

    /// The longer one of the turn's long entries: the one so far, and the one that has just run, which is still published.
    #[cold]
    fn longer(&self, culprit: Option<(u64, Entry)>, page: &LoopPage, took: u64) -> Option<(u64, Entry)> {
        if culprit.as_ref().is_some_and(|&(longest, _)| longest >= took) {
            return culprit;
        }
        Some((took, page.current_entry()?))
    }
}
