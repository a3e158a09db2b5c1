//! `WaitFuture`: the future behind every primitive in this folder.
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
use crate::event_loop::exception::guard;
use crate::io::poll_coop;
use crate::sync::loom_shim::Mutex;
use crate::task::{WaitName, WaitReason, set_wait_reason};

/// A state that contains wait queues.
pub(super) trait WaitState {
    /// Takes the waker of a waiter that was granted its request and not yet woken.
    fn next_waker(&mut self) -> Option<Waker>;
}

impl<G> WaitState for WaitQueue<G> {
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

/// A pointer to a cell.
pub(super) trait CellPtr: Deref<Target: StateCell<State = Self::State>> {
    type State: WaitState;
}

impl<P: Deref<Target: StateCell>> CellPtr for P {
    type State = <P::Target as StateCell>::State;
}

/// An operation on a state `S` that can be awaited.
pub(super) trait Request<S> {
    type Grant;
    type Output;

    /// The queue to wait in.
    fn wait_queue<'s>(&self, state: &'s mut S) -> &'s mut WaitQueue<Self::Grant>;

    /// The number of permits that the waiter requests.
    fn amount(&self) -> usize {
        1
    }

    /// Takes the result if it is available and no earlier waiter is entitled to it.
    fn try_now(&mut self, state: &mut S) -> Option<Self::Output>;

    /// Called after this request was enqueued: grants what can be granted, perhaps this very request.
    fn enqueued(&mut self, state: &mut S);

    /// Takes what was granted.
    fn take_grant(&mut self, state: &mut S, grant: Self::Grant) -> Self::Output;

    /// Called after this request left the queue early. Gives an unused grant to the next waiter, and serves waiters
    /// that this one was blocking.
    fn left(&mut self, _state: &mut S, _unused: Option<Self::Grant>) {}
}

/// Waits until a condition holds, and takes nothing. Code that makes it hold grants all waiters in the queue, so they
/// complete even if the condition ceases to hold before they run.
pub(super) struct Until<S, A = ()> {
    pub(super) queue: fn(&mut S) -> &mut WaitQueue<()>,
    /// A plain function of the state and `arg`, so that a stream can name the type of its wait.
    pub(super) condition: fn(&S, A) -> bool,
    pub(super) arg: A,
}

impl<S, A: Copy> Request<S> for Until<S, A> {
    type Grant = ();
    type Output = ();

    fn wait_queue<'s>(&self, state: &'s mut S) -> &'s mut WaitQueue<()> {
        (self.queue)(state)
    }

    fn try_now(&mut self, state: &mut S) -> Option<()> {
        (self.condition)(state, self.arg).then_some(())
    }

    fn enqueued(&mut self, state: &mut S) {
        if (self.condition)(state, self.arg) {
            self.wait_queue(state).grant_last(());
        }
    }

    fn take_grant(&mut self, _state: &mut S, (): ()) {}
}

/// Awaits a request.
#[must_use = "futures do nothing unless awaited"]
pub(super) struct WaitFuture<P: CellPtr, Q: Request<P::State>> {
    pub(super) state_cell: P,
    request: Q,
    /// What is waited for, for dumps.
    name: WaitName,
    key: Option<WaiterKey>,
}

/// The request is never pinned.
impl<P: CellPtr, Q: Request<P::State>> Unpin for WaitFuture<P, Q> {}

impl<P: CellPtr, Q: Request<P::State>> WaitFuture<P, Q> {
    pub(super) fn new(state_cell: P, name: WaitName, request: Q) -> WaitFuture<P, Q> {
        WaitFuture {
            state_cell,
            request,
            name,
            key: None,
        }
    }
}

impl<P: CellPtr, Q: Request<P::State>> Future for WaitFuture<P, Q> {
    type Output = Q::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Q::Output> {
        let WaitFuture {
            state_cell,
            request,
            name,
            key,
        } = self.get_mut();
        if key.is_none() {
            // With the budget spent, the request is enqueued even if it can be granted now, so that the task yields.
            if poll_coop(cx).is_ready()
                && let Some(output) = state_cell.update(|state| request.try_now(state))
            {
                return Poll::Ready(output);
            }
            set_wait_reason(WaitReason::Named(name));
            let waker = cx.waker().clone();
            state_cell.update(|state| {
                *key = Some(request.wait_queue(state).join(request.amount(), waker));
                // Another thread, or the waker's `clone`, may have made the result available since `try_now`.
                request.enqueued(state);
            });
            return Poll::Pending;
        }
        let mut fresh = None;
        loop {
            let (polled, unused) = state_cell.update(|state| {
                let wait_queue = request.wait_queue(state);
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
                    set_wait_reason(WaitReason::Named(name));
                    return Poll::Pending;
                }
                Some(polled) => return polled,
                None => fresh = Some(cx.waker().clone()),
            }
        }
    }
}

/// The wait of a stream or sink, which continues from one poll to the next. Dropping it gives an unused grant to the
/// next waiter.
pub(super) struct HeldWait<P: CellPtr, Q: Request<P::State>>(Option<WaitFuture<P, Q>>);

impl<P: CellPtr, Q: Request<P::State>> HeldWait<P, Q> {
    pub(super) const fn new() -> HeldWait<P, Q> {
        HeldWait(None)
    }

    /// Polls the wait in progress, or starts one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, start: impl FnOnce() -> WaitFuture<P, Q>) -> Poll<Q::Output> {
        let wait = self.0.get_or_insert_with(start);
        let output = std::task::ready!(Pin::new(wait).poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<P: CellPtr, Q: Request<P::State>> Drop for WaitFuture<P, Q> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let request = &mut self.request;
        let waker = self.state_cell.update(|state| {
            let (stage, waker) = request.wait_queue(state).leave(key);
            let unused = match stage {
                Stage::Granted(grant) => Some(grant),
                Stage::Waiting(_) | Stage::Free => None,
            };
            request.left(state, unused);
            waker
        });
        guard("a waker's destructor", || drop(waker));
    }
}
