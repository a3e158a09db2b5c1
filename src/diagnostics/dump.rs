//! Task dumps: every task of a loop and what it waits for.
//!
//! An operation knows its task by its key, a timer by its waker, so both are found for each task.
//! Other futures (a lock, a channel, another task) set the task's wait reason when they return `Pending`.

use std::fmt;
use std::io;
use std::panic::Location;
use std::time::Duration;

use crate::diagnostics::BackgroundTask;
use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;
use crate::event_loop::timers::Wakes;
use crate::signal::{SignalKind, signal};
use crate::sys::Fd;
use crate::task::{Builder, RawTask, TaskId};

/// Every task of a loop, and what it waits for: see [`EventLoop::dump`]. `Display` writes one line per task.
///
/// ```
/// windlass::run(async {
///     let task = windlass::task::Builder::new().name("sleeper").spawn(windlass::time::sleep(std::time::Duration::MAX));
///     windlass::task::yield_now().await;
///     let dump = windlass::dump();
///     assert_eq!(dump.tasks.len(), 2);
///     assert!(dump.to_string().contains("sleeper"));
///     task.cancel();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The tasks that have not finished, in the order in which they were spawned.
    pub tasks: Vec<TaskDump>,
}

/// One task of a [`Dump`].
///
/// ```
/// windlass::run(async {
///     let me = &windlass::dump().tasks[0];
///     assert_eq!((me.name.as_deref(), me.state), (Some("main"), windlass::TaskState::Running));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskDump {
    /// The task's id.
    pub id: TaskId,
    /// The task's name, if it has one.
    pub name: Option<String>,
    /// Where the task was spawned.
    pub spawned_at: &'static Location<'static>,
    /// Whether the task is running, ready or waiting.
    pub state: TaskState,
    /// What the task waits for, as far as known.
    pub waits_for: Vec<Waiting>,
    /// The time since the task was last polled, counted from the end of the loop's last wait before that poll, and so
    /// approximate. `None` if it was never polled.
    pub since: Option<Duration>,
}

/// The scheduling state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskState {
    /// The task is being polled.
    Running,
    /// The task is in the ready queue.
    Ready,
    /// The task waits to be woken.
    Waiting,
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// An I/O operation.
    Op {
        /// The kind of operation.
        name: &'static str,
        /// The descriptor, if there is one.
        fd: Option<Fd>,
    },
    /// A timer that fires after this time: zero if it is due, `Duration::MAX` if never.
    Timer(Duration),
    /// The end of another task.
    Task(TaskId),
    /// A call to another [shard](crate::shards).
    Call {
        /// The shard's number.
        shard: usize,
        /// How many calls are being served by the chain that this call is part of.
        hop: u8,
    },
    /// Something else, by its name: a lock, a channel.
    Other(&'static str),
}

impl LoopCore {
    pub(crate) fn dump(&self) -> Dump {
        let now = self.now();
        let (timers, tasks) = (&self.timers, &self.tasks);
        let mut dumps: Vec<TaskDump> = Vec::with_capacity(tasks.len());
        // One pass over everything that holds wakers, not one per task.
        let mut index_of = std::collections::HashMap::with_capacity(tasks.len());
        for task in tasks.iter() {
            index_of.insert(task.address(), dumps.len());
            let state = match (self.is_running(task), task.is_scheduled()) {
                (true, _) => TaskState::Running,
                (false, true) => TaskState::Ready,
                (false, false) => TaskState::Waiting,
            };
            dumps.push(TaskDump {
                id: task.id(),
                name: task.name().map(str::to_owned),
                spawned_at: task.spawned_at(),
                state,
                waits_for: task.wait_reason().into_iter().collect(),
                since: task.polled_at().map(|at| now - at),
            });
        }
        let mut add = |address: *const (), waiting: Waiting| {
            if let Some(&index) = index_of.get(&address) {
                dumps[index].waits_for.push(waiting);
            }
        };
        self.ops.for_each_waiter(|op, task, waker| {
            let address = match waker {
                Some(waker) => Some(waker.data()),
                None => self.task_of(task).map(RawTask::address),
            };
            if let Some(address) = address {
                let (name, fd) = (op.name(), op.fd());
                add(address, Waiting::Op { name, fd });
            }
        });
        for (when, wakes) in timers.iter() {
            let address = match wakes {
                Wakes::Task(key) => self.task_of(key).map(RawTask::address),
                Wakes::Waker(data) => Some(data),
                Wakes::Nothing => None,
            };
            if let Some(address) = address {
                let left = match when {
                    crate::time::Instant::NEVER => Duration::MAX,
                    when => when - now,
                };
                add(address, Waiting::Timer(left));
            }
        }
        for dump in &mut dumps {
            if dump.state != TaskState::Waiting {
                dump.waits_for.clear();
            }
        }
        dumps.sort_by_key(|dump| dump.id);
        Dump { tasks: dumps }
    }
}

