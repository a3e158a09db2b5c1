//! A snapshot of a loop for the console: made on the loop's thread, evaluated on the console's.
//!
//! The loop only copies. Which task waits for which operation or timer is found by addresses, on the console's thread.

use std::panic::Location;
use std::time::{Duration, Instant as StdInstant};

use super::page::{LoopPage, add};
use crate::diagnostics::dump::{TaskState, Waiting};
use crate::diagnostics::metrics::Metrics;
use crate::event_loop::core::LoopCore;
use crate::event_loop::timers::Wakes;
use crate::sys::Fd;
use crate::task::RawTask;
use crate::time::Instant;

/// A snapshot contains at most this number of tasks, of operations and of timers. It bounds memory and the pause of the loop.
const MAX: usize = 100_000;

pub(crate) struct Snapshot {
    pub(crate) taken: StdInstant,
    /// The loop's time.
    pub(crate) now: Instant,
    pub(crate) metrics: Metrics,
    /// [`LoopPage::activity`] after the call that made the snapshot.
    pub(crate) activity: u64,
    pub(crate) tasks: Vec<TaskRecord>,
    /// The operations in flight, and the address of the task that waits for each.
    pub(crate) ops: Vec<(&'static str, Option<Fd>, usize)>,
    /// The deadlines of timers, and the address of the task that waits for each. Unsorted.
    pub(crate) timers: Vec<(Instant, usize)>,
}

pub(crate) struct TaskRecord {
    /// The address that identifies its wakers. Only compared.
    pub(crate) address: usize,
    pub(crate) id: u64,
    pub(crate) name: Option<Box<str>>,
    pub(crate) at: &'static Location<'static>,
    pub(crate) state: TaskState,
    pub(crate) reason: Option<Waiting>,
    /// The time since the last poll.
    pub(crate) since: Option<Duration>,
    pub(crate) polls: u64,
    /// In ticks.
    pub(crate) busy: u64,
    /// In ticks.
    pub(crate) longest: u64,
    pub(crate) parent: Option<u64>,
}

impl Snapshot {
    /// A snapshot of the loop that this thread is running, whose page this is. `None` if it is another loop.
    pub(crate) fn of_current(page: &LoopPage) -> Option<Snapshot> {
        let core = LoopCore::try_current()?;
        let own = core.probe.page.as_deref()?;
        std::ptr::eq(own, page).then(|| core.snapshot(page))
    }
}

impl LoopCore {
    fn snapshot(&self, page: &LoopPage) -> Snapshot {
        add(&page.snapshots, 1);
        let now = self.now();
        let mut tasks = Vec::with_capacity(self.tasks.len().min(MAX));
        tasks.extend(self.tasks.iter().take(MAX).map(|task| self.record(task, now)));
        let mut ops = Vec::new();
        self.ops.for_each_waiter(|op, key, waker| {
            let address = match waker {
                Some(waker) => waker.data(),
                None => self.task_of(key).map_or(std::ptr::null(), RawTask::address),
            };
            if ops.len() < MAX {
                ops.push((op.name(), op.fd(), address as usize));
            }
        });
        let timers = self.timers.iter().take(MAX).map(|(when, wakes)| match wakes {
            Wakes::Task(key) => (when, self.task_of(key).map_or(0, |task| task.address() as usize)),
            Wakes::Waker(data) => (when, data as usize),
            Wakes::Nothing => (when, 0),
        });
        Snapshot {
            taken: StdInstant::now(),
            now,
            // This entry is counted at the end of the turn.
            activity: page.activity().wrapping_add(1),
            tasks,
            ops,
            timers: timers.collect(),
            metrics: self.metrics(),
        }
    }

    fn record(&self, task: RawTask, now: Instant) -> TaskRecord {
        let probe = task.probe();
        TaskRecord {
            address: task.address() as usize,
            id: task.id().0,
            name: task.name().map(Into::into),
            at: task.spawned_at(),
            state: match (self.is_running(task), task.is_scheduled()) {
                (true, _) => TaskState::Running,
                (false, true) => TaskState::Ready,
                (false, false) => TaskState::Waiting,
            },
            reason: task.wait_reason(),
            since: task.polled_at().map(|at| now - at),
            polls: probe.polls.get(),
            busy: probe.busy.get(),
            longest: probe.longest.get(),
            parent: task.group_creator().or(probe.spawned_by).map(|id| id.0),
        }
    }
}
