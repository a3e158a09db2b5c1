//! `WaitQueue`: a FIFO queue of waiters with O(1) removal from any position.
//!
//! Waiters are entries of a vector, linked by index. Enqueueing, granting and leaving are O(1). Entries are reused, so
//! nothing is allocated below the queue's previous maximum length. Each entry belongs to one future, which alone frees
//! it, so keys need no generation.
//!
//! Two lists use the same links. `waiting` is the queue. A waiter that is granted its request moves to `to_wake`
//! together with the grant, and stays there until its waker is taken, to be woken *after* the borrow or the lock has
//! ended. So granting ten thousand waiters needs no vector of ten thousand wakers, and a waker that re-enters the same
//! primitive finds it consistent.

use std::task::Waker;

const NONE: usize = usize::MAX;

/// A queue that was longer than this frees its memory when its last waiter leaves.
const SHRINK_ABOVE: usize = 1_024;

/// A queue of waiters; each requests an amount and is granted a `G`.
pub(crate) struct WaitQueue<G> {
    waiters: Vec<Waiter<G>>,
    /// The first free entry; free entries are linked through `next`.
    free: usize,
    waiting: List,
    to_wake: List,
    /// The number of entries in `waiting`.
    len: usize,
    /// The number of entries that are not free.
    used: usize,
}

#[derive(Clone, Copy)]
struct List {
    head: usize,
    tail: usize,
}

struct Waiter<G> {
    prev: usize,
    next: usize,
    /// Taken for the wake-up. An entry is in `to_wake` while it is `Granted` and has a waker.
    waker: Option<Waker>,
    stage: Stage<G>,
}

/// The state of an entry.
pub(crate) enum Stage<G> {
    Free,
    Waiting(usize),
    Granted(G),
}

/// A future's exclusive key to its entry. Consumed by [`WaitQueue::leave`].
pub(crate) struct WaiterKey(pub(crate) usize);

impl<G> WaitQueue<G> {
    pub(crate) const fn new() -> WaitQueue<G> {
        let none = List { head: NONE, tail: NONE };
        WaitQueue {
            waiters: Vec::new(),
            free: NONE,
            waiting: none,
            to_wake: none,
            len: 0,
            used: 0,
        }
    }

    /// The number of waiters without a grant.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The amount that the first waiter requests.
    pub(crate) fn first(&self) -> Option<usize> {
        match self.waiters.get(self.waiting.head)?.stage {
            Stage::Waiting(amount) => Some(amount),
            _ => unreachable!("an entry in `waiting` is Stage::Waiting"),
        }
    }

    /// Appends a waiter.
    pub(crate) fn join(&mut self, amount: usize, waker: Waker) -> WaiterKey {
        let waiter = Waiter {
            prev: NONE,
            next: NONE,
            waker: Some(waker),
            stage: Stage::Waiting(amount),
        };
        let at = match self.free {
            NONE => {
                self.waiters.push(waiter);
                self.waiters.len() - 1
            }
            at => {
                self.free = self.waiters[at].next;
                self.waiters[at] = waiter;
                at
            }
        };
        push_back(&mut self.waiters, &mut self.waiting, at);
        self.len += 1;
        self.used += 1;
        WaiterKey(at)
    }

    /// Grants the first waiter's request. False if there is none.
    pub(crate) fn grant_first(&mut self, grant: G) -> bool {
        self.grant_at(self.waiting.head, grant)
    }

    /// Grants the request of the last waiter, if there is one.
    pub(crate) fn grant_last(&mut self, grant: G) -> bool {
        self.grant_at(self.waiting.tail, grant)
    }

    fn grant_at(&mut self, at: usize, grant: G) -> bool {
        if at == NONE {
            return false;
        }
        remove(&mut self.waiters, &mut self.waiting, at);
        self.len -= 1;
        self.waiters[at].stage = Stage::Granted(grant);
        push_back(&mut self.waiters, &mut self.to_wake, at);
        true
    }

    /// Grants the requests of all current waiters, in FIFO order.
    pub(crate) fn grant_all(&mut self, mut grant: impl FnMut() -> G) {
        while !self.is_empty() {
            self.grant_first(grant());
        }
    }

    /// Takes the next waker to wake. The caller wakes it when nothing is borrowed.
    pub(crate) fn next_waker(&mut self) -> Option<Waker> {
        let at = self.to_wake.head;
        if at == NONE {
            return None;
        }
        remove(&mut self.waiters, &mut self.to_wake, at);
        self.waiters[at].waker.take()
    }

    pub(crate) fn is_granted(&self, key: &WaiterKey) -> bool {
        matches!(self.waiters[key.0].stage, Stage::Granted(_))
    }

    /// Whether the stored waker wakes the same task as `waker`.
    pub(crate) fn will_wake(&self, key: &WaiterKey, waker: &Waker) -> bool {
        let own = &self.waiters[key.0].waker;
        own.as_ref().is_some_and(|own| own.will_wake(waker))
    }

