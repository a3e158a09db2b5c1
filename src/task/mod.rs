//! Tasks: futures that the loop runs, each in one allocation made by hand.
//!
//! ```text
//!   letterbox -----(MAILED)----+
//!   the loop's list --(1 ref)--+--> Header { state, vtable, loop's letterbox, join waker, ... } | the future or its output
//!   JoinHandle -----(1 ref)----+
//!   each Waker -----(1 ref)----+
//! ```
//!
//! A task lives on its loop's thread: there it is polled, cancelled and joined, and there its future and output are
//! dropped. Only wakers travel. So of all its fields only `state` is atomic, and it carries just what wakers need:
//!
//! - `QUEUED_REMOTE`: the task is in the letterbox, on its way to the ready deque. Set by the waker that puts it there, on another
//!   thread or while the loop does not run; while it is set every further such wake is a no-op. Cleared by the loop when it has made the task ready, before
//!   it polls, so a wake during the poll schedules the next one. It counts as a reference.
//! - `DONE`: the future is gone and will never be polled again. Set once, on the loop's thread, when the task finishes, is
//!   cancelled, or its loop closes. A wake of a done task does nothing.
//! - the rest counts references: the loop's list (until `DONE`), the join handle, each waker, each orphan, the crew.
//!
//! Inside of the loop, where most wakes happen, none of this is needed to schedule a task: `is_ready` tells whether it is in the
//! ready deque, which is why any number of wakes there before a poll is one poll. The deque needs no reference of its own, since the
//! list has one; from a task that is done while it is there it inherits the list's.
//!
//! The memory is freed by whoever clears the last of these, on whatever thread: by then the future and the output, which
//! may not leave the loop's thread, are gone. They go at the latest with the join handle, which is not `Send`.

mod builder;
mod cancel;
mod child_set;
mod cleanup;
mod future_set;
mod gather;
mod group;
mod join;
mod join_all;
mod local;
mod outcome;
pub(crate) mod promise;
mod raw;
mod shield;
mod tuple;
mod wait;
mod yield_now;

use std::fmt;

pub use builder::{Builder, spawn, spawn_eager};
pub use cancel::{CancelToken, Cancelled, DropGuard};
pub(crate) use cleanup::Cleanups;
pub use cleanup::{OnCancel, on_cancel};
pub use gather::{Gather, TaskError, gather};
pub use group::{GroupHandle, TaskGroup, group};
pub use join::{JoinError, JoinHandle};
pub use join_all::{AsCompleted, JoinAll, Race, TryJoinAll, as_completed, join_all, race, try_join_all};
pub(crate) use local::Locals;
pub use local::{Scope, TaskLocal};
pub use outcome::{Failure, GroupError, Outcome, Value};
pub(crate) use raw::{Owner, RawTask, Reason, RemoteWake, Runnable, spawn_unchecked};
pub use shield::{CancelOnDrop, Shield, shield};
pub use tuple::{Either, Join, JoinTuple, TryJoin, TryJoinTuple, join, select, try_join};
pub use wait::{Wait, WaitFor, Waited, wait, wait_until};
pub use yield_now::{YieldNow, yield_now};

use crate::event_loop::core::LoopCore;

/// A task's number, unique within its loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({})", self.0)
    }
}

/// The id of the task that is running now; `None` in a plain callback or outside of a loop.
///
/// ```
/// windlass::run(async {
///     let task = windlass::spawn(async { windlass::task::current_id() });
///     let id = task.id();
///     assert_eq!(task.await.unwrap(), Some(id));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn current_id() -> Option<TaskId> {
    LoopCore::try_current()
        .and_then(|core| core.current_task())
        .map(|task| task.id())
}

/// Says what the current task waits for, for dumps, if it returns `Pending` now.
#[inline]
pub(crate) fn waits_for(reason: Reason) {
    if let Some(task) = LoopCore::try_current().and_then(|core| core.current_task()) {
        task.set_waits_for(reason);
    }
}
