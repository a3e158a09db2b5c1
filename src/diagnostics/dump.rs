//! What every task waits for.
//!
//! Nothing is recorded for this: a waker knows its task, so whoever holds a waker (a flight, a timer) is found by looking
//! through them. What else a task waits for (a lock, a queue, another task) says so itself when it returns `Pending`.

use std::fmt;
use std::io;
use std::panic::Location;
use std::time::Duration;

use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;
use crate::event_loop::timers::Action;
use crate::signal::{SignalKind, signal};
use crate::sys::Fd;
use crate::task::{Builder, JoinHandle, TaskId};

/// Every task of a loop, and what it waits for: see [`EventLoop::dump`]. Its `Display` is a table.
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
    /// The tasks that are not done, in the order in which they were spawned.
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
    /// Its number.
    pub id: TaskId,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// Where it was spawned.
    pub spawned_at: &'static Location<'static>,
    /// What it is doing.
    pub state: TaskState,
    /// What it waits for, as far as is known.
    pub waits_for: Vec<Waiting>,
    /// How long ago it was last polled, about: counted from when the loop last slept before that. `None` if it never was.
    pub since: Option<Duration>,
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It is being polled right now.
    Running,
    /// It will be polled in the next turn.
    Ready,
    /// It waits to be woken.
    Waiting,
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// An operation.
    Op {
        /// Its kind.
        name: &'static str,
        /// Its descriptor, if it has one.
        fd: Option<Fd>,
    },
    /// A timer that is due after this time; zero if it is due now, `Duration::MAX` if never.
    Timer(Duration),
    /// Another task's end.
    Task(TaskId),
    /// Something else within the program, by its name: a lock, a queue.
    Other(&'static str),
}

impl LoopCore {
    pub(crate) fn dump(&self) -> Dump {
        let now = self.now();
        let (ops, timers, tasks) = (self.ops.borrow(), self.timers.borrow(), self.tasks.borrow());
        let mut dumps: Vec<TaskDump> = Vec::with_capacity(tasks.len());
        // One look through everything that holds wakers, not one per task.
        let mut fds = std::collections::HashMap::with_capacity(tasks.len());
        for (_, task) in tasks.iter() {
            fds.insert(task.address(), dumps.len());
            let state = match task {
                task if self.is_running(*task) => TaskState::Running,
                task if task.is_scheduled() => TaskState::Ready,
                _ => TaskState::Waiting,
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
        let mut note = |waker: &std::task::Waker, what: Waiting| {
            if let Some(&place) = fds.get(&waker.data()) {
                dumps[place].waits_for.push(what);
            }
        };
        for (op, waker) in ops.waiting() {
            if let Some(waker) = waker {
                let (name, fd) = (op.name(), op.fd());
                note(waker, Waiting::Op { name, fd });
            }
        }
        for (when, action) in timers.iter() {
            if let Action::Wake(waker) = action {
                let left = match when {
                    crate::time::Instant::NEVER => Duration::MAX,
                    when => when - now,
                };
                note(waker, Waiting::Timer(left));
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
    /// Every task, where it was spawned, and what it waits for.
    pub fn dump(&self) -> Dump {
        self.core().dump()
    }
}

/// Every task of the current loop: [`EventLoop::dump`].
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn dump() -> Dump {
    LoopCore::current("dump").dump()
}

/// Gives a dump of the current loop to `tell` each time a signal comes, until the guard is dropped.
///
/// A loop that is stuck in one task hears no signal either: [debug mode](crate::Builder::debug) tells of that.
///
/// ```
/// use windlass::signal::SignalKind;
/// windlass::run(async {
///     // From now on `kill -USR1` shows what every task waits for.
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
pub fn dump_on(kind: SignalKind, mut tell: impl FnMut(&Dump) + 'static) -> io::Result<DumpGuard> {
    let mut signal = signal(kind)?;
    let task = Builder::new().name("dump on a signal").spawn(async move {
        while signal.recv().await.is_some() {
            tell(&dump());
        }
    });
    Ok(DumpGuard { task })
}

/// For as long as it is kept, a signal gives dumps: see [`dump_on`].
///
/// ```
/// use windlass::signal::SignalKind;
/// windlass::run(async {
///     let guard = windlass::dump_on(SignalKind::user_defined2(), |dump| eprintln!("{dump}"))?;
///     drop(guard); // and no more
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a signal gives dumps only while the guard is kept"]
pub struct DumpGuard {
    task: JoinHandle<()>,
}

impl Drop for DumpGuard {
    fn drop(&mut self) {
        self.task.cancel();
    }
}

impl fmt::Debug for DumpGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DumpGuard").field("task", &self.task.id()).finish()
    }
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
                for (index, what) in self.waits_for.iter().enumerate() {
                    write!(f, "{}{what}", if index == 0 { "waits for " } else { ", " })?;
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
            Waiting::Timer(Duration::MAX) => f.write_str("a timer that never comes"),
            Waiting::Timer(left) => write!(f, "a timer in {left:.1?}"),
            Waiting::Task(id) => write!(f, "task {id}"),
            Waiting::Other(name) => f.write_str(name),
        }
    }
}
