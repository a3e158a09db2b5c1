//! Waiting for something that a state will grant: the one future that every primitive of this folder is made of.
//!
//! A primitive is plain data with a [`Line`] in it, kept in a `RefCell` on one thread or in a mutex between threads,
//! and changed only inside of [`Kept::with`], where no foreign code runs. What can be asked of it is a [`Request`]: it
//! is there now, or one joins the line. [`Waiting`] does the rest: it joins, keeps the waker current, takes what was
//! granted, and, if it is dropped after it was called, has the request give that back, so that the next in the line
//! gets it.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::wait_queue::{Stage, Ticket, WaitQueue};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::sync::loom_shim::Mutex;
use crate::task::{Reason, waits_for};

/// A state that has lines.
pub(super) trait Calls {
    /// The waker of somebody who was called and not yet woken.
    fn next_waker(&mut self) -> Option<Waker>;
}

impl<W, G> Calls for WaitQueue<W, G> {
    fn next_waker(&mut self) -> Option<Waker> {
        WaitQueue::next_waker(self)
    }
}

/// What a state is kept in.
pub(super) trait Kept {
    type State: Calls;

    /// Looks at or changes the state. `work` must not run foreign code: no wakers, no users' values dropped or cloned.
    fn with<R>(&self, work: impl FnOnce(&mut Self::State) -> R) -> R;

    /// The same, and then wakes who was called, when nothing is borrowed any more.
    fn act<R>(&self, work: impl FnOnce(&mut Self::State) -> R) -> R {
        let (result, mut called) = self.with(|state| (work(state), state.next_waker()));
        while let Some(waker) = called {
            // One bad waker must not keep the others from being woken. And this may be a destructor.
            guard("a waker", || waker.wake());
            called = self.with(Calls::next_waker);
        }
        result
    }
}

impl<S: Calls> Kept for RefCell<S> {
    type State = S;

    fn with<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        work(&mut self.borrow_mut())
    }
}

impl<S: Calls> Kept for Mutex<S> {
    type State = S;

    fn with<R>(&self, work: impl FnOnce(&mut S) -> R) -> R {
        // Nothing that can panic runs under this lock, so a poisoned one still holds a whole state.
        work(&mut self.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// Something that can be asked of a state, and waited for.
pub(super) trait Request<S> {
    type Want;
    type Grant;
    type Output;

    /// The line in which one waits for it.
    fn wait_queue(state: &mut S) -> &mut WaitQueue<Self::Want, Self::Grant>;

    fn want(&self) -> Self::Want;

    /// What is waited for, for dumps.
    fn name(&self) -> &'static str;

    /// Takes it if it is there and nobody waited longer.
    fn try_now(&mut self, state: &mut S) -> Option<Self::Output>;

    /// Calls who can be called, after somebody has left the line, or joined it.
    fn settle(state: &mut S);

    /// Calls who can be called, after this one has joined the line although it might not have had to wait.
    fn joined(&mut self, state: &mut S) {
        Self::settle(state);
    }

    /// Takes what was granted.
    fn take(&mut self, state: &mut S, grant: Self::Grant) -> Self::Output;

    /// What was granted will not be taken: the next gets it.
    fn give_back(&mut self, state: &mut S, grant: Self::Grant);
}

/// A request that is waited for. `P` points to where the state is kept.
#[must_use = "nothing is asked for until this is awaited"]
pub(super) struct Waiting<P, Q>
where
    P: Deref<Target: Kept>,
    Q: Request<<P::Target as Kept>::State>,
{
    pub(super) kept: P,
    pub(super) request: Q,
    ticket: Option<Ticket>,
}

/// The request is never pinned.
impl<P, Q> Unpin for Waiting<P, Q>
where
    P: Deref<Target: Kept>,
    Q: Request<<P::Target as Kept>::State>,
{
}

impl<P, Q> Waiting<P, Q>
where
    P: Deref<Target: Kept>,
    Q: Request<<P::Target as Kept>::State>,
{
    pub(super) fn new(kept: P, request: Q) -> Waiting<P, Q> {
        Waiting {
            kept,
            request,
            ticket: None,
        }
    }

    /// Gives up a place in the line, and passes on what it had been granted.
    pub(super) fn give_up(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let request = &mut self.request;
        let waker = self.kept.act(|state| {
            let (stage, waker) = Q::wait_queue(state).leave(ticket);
            match stage {
                Stage::Called(grant) => request.give_back(state, grant),
                Stage::Waiting(_) | Stage::Unused => Q::settle(state),
            }
            waker
        });
        guard("a waker's destructor", || drop(waker));
    }
}

impl<P, Q> Future for Waiting<P, Q>
where
    P: Deref<Target: Kept>,
    Q: Request<<P::Target as Kept>::State>,
{
    type Output = Q::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Q::Output> {
        let Waiting { kept, request, ticket } = self.get_mut();
        if ticket.is_none() {
            // Who has had too much at once goes through the line, where it is called at once, and the ready deque.
            if may_finish_at_once(cx)
                && let Some(output) = kept.act(|state| request.try_now(state))
            {
                return Poll::Ready(output);
            }
            waits_for(Reason::Named(request.name()));
            let waker = cx.waker().clone();
            kept.act(|state| {
                *ticket = Some(Q::wait_queue(state).join(request.want(), waker));
                // Meanwhile another thread, or the waker's `clone`, may have put there what we want.
                request.joined(state);
            });
            return Poll::Pending;
        }
        let mut fresh = None;
        loop {
            let (polled, unused) = kept.act(|state| {
                let wait_queue = Q::wait_queue(state);
                let place = ticket.as_ref().expect("it was there before");
                if wait_queue.is_called(place) {
                    let (stage, waker) = wait_queue.leave(ticket.take().expect("as above"));
                    let Stage::Called(grant) = stage else { unreachable!() };
                    (Some(Poll::Ready(request.take(state, grant))), waker)
                } else if wait_queue.will_wake(place, cx.waker()) {
                    (Some(Poll::Pending), None)
                } else if let Some(waker) = fresh.take() {
                    (Some(Poll::Pending), wait_queue.set_waker(place, waker))
                } else {
                    (None, None)
                }
            });
            // A panic here would lose what was granted.
            guard("a waker's destructor", || drop(unused));
            match polled {
                Some(Poll::Pending) => {
                    waits_for(Reason::Named(request.name()));
                    return Poll::Pending;
                }
                Some(polled) => return polled,
                None => fresh = Some(cx.waker().clone()),
            }
        }
    }
}

impl<P, Q> Drop for Waiting<P, Q>
where
    P: Deref<Target: Kept>,
    Q: Request<<P::Target as Kept>::State>,
{
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Takes one from the task's budget of results that are there at once. On threads without a loop there is none.
fn may_finish_at_once(cx: &mut Context<'_>) -> bool {
    LoopCore::try_current().is_none_or(|core| core.spend_budget(cx))
}
