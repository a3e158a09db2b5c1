//! The timers of a loop: heaps of deadlines and a slab of actions.
//!
//! A timer never fires early. It may fire later than its deadline by its slack, a fraction of its length, so that timers with
//! neighbouring deadlines share a wake-up: see [`Builder::timer_slack`](crate::Builder::timer_slack). There is one heap for each
//! slack. The loop sleeps until the first heap's first deadline plus slack; when it is awake, every timer that is due fires,
//! ordered by deadline.
//!
//! As in asyncio, cancelling is lazy: it frees the timer's slot in O(1) and leaves the heap entry, to be skipped when
//! it reaches the top. So that a program that sets and cancels many timeouts does not accumulate such entries, a heap
//! is rebuilt when more than 100 entries and more than half of all are cancelled: it never holds more than twice its
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

/// From the lowest bit: a timer's slot, the heap that it is in, and a sequence number, which wraps after 2^33 timers: two
/// hours at a million per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(u64);

const SLOT_BITS: u32 = 28;
const HEAP_BITS: u32 = 3;
const HEAPS: usize = 1 << HEAP_BITS;

impl TimerId {
    #[inline]
    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    #[inline]
    fn heap(self) -> usize {
        (self.0 >> SLOT_BITS) as usize % HEAPS
    }
}

pub(crate) struct Timers {
    slack: Slack,
    /// By slack; the timers of the first have none.
    heaps: [Heap; HEAPS],
    /// A bit for each heap that has entries.
    occupied: u8,
    slots: Slab<Slot>,
    next_seq: u64,
}

/// How late timers may fire: a power of two of nanoseconds, at most 1/1024 of a timer's length. There are seven of them; timers
/// that are too short for the smallest have none.
#[derive(Clone, Copy)]
struct Slack {
    /// The exponent of half the smallest slack: that of heap `n` is 2 to the power of this plus `n`.
    base: u32,
}

impl Slack {
    fn up_to(largest: Duration) -> Slack {
        let exponent = largest.as_nanos().checked_ilog2().unwrap_or(0);
        Slack {
            // No timer is so long that it would have a slack of 2^64 ns.
            base: exponent.checked_sub(HEAPS as u32 - 1).unwrap_or(u64::BITS),
        }
    }

    /// The heap for a timer that is set at `now`.
    #[inline]
    fn heap(self, now: Instant, when: Instant) -> usize {
        let length = when.as_nanos().saturating_sub(now.as_nanos());
        let exponent = (length >> 10 | 1).ilog2();
        (exponent.saturating_sub(self.base) as usize).min(HEAPS - 1)
    }

    #[inline]
    fn of(self, heap: usize) -> u64 {
        match heap {
            0 => 0,
            heap => 1 << (self.base as usize + heap),
        }
    }
}

#[derive(Default)]
struct Heap {
    /// Four children per node: half the levels of a binary heap. With 100,000 timers, each level is a cache miss.
    entries: QuaternaryHeap<Entry>,
    /// Entries whose slot is empty or reused.
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
    #[inline]
    fn new(when: Instant, id: TimerId) -> Entry {
        Entry(Reverse(u128::from(when.as_nanos()) << 64 | u128::from(id.0)))
    }

    #[inline]
    fn id(self) -> TimerId {
        TimerId(self.0.0 as u64)
    }

    #[inline]
    fn deadline(self) -> Instant {
        Instant::from_nanos((self.0.0 >> 64) as u64)
    }
}

impl Timers {
    /// No timers. They may fire later than their deadline by up to `slack`.
    pub(crate) fn new(slack: Duration) -> Timers {
        Timers {
            slack: Slack::up_to(slack),
            heaps: Default::default(),
            occupied: 0,
            slots: Slab::new(),
            next_seq: 0,
        }
    }

    /// Adds a timer. Its slack depends on the time from `now` to its deadline.
    pub(crate) fn add(&mut self, now: Instant, when: Instant, action: Action) -> TimerId {
        let slot = self.slots.vacant_entry();
        assert!(slot.key() < 1 << SLOT_BITS, "a loop holds at most 2^28 timers");
        let heap = self.slack.heap(now, when);
        let id = TimerId((self.next_seq << HEAP_BITS | heap as u64) << SLOT_BITS | slot.key() as u64);
        self.next_seq += 1;
        slot.insert(Slot { id, action });
        self.heaps[heap].entries.push(Entry::new(when, id));
        self.occupied |= 1 << heap;
        id
    }

