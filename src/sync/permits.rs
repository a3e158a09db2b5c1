//! `Permits`, a FIFO semaphore: the core of locks, semaphores, queues and channels.
//!
//! A lock has one permit. A read-write lock has `usize::MAX`, all of which a writer acquires. A queue has one permit
//! per item and one per free slot. There is no barging: while a task waits, permits go to the first waiter, and if it
//! needs more than are available, the waiters behind it wait too. So readers cannot starve a writer.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Deref;
use std::task::Waker;

use super::error::Closed;
use super::wait::{Request, StateCell, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;
use crate::task::WaitName;

pub(super) struct Permits {
    available: usize,
    /// The number of waiters that were granted permits and have neither taken nor returned them.
    granted: usize,
    phase: Phase,
    wait_queue: WaitQueue<Result<(), Closed>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// No permits will be added. Waiters fail once none is available and no unused grant can be returned.
    Draining,
    Closed,
}

/// Why permits cannot be acquired without waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Busy,
    Closed,
}

impl Permits {
    pub(super) const fn new(available: usize) -> Permits {
        Permits {
            available,
            granted: 0,
            phase: Phase::Open,
            wait_queue: WaitQueue::new(),
        }
    }

    fn itself(&mut self) -> &mut Permits {
        self
    }

    pub(super) fn available(&self) -> usize {
        self.available
    }

    /// The number of waiters.
    pub(super) fn waiting(&self) -> usize {
        self.wait_queue.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub(super) fn try_take(&mut self, count: usize) -> Result<(), Denied> {
        if self.phase == Phase::Closed {
            return Err(Denied::Closed);
        }
        if count == 0 || (self.wait_queue.is_empty() && self.available >= count) {
            self.available -= count;
            return Ok(());
        }
        match self.is_drained() {
            true => Err(Denied::Closed),
            false => Err(Denied::Busy),
        }
    }

    /// Returns permits, or adds new ones.
    pub(super) fn release(&mut self, count: usize) {
        self.available += count;
        self.serve();
    }

    /// Removes up to `count` available permits. Returns how many were removed.
    pub(super) fn remove(&mut self, count: usize) -> usize {
        let removed = count.min(self.available);
        self.available -= removed;
        removed
    }

    /// Makes all current and future acquisitions fail.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        self.serve();
    }

    /// No permits will be added. Those available, and those returned by waiters, can still be acquired.
    pub(super) fn drain(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Draining;
            self.serve();
        }
    }

    fn is_drained(&self) -> bool {
        self.phase == Phase::Draining && self.available == 0 && self.granted == 0
    }

    /// Grants permits to waiters in FIFO order, as far as possible.
    fn serve(&mut self) {
        if self.phase != Phase::Closed {
            while let Some(count) = self.wait_queue.first()
                && count <= self.available
            {
                self.available -= count;
                self.granted += 1;
                self.wait_queue.grant_first(Ok(()));
            }
        }
        if self.phase == Phase::Closed || self.is_drained() {
            self.wait_queue.grant_all(|| Err(Closed));
        }
    }
}

impl WaitState for Permits {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// Acquires permits of a state, and passes the result to `then` within the same access to the state.
pub(super) struct Acquire<A, F> {
    /// A function from the state to its permits.
    pub(super) permits: A,
    pub(super) count: usize,
    pub(super) then: F,
}

/// An [`Acquire`] with plain functions, so that a stream or sink can name its type.
pub(super) type AcquireThen<S, R> = Acquire<fn(&mut S) -> &mut Permits, fn(&mut S, Result<(), Closed>) -> R>;

/// Acquires permits and nothing else.
pub(super) type AcquireOnly<S> = AcquireThen<S, Result<(), Closed>>;

impl<S, R, A, F> Request<S> for Acquire<A, F>
where
    A: Fn(&mut S) -> &mut Permits,
    F: FnMut(&mut S, Result<(), Closed>) -> R,
{
    type Grant = Result<(), Closed>;
    type Output = R;

    fn wait_queue<'s>(&self, state: &'s mut S) -> &'s mut WaitQueue<Result<(), Closed>> {
        &mut (self.permits)(state).wait_queue
    }

    fn amount(&self) -> usize {
        self.count
    }

    fn try_now(&mut self, state: &mut S) -> Option<R> {
        let acquired = match (self.permits)(state).try_take(self.count) {
            Ok(()) => Ok(()),
            Err(Denied::Closed) => Err(Closed),
            Err(Denied::Busy) => return None,
        };
        Some((self.then)(state, acquired))
    }

    fn enqueued(&mut self, state: &mut S) {
        (self.permits)(state).serve();
    }

    fn take_grant(&mut self, state: &mut S, grant: Result<(), Closed>) -> R {
        if grant.is_ok() {
            let permits = (self.permits)(state);
            permits.granted -= 1;
            if permits.is_drained() {
                permits.serve();
            }
        }
        (self.then)(state, grant)
    }

    fn left(&mut self, state: &mut S, unused: Option<Result<(), Closed>>) {
        let permits = (self.permits)(state);
        if let Some(Ok(())) = unused {
            permits.granted -= 1;
            permits.available += self.count;
        }
        permits.serve();
    }
}

/// Permits for one thread.
pub(super) type LocalPermits = RefCell<Permits>;

/// Acquires permits. Dropped while waiting, it leaves the queue; dropped after the grant, it returns the permits.
pub(super) fn acquire(
    permits: &LocalPermits,
    count: usize,
    name: WaitName,
) -> impl Future<Output = Result<(), Closed>> {
    acquire_with(permits, count, name)
}

/// As [`acquire`], of permits behind any pointer, with a type that can be named.
pub(super) fn acquire_with<P>(permits: P, count: usize, name: WaitName) -> WaitFuture<P, AcquireOnly<Permits>>
where
    P: Deref<Target = LocalPermits>,
{
    let request = AcquireOnly {
        permits: Permits::itself,
        count,
        then: |_, acquired| acquired,
    };
    WaitFuture::new(permits, name, request)
}

/// Releases one permit when dropped.
pub(super) struct ReleaseOnDrop<'a>(pub(super) &'a LocalPermits);

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.update(|permits| permits.release(1));
    }
}
