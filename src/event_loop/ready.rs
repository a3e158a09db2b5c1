//! The ready queue: tasks and callbacks for the next turn, in FIFO order.
//!
//! A leaf container: it is changed through `&self` without a borrow flag. It is not `Sync`, no method returns a reference
//! to an entry, and while a method uses the ring it calls no other code: entries are moved in and out and never dropped
//! inside, and `grow` calls the allocator only before and after it touches the ring.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;

use crate::event_loop::callback::Callback;
use crate::task::Runnable;

/// An entry of the ready queue.
pub(crate) enum Ready {
    Task(Runnable),
    Call(Rc<dyn Callback>),
    Remote(Box<dyn FnOnce() + Send>),
}

/// A ring of entries. `pop` moves out only the fields of the entry's variant: copying whole entries would wait for the
/// stores just made, a seventh of the time of a task switch.
#[derive(Default)]
pub(crate) struct ReadyQueue {
    /// A power of two of places. Those from `head` on, `len` of them, hold entries.
    ring: UnsafeCell<Box<[MaybeUninit<Ready>]>>,
    head: Cell<usize>,
    len: Cell<usize>,
}

impl ReadyQueue {
    /// Always inlined, so that the entry is built in the ring and not copied there.
    #[inline(always)]
    pub(crate) fn push(&self, ready: Ready) {
        if self.len.get() == self.capacity() {
            self.grow();
        }
        let at = self.place(self.head.get() + self.len.get());
        // SAFETY: see the module. The place is in the ring and holds no entry.
        unsafe { at.write(ready) };
        self.len.set(self.len.get() + 1);
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Ready> {
        let (head, len) = (self.head.get(), self.len.get());
        if len == 0 {
            return None;
        }
        self.head.set((head + 1) & (self.capacity() - 1));
        self.len.set(len - 1);
        // SAFETY: see the module. The place holds an entry, which is moved out, and no longer counts as one that does.
        Some(unsafe {
            match &*self.place(head) {
                Ready::Task(task) => Ready::Task(ptr::read(task)),
                Ready::Call(callback) => Ready::Call(ptr::read(callback)),
                Ready::Remote(call) => Ready::Remote(ptr::read(call)),
            }
        })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    #[inline]
    fn capacity(&self) -> usize {
        // SAFETY: see the module.
        unsafe { (&*self.ring.get()).len() }
    }

    /// The place of the entry with this number. There is at least one.
    #[inline]
    fn place(&self, number: usize) -> *mut Ready {
        let at = number & (self.capacity() - 1);
        // SAFETY: see the module; the capacity is a power of two, so `at` is below it.
        unsafe { (&mut *self.ring.get()).as_mut_ptr().add(at).cast() }
    }

    /// Doubles the ring.
    #[cold]
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
        let old = unsafe { std::mem::replace(&mut *self.ring.get(), larger) };
        drop(old);
    }
}

impl Drop for ReadyQueue {
    fn drop(&mut self) {
        while self.pop().is_some() {}
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
            queue.push(Ready::Remote(Box::new(move || order.lock().unwrap().push(number))));
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