    /// Cancels a timer; `None` if it has fired or was cancelled before. Returns the action, to be dropped outside the
    /// borrow.
    #[must_use]
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Action> {
        self.get(id)?;
        let slot = self.slots.remove(id.slot());
        let heap = &mut self.heaps[id.heap()];
        heap.cancelled += 1;
        if heap.cancelled > 100 && heap.cancelled * 2 > heap.entries.len() {
            let slots = &self.slots;
            heap.entries.retain(|entry| live_action(slots, *entry).is_some());
            heap.cancelled = 0;
        }
        Some(slot.action)
    }

    /// The action of a timer that has neither fired nor been cancelled.
    pub(crate) fn get(&mut self, id: TimerId) -> Option<&mut Action> {
        let slot = self.slots.get_mut(id.slot())?;
        (slot.id == id).then_some(&mut slot.action)
    }

    /// The latest time at which the first timer may fire.
    #[inline]
    pub(crate) fn next_wake(&mut self) -> Option<Instant> {
        let mut wake: Option<u64> = None;
        self.for_each_first(|slack, entry| {
            let latest = entry.deadline().as_nanos().saturating_add(slack);
            wake = Some(wake.map_or(latest, |wake| wake.min(latest)));
        });
        wake.map(Instant::from_nanos)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.first().map(Entry::deadline)
    }

    /// The timer with the earliest deadline.
    #[inline]
    fn first(&mut self) -> Option<Entry> {
        let mut first = None;
        // Entries are reversed, so the first is the greatest.
        self.for_each_first(|_, entry| first = first.max(Some(entry)));
        first
    }

    /// Calls `visit` with the slack and the first live entry of each heap. Pops the cancelled entries before it.
    #[inline]
    fn for_each_first(&mut self, mut visit: impl FnMut(u64, Entry)) {
        let mut left = self.occupied;
        while left != 0 {
            let heap = left.trailing_zeros() as usize;
            left &= left - 1;
            match self.heaps[heap].first(&self.slots) {
                Some(entry) => visit(self.slack.of(heap), entry),
                None => self.occupied &= !(1 << heap),
            }
        }
    }

    /// Pops the first timer if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Action> {
        let first = self.first()?;
        (first.deadline() <= now).then(|| self.pop(first))
    }

    /// Pops the first timer, due or not.
    pub(crate) fn pop_any(&mut self) -> Option<Action> {
        let first = self.first()?;
        Some(self.pop(first))
    }

    /// Pops an entry that is the first of its heap.
    fn pop(&mut self, first: Entry) -> Action {
        self.heaps[first.id().heap()].entries.pop();
        self.slots.remove(first.id().slot()).action
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// The number of timers that have neither fired nor been cancelled.
    pub(crate) fn live(&self) -> usize {
        self.slots.len()
    }

    /// The deadline and action of every live timer.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, &Action)> {
        let entries = self.heaps.iter().flat_map(|heap| heap.entries.iter());
        entries.filter_map(|entry| Some((entry.deadline(), live_action(&self.slots, *entry)?)))
    }

    /// The number of heap entries, including cancelled ones.
    pub(crate) fn heap_len(&self) -> usize {
        self.heaps.iter().map(|heap| heap.entries.len()).sum()
    }
}