    /// Replaces the waker. The caller drops the old one when nothing is borrowed.
    pub(crate) fn set_waker(&mut self, key: &WaiterKey, waker: Waker) -> Option<Waker> {
        debug_assert!(!self.is_granted(key));
        self.waiters[key.0].waker.replace(waker)
    }

    /// Frees the entry, whatever its state. The caller drops the waker when nothing is borrowed.
    pub(crate) fn leave(&mut self, key: WaiterKey) -> (Stage<G>, Option<Waker>) {
        let at = key.0;
        let stage = std::mem::replace(&mut self.waiters[at].stage, Stage::Free);
        let waker = self.waiters[at].waker.take();
        match &stage {
            Stage::Waiting(_) => {
                remove(&mut self.waiters, &mut self.waiting, at);
                self.len -= 1;
            }
            Stage::Granted(_) if waker.is_some() => remove(&mut self.waiters, &mut self.to_wake, at),
            Stage::Granted(_) => {}
            Stage::Free => unreachable!("a key's entry is in use"),
        }
        self.waiters[at].next = self.free;
        self.free = at;
        self.used -= 1;
        if self.used == 0 && self.waiters.len() > SHRINK_ABOVE {
            self.waiters = Vec::new();
            self.free = NONE;
        }
        (stage, waker)
    }
}

impl<G> Default for WaitQueue<G> {
    fn default() -> WaitQueue<G> {
        WaitQueue::new()
    }
}

/// Appends an unlinked entry to a list.
fn push_back<G>(waiters: &mut [Waiter<G>], list: &mut List, at: usize) {
    waiters[at].prev = list.tail;
    waiters[at].next = NONE;
    match list.tail {
        NONE => list.head = at,
        tail => waiters[tail].next = at,
    }
    list.tail = at;
}

/// Unlinks an entry from its list.
fn remove<G>(waiters: &mut [Waiter<G>], list: &mut List, at: usize) {
    let (prev, next) = (waiters[at].prev, waiters[at].next);
    match prev {
        NONE => list.head = next,
        prev => waiters[prev].next = next,
    }
    match next {
        NONE => list.tail = prev,
        next => waiters[next].prev = prev,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::noop().clone()
    }

    #[test]
    fn leaving_from_the_middle_keeps_the_order() {
        let mut wait_queue = WaitQueue::new();
        let mut keys: Vec<WaiterKey> = (0..5).map(|i| wait_queue.join(i, waker())).collect();
        wait_queue.leave(keys.remove(2));
        wait_queue.leave(keys.remove(0));
        let mut order = Vec::new();
        while let Some(amount) = wait_queue.first() {
            order.push(amount);
            assert!(wait_queue.grant_first(()));
        }
        assert_eq!(order, [1, 3, 4]);
        assert!(!wait_queue.grant_first(()));
    }

    #[test]
    fn entries_are_reused() {
        let mut wait_queue = WaitQueue::<()>::new();
        for _ in 0..100 {
            let keys: Vec<WaiterKey> = (0..3).map(|_| wait_queue.join(1, waker())).collect();
            assert_eq!(wait_queue.len(), 3);
            for (i, key) in keys.into_iter().enumerate() {
                if i == 1 {
                    wait_queue.grant_first(());
                }
                wait_queue.leave(key);
            }
        }
        assert_eq!(wait_queue.waiters.len(), 3);
        assert!(wait_queue.is_empty() && wait_queue.next_waker().is_none());
    }

    #[test]
    fn a_long_queue_frees_its_memory() {
        let mut wait_queue = WaitQueue::<()>::new();
        for _ in 0..2 {
            let keys: Vec<WaiterKey> = (0..=SHRINK_ABOVE).map(|i| wait_queue.join(i, waker())).collect();
            wait_queue.grant_first(());
            for key in keys {
                wait_queue.leave(key);
            }
            assert_eq!(wait_queue.waiters.capacity(), 0);
            assert!(wait_queue.is_empty() && wait_queue.first().is_none() && wait_queue.next_waker().is_none());
        }
    }

    #[test]
    fn a_waiter_that_leaves_after_its_grant_is_not_woken() {
        let mut wait_queue = WaitQueue::<u8>::new();
        let (a, b) = (wait_queue.join(1, waker()), wait_queue.join(1, waker()));
        wait_queue.grant_all(|| 7);
        assert!(wait_queue.is_granted(&a) && wait_queue.is_granted(&b));
        let (stage, waker) = wait_queue.leave(a);
        assert!(matches!(stage, Stage::Granted(7)) && waker.is_some());
        assert!(wait_queue.next_waker().is_some(), "the other waiter's");
        assert!(wait_queue.next_waker().is_none());
        assert!(matches!(wait_queue.leave(b), (Stage::Granted(7), None)));
    }
}
