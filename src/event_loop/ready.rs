//! The ready deque: what runs in the next turn, in the order in which it became ready.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::event_loop::callback::Callback;
use crate::task::Runnable;

/// What runs in a turn.
pub(crate) enum Ready {
    Task(Runnable),
    Call(Rc<dyn Callback>),
    Remote(Box<dyn FnOnce() + Send>),
}

/// The entries are wrapped so that none has a destructor to be run if the deque could not grow: with one, the compiler builds
/// each on the stack and copies it, and the copy waits for what was just written. That was a seventh of a task's switch.
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