impl Heap {
    /// The first live entry. Pops the cancelled entries before it.
    #[inline]
    fn first(&mut self, slots: &Slab<Slot>) -> Option<Entry> {
        loop {
            let first = *self.entries.peek()?;
            if live_action(slots, first).is_some() {
                return Some(first);
            }
            self.entries.pop();
            self.cancelled -= 1;
        }
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
            let mut timers = Timers::new(Duration::ZERO);
            // Deadlines in a fixed pseudo-random order, many of them equal.
            let set: Vec<_> = (0..count)
                .map(|key: u64| at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54))
                .map(|when| (when, timers.add(at(0), when, wake())))
                .collect();
            let (kept, cancelled): (Vec<_>, Vec<_>) = set
                .into_iter()
                .partition(|(_, id)| id.0 >> (SLOT_BITS + HEAP_BITS) & 7 < kept_of_8);
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
        let mut timers = Timers::new(Duration::ZERO);
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let when = at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
            let id = timers.add(at(0), when, wake());
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
        let mut timers = Timers::new(Duration::ZERO);
        let count = if cfg!(miri) { 400 } else { 1_000_000 };
        let kept: Vec<_> = (0..50).map(|i| timers.add(at(0), at(1 << 40 | i), wake())).collect();
        for i in 0..count {
            let id = timers.add(at(0), at(i), wake());
            assert!(timers.cancel(id).is_some());
            assert!(timers.cancel(id).is_none(), "a second cancel finds nothing");
            assert!(timers.heap_len() <= 2 * timers.live() + 100);
        }
        // Added first, cancelled afterwards: the heap must shrink too.
        let many: Vec<_> = (0..count).map(|i| timers.add(at(0), at(i), wake())).collect();
        for id in many {
            drop(timers.cancel(id));
        }
        assert!(timers.heap_len() <= 2 * timers.live() + 100);
        assert_eq!(timers.live(), kept.len());
        assert_eq!(timers.next_wake(), Some(at(1 << 40)));
    }

    #[test]
    fn an_old_id_does_not_cancel_a_reused_slot() {
        let mut timers = Timers::new(Duration::ZERO);
        let old = timers.add(at(0), at(1), wake());
        assert!(timers.cancel(old).is_some());
        let new = timers.add(at(0), at(2), wake());
        assert_eq!(old.slot(), new.slot());
        assert!(timers.cancel(old).is_none());
        assert_eq!(timers.next_wake(), Some(at(2)));
        assert!(timers.pop_due(at(1)).is_none());
        assert!(timers.pop_due(at(2)).is_some());
    }

    #[test]
    fn slack_is_at_most_a_thousandth() {
        let slack = Slack::up_to(Duration::from_nanos(1 << 20));
        let ms = |ms: u64| ms * 1_000_000;
        for (length, expected) in [
            (0, 0),
            (ms(16), 0),
            (ms(17), 1 << 14),
            (ms(100), 1 << 16),
            (ms(1_000), 1 << 19),
            (ms(1_074), 1 << 20),
            (ms(1_000_000), 1 << 20),
            (u64::MAX - 5, 1 << 20),
        ] {
            assert_eq!(slack.of(slack.heap(at(5), at(5 + length))), expected, "{length} ns");
        }
        // A deadline that has passed.
        assert_eq!(slack.heap(at(5), at(4)), 0);
        for none in [0, 1, 127] {
            assert_eq!(Slack::up_to(Duration::from_nanos(none)).heap(at(0), Instant::NEVER), 0);
        }
        for largest in [128, 1_000, u64::MAX] {
            let slack = Slack::up_to(Duration::from_nanos(largest));
            let given = slack.of(HEAPS - 1);
            assert!(given <= largest && given > largest / 2, "{given} of {largest}");
        }
        assert_eq!(Slack::up_to(Duration::MAX).heap(at(0), Instant::NEVER), 0);
    }

    #[test]
    fn the_wake_up_is_at_the_first_deadline_and_its_slack() {
        let mut timers = Timers::new(Duration::from_nanos(1 << 20));
        assert_eq!(timers.next_wake(), None);
        let second = 1_000_000_000;
        let long = timers.add(at(0), at(10 * second), wake());
        assert_eq!(timers.next_wake(), Some(at(10 * second + (1 << 20))));
        // A short timer inside the slack of the long one is not delayed.
        let short = timers.add(at(10 * second - 50), at(10 * second + 50), wake());
        assert_eq!(timers.next_wake(), Some(at(10 * second + 50)));
        assert!(timers.pop_due(at(10 * second - 1)).is_none());
        drop((timers.cancel(short), timers.cancel(long)));
        assert!(timers.next_wake().is_none() && timers.is_empty());
        timers.add(at(0), Instant::NEVER, wake());
        assert_eq!(timers.next_wake(), Some(Instant::NEVER));
    }

    #[test]
    fn due_timers_fire_in_the_order_of_their_deadlines_whatever_their_slack() {
        let mut timers = Timers::new(Duration::from_nanos(1 << 20));
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let random = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // Few deadlines, each set from near and far, and so with different slacks.
            let when = (1 << 40) + (random >> 60);
            let length = 1 << (random >> 40 & 31);
            let id = timers.add(at(when - length), at(when), wake());
            model.insert((when, id.0 >> (SLOT_BITS + HEAP_BITS), id.0));
        }
        let first = std::iter::from_fn(|| {
            let first = timers.first()?;
            timers.pop_any().map(|_| {
                (
                    first.deadline().as_nanos(),
                    first.id().0 >> (SLOT_BITS + HEAP_BITS),
                    first.id().0,
                )
            })
        });
        assert_eq!(first.collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
    }
}
