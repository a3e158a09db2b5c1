//! A line of waiters: first come, first served, leave when you like.
//!
//! Every primitive of this folder keeps its waiters in one of these. A waiter is a place in a vector, and places are
//! linked by number: joining, being called and leaving from the middle take a constant number of steps, places are used
//! again, and nothing is allocated once the line has been as long as it gets. A place belongs to one future, which
//! alone gives it back: so its number needs no generation.
//!
//! There are two lists through the same links. `waiting` is the line. Who is called moves to `called`, together with
//! what was granted, and stays there until somebody has taken out the waker to wake it *after* the borrow or the lock
//! has ended. So calling ten thousand waiters needs no vector of ten thousand wakers, and a waker that comes back into
//! the same primitive finds it whole.

use std::task::Waker;

const NONE: usize = usize::MAX;

/// A line that has been longer than this gives its memory back when everybody is gone: a crowd may not come again.
const CROWD: usize = 1_024;

/// Waiters that want `W`, and are granted `G` when it is their turn.
pub(super) struct WaitQueue<W, G> {
    fds: Vec<Place<W, G>>,
    /// The first of the unused places, linked through `after`.
    free: usize,
    waiting: Ends,
    called: Ends,
    /// How many wait.
    len: usize,
    /// How many places are not free.
    used: usize,
}

#[derive(Clone, Copy)]
struct Ends {
    first: usize,
    last: usize,
}

struct Place<W, G> {
    before: usize,
    after: usize,
    /// Taken when it is woken. A place is in `called` as long as it is called and has a waker.
    waker: Option<Waker>,
    stage: Stage<W, G>,
}

/// What has become of a waiter.
pub(super) enum Stage<W, G> {
    Unused,
    Waiting(W),
    Called(G),
}

/// A future's claim to its place. Given back with [`Line::leave`].
pub(super) struct Ticket(usize);

impl<W, G> WaitQueue<W, G> {
    pub(super) const fn new() -> WaitQueue<W, G> {
        let none = Ends {
            first: NONE,
            last: NONE,
        };
        WaitQueue {
            fds: Vec::new(),
            free: NONE,
            waiting: none,
            called: none,
            len: 0,
            used: 0,
        }
    }

    /// How many wait and are not yet called.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the first in the line wants.
    pub(super) fn first(&self) -> Option<&W> {
        match &self.fds.get(self.waiting.first)?.stage {
            Stage::Waiting(want) => Some(want),
            _ => unreachable!("who is in the line waits"),
        }
    }

    /// Goes to the end of the line.
    pub(super) fn join(&mut self, want: W, waker: Waker) -> Ticket {
        let place = Place {
            before: NONE,
            after: NONE,
            waker: Some(waker),
            stage: Stage::Waiting(want),
        };
        let at = match self.free {
            NONE => {
                self.fds.push(place);
                self.fds.len() - 1
            }
            at => {
                self.free = self.fds[at].after;
                self.fds[at] = place;
                at
            }
        };
        link(&mut self.fds, &mut self.waiting, at);
        self.len += 1;
        self.used += 1;
        Ticket(at)
    }

    /// Calls the first in the line. False if there is nobody.
    pub(super) fn call_first(&mut self, grant: G) -> bool {
        self.call(self.waiting.first, grant)
    }

    /// Calls who joined last, if it waits.
    pub(super) fn call_last(&mut self, grant: G) -> bool {
        self.call(self.waiting.last, grant)
    }

    fn call(&mut self, at: usize, grant: G) -> bool {
        if at == NONE {
            return false;
        }
        unlink(&mut self.fds, &mut self.waiting, at);
        self.len -= 1;
        self.fds[at].stage = Stage::Called(grant);
        link(&mut self.fds, &mut self.called, at);
        true
    }

    /// Calls everybody who waits now, first come, first called.
    pub(super) fn call_all(&mut self, mut grant: impl FnMut() -> G) {
        while !self.is_empty() {
            self.call_first(grant());
        }
    }

    /// The waker of the first who was called and not yet woken. To be woken once nothing is borrowed.
    pub(super) fn next_waker(&mut self) -> Option<Waker> {
        let at = self.called.first;
        if at == NONE {
            return None;
        }
        unlink(&mut self.fds, &mut self.called, at);
        self.fds[at].waker.take()
    }

    pub(super) fn is_called(&self, ticket: &Ticket) -> bool {
        matches!(self.fds[ticket.0].stage, Stage::Called(_))
    }

    /// Whether this waiter's waker would do instead of `waker`.
    pub(super) fn will_wake(&self, ticket: &Ticket, waker: &Waker) -> bool {
        let own = &self.fds[ticket.0].waker;
        own.as_ref().is_some_and(|own| own.will_wake(waker))
    }

