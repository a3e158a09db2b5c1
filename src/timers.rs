//! The timer heap, the second of the loop's two queues.
//!
//! As in asyncio, a cancelled timer is not searched for: cancelling empties its slot, which is O(1), and leaves its heap
//! entry to be skipped when it comes up. So that a program which sets and cancels timeouts all day does not drown in
//! such entries, the heap is rebuilt once more than half of it, and more than 100, are cancelled: it never holds more
//! than twice the live timers plus 100, and the rebuilding costs O(1) per cancel, spread out.
//!
//! Equal deadlines fire in the order in which they were set: the sequence number decides, and serves as the slot's
//! generation too.

use std::collections::BinaryHeap;
use std::rc::Rc;
use std::task::Waker;

use slab::Slab;

use crate::callback::Callback;
use crate::time::Instant;

/// What a timer does when it is due.
pub(crate) enum Action {
    Wake(Waker),
    Call(Rc<dyn Callback>),
}

/// A timer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId {
    slot: usize,
    seq: u64,
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Entry>,
    slots: Slab<Slot>,
    next_seq: u64,
    /// Heap entries whose slot is empty or has a new tenant.
    cancelled: usize,
}

struct Slot {
    seq: u64,
    action: Action,
}

#[derive(PartialEq, Eq)]
struct Entry {
    when: Instant,
    id: TimerId,
}

impl Ord for Entry {
    /// Reversed: the heap is a max-heap, and the earliest is to come first.
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (other.when, other.id.seq).cmp(&(self.when, self.id.seq))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Timers {
    pub(crate) fn add(&mut self, when: Instant, action: Action) -> TimerId {
        let seq = self.next_seq;
        self.next_seq += 1;
        let slot = self.slots.insert(Slot { seq, action });
        let id = TimerId { slot, seq };
        self.heap.push(Entry { when, id });
        id
    }

    /// Cancels a timer; false if it has fired or was cancelled before. What it would have done is given back, to be
    /// dropped when the heap is no longer borrowed.
    #[must_use]
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Action> {
        self.get(id)?;
        let slot = self.slots.remove(id.slot);
        self.cancelled += 1;
        if self.cancelled > 100 && self.cancelled * 2 > self.heap.len() {
            let slots = &self.slots;
            self.heap.retain(|entry| is_live(slots, entry.id));
            self.cancelled = 0;
        }
        Some(slot.action)
    }

    /// The action of a timer that has neither fired nor been cancelled.
    pub(crate) fn get(&mut self, id: TimerId) -> Option<&mut Action> {
        let slot = self.slots.get_mut(id.slot)?;
        (slot.seq == id.seq).then_some(&mut slot.action)
    }

    /// The first live deadline.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        loop {
            let first = self.heap.peek()?;
            if is_live(&self.slots, first.id) {
                return Some(first.when);
            }
            self.heap.pop();
            self.cancelled -= 1;
        }
    }

    /// Takes the first timer that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Action> {
        if self.next_deadline()? > now {
            return None;
        }
        let entry = self.heap.pop()?;
        Some(self.slots.remove(entry.id.slot).action)
    }

    /// Takes any timer at all, when the loop closes.
    pub(crate) fn pop_any(&mut self) -> Option<Action> {
        self.next_deadline()?;
        let entry = self.heap.pop()?;
        Some(self.slots.remove(entry.id.slot).action)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Timers that will still fire.
    pub(crate) fn live(&self) -> usize {
        self.slots.len()
    }

    /// Every timer that will still fire: when, and what it does.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, &Action)> {
        self.heap.iter().filter_map(|entry| {
            let slot = self.slots.get(entry.id.slot)?;
            (slot.seq == entry.id.seq).then_some((entry.when, &slot.action))
        })
    }

    /// Heap entries, cancelled ones among them.
    pub(crate) fn heap_len(&self) -> usize {
        self.heap.len()
    }
}

fn is_live(slots: &Slab<Slot>, id: TimerId) -> bool {
    slots.get(id.slot).is_some_and(|slot| slot.seq == id.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ns: u64) -> Instant {
        Instant::from_origin(Duration::from_nanos(ns))
    }

    fn wake() -> Action {
        Action::Wake(Waker::noop().clone())
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let mut timers = Timers::default();
        let count = if cfg!(miri) { 400 } else { 1_000_000 };
        let kept: Vec<_> = (0..50).map(|i| timers.add(at(1 << 40 | i), wake())).collect();
        for i in 0..count {
            let id = timers.add(at(i), wake());
            assert!(timers.cancel(id).is_some());
            assert!(timers.cancel(id).is_none(), "a second cancel finds nothing");
            assert!(timers.heap_len() <= 2 * timers.live() + 100);
        }
        // Added first, cancelled afterwards: the heap must shrink too.
        let many: Vec<_> = (0..count).map(|i| timers.add(at(i), wake())).collect();
        for id in many {
            drop(timers.cancel(id));
        }
        assert!(timers.heap_len() <= 2 * timers.live() + 100);
        assert_eq!(timers.live(), kept.len());
        assert_eq!(timers.next_deadline(), Some(at(1 << 40)));
    }

    #[test]
    fn a_slot_with_a_new_tenant_is_not_cancelled_by_the_old_id() {
        let mut timers = Timers::default();
        let old = timers.add(at(1), wake());
        assert!(timers.cancel(old).is_some());
        let new = timers.add(at(2), wake());
        assert_eq!(old.slot, new.slot);
        assert!(timers.cancel(old).is_none());
        assert_eq!(timers.next_deadline(), Some(at(2)));
        assert!(timers.pop_due(at(1)).is_none());
        assert!(timers.pop_due(at(2)).is_some());
    }
}
