//! The ready queue: tasks and callbacks for the next turn, in FIFO order.
//!
//! Nearly every entry is a task, so the queue is a ring of task pointers, eight bytes each. A null pointer stands for a
//! callback: the next one of a second ring. Both rings are FIFO, so the order is kept.
//!
//! A leaf container: it is changed through `&self` without a borrow flag. It is not `Sync`, no method returns a reference
//! to an entry, and while a method uses a ring it calls no other code: entries are moved in and out and never dropped
//! inside, and `grow` calls the allocator only before and after it touches the ring.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::rc::Rc;

use crate::event_loop::callback::Callback;
use crate::task::{RawTask, Runnable};

/// An entry of the ready queue.
pub(crate) enum Ready {
    Task(Runnable),
    Call(Rc<dyn Callback>),
    Remote(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
pub(crate) struct ReadyQueue {
    /// The entries; `None` for a callback. Each task counts as queued: it is the pointer of a `Runnable`.
    entries: Ring<Option<RawTask>>,
    /// The callbacks: entries without a task.
    calls: Ring<Ready>,
}

impl ReadyQueue {
    #[inline]
    pub(crate) fn push_task(&self, runnable: Runnable) {
        self.entries.push(Some(runnable.into_raw()));
    }

    pub(crate) fn push_callback(&self, callback: Rc<dyn Callback>) {
        self.calls.push(Ready::Call(callback));
        self.entries.push(None);
    }

    pub(crate) fn push_remote(&self, call: Box<dyn FnOnce() + Send>) {
        self.calls.push(Ready::Remote(call));
        self.entries.push(None);
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Ready> {
        match self.entries.pop()? {
            // Each task pointer came from a `Runnable`, and is taken out once.
            Some(task) => Some(Ready::Task(Runnable::from_raw(task))),
            None => self.calls.pop(),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len.get()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for ReadyQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// A ring that grows. Its owner empties it before it is dropped.
struct Ring<T> {
    /// A power of two of places. Those from `head` on, `len` of them, hold entries.
    places: UnsafeCell<Box<[MaybeUninit<T>]>>,
    head: Cell<usize>,
    len: Cell<usize>,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring {
            places: UnsafeCell::default(),
            head: Cell::new(0),
            len: Cell::new(0),
        }
    }
}

impl<T> Ring<T> {
    #[inline]
    fn push(&self, entry: T) {
        let len = self.len.get();
        if len == self.capacity() {
            self.grow();
        }
        let at = self.place(self.head.get() + len);
        // SAFETY: see the module. The place is in the ring and holds no entry.
        unsafe { at.write(entry) };
        self.len.set(len + 1);
    }

    #[inline]
    fn pop(&self) -> Option<T> {
        let (head, len) = (self.head.get(), self.len.get());
        if len == 0 {
            return None;
        }
        self.head.set((head + 1) & (self.capacity() - 1));
        self.len.set(len - 1);
        // SAFETY: see the module. The place holds an entry, which is moved out, and no longer counts as one that does.
        Some(unsafe { self.place(head).read() })
    }

    #[inline]
    fn capacity(&self) -> usize {
        // SAFETY: see the module.
        unsafe { (&*self.places.get()).len() }
    }

    /// The place of the entry with this number. There is at least one.
    #[inline]
    fn place(&self, number: usize) -> *mut T {
        let at = number & (self.capacity() - 1);
        // SAFETY: see the module; the capacity is a power of two, so `at` is below it.
        unsafe { (&mut *self.places.get()).as_mut_ptr().add(at).cast() }
    }

    /// Doubles the ring.
    #[cold]
    #[inline(never)]
    fn grow(&self) {
        let mut larger = Box::new_uninit_slice((2 * self.capacity()).max(64));
        // An allocator that schedules something is absurd; if it does, its entries are in the ring and are moved too.
        let len = self.len.get();
        assert!(len < larger.len());
        for number in 0..len {
            let from = self.place(self.head.get() + number);
            // SAFETY: see the module. The place holds an entry, which moves to the new ring.
            larger[number].write(unsafe { from.read() });
        }
        self.head.set(0);
        // SAFETY: see the module. The old ring holds no entries any more; it is dropped after the exchange.
        let old = unsafe { std::mem::replace(&mut *self.places.get(), larger) };
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn entries_come_out_in_order_while_the_queue_grows_and_are_dropped_with_it() {
        // Each call holds a reference to this.
        let order = Arc::new(Mutex::new(Vec::new()));
        let queue = ReadyQueue::default();
        for number in 0..1_000 {
            let order = order.clone();
            queue.push_remote(Box::new(move || order.lock().unwrap().push(number)));
        }
        for _ in 0..500 {
            match queue.pop() {
                Some(Ready::Remote(call)) => call(),
                _ => panic!("a remote call was pushed"),
            }
        }
        assert_eq!(*order.lock().unwrap(), (0..500).collect::<Vec<_>>());
        assert_eq!((queue.len(), Arc::strong_count(&order)), (500, 501));
        drop(queue);
        assert_eq!(Arc::strong_count(&order), 1);
    }
}
