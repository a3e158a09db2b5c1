//! Waking the outer loop of an embedded loop when something is queued between its turns.
//!
//! The outer loop's thread queues tasks, timers and operations itself, so nothing makes the loop's descriptor readable for
//! them. A flag says whether the outer loop has to be woken; without one it is always false, and costs a load and a branch.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;

/// The outer loop.
#[derive(Default)]
pub(crate) struct Host {
    /// There is a waker, no turn is running, and the waker was not woken since the last turn or flush.
    is_unaware: Cell<bool>,
    /// Shared, so that it can be woken, which is foreign code, without a borrow.
    waker: RefCell<Option<Rc<Waker>>>,
}

impl Host {
    /// Replaces the waker. Returns the old one, to be dropped without a borrow.
    pub(super) fn replace(&self, waker: Option<Waker>) -> Option<Rc<Waker>> {
        self.is_unaware.set(waker.is_some());
        self.waker.replace(waker.map(Rc::new))
    }

    /// A turn begins: it handles everything that is queued.
    pub(super) fn pause(&self) {
        self.is_unaware.set(false);
    }

    /// The outer loop has seen everything that was queued so far.
    pub(super) fn resume(&self) {
        let has_waker = self.waker.borrow().is_some();
        self.is_unaware.set(has_waker);
    }
}

impl LoopCore {
    /// Something was queued that a turn or a flush has to handle. Between turns, this wakes the outer loop, which is foreign
    /// code: the caller holds no borrow.
    #[inline(always)]
    pub(crate) fn queued(&self) {
        if self.host.is_unaware.get() {
            self.wake_host();
        }
    }

    /// Whether new work has to wake the outer loop.
    #[inline(always)]
    pub(crate) fn has_unaware_host(&self) -> bool {
        self.host.is_unaware.get()
    }

    #[cold]
    pub(super) fn wake_host(&self) {
        if !self.host.is_unaware.replace(false) || self.is_closed() {
            return;
        }
        let waker = self.host.waker.borrow().clone();
        if let Some(waker) = waker {
            guard("the waker of the outer loop", || waker.wake_by_ref());
        }
    }
}
