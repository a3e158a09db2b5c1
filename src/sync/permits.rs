//! Permits that are taken and put back, in the order of asking: what locks, semaphores and queues are made of.
//!
//! A lock has one permit; a read-write lock has very many, of which a writer takes all; a queue has one for each item
//! and one for each free place. Nobody barges: as long as somebody waits, permits go to the first in the line, who may
//! want more than there are, and then those behind wait too. So a writer is not starved by readers.

use std::cell::RefCell;
use std::task::Waker;

use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

pub(super) struct Permits {
    available: usize,
    /// How many waiters were granted theirs and have not yet taken or refused them.
    promised: usize,
    end: End,
    wait_queue: WaitQueue<usize, Outcome>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// No permits will be added; who waits is told once none can come back either.
    Draining,
    Closed,
}

pub(super) enum Outcome {
    Granted,
    Closed,
}

/// Why permits cannot be had without waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Busy,
    Closed,
}

impl Permits {
    pub(super) const fn new(available: usize) -> Permits {
        Permits {
            available,
            promised: 0,
            end: End::Open,
            wait_queue: WaitQueue::new(),
        }
    }

    pub(super) fn available(&self) -> usize {
        self.available
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.wait_queue.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.end == End::Closed
    }

    pub(super) fn try_take(&mut self, count: usize) -> Result<(), Denied> {
        if self.end == End::Closed {
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

    /// Puts permits back, or new ones in.
    pub(super) fn put(&mut self, count: usize) {
        self.available += count;
        self.serve();
    }

    /// Takes away up to `count` permits that nobody has. Gives how many.
    pub(super) fn remove(&mut self, count: usize) -> usize {
        let removed = count.min(self.available);
        self.available -= removed;
        removed
    }

    /// Everybody who waits is told at once that there will be none.
    pub(super) fn close(&mut self) {
        self.end = End::Closed;
        self.serve();
    }

    /// No permits will be added; those that are there, and those that come back, can still be had.
    pub(super) fn drain(&mut self) {
        if self.end == End::Open {
            self.end = End::Draining;
            self.serve();
        }
    }

    fn is_drained(&self) -> bool {
        self.end == End::Draining && self.available == 0 && self.promised == 0
    }

    /// Calls whoever can be called.
    fn serve(&mut self) {
        if self.end != End::Closed {
            while let Some(&count) = self.wait_queue.first()
                && count <= self.available
            {
                self.available -= count;
                self.promised += 1;
                self.wait_queue.call_first(Outcome::Granted);
            }
        }
        if self.end == End::Closed || self.is_drained() {
            self.wait_queue.call_all(|| Outcome::Closed);
        }
    }

    pub(super) fn wait_queue(&mut self) -> &mut WaitQueue<usize, Outcome> {
        &mut self.wait_queue
    }

    /// After somebody joined the line or left it.
    pub(super) fn settle(&mut self) {
        self.serve();
    }

    /// A waiter takes what it was granted.
    pub(super) fn accept(&mut self, outcome: &Outcome) -> Result<(), Denied> {
        match outcome {
            Outcome::Closed => Err(Denied::Closed),
            Outcome::Granted => {
                self.promised -= 1;
                if self.is_drained() {
                    self.serve();
                }
                Ok(())
            }
        }
    }

    /// A waiter that was called is gone.
    pub(super) fn refuse(&mut self, outcome: &Outcome, count: usize) {
        if let Outcome::Granted = outcome {
            self.promised -= 1;
            self.put(count);
        }
    }
}

impl Calls for Permits {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// So many permits.
pub(super) struct Take {
    pub(super) count: usize,
    /// Of what, for dumps.
    pub(super) name: &'static str,
}

impl Request<Permits> for Take {
    type Want = usize;
    type Grant = Outcome;
    type Output = Result<(), Denied>;

    fn wait_queue(permits: &mut Permits) -> &mut WaitQueue<usize, Outcome> {
        permits.wait_queue()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn want(&self) -> usize {
        self.count
    }

    fn try_now(&mut self, permits: &mut Permits) -> Option<Result<(), Denied>> {
        match permits.try_take(self.count) {
            Err(Denied::Busy) => None,
            result => Some(result),
        }
    }

    fn settle(permits: &mut Permits) {
        permits.settle();
    }

    fn take(&mut self, permits: &mut Permits, outcome: Outcome) -> Result<(), Denied> {
        permits.accept(&outcome)
    }

    fn give_back(&mut self, permits: &mut Permits, outcome: Outcome) {
        permits.refuse(&outcome, self.count);
    }
}

/// Permits of one thread.
pub(super) type LocalPermits = RefCell<Permits>;

/// Waits for permits. Dropped while it waits, it leaves the line; dropped after it was granted them, it puts them back.
pub(super) fn acquire<'a>(
    permits: &'a LocalPermits,
    count: usize,
    name: &'static str,
) -> Waiting<&'a LocalPermits, Take> {
    Waiting::new(permits, Take { count, name })
}

/// Puts permits back when dropped.
pub(super) struct PutBack<'a> {
    pub(super) permits: &'a LocalPermits,
    pub(super) count: usize,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        self.permits.act(|permits| permits.put(self.count));
    }
}
