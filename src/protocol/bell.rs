//! Waiting for a change of plain cells.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::exception::guard;

/// Rung when something may have changed; those who wait look again.
#[derive(Default)]
pub(super) struct Bell {
    waiting: RefCell<Vec<Waker>>,
}

impl Bell {
    pub(super) fn ring(&self) {
        for waker in self.waiting.take() {
            guard("a waker", || waker.wake());
        }
    }

    /// Waits until `is_true`, which is asked at once and after each ring.
    pub(super) async fn until(&self, mut is_true: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if is_true() {
                return Poll::Ready(());
            }
            // Cloned and compared outside of the borrow: wakers are foreign code.
            let mut waiting = self.waiting.take();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            waiting.append(&mut self.waiting.borrow_mut());
            self.waiting.replace(waiting);
            Poll::Pending
        })
        .await;
    }
}
