//! What tasks wait for each other with. Much of it needs no loop: then a test polls by hand, with wakers that count.

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

/// A future that is polled by hand, and the count of its wakes.
struct ByHand<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + 'a>>,
    wakes: Rc<Cell<u32>>,
    waker: Waker,
}

impl<'a, T> ByHand<'a, T> {
    /// Polled once, and so in the line if it has to wait.
    fn waiting(future: impl Future<Output = T> + 'a) -> ByHand<'a, T> {
        let wakes = Rc::new(Cell::new(0));
        let waker = waker_calling({
            let wakes = wakes.clone();
            move || wakes.set(wakes.get() + 1)
        });
        let future = Box::pin(future);
        let mut by_hand = ByHand { future, wakes, waker };
        assert!(by_hand.poll().is_none(), "it did not have to wait");
        by_hand
    }

    fn poll(&mut self) -> Option<T> {
        match poll_with(&self.waker, self.future.as_mut()) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Whether it was woken, once, since it last was asked.
    fn is_woken(&self) -> bool {
        match self.wakes.take() {
            0 => false,
            1 => true,
            more => panic!("woken {more} times"),
        }
    }
}

/// What needs no waiting.
fn now<T>(future: impl Future<Output = T>) -> T {
    match poll_with(Waker::noop(), std::pin::pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it has to wait"),
    }
}

/// The text of the panic that this ends with.
fn panic_of<R>(call: impl FnOnce() -> R) -> String {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let payload = result.err().expect("a panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().expect("a text").to_string(),
    }
}
