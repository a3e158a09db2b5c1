//! The list of a loop's tasks that have not ended: stable indices, recycled.
//!
//! A leaf container: it is changed through `&self` without a borrow flag, because it consists of arrays that call no
//! other code (see `copy_vec`) and copies tasks out.

use crate::copy_vec::CopyVec;
use crate::task::RawTask;

#[derive(Default)]
pub(crate) struct TaskList {
    tasks: CopyVec<Option<RawTask>>,
    /// The unused indices.
    free: CopyVec<u32>,
}

impl TaskList {
    /// How many tasks there are.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<RawTask> {
        self.tasks.get(index).flatten()
    }

    /// Every task, in the order of their indices. Tasks may be added and removed meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RawTask> {
        (0..).map_while(|index| self.tasks.get(index)).flatten()
    }

    #[inline]
    pub(crate) fn insert(&self, task: RawTask) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.tasks.replace(index as usize, Some(task));
                index
            }
            None => {
                let index = u32::try_from(self.tasks.len()).expect("a loop holds at most 2^32 tasks");
                self.tasks.push(Some(task));
                index
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&self, index: u32) -> Option<RawTask> {
        let removed = self.tasks.replace(index as usize, None);
        if removed.is_some() {
            self.free.push(index);
        }
        removed
    }
}
