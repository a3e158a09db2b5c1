//! The result of work on another thread: stored there once, and awaited through a handle.

use std::any::Any;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::JoinError;

/// Shared by the thread that does the work and the handle.
pub(crate) struct ResultSlot<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    result: Option<Result<T, JoinError>>,
    is_finished: bool,
    waker: Option<Waker>,
    /// The handle was dropped: nothing will take the result.
    is_abandoned: bool,
}

impl<T> Default for ResultSlot<T> {
    fn default() -> ResultSlot<T> {
        ResultSlot {
            state: Mutex::new(State {
                result: None,
                is_finished: false,
                waker: None,
                is_abandoned: false,
            }),
        }
    }
}

impl<T> ResultSlot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Stores the first result and wakes the task that awaits it. If the handle was dropped, returns the payload of a
    /// panic, which has no receiver.
    #[must_use]
    pub(crate) fn resolve(&self, result: Result<T, JoinError>) -> Option<Box<dyn Any + Send>> {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_finished, true) {
            return None;
        }
        if state.is_abandoned {
            drop(state);
            return panic_of(result);
        }
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Takes the result, or registers the waker.
    #[track_caller]
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        // Cloning and dropping wakers is foreign code, so neither happens under the lock.
        let waker = cx.waker().clone();
        let mut state = self.state();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        assert!(
            !state.is_finished,
            "a handle was polled after it had returned its result"
        );
        let old = state.waker.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Called when the handle is dropped. Returns the payload if the result is a panic.
    #[must_use]
    pub(crate) fn abandon(&self) -> Option<Box<dyn Any + Send>> {
        let (result, _waker) = {
            let mut state = self.state();
            state.is_abandoned = true;
            (state.result.take(), state.waker.take())
        };
        result.and_then(panic_of)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state().is_finished
    }
}

fn panic_of<T>(result: Result<T, JoinError>) -> Option<Box<dyn Any + Send>> {
    result.err().and_then(|error| error.try_into_panic().ok())
}
