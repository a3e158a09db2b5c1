//! A FIFO semaphore: the core of locks, semaphores, queues and channels.
//!
//! A lock has one permit. A read-write lock has `usize::MAX`, all of which a writer acquires. A queue has one permit
//! per item and one per free slot. There is no barging: while a task waits, permits go to the first waiter, and if it
//! needs more than are available, the waiters behind it wait too. So readers cannot starve a writer.

use std::cell::RefCell;
use std::task::Waker;

use super::wait::{Request, StateCell, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

pub(super) struct Permits {
    available: usize,
    /// The number of waiters that were granted permits and have neither taken nor returned them.
    granted: usize,
    phase: Phase,
    wait_queue: WaitQueue<PermitGrant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// No permits will be added. Waiters fail once no granted permit can be returned either.
    Draining,
    Closed,
}

pub(super) enum PermitGrant {
    Granted,
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
    pub(super) fn serve(&mut self) {
        if self.phase != Phase::Closed {
            while let Some(count) = self.wait_queue.first()
                && count <= self.available
            {
                self.available -= count;
                self.granted += 1;
                self.wait_queue.grant_first(PermitGrant::Granted);
            }
        }
        if self.phase == Phase::Closed || self.is_drained() {
            self.wait_queue.grant_all(|| PermitGrant::Closed);
        }
    }

    pub(super) fn wait_queue(&mut self) -> &mut WaitQueue<PermitGrant> {
        &mut self.wait_queue
    }

    /// Called by a waiter that takes its grant.
    pub(super) fn take_grant(&mut self, grant: &PermitGrant) -> Result<(), Denied> {
        match grant {
            PermitGrant::Closed => Err(Denied::Closed),
            PermitGrant::Granted => {
                self.granted -= 1;
                if self.is_drained() {
                    self.serve();
                }
                Ok(())
            }
        }
    }

    /// Called for a waiter for `count` permits that left the queue: serves those behind it, with an unused grant's permits.
    pub(super) fn left(&mut self, unused: Option<PermitGrant>, count: usize) {
        if let Some(PermitGrant::Granted) = unused {
            self.granted -= 1;
            self.available += count;
        }
        self.serve();
    }
}

impl WaitState for Permits {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// Acquires this many permits.
pub(super) struct Acquire(usize);

impl Request<Permits> for Acquire {
    type Grant = PermitGrant;
    type Output = Result<(), Denied>;

    fn wait_queue<'s>(&self, permits: &'s mut Permits) -> &'s mut WaitQueue<PermitGrant> {
        permits.wait_queue()
    }

    fn amount(&self) -> usize {
        self.0
    }

    fn try_now(&mut self, permits: &mut Permits) -> Option<Result<(), Denied>> {
        match permits.try_take(self.0) {
            Err(Denied::Busy) => None,
            result => Some(result),
        }
    }

    fn enqueued(&mut self, permits: &mut Permits) {
        permits.serve();
    }

    fn take_grant(&mut self, permits: &mut Permits, grant: PermitGrant) -> Result<(), Denied> {
        permits.take_grant(&grant)
    }

    fn left(&mut self, permits: &mut Permits, unused: Option<PermitGrant>) {
        permits.left(unused, self.0);
    }
}

/// Permits for one thread.
pub(super) type LocalPermits = RefCell<Permits>;

/// Acquires permits. Dropped while waiting, it leaves the queue; dropped after the grant, it returns the permits.
pub(super) fn acquire<'a>(
    permits: &'a LocalPermits,
    count: usize,
    name: &'static str,
) -> WaitFuture<&'a LocalPermits, Acquire> {
    WaitFuture::new(permits, name, Acquire(count))
}

/// Returns permits when dropped.
pub(super) struct ReleaseOnDrop<'a> {
    pub(super) permits: &'a LocalPermits,
    pub(super) count: usize,
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        self.permits.update(|permits| permits.release(self.count));
    }
}