impl EventLoop {
    /// A snapshot of every task: where it was spawned, and what it waits for.
    pub fn dump(&self) -> Dump {
        self.core().dump()
    }
}

/// A snapshot of every task of the current loop: see [`EventLoop::dump`].
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn dump() -> Dump {
    LoopCore::current("dump").dump()
}

/// Calls `callback` with a dump of the current loop each time a signal arrives, until the guard is dropped.
///
/// While a task blocks the loop, no dump is made; [debug mode](crate::Builder::debug) reports such a task.
///
/// ```
/// use windlass::signal::SignalKind;
/// windlass::run(async {
///     // From now on `kill -USR1` prints what every task waits for.
///     let _guard = windlass::dump_on(SignalKind::user_defined1(), |dump| eprintln!("{dump}"))?;
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Those of [`signal`](crate::signal::signal()).
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn dump_on(kind: SignalKind, mut callback: impl FnMut(&Dump) + 'static) -> io::Result<DumpGuard> {
    let mut signal = signal(kind)?;
    let task = Builder::new().name("dump on a signal").spawn(async move {
        while signal.recv().await.is_some() {
            callback(&dump());
        }
    });
    Ok(DumpGuard {
        _task: BackgroundTask(task),
    })
}

/// Stops dumps on a signal when it is dropped: see [`dump_on`].
///
/// ```
/// use windlass::signal::SignalKind;
/// windlass::run(async {
///     let guard = windlass::dump_on(SignalKind::user_defined2(), |dump| eprintln!("{dump}"))?;
///     drop(guard); // no more dumps
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard stops the dumps"]
pub struct DumpGuard {
    _task: BackgroundTask,
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.tasks.len();
        write!(f, "{count} {}", if count == 1 { "task" } else { "tasks" })?;
        for task in &self.tasks {
            write!(f, "\n  {task}")?;
        }
        Ok(())
    }
}

impl fmt::Display for TaskDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.id)?;
        if let Some(name) = &self.name {
            write!(f, " '{name}'")?;
        }
        write!(f, ", spawned at {}: ", self.spawned_at)?;
        match self.state {
            TaskState::Running => return f.write_str("running"),
            TaskState::Ready => return f.write_str("ready to run"),
            TaskState::Waiting if self.waits_for.is_empty() => f.write_str("waits")?,
            TaskState::Waiting => {
                for (index, waiting) in self.waits_for.iter().enumerate() {
                    write!(f, "{}{waiting}", if index == 0 { "waits for " } else { ", " })?;
                }
            }
        }
        match self.since {
            Some(since) => write!(f, ", for {since:.1?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Op { name, fd: Some(fd) } => write!(f, "{name} on descriptor {fd}"),
            Waiting::Op { name, fd: None } => f.write_str(name),
            Waiting::Timer(Duration::MAX) => f.write_str("a timer that never fires"),
            Waiting::Timer(left) => write!(f, "a timer in {left:.1?}"),
            Waiting::Task(id) => write!(f, "task {id}"),
            Waiting::Call { shard, hop: 0 } => write!(f, "a call to shard {shard}"),
            Waiting::Call { shard, hop } => write!(f, "a call to shard {shard}, hop {hop}"),
            Waiting::Other(name) => f.write_str(name),
        }
    }
}
