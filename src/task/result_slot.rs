//! The result of work on another thread: stored there once, and awaited through a handle.

use std::any::Any;
use std::borrow::Cow;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::JoinError;
use super::unread::UnreadError;
use crate::event_loop::core::RemoteEvent;
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::inbox::Inbox;

/// Shared by the thread that does the work and the handle.
pub(crate) struct ResultSlot<T> {
    state: Mutex<State<T>>,
    /// What the work is, for reports.
    what: Cow<'static, str>,
    spawned_at: &'static Location<'static>,
    /// [`UnreadError::of`]: the handle's destructor does not know that the output is `'static`.
    unread: fn(T) -> Option<UnreadError>,
}

struct State<T> {
    result: Option<Result<T, JoinError>>,
    is_finished: bool,
    waker: Option<Waker>,
    /// The handle was dropped: nothing will take the result.
    is_abandoned: bool,
}

/// A panic, or an `Err`, of work whose handle was dropped.
pub(crate) struct Unclaimed {
    cause: Cause,
    what: Cow<'static, str>,
    spawned_at: &'static Location<'static>,
}

enum Cause {
    Panic(Box<dyn Any + Send>),
    Error(UnreadError),
}

impl Unclaimed {
    /// Passes it to the exception handler of the current loop, or to standard error.
    pub(crate) fn report(self) {
        let Unclaimed {
            cause,
            what,
            spawned_at,
        } = self;
        match cause {
            Cause::Panic(payload) => report(Exception::panic(&format!("{what}, whose handle was dropped,"), payload)),
            Cause::Error(error) => error.report(spawned_at, || format!("{what}, spawned at {spawned_at},")),
        }
    }

    /// As [`report`](Unclaimed::report), for the loop of an inbox. A closed loop has no handler.
    pub(crate) fn report_to(self: Box<Unclaimed>, inbox: &Inbox<RemoteEvent>) {
        if let Err(RemoteEvent::Unclaimed(unclaimed)) = inbox.send(RemoteEvent::Unclaimed(self)) {
            unclaimed.report();
        }
    }
}

impl<T: 'static> ResultSlot<T> {
    pub(crate) fn new(what: impl Into<Cow<'static, str>>, spawned_at: &'static Location<'static>) -> ResultSlot<T> {
        ResultSlot {
            state: Mutex::new(State {
                result: None,
                is_finished: false,
                waker: None,
                is_abandoned: false,
            }),
            what: what.into(),
            spawned_at,
            unread: UnreadError::of,
        }
    }
}

impl<T> ResultSlot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Stores the first result and wakes the task that awaits it. If the handle was dropped, returns a panic or error.
    #[must_use]
    pub(crate) fn resolve(&self, result: Result<T, JoinError>) -> Option<Box<Unclaimed>> {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_finished, true) {
            return None;
        }
        if state.is_abandoned {
            drop(state);
            return self.unclaimed(result);
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

    /// Called when the handle is dropped. Returns the result if it is a panic or an error.
    #[must_use]
    pub(crate) fn abandon(&self) -> Option<Box<Unclaimed>> {
        let (result, _waker) = {
            let mut state = self.state();
            state.is_abandoned = true;
            (state.result.take(), state.waker.take())
        };
        self.unclaimed(result?)
    }

    fn unclaimed(&self, result: Result<T, JoinError>) -> Option<Box<Unclaimed>> {
        let cause = match result {
            Ok(output) => Cause::Error((self.unread)(output)?),
            Err(error) => Cause::Panic(error.try_into_panic().ok()?),
        };
        Some(Box::new(Unclaimed {
            cause,
            what: self.what.clone(),
            spawned_at: self.spawned_at,
        }))
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state().is_finished
    }
}
