//! The key of a task: what an operation stores to wake the task that waits for it.
//!
//! A key costs nothing to store, replace and forget, where a waker is a counted reference to the task: two atomic
//! instructions per operation. It does not keep the task alive. The key of a task that has ended finds nothing, or,
//! after 2^32 spawns, a task that is then polled once for nothing.

use crate::event_loop::core::LoopCore;
use crate::task::RawTask;

/// A task's index in the loop's list, and in the lower half the lower half of its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TaskKey(u64);

impl TaskKey {
    /// No task: a loop's list has no such index.
    pub(crate) const NONE: TaskKey = TaskKey(u64::MAX);

    pub(crate) fn new(index: u32, id: u64) -> TaskKey {
        TaskKey(u64::from(index) << 32 | id & u64::from(u32::MAX))
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The lower half of the task's id.
    #[inline]
    pub(crate) fn low_id(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }
}

impl LoopCore {
    /// The task with this key, if it has not ended.
    #[inline]
    pub(crate) fn task_of(&self, key: TaskKey) -> Option<RawTask> {
        let task = self.tasks.get(key.index() as usize)?;
        (task.key() == key).then_some(task)
    }

    /// Wakes the task with this key, if it has not ended.
    #[inline]
    pub(crate) fn wake_task(&self, key: TaskKey) {
        if let Some(task) = self.task_of(key) {
            task.schedule_on(self);
        }
    }
}
