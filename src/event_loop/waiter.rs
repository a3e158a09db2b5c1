//! What is woken when an operation completes: a task of this loop by its key, or anything else by its waker.
//!
//! A key costs nothing to store, replace and forget, where a waker is a counted reference to the task: two atomic
//! instructions per operation. It does not keep the task alive. The key of a task that has ended finds nothing, or,
//! after 2^32 spawns, a task that is then polled once for nothing.

use std::task::Waker;

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::task::RawTask;

/// A task's index in the loop's list, and in the lower half the lower half of its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TaskKey(u64);

impl TaskKey {
    pub(crate) fn new(index: u32, id: u64) -> TaskKey {
        TaskKey(u64::from(index) << 32 | id & u64::from(u32::MAX))
    }
}

pub(crate) enum Waiter {
    Task(TaskKey),
    Foreign(Waker),
}

// The waker's vtable pointer is never null, which leaves room for the other variant.
const _: () = assert!(size_of::<Waiter>() == 2 * size_of::<usize>() || size_of::<usize>() < 8);

impl Waiter {
    /// Wakes nothing: a loop's list has no such index.
    pub(crate) const NONE: Waiter = Waiter::Task(TaskKey(u64::MAX));

    /// Always inlined: a call costs 14 instructions per echoed request.
    #[inline(always)]
    pub(crate) fn wake(self, core: &LoopCore) {
        match self {
            Waiter::Task(key) => {
                if let Some(task) = core.task_of(key) {
                    task.schedule_on(core);
                }
            }
            Waiter::Foreign(waker) => guard("a waker", || waker.wake()),
        }
    }
}

impl LoopCore {
    #[inline]
    pub(crate) fn task_of(&self, TaskKey(key): TaskKey) -> Option<RawTask> {
        let task = self.tasks.get((key >> 32) as usize)?;
        (task.id().0 as u32 == key as u32).then_some(task)
    }
}
