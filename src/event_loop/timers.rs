//! The timers of a loop: a heap of deadlines and a slab of actions.
//!
//! As in asyncio, cancelling is lazy: it frees the timer's slot in O(1) and leaves the heap entry, to be skipped when
//! it reaches the top. So that a program that sets and cancels many timeouts does not accumulate such entries, the heap
//! is rebuilt when more than 100 entries and more than half of all are cancelled: it never holds more than twice the
//! live timers plus 100, and rebuilding costs amortized O(1) per cancelled timer.
//!
//! Timers with equal deadlines fire in the order in which they were set: a sequence number, which is also the slot's
//! generation, decides.

use std::cmp::Reverse;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use dary_heap::QuaternaryHeap;
use slab::Slab;

use crate::event_loop::callback::Callback;
use crate::time::Instant;

/// What a timer does when it fires.
pub(crate) enum Action {
    Wake(Waker),
    Call(Rc<dyn Callback>),
}

/// A timer's slot, and above it a sequence number, which wraps after 2^36 timers: 19 hours at a million per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(u64);

const SLOT_BITS: u32 = 28;

impl TimerId {
    #[inline]
    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

#[derive(Default)]
pub(crate) struct Timers {
    /// Four children per node: half the levels of a binary heap. With 100,000 timers, each level is a cache miss.
    heap: QuaternaryHeap<Entry>,
    slots: Slab<Slot>,
    next_seq: u64,
    /// Heap entries whose slot is empty or reused.
    cancelled: usize,
}

struct Slot {
    id: TimerId,
    action: Action,
}

/// The deadline in nanoseconds, and below it the id: one number, compared without a branch. Reversed, because the heap's
/// first element is its greatest. 16 bytes, so that the four children of a node fit in 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(Reverse<u128>);

impl Entry {
    fn new(when: Instant, id: TimerId) -> Entry {
        Entry(Reverse(when.since_origin().as_nanos() << 64 | u128::from(id.0)))
    }

    #[inline]
    fn id(self) -> TimerId {
        TimerId(self.0.0 as u64)
    }

    fn deadline(self) -> Instant {
        Instant::from_origin(Duration::from_nanos((self.0.0 >> 64) as u64))
    }
}

impl Timers {
    pub(crate) fn add(&mut self, when: Instant, action: Action) -> TimerId {
        let slot = self.slots.vacant_entry();
        assert!(slot.key() < 1 << SLOT_BITS, "a loop holds at most 2^28 timers");
        let id = TimerId(self.next_seq << SLOT_BITS | slot.key() as u64);
        self.next_seq += 1;
        slot.insert(Slot { id, action });
        self.heap.push(Entry::new(when, id));
        id
    }

    /// Cancels a timer; `None` if it has fired or was cancelled before. Returns the action, to be dropped outside the
    /// borrow.
    #[must_use]
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Action> {
        self.get(id)?;
        let slot = self.slots.remove(id.slot());
        self.cancelled += 1;
        if self.cancelled > 100 && self.cancelled * 2 > self.heap.len() {
            let slots = &self.slots;
            self.heap.retain(|entry| live_action(slots, *entry).is_some());
            self.cancelled = 0;
        }
        Some(slot.action)
    }

    /// The action of a timer that has neither fired nor been cancelled.
    pub(crate) fn get(&mut self, id: TimerId) -> Option<&mut Action> {
        let slot = self.slots.get_mut(id.slot())?;
        (slot.id == id).then_some(&mut slot.action)
    }

    #[inline]
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.first().map(|entry| entry.deadline())
    }

    /// The first live entry. Pops cancelled entries before it.
    #[inline]
    fn first(&mut self) -> Option<Entry> {
        loop {
            let first = *self.heap.peek()?;
            if live_action(&self.slots, first).is_some() {
                return Some(first);
            }
            self.heap.pop();
            self.cancelled -= 1;
        }
    }

    /// Pops the first timer if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Action> {
        if self.first()?.deadline() > now {
            return None;
        }
        self.pop_any()
    }

    /// Pops the first timer, due or not.
    pub(crate) fn pop_any(&mut self) -> Option<Action> {
        let first = self.first()?;
        self.heap.pop();
        Some(self.slots.remove(first.id().slot()).action)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The number of timers that have neither fired nor been cancelled.
    pub(crate) fn live(&self) -> usize {
        self.slots.len()
    }

    /// The deadline and action of every live timer.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, &Action)> {
        let entries = self.heap.iter();
        entries.filter_map(|entry| Some((entry.deadline(), live_action(&self.slots, *entry)?)))
    }

    /// The number of heap entries, including cancelled ones.
    pub(crate) fn heap_len(&self) -> usize {
        self.heap.len()
    }
}

/// The action of a heap entry; `None` if it was cancelled.
fn live_action(slots: &Slab<Slot>, entry: Entry) -> Option<&Action> {
    let slot = slots.get(entry.id().slot())?;
    (slot.id == entry.id()).then_some(&slot.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_origin(Duration::from_nanos(ns))
    }

    fn wake() -> Action {
        Action::Wake(Waker::noop().clone())
    }

    #[test]
    fn timers_fire_in_the_order_of_their_deadlines() {
        let count = if cfg!(miri) { 200 } else { 5_000 };
        for kept_of_8 in [8, 4, 1] {
            let mut timers = Timers::default();
            // Deadlines in a fixed pseudo-random order, many of them equal.
            let set: Vec<_> = (0..count)
                .map(|key: u64| at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54))
                .map(|when| (when, timers.add(when, wake())))
                .collect();
            let (kept, cancelled): (Vec<_>, Vec<_>) =
                set.into_iter().partition(|(_, id)| id.0 >> SLOT_BITS & 7 < kept_of_8);
            for (_, id) in cancelled {
                assert!(timers.cancel(id).is_some());
            }
            let mut expected = kept.clone();
            expected.sort_by_key(|&(when, id)| (when, id.0));
            let fired = std::iter::from_fn(|| {
                let first = timers.first()?;
                timers.pop_any().map(|_| (first.deadline(), first.id()))
            });
            assert_eq!(fired.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn timers_can_be_set_between_others_that_fire() {
        let mut timers = Timers::default();
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let when = at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
            let id = timers.add(when, wake());
            model.insert((when, id.0));
            if key % 3 == 0 {
                let first = timers.first().map(|entry| (entry.deadline(), entry.id().0));
                assert_eq!(first, model.pop_first());
                assert!(timers.pop_any().is_some());
            }
        }
        assert_eq!(timers.live(), model.len());
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
    fn an_old_id_does_not_cancel_a_reused_slot() {
        let mut timers = Timers::default();
        let old = timers.add(at(1), wake());
        assert!(timers.cancel(old).is_some());
        let new = timers.add(at(2), wake());
        assert_eq!(old.slot(), new.slot());
        assert!(timers.cancel(old).is_none());
        assert_eq!(timers.next_deadline(), Some(at(2)));
        assert!(timers.pop_due(at(1)).is_none());
        assert!(timers.pop_due(at(2)).is_some());
    }
}
