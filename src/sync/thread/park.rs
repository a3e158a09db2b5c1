//! Blocks a thread until a future completes.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::event_loop::core::LoopCore;
use crate::sync::loom_shim::{Condvar, Mutex};

/// Blocks a thread until it is woken.
struct Parker {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    /// False if the deadline has passed.
    fn park(&self, deadline: Option<Instant>) -> bool {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_woken {
            is_woken = match deadline {
                None => self.woken.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.woken.wait_timeout(is_woken, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *is_woken = false;
        true
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_one();
    }
}

/// Blocks this thread until the future completes. Panics if the thread runs a loop.
#[track_caller]
pub(super) fn wait<F: Future>(future: F) -> F::Output {
    wait_timeout(Duration::MAX, future).expect("there is no deadline")
}

/// As [`wait`], for at most `timeout`: `None` if the future has not completed then.
#[track_caller]
pub(super) fn wait_timeout<F: Future>(timeout: Duration, future: F) -> Option<F::Output> {
    assert!(
        LoopCore::try_current().is_none(),
        "a blocking wait on a thread that runs a loop would block the loop: await instead"
    );
    // A deadline beyond the range of the clock means forever.
    let deadline = (timeout < Duration::MAX).then(|| Instant::now().checked_add(timeout));
    wait_until(deadline.flatten(), future)
}

/// Blocks this thread until the future completes; `None` if the deadline passes first.
pub(crate) fn wait_until<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    let parker = Arc::new(Parker {
        is_woken: Mutex::new(false),
        woken: Condvar::new(),
    });
    let waker = Waker::from(parker.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if parker.park(deadline) => {}
            Poll::Pending => return None,
        }
    }
}
