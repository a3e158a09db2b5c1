//! The ready queue: tasks and callbacks for the next turn, in FIFO order.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::event_loop::callback::Callback;
use crate::task::Runnable;

/// An entry of the ready queue.
pub(crate) enum Ready {
    Task(Runnable),
    Call(Rc<dyn Callback>),
    Remote(Box<dyn FnOnce() + Send>),
}

/// The entries are `ManuallyDrop` because an entry with a destructor must be dropped if the deque fails to grow: the
/// compiler then builds each entry on the stack and copies it, and the copy stalls on the stores just made. That was a
/// seventh of the time of a task switch.
#[derive(Default)]
pub(crate) struct ReadyQueue(VecDeque<ManuallyDrop<Ready>>);

impl ReadyQueue {
    #[inline]
    pub(crate) fn push(&mut self, ready: Ready) {
        self.0.push_back(ManuallyDrop::new(ready));
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Ready> {
        self.0.pop_front().map(ManuallyDrop::into_inner)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for ReadyQueue {
    fn drop(&mut self) {
        while let Some(ready) = self.pop() {
            drop(ready);
        }
    }
}
