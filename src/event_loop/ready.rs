//! The ready queue: tasks and callbacks for the next turn, in FIFO order.
//!
//! A leaf container: it is changed through `&self` without a borrow flag. It is not `Sync`, no method returns a reference
//! to an entry, and while a method uses the deque it calls no other code: entries are moved in and out and never dropped
//! inside, and `grow` calls the allocator only before and after it touches the deque.

use std::cell::UnsafeCell;
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
pub(crate) struct ReadyQueue(UnsafeCell<VecDeque<ManuallyDrop<Ready>>>);

impl ReadyQueue {
    #[inline]
    pub(crate) fn push(&self, ready: Ready) {
        // SAFETY: see the module; this reads two numbers.
        let is_full = unsafe { (*self.0.get()).len() == (*self.0.get()).capacity() };
        if is_full {
            self.grow();
        }
        // SAFETY: see the module; there is room, so this does not allocate.
        unsafe { (*self.0.get()).push_back(ManuallyDrop::new(ready)) };
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Ready> {
        // SAFETY: see the module.
        unsafe { (*self.0.get()).pop_front() }.map(ManuallyDrop::into_inner)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        // SAFETY: see the module.
        unsafe { (*self.0.get()).len() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for at least one more entry.
    #[cold]
    fn grow(&self) {
        let mut larger = VecDeque::with_capacity((2 * self.len()).max(64));
        // SAFETY: see the module. An allocator that schedules something is absurd; if it does, its entries are moved too.
        let old = unsafe {
            larger.append(&mut *self.0.get());
            std::mem::replace(&mut *self.0.get(), larger)
        };
        drop(old);
    }
}

impl Drop for ReadyQueue {
    fn drop(&mut self) {
        while let Some(ready) = self.pop() {
            drop(ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_while_the_queue_grows_and_are_dropped_with_it() {
        let dropped = Rc::new(std::cell::Cell::new(0));
        struct Count(Rc<std::cell::Cell<u32>>);
        // SAFETY: the test uses one thread.
        unsafe impl Send for Count {}
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        struct Shared(Rc<std::cell::RefCell<Vec<u32>>>);
        // SAFETY: as above.
        unsafe impl Send for Shared {}
        let queue = ReadyQueue::default();
        for number in 0..1_000 {
            let (count, shared) = (Count(dropped.clone()), Shared(order.clone()));
            queue.push(Ready::Remote(Box::new(move || {
                let (_count, shared) = (count, shared);
                shared.0.borrow_mut().push(number);
            })));
        }
        for _ in 0..500 {
            match queue.pop() {
                Some(Ready::Remote(call)) => call(),
                _ => panic!("a remote call was pushed"),
            }
        }
        assert_eq!(*order.borrow(), (0..500).collect::<Vec<_>>());
        assert_eq!((queue.len(), dropped.get()), (500, 500));
        drop(queue);
        assert_eq!(dropped.get(), 1_000);
    }
}
