//! What a job of the pool becomes for whoever asked for it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::Refusal;
use super::pool::{JobId, Shared, Ticket, Work};
use crate::exception::{Exception, report};
use crate::loop_core::{LoopCore, Mail};
use crate::remote::Letterbox;
use crate::task::{JoinError, TaskId};

/// The result of blocking work: await it to get `Result<T, JoinError>`, on any loop or runtime.
///
/// Dropping it lets the work go on; if that panics, the loop's exception handler is told.
#[must_use = "await it for the result, or drop it with `drop` if that does not matter"]
pub struct BlockingHandle<T> {
    slot: Arc<Slot<T>>,
    pool: Arc<Shared>,
    /// What did not fit into the queue.
    unqueued: Option<Work>,
    /// Drawn when it waits for room in the queue.
    ticket: Option<Ticket>,
    /// Not while it is unqueued, and not if no pool took it.
    job: Option<JobId>,
}

/// Where the thread leaves the result.
pub(super) struct Slot<T> {
    state: Mutex<SlotState<T>>,
    /// The loop whose exception handler is told of a panic that nobody takes.
    letterbox: Option<Arc<Letterbox<Mail>>>,
}

struct SlotState<T> {
    result: Option<Result<T, JoinError>>,
    finished: bool,
    waker: Option<Waker>,
    /// The handle is gone.
    abandoned: bool,
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn resolve(&self, result: Result<T, JoinError>) {
        let (waker, unclaimed) = {
            let mut state = self.state();
            if state.finished {
                return;
            }
            state.finished = true;
            match state.abandoned {
                true => (None, Some(result)),
                false => {
                    state.result = Some(result);
                    (state.waker.take(), None)
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        self.tell_of_panic(unclaimed);
    }

    /// A panic that nobody will take goes to the loop's exception handler, or to standard error.
    fn tell_of_panic(&self, unclaimed: Option<Result<T, JoinError>>) {
        let Some(Err(error)) = unclaimed else { return };
        let Ok(payload) = error.try_into_panic() else { return };
        let exception = Exception::panic("a blocking job, whose handle was dropped,", payload);
        match &self.letterbox {
            Some(letterbox) => {
                // A loop that is gone has no handler any more.
                if let Err(Mail::Exception(exception)) = letterbox.send(Mail::Exception(exception)) {
                    report(exception);
                }
            }
            None => report(exception),
        }
    }
}

/// Sees to it that the handle gets an answer even if the job is dropped without having run.
struct Answer<T>(Arc<Slot<T>>);

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.0.resolve(Err(JoinError::blocking_cancelled()));
    }
}

impl<T: Send + 'static> BlockingHandle<T> {
    pub(super) fn start<F>(pool: &Arc<Shared>, work: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let slot = Arc::new(Slot {
            state: Mutex::new(SlotState {
                result: None,
                finished: false,
                waker: None,
                abandoned: false,
            }),
            letterbox: LoopCore::try_current().map(|core| core.letterbox.clone()),
        });
        let answer = Answer(slot.clone());
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work)).map_err(JoinError::blocking_panicked);
            answer.0.resolve(result);
        };
        let mut handle = BlockingHandle {
            slot,
            pool: pool.clone(),
            unqueued: None,
            ticket: None,
            job: None,
        };
        handle.queue(Box::new(work), true);
        handle
    }
}

impl<T> BlockingHandle<T> {
    fn queue(&mut self, work: Work, bounded: bool) {
        match self.pool.submit(work, bounded) {
            Ok(job) => self.job = Some(job),
            Err(Refusal::Full(work)) => self.unqueued = Some(work),
            Err(Refusal::Closed(work)) => drop(work),
            Err(Refusal::NoThread(work, error)) => {
                self.slot.resolve(Err(JoinError::not_started(error)));
                drop(work);
            }
        }
    }

    /// Takes the work back if it has not begun: the handle then resolves to a [`JoinError`] that says so. Work that has
    /// begun goes on to its end, and the handle gives its result.
    pub fn cancel(&mut self) {
        let work = match self.unqueued.take() {
            None => self.job.and_then(|job| self.pool.take_back(job)),
            unqueued => unqueued,
        };
        self.stop_waiting();
        drop(work);
    }

    fn stop_waiting(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pool.stop_waiting(ticket);
        }
    }

    /// Whether the result is there.
    pub fn is_finished(&self) -> bool {
        self.slot.state().finished
    }
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while let Some(work) = this.unqueued.take() {
            if this.pool.wait_for_room(&mut this.ticket, cx.waker()) {
                this.unqueued = Some(work);
                return Poll::Pending;
            }
            this.queue(work, true);
        }
        let waker = cx.waker().clone();
        let old;
        {
            let mut state = self.slot.state();
            if let Some(result) = state.result.take() {
                return Poll::Ready(result);
            }
            assert!(
                !state.finished,
                "a BlockingHandle was polled after it had given its result"
            );
            old = state.waker.replace(waker);
        }
        drop(old);
        crate::task::waits_for(crate::task::Reason::Named("a thread"));
        Poll::Pending
    }
}

impl<T> Drop for BlockingHandle<T> {
    fn drop(&mut self) {
        // The queue's limit is for those who wait. Work that nobody waits for is not lost for it.
        if let Some(work) = self.unqueued.take() {
            self.queue(work, false);
        }
        self.stop_waiting();
        // The waker's destructor is foreign code: it does not run under the lock.
        let (result, _waker) = {
            let mut state = self.slot.state();
            state.abandoned = true;
            (state.result.take(), state.waker.take())
        };
        self.slot.tell_of_panic(result);
    }
}

impl<T> fmt::Debug for BlockingHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}

impl JoinError {
    fn blocking_cancelled() -> JoinError {
        JoinError::cancelled(TaskId(0))
    }

    fn blocking_panicked(payload: Box<dyn Any + Send>) -> JoinError {
        JoinError::panicked(TaskId(0), payload)
    }
}
