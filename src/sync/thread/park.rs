//! Blocking a thread on a future.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::event_loop::core::LoopCore;
use crate::sync::loom_shim::{Condvar, Mutex};

/// Blocks a thread until it is woken.
struct Parker {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    fn park(&self) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !*is_woken {
            is_woken = self
                .woken
                .wait(is_woken)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *is_woken = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.woken.notify_one();
    }
}

/// Blocks this thread until the future completes.
#[track_caller]
pub(super) fn wait<F: Future>(future: F) -> F::Output {
    assert!(
        LoopCore::try_current().is_none(),
        "a blocking wait on a thread that runs a loop would block the loop: await instead"
    );
    let parker = Arc::new(Parker {
        is_woken: Mutex::new(false),
        woken: Condvar::new(),
    });
    let waker = Waker::from(parker.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => parker.park(),
        }
    }
}
