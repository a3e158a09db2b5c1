//! Polls one of several futures of a task only when its own waker was woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Remembers whether a future was woken, and wakes the task that polls it.
pub(crate) struct Gate {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Gate {
    /// A gate that lets the first poll pass.
    pub(crate) fn new() -> Arc<Gate> {
        Arc::new(Gate {
            is_woken: AtomicBool::new(true),
            task: Mutex::new(Waker::noop().clone()),
        })
    }

    /// Polls the future if it was woken since the last poll.
    pub(crate) fn poll<F: Future>(self: &Arc<Gate>, future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.watch(cx.waker());
        if !self.is_woken.swap(false, AcqRel) {
            return Poll::Pending;
        }
        future.poll(&mut Context::from_waker(&Waker::from(self.clone())))
    }

    fn watch(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        task.clone_from(waker);
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, AcqRel) {
            return;
        }
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        task.wake();
    }
}
