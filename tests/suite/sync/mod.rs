//! Synchronization primitives. Many tests need no loop: they poll futures by hand, with wakers that count.

mod channels;
mod locks;
mod queue;
mod random;
mod signals;
mod threads;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::support::{poll_with, waker_calling};

/// A future that is polled by hand, and the count of its wake-ups.
struct ByHand<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    wakes: Rc<Cell<u32>>,
    waker: Waker,
}

impl<'a, T> ByHand<'a, T> {
    /// Polled once, and so queued if it has to wait.
    fn waiting(future: impl Future<Output = T> + 'a) -> ByHand<'a, T> {
        let wakes = Rc::new(Cell::new(0));
        let waker = waker_calling({
            let wakes = wakes.clone();
            move || wakes.set(wakes.get() + 1)
        });
        let future = Box::pin(future);
        let mut by_hand = ByHand { future, wakes, waker };
        assert!(by_hand.poll().is_none(), "the future did not have to wait");
        by_hand
    }

    fn poll(&mut self) -> Option<T> {
        match poll_with(&self.waker, self.future.as_mut()) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Whether it was woken since the last call; more than once is an error.
    fn is_woken(&self) -> bool {
        match self.wakes.take() {
            0 => false,
            1 => true,
            more => panic!("woken {more} times"),
        }
    }
}

/// The result of a future that is ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match poll_with(Waker::noop(), std::pin::pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future has to wait"),
    }
}

/// The message of the panic in which the call ends.
fn panic_of<R>(call: impl FnOnce() -> R) -> String {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let payload = result.err().expect("a panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().expect("a text").to_string(),
    }
}
