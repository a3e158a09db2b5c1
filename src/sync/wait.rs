//! `WaitFuture`: the one future behind every primitive of this folder.
//!
//! A primitive is plain data that contains one or more [`WaitQueue`]s. It is stored in a `RefCell` (one thread) or a
//! mutex (several threads) and accessed only inside [`StateCell::with`], where no user code runs. A [`Request`] defines
//! one operation on that data: take the result now, or enqueue. [`WaitFuture`] does the rest: it enqueues, updates the
//! waker, takes the grant, and if it is dropped after the grant, returns the grant so that the next waiter gets it.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::wait_queue::{Stage, WaitQueue, WaiterKey};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::sync::loom_shim::Mutex;
use crate::task::{WaitReason, set_wait_reason};

/// A state that contains wait queues.
pub(super) trait WaitState {
    /// Takes the waker of a waiter that was granted its request and not yet woken.
    fn next_waker(&mut self) -> Option<Waker>;
}

impl<W, G> WaitState for WaitQueue<W, G> {
    fn next_waker(&mut self) -> Option<Waker> {
        WaitQueue::next_waker(self)
    }
}

/// The cell that a state is stored in.
pub(super) trait StateCell {
    type State: WaitState;

    /// Accesses the state. `work` must not run user code: no wakers, and no clone or drop of user values.
    fn with<R>(&self, work: impl FnOnce(&mut Self::State) -> R) -> R;

    /// As `with`, and then wakes the waiters that were granted something, after the borrow or lock has ended.
    fn update<R>(&self, work: impl FnOnce(&mut Self::State) -> R) -> R {
        let (result, mut next) = self.with(|state| (work(state), state.next_waker()));
        while let Some(waker) = next {
            // A panicking waker must not prevent the other wake-ups, nor unwind out of a destructor.
            guard("a waker", || waker.wake());
            next = self.with(WaitState::next_waker);
        }
        result
    }
}

impl<S: WaitState> StateCell for RefCell<S> {
    type State = S;

    fn with<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        work(&mut self.borrow_mut())
    }
}

impl<S: WaitState> StateCell for Mutex<S> {
    type State = S;

    fn with<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        // Nothing under this lock can panic half-way through a change, so a poisoned state is still consistent.
        work(&mut self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// An operation on a state `S` that can be awaited.
pub(super) trait Request<S> {
    type Amount;
    type Grant;
    type Output;

    /// The queue to wait in.
    fn wait_queue(state: &mut S) -> &mut WaitQueue<Self::Amount, Self::Grant>;

    fn amount(&self) -> Self::Amount;

    /// What is waited for, for dumps.
    fn name(&self) -> &'static str;

    /// Takes the result if it is available and no earlier waiter is entitled to it.
    fn try_now(&mut self, state: &mut S) -> Option<Self::Output>;

    /// Grants what can be granted, after a waiter was enqueued or has left.
    fn serve_waiters(state: &mut S);

    /// Called after this request was enqueued: grants what can be granted, perhaps this very request.
    fn enqueued(&mut self, state: &mut S) {
        Self::serve_waiters(state);
    }

    /// Takes what was granted.
    fn take_grant(&mut self, state: &mut S, grant: Self::Grant) -> Self::Output;

    /// Returns an unused grant to the state, which passes it to the next waiter.
    fn return_grant(&mut self, state: &mut S, grant: Self::Grant);
}

/// Awaits a request. `P` points to the cell.
#[must_use = "futures do nothing unless awaited"]
pub(super) struct WaitFuture<P, Q>
where
    P: Deref<Target: StateCell>,
    Q: Request<<P::Target as StateCell>::State>,
{
    pub(super) state_cell: P,
    pub(super) request: Q,
    key: Option<WaiterKey>,
}

/// The request is never pinned.
impl<P, Q> Unpin for WaitFuture<P, Q>
where
    P: Deref<Target: StateCell>,
    Q: Request<<P::Target as StateCell>::State>,
{
}

impl<P, Q> WaitFuture<P, Q>
where
    P: Deref<Target: StateCell>,
    Q: Request<<P::Target as StateCell>::State>,
{
    pub(super) fn new(state_cell: P, request: Q) -> WaitFuture<P, Q> {
        WaitFuture {
            state_cell,
            request,
            key: None,
        }
    }

    /// Leaves the queue, and returns an unused grant.
    pub(super) fn leave(&mut self) {
        let Some(key) = self.key.take() else { return };
        let request = &mut self.request;
        let waker = self.state_cell.update(|state| {
            let (stage, waker) = Q::wait_queue(state).leave(key);
            match stage {
                Stage::Granted(grant) => request.return_grant(state, grant),
                Stage::Waiting(_) | Stage::Free => Q::serve_waiters(state),
            }
            waker
        });
        guard("a waker's destructor", || drop(waker));
    }
}

impl<P, Q> Future for WaitFuture<P, Q>
where
    P: Deref<Target: StateCell>,
    Q: Request<<P::Target as StateCell>::State>,
{
    type Output = Q::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Q::Output> {
        let WaitFuture {
            state_cell,
            request,
            key,
        } = self.get_mut();
        if key.is_none() {
            // Out of budget: the request goes through the wait queue, which grants it at once, so that the task yields.
            if may_finish_at_once(cx)
                && let Some(output) = state_cell.update(|state| request.try_now(state))
            {
                return Poll::Ready(output);
            }
            set_wait_reason(WaitReason::Named(request.name()));
            let waker = cx.waker().clone();
            state_cell.update(|state| {
                *key = Some(Q::wait_queue(state).join(request.amount(), waker));
                // Another thread, or the waker's `clone`, may have made the result available since `try_now`.
                request.enqueued(state);
            });
            return Poll::Pending;
        }
        let mut fresh = None;
        loop {
            let (polled, unused) = state_cell.update(|state| {
                let wait_queue = Q::wait_queue(state);
                let waiter = key.as_ref().expect("checked above");
                if wait_queue.is_granted(waiter) {
                    let (stage, waker) = wait_queue.leave(key.take().expect("checked above"));
                    let Stage::Granted(grant) = stage else { unreachable!() };
                    (Some(Poll::Ready(request.take_grant(state, grant))), waker)
                } else if wait_queue.will_wake(waiter, cx.waker()) {
                    (Some(Poll::Pending), None)
                } else if let Some(waker) = fresh.take() {
                    (Some(Poll::Pending), wait_queue.set_waker(waiter, waker))
                } else {
                    (None, None)
                }
            });
            // A panic here would lose the grant.
            guard("a waker's destructor", || drop(unused));
            match polled {
                Some(Poll::Pending) => {
                    set_wait_reason(WaitReason::Named(request.name()));
                    return Poll::Pending;
                }
                Some(polled) => return polled,
                None => fresh = Some(cx.waker().clone()),
            }
        }
    }
}

impl<P, Q> Drop for WaitFuture<P, Q>
where
    P: Deref<Target: StateCell>,
    Q: Request<<P::Target as StateCell>::State>,
{
    fn drop(&mut self) {
        self.leave();
    }
}

/// Consumes one unit of the task's budget of immediate results. Threads without a loop have no budget.
fn may_finish_at_once(cx: &mut Context<'_>) -> bool {
    LoopCore::try_current().is_none_or(|core| core.spend_budget(cx))
}
