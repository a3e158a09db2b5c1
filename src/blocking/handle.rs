//! What a job of the pool becomes for whoever asked for it.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use super::Refusal;
use super::pool::{JobId, Shared, Ticket, Work};
use crate::error::forked_error;
use crate::event_loop::core::{ClockHold, LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::inbox::Inbox;
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
    inbox: Option<Arc<Inbox<RemoteEvent>>>,
}

struct SlotState<T> {
    result: Option<Result<T, JoinError>>,
    finished: bool,
    waker: Option<Waker>,
    /// The handle is gone.
    abandoned: bool,
    /// Stops the virtual clock of the loop that waits for the result.
    hold: Option<ClockHold>,
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Stops the virtual clock of the current loop, if it has one, until there is a result.
    fn hold_clock(&self) {
        let Some(core) = LoopCore::try_current().filter(|core| core.has_virtual_clock) else {
            return;
        };
        // The earlier one, of another loop, is dropped when nothing is locked.
        let _earlier = {
            let mut state = self.state();
            if state.finished || state.hold.as_ref().is_some_and(|hold| hold.is_of(core)) {
                return;
            }
            std::mem::replace(&mut state.hold, core.hold_clock())
        };
    }

    fn release_clock(&self) {
        let hold = self.state().hold.take();
        drop(hold);
    }

    fn resolve(&self, result: Result<T, JoinError>) {
        let (waker, hold, unclaimed) = {
            let mut state = self.state();
            if state.finished {
                return;
            }
            state.finished = true;
            let hold = state.hold.take();
            match state.abandoned {
                true => (None, hold, Some(result)),
                false => {
                    state.result = Some(result);
                    (state.waker.take(), hold, None)
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        // Only now: the loop must learn of the result before time goes on.
        drop(hold);
        self.report_panic(unclaimed);
    }

    /// A panic that nobody will take goes to the loop's exception handler, or to standard error.
    fn report_panic(&self, unclaimed: Option<Result<T, JoinError>>) {
        let Some(Err(error)) = unclaimed else { return };
        let Ok(payload) = error.try_into_panic() else { return };
        let exception = Exception::panic("a blocking job, whose handle was dropped,", payload);
        match &self.inbox {
            Some(inbox) => {
                // A loop that is gone has no handler any more.
                if let Err(RemoteEvent::Exception(exception)) = inbox.send(RemoteEvent::Exception(exception)) {
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
                hold: None,
            }),
            inbox: LoopCore::try_current().map(|core| core.inbox.clone()),
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
        // Before the thread can be done.
        self.slot.hold_clock();
        match self.pool.submit(work, bounded) {
            Ok(job) => self.job = Some(job),
            Err(Refusal::Full(work)) => {
                self.unqueued = Some(work);
                // Until the handle is polled no thread will come to it.
                self.slot.release_clock();
            }
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
        if self.pool.is_forked() {
            return;
        }
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
        self.pool.is_forked() || self.slot.state().finished
    }
}

impl<T> Future for BlockingHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.pool.is_forked() {
            return Poll::Ready(Err(JoinError::not_started(forked_error())));
        }
        while let Some(work) = this.unqueued.take() {
            if this
                .pool
                .wait_for_capacity(&mut this.ticket, &holding_clock(cx.waker()))
            {
                this.unqueued = Some(work);
                return Poll::Pending;
            }
            this.queue(work, true);
        }
        // It may have been started elsewhere.
        this.slot.hold_clock();
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
        crate::task::set_wait_reason(crate::task::WaitReason::Named("a thread"));
        Poll::Pending
    }
}

impl<T> Drop for BlockingHandle<T> {
    fn drop(&mut self) {
        // In a forked child the job is the parent's, and a thread may have held a lock when the process was forked.
        if self.pool.is_forked() {
            std::mem::forget((self.slot.clone(), self.unqueued.take()));
            return;
        }
        // The queue's limit is for those who wait. Work that nobody waits for is not lost for it.
        if let Some(work) = self.unqueued.take() {
            self.queue(work, false);
        }
        self.stop_waiting();
        // The waker's destructor is foreign code: it does not run under the lock.
        let (result, _waker, _hold) = {
            let mut state = self.slot.state();
            state.abandoned = true;
            (state.result.take(), state.waker.take(), state.hold.take())
        };
        self.slot.report_panic(result);
    }
}

/// A waker for a handle that waits for room in a queue: the virtual clock of its loop stands still until it is woken.
fn holding_clock(waker: &Waker) -> Waker {
    struct Holding {
        waker: Waker,
        hold: Mutex<Option<ClockHold>>,
    }
    impl Wake for Holding {
        fn wake(self: Arc<Self>) {
            self.waker.wake_by_ref();
            let hold = self.hold.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            drop(hold);
        }
    }
    match LoopCore::try_current().and_then(LoopCore::hold_clock) {
        Some(hold) => Waker::from(Arc::new(Holding {
            waker: waker.clone(),
            hold: Mutex::new(Some(hold)),
        })),
        None => waker.clone(),
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