    /// Has another waker woken for this waiter. Gives the old one, to be dropped once nothing is borrowed.
    pub(super) fn set_waker(&mut self, ticket: &Ticket, waker: Waker) -> Option<Waker> {
        debug_assert!(!self.is_called(ticket));
        self.fds[ticket.0].waker.replace(waker)
    }

    /// Gives the place back, from wherever it is. The waker is to be dropped once nothing is borrowed.
    pub(super) fn leave(&mut self, ticket: Ticket) -> (Stage<W, G>, Option<Waker>) {
        let at = ticket.0;
        let stage = std::mem::replace(&mut self.fds[at].stage, Stage::Unused);
        let waker = self.fds[at].waker.take();
        match &stage {
            Stage::Waiting(_) => {
                unlink(&mut self.fds, &mut self.waiting, at);
                self.len -= 1;
            }
            Stage::Called(_) if waker.is_some() => unlink(&mut self.fds, &mut self.called, at),
            Stage::Called(_) => {}
            Stage::Unused => unreachable!("a ticket's place is in use"),
        }
        self.fds[at].after = self.free;
        self.free = at;
        self.used -= 1;
        if self.used == 0 && self.fds.len() > CROWD {
            self.fds = Vec::new();
            self.free = NONE;
        }
        (stage, waker)
    }
}

/// Puts an unlinked place at the end of a list.
fn link<W, G>(fds: &mut [Place<W, G>], list: &mut Ends, at: usize) {
    fds[at].before = list.last;
    fds[at].after = NONE;
    match list.last {
        NONE => list.first = at,
        last => fds[last].after = at,
    }
    list.last = at;
}

/// Takes a place out of the list that it is in.
fn unlink<W, G>(fds: &mut [Place<W, G>], list: &mut Ends, at: usize) {
    let (before, after) = (fds[at].before, fds[at].after);
    match before {
        NONE => list.first = after,
        before => fds[before].after = after,
    }
    match after {
        NONE => list.last = before,
        after => fds[after].before = before,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::noop().clone()
    }

    #[test]
    fn whoever_leaves_the_middle_leaves_the_others_in_order() {
        let mut wait_queue = WaitQueue::new();
        let mut tickets: Vec<Ticket> = (0..5).map(|i| wait_queue.join(i, waker())).collect();
        wait_queue.leave(tickets.remove(2));
        wait_queue.leave(tickets.remove(0));
        let mut order = Vec::new();
        while let Some(&want) = wait_queue.first() {
            order.push(want);
            assert!(wait_queue.call_first(()));
        }
        assert_eq!(order, [1, 3, 4]);
        assert!(!wait_queue.call_first(()));
    }

    #[test]
    fn places_are_used_again() {
        let mut wait_queue = WaitQueue::<(), ()>::new();
        for _ in 0..100 {
            let tickets: Vec<Ticket> = (0..3).map(|_| wait_queue.join((), waker())).collect();
            assert_eq!(wait_queue.len(), 3);
            for (i, ticket) in tickets.into_iter().enumerate() {
                if i == 1 {
                    wait_queue.call_first(());
                }
                wait_queue.leave(ticket);
            }
        }
        assert_eq!(wait_queue.fds.len(), 3);
        assert!(wait_queue.is_empty() && wait_queue.next_waker().is_none());
    }

    #[test]
    fn a_crowd_leaves_no_memory_behind() {
        let mut wait_queue = WaitQueue::<usize, ()>::new();
        for _ in 0..2 {
            let tickets: Vec<Ticket> = (0..=CROWD).map(|i| wait_queue.join(i, waker())).collect();
            wait_queue.call_first(());
            for ticket in tickets {
                wait_queue.leave(ticket);
            }
            assert_eq!(wait_queue.fds.capacity(), 0);
            assert!(wait_queue.is_empty() && wait_queue.first().is_none() && wait_queue.next_waker().is_none());
        }
    }

    #[test]
    fn who_leaves_after_the_call_and_before_the_wake_is_not_woken() {
        let mut wait_queue = WaitQueue::<(), u8>::new();
        let (a, b) = (wait_queue.join((), waker()), wait_queue.join((), waker()));
        wait_queue.call_all(|| 7);
        assert!(wait_queue.is_called(&a) && wait_queue.is_called(&b));
        let (stage, waker) = wait_queue.leave(a);
        assert!(matches!(stage, Stage::Called(7)) && waker.is_some());
        assert!(wait_queue.next_waker().is_some(), "the other's");
        assert!(wait_queue.next_waker().is_none());
        assert!(matches!(wait_queue.leave(b), (Stage::Called(7), None)));
    }
}
