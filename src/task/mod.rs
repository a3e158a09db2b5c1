//! Tasks: spawning, joining, cancelling, and waiting for several futures.
//!
//! | | |
//! |---|---|
//! | [`spawn`], [`spawn_eager`], [`Builder`] | start a task; its [`JoinHandle`] awaits or cancels it |
//! | [`JoinSet`] | any number of tasks that fail independently, such as a server's connections |
//! | [`group`](fn@group), [`TaskGroup`] | structured concurrency: children fail together and cannot outlive their block |
//! | [`join`](fn@join), [`try_join`], [`select`](fn@select), [`race`] | futures of different types, in this task; also the macros [`join!`](crate::join), [`try_join!`](crate::try_join), [`select!`](crate::select) |
//! | [`join_all`](fn@join_all), [`try_join_all`], [`race`] | any number of futures of one type, in this task |
//! | [`as_completed`], [`AsCompleted`], [`wait`](fn@wait) | outputs in order of completion, futures added at any time; wait for some and keep the other futures |
//! | [`gather`](fn@gather) | one task per future, asyncio's error rules |
//! | [`shield`](fn@shield), [`CancelToken`], [`on_cancel`] | limit, signal, and clean up after cancellation |
//! | [`TaskLocal`] | values that a task inherits from its parent |
//!
//! A task stays on its loop's thread, so its future need not be `Send`. Cancelling a task drops its future at the next
//! suspension point; its handle resolves once every operation that the task had in the kernel has completed.
//!
//! ```
//! use windlass::{spawn, task};
//! windlass::run(async {
//!     let double = spawn(async { 21 * 2 });
//!     let (a, b) = task::join((async { 1 }, async { 2 })).await;
//!     assert_eq!(double.await.unwrap() + a + b, 45);
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod builder;
mod cancel;
mod child_set;
mod cleanup;
mod future_set;
mod gather;
mod group;
mod join;
mod join_all;
mod join_set;
mod local;
mod memory;
mod output;
pub(crate) mod promise;
mod raw;
mod result_slot;
mod select_arms;
mod shield;
mod tuple;
mod unread;
mod wait;
mod yield_now;

use std::fmt;

pub use builder::{Builder, spawn, spawn_eager};
pub use cancel::{CancelToken, Cancelled, DropGuard};
pub(crate) use child_set::{DropScope, KeptLeftovers, Leftovers};
pub(crate) use cleanup::Cleanups;
pub use cleanup::{OnCancel, on_cancel};
pub use gather::{Gather, TaskError, gather};
pub use group::{GroupHandle, TaskGroup, group};
pub use join::{AbortHandle, JoinError, JoinHandle};
#[doc(hidden)]
pub use join_all::Iterated;
pub use join_all::{AsCompleted, JoinAll, Race, Racers, TryJoinAll, as_completed, join_all, race, try_join_all};
pub use join_set::JoinSet;
pub(crate) use local::Locals;
pub use local::{Scope, TaskLocal};
pub(crate) use memory::TaskMemory;
pub use output::{Failure, GroupError, GroupOutput, TaskOutput, Value};
#[doc(hidden)]
pub use output::{LocalError, SendError};
pub(crate) use raw::{Owner, RawTask, RemoteWake, Runnable, WaitName, WaitReason, create, spawn_on, spawn_unchecked};
pub(crate) use result_slot::{ResultSlot, Unclaimed};
#[doc(hidden)]
pub use select_arms::{Choice, NoArm, select_arms};
pub use shield::{CancelOnDrop, Shield, shield};
#[doc(hidden)]
pub use tuple::Tuple;
pub use tuple::{Either, Join, JoinTuple, RaceOf, RaceTuple, TryJoin, TryJoinTuple, join, select, try_join};
pub(crate) use unread::{UnreadCounts, report_totals};
pub use wait::{Wait, WaitFor, Waited, wait, wait_until};
pub use yield_now::{YieldNow, yield_now};

use crate::event_loop::core::LoopCore;

/// Identifies a task within its loop.
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

/// The id of the running task; `None` in a callback or outside of a loop.
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
    LoopCore::running_task().map(RawTask::id)
}

/// Records, for dumps, what the current task waits for. Called before returning `Pending`.
#[inline]
pub(crate) fn set_wait_reason(reason: WaitReason) {
    if let Some(task) = LoopCore::running_task() {
        task.set_wait_reason(reason);
    }
}
