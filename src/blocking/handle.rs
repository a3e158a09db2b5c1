//! `BlockingHandle`: the handle to a job of a thread pool.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use super::Refusal;
use super::pool::{JobId, Shared, Ticket, Work};
use crate::error::forked_error;
use crate::event_loop::core::{ClockHold, LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;
use crate::task::{JoinError, ResultSlot, TaskId, Unclaimed, WaitReason, set_wait_reason};

/// A handle to a blocking job: await it for a `Result<T, JoinError>`, on any loop or runtime. If the pool shuts down
/// before the job starts, the result is a cancelled [`JoinError`].
///
/// Dropping the handle detaches the job. If it then panics or returns an `Err`, the spawning loop's exception handler is
/// called: for errors once per spawn location, and then with a count.
#[must_use = "await it for the result, or use `drop` to ignore the result"]
pub struct BlockingHandle<T> {
    slot: Arc<Slot<T>>,
    pool: Arc<Shared>,
    /// The job, if the queue was full.
    unqueued: Option<Work>,
    /// Set while waiting for capacity in the queue.
    ticket: Option<Ticket>,
    /// Set once the job is queued.
    job: Option<JobId>,
    /// A loop's driver runs the job, in the loop's time.
    is_offloaded: bool,
}

/// Shared with the thread that runs the job.
struct Slot<T> {
    result: ResultSlot<T>,
    /// Stops the virtual clock of the loop that waits for the result.
    hold: Mutex<Option<ClockHold>>,
    /// The loop whose exception handler is called for a panic or error after the handle was dropped.
    inbox: Option<Arc<Inbox<RemoteEvent>>>,
}

impl<T> Slot<T> {
    fn hold(&self) -> MutexGuard<'_, Option<ClockHold>> {
        self.hold.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Stops the current loop's clock, if it is virtual, until there is a result.
    fn hold_clock(&self) {
        let Some(core) = LoopCore::try_current().filter(|core| core.has_virtual_clock) else {
            return;
        };
        // The previous hold, of another loop, is dropped after the lock.
        let _earlier = {
            let mut hold = self.hold();
            // Under the lock: `resolve` releases the clock after the result is stored.
            if self.result.is_finished() || hold.as_ref().is_some_and(|hold| hold.belongs_to(core)) {
                return;
            }
            std::mem::replace(&mut *hold, core.hold_clock())
        };
    }

    fn release_clock(&self) {
        let hold = self.hold().take();
        drop(hold);
    }

    fn resolve(&self, result: Result<T, JoinError>) {
        let unclaimed = self.result.resolve(result);
        // After the wake, because the loop must see the result before time advances.
        self.release_clock();
        self.report(unclaimed);
    }

    /// Passes a panic or error that has no receiver to the loop's exception handler, or to standard error.
    fn report(&self, unclaimed: Option<Box<Unclaimed>>) {
        match (unclaimed, &self.inbox) {
            (None, _) => {}
            (Some(unclaimed), Some(inbox)) => unclaimed.report_to(inbox),
            (Some(unclaimed), None) => unclaimed.report(),
        }
    }
}

/// Resolves the handle as cancelled if the job is dropped without having run.
struct Resolver<T>(Arc<Slot<T>>);

impl<T> Drop for Resolver<T> {
    fn drop(&mut self) {
        self.0.resolve(Err(JoinError::cancelled(TaskId(0))));
    }
}

impl<T: Send + 'static> BlockingHandle<T> {
    #[track_caller]
    pub(super) fn start<F>(pool: &Arc<Shared>, work: F) -> BlockingHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let slot = Arc::new(Slot {
            result: ResultSlot::new("a blocking job", Location::caller()),
            hold: Mutex::default(),
            inbox: LoopCore::try_current().map(|core| core.inbox.clone()),
        });
        let resolver = Resolver(slot.clone());
        let work = move || {
            let result =
                catch_unwind(AssertUnwindSafe(work)).map_err(|payload| JoinError::panicked(TaskId(0), payload));
            resolver.0.resolve(result);
        };
        let mut handle = BlockingHandle {
            slot,
            pool: pool.clone(),
            unqueued: None,
            ticket: None,
            job: None,
            is_offloaded: false,
        };
        handle.queue(Box::new(work), true);
        handle
    }
}

impl<T> BlockingHandle<T> {
    fn queue(&mut self, work: Work, bounded: bool) {
        let core = LoopCore::try_current();
        let takes_jobs = || core.is_some_and(LoopCore::takes_jobs);
        // Before a thread can finish the job.
        if !takes_jobs() {
            self.slot.hold_clock();
        }
        match self.pool.submit(work, bounded, core) {
            Ok(job) => {
                self.job = Some(job);
                self.is_offloaded = takes_jobs();
                if self.is_offloaded {
                    // Held if this was the loop's first job.
                    self.slot.release_clock();
                }
            }
            Err(Refusal::Full(work)) => {
                self.unqueued = Some(work);
                // The job is queued only when the handle is polled, so nothing runs that the clock must wait for.
                self.slot.release_clock();
            }
            Err(Refusal::Closed(work)) => drop(work),
            Err(Refusal::NoThread(work, error)) => {
                self.slot.resolve(Err(JoinError::not_started(error)));
                drop(work);
            }
        }
    }

    /// Cancels the job if it has not started: the handle then resolves to a cancelled [`JoinError`]. A job that has
    /// started runs to its end, and the handle returns its result.
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

    /// Whether the result is available.
    pub fn is_finished(&self) -> bool {
        self.pool.is_forked() || self.slot.result.is_finished()
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
        // The job may have been spawned on another loop.
        if !this.is_offloaded {
            this.slot.hold_clock();
        }
        let polled = this.slot.result.poll(cx);
        if polled.is_pending() {
            set_wait_reason(WaitReason::Named(&"a thread"));
        }
        polled
    }
}

impl<T> Drop for BlockingHandle<T> {
    fn drop(&mut self) {
        // In a forked child the job is the parent's, and a thread may have held a lock at the time of the fork.
        if self.pool.is_forked() {
            std::mem::forget((self.slot.clone(), self.unqueued.take()));
            return;
        }
        // A detached job is queued even beyond the limit: no caller is left that could wait for capacity.
        if let Some(work) = self.unqueued.take() {
            self.queue(work, false);
        }
        self.stop_waiting();
        let unclaimed = self.slot.result.abandon();
        self.slot.release_clock();
        self.slot.report(unclaimed);
    }
}

/// A waker for a handle that waits for capacity: it stops the loop's virtual clock until it is woken.
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
    // A driver that runs jobs makes capacity in its own time.
    let core = LoopCore::try_current().filter(|core| !core.takes_jobs());
    match core.and_then(LoopCore::hold_clock) {
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
