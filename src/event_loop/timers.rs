//! The timers of a loop: heaps of deadlines and a slab of actions.
//!
//! A timer never fires early. It may fire later than its deadline by its slack, a fraction of its length, so that timers with
//! neighbouring deadlines share a wake-up: see [`Builder::timer_slack`](crate::Builder::timer_slack). There is one heap for each
//! slack. The loop sleeps until the first heap's first deadline plus slack; when it is awake, every timer that is due fires,
//! ordered by deadline.
//!
//! Most timers are timeouts that are cancelled, and set again for a little later. So changes of the heap are lazy. Each slot has
//! one entry in a heap:
//! - Cancelling a timer parks its slot, and leaves the entry.
//! - A new timer takes a parked slot of the same heap if its own deadline is not earlier: it leaves the entry, too, which is now
//!   earlier than the deadline. Moving a timer to a later deadline does the same.
//! - An entry that is the first of its heap is *settled* before it counts: it is removed if its slot is parked, and moved to the
//!   deadline of its slot if that is later.
//!
//! So a timeout that is set and cancelled again and again costs no heap operation, if nothing settles its entry. That is why
//! [`next_wake`](Timers::next_wake) settles only entries of the next second: an entry that is not settled at worst wakes the loop
//! early, at most once per second. On a virtual clock every entry is settled, so that time advances in the same steps as ever.
//!
//! So that a program that cancels many timers does not accumulate parked slots, they are freed and the heap is rebuilt when there are
//! more than 100 and more than half of all: a heap never has more than twice the entries of its live timers plus 100, and rebuilding
//! costs amortized O(1) per cancelled timer.
//!
//! Timers with equal deadlines fire in the order in which they were set: a sequence number, which is also the generation of the slot,
//! decides.

use std::cmp::Reverse;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use dary_heap::{PeekMut, QuaternaryHeap};
use slab::Slab;

use crate::event_loop::callback::Callback;
use crate::event_loop::task_key::TaskKey;
use crate::time::Instant;

/// What a timer does when it fires.
pub(crate) enum Action {
    /// Wakes a task of this loop: unlike a waker, a key costs nothing to copy and to drop.
    WakeTask(TaskKey),
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
    /// No timer has it: there are not as many slots.
    pub(crate) const NONE: TimerId = TimerId(u64::MAX);

    #[inline]
    fn new(seq: u64, heap: usize, slot: usize) -> TimerId {
        TimerId((seq << HEAP_BITS | heap as u64) << SLOT_BITS | slot as u64)
    }

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
    /// Every slot has one entry in a heap.
    slots: Slab<Slot>,
    /// The slots that are not parked.
    live: usize,
    next_seq: u64,
    /// Entries that are due later than this from now are not settled for a wake-up.
    settle_within: Duration,
}

/// See the module's documentation.
const SETTLE_WITHIN: Duration = Duration::from_secs(1);

/// A heap may have this many parked slots, whatever the number of its live timers.
const MAX_PARKED: usize = 100;

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
    /// The slots of cancelled timers whose entry is still here, the last one cancelled at the end.
    parked: Vec<u32>,
}

struct Slot {
    /// `NONE` if it is parked.
    id: TimerId,
    /// The deadline; not earlier than that of the entry.
    when: Instant,
    state: SlotState,
}

enum SlotState {
    Live(Action),
    /// At this index of the heap's `parked`.
    Parked(u32),
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
    /// No timers. They may fire later than their deadline by up to `slack`. On a virtual clock, `next_wake` is exact.
    pub(crate) fn new(slack: Duration, has_virtual_clock: bool) -> Timers {
        Timers {
            slack: Slack::up_to(slack),
            heaps: Default::default(),
            occupied: 0,
            slots: Slab::new(),
            live: 0,
            next_seq: 0,
            settle_within: if has_virtual_clock {
                Duration::MAX
            } else {
                SETTLE_WITHIN
            },
        }
    }

    /// Adds a timer. Its slack depends on the time from `now` to its deadline.
    pub(crate) fn add(&mut self, now: Instant, when: Instant, action: Action) -> TimerId {
        let heap = self.slack.heap(now, when);
        match self.take_parked(heap, when) {
            Some((slot, id)) => {
                slot.state = SlotState::Live(action);
                id
            }
            None => self.push(heap, when, action),
        }
    }

    /// As [`add`](Timers::add), for the most frequent action. It is not moved through memory.
    #[inline(always)]
    pub(crate) fn add_wake_task(&mut self, now: Instant, when: Instant, key: TaskKey) -> TimerId {
        let heap = self.slack.heap(now, when);
        match self.take_parked(heap, when) {
            Some((slot, id)) => {
                // A parked slot has nothing to drop.
                std::mem::forget(std::mem::replace(
                    &mut slot.state,
                    SlotState::Live(Action::WakeTask(key)),
                ));
                id
            }
            None => self.push(heap, when, Action::WakeTask(key)),
        }
    }

    /// Takes a parked slot of a heap for a timer with this deadline, if it has a suitable one. The caller sets its state.
    #[inline(always)]
    fn take_parked(&mut self, heap: usize, when: Instant) -> Option<(&mut Slot, TimerId)> {
        let parked = &mut self.heaps[heap].parked;
        let index = *parked.last()? as usize;
        let slot = self.slots.get_mut(index).filter(|slot| slot.when <= when)?;
        parked.pop();
        let id = TimerId::new(self.next_seq, heap, index);
        self.next_seq += 1;
        self.live += 1;
        (slot.id, slot.when) = (id, when);
        Some((slot, id))
    }

    /// Adds a timer with an entry of its own.
    #[inline(never)]
    fn push(&mut self, heap: usize, when: Instant, action: Action) -> TimerId {
        let slot = self.slots.vacant_entry();
        assert!(slot.key() < 1 << SLOT_BITS, "a loop holds at most 2^28 timers");
        let id = TimerId::new(self.next_seq, heap, slot.key());
        self.next_seq += 1;
        let state = SlotState::Live(action);
        slot.insert(Slot { id, when, state });
        self.live += 1;
        self.heaps[heap].entries.push(Entry::new(when, id));
        self.occupied |= 1 << heap;
        id
    }

    /// Changes the deadline of a timer, and its id. It fires after the timers that were set for the same deadline before. `None`
    /// if it has fired or was cancelled.
    pub(crate) fn reset(&mut self, now: Instant, id: TimerId, when: Instant) -> Option<TimerId> {
        let heap = self.slack.heap(now, when);
        let slot = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id)?;
        if slot.when <= when && id.heap() == heap {
            slot.id = TimerId::new(self.next_seq, heap, id.slot());
            slot.when = when;
            self.next_seq += 1;
            return Some(slot.id);
        }
        let action = self.cancel(id)?;
        Some(self.add(now, when, action))
    }

    /// [`cancel`](Timers::cancel) in the most frequent case: a timer that wakes a task, with no action to move and to drop, and
    /// memory for the parked slot. False in other cases.
    #[inline]
    pub(crate) fn cancel_wake_task(&mut self, id: TimerId) -> bool {
        let Some(slot) = self.slots.get_mut(id.slot()) else {
            return false;
        };
        let parked = &mut self.heaps[id.heap()].parked;
        let is_rare = parked.len() >= parked.capacity() || parked.len() >= MAX_PARKED;
        if slot.id != id || is_rare || !matches!(slot.state, SlotState::Live(Action::WakeTask(_))) {
            return false;
        }
        slot.id = TimerId::NONE;
        // The key of a task has nothing to drop.
        std::mem::forget(std::mem::replace(
            &mut slot.state,
            SlotState::Parked(parked.len() as u32),
        ));
        parked.push(id.slot() as u32);
        self.live -= 1;
        true
    }

    /// Cancels a timer; `None` if it has fired or was cancelled before. Returns the action, to be dropped outside the
    /// borrow.
    #[must_use]
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Action> {
        let slot = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id)?;
        let heap = &mut self.heaps[id.heap()];
        slot.id = TimerId::NONE;
        let parked = SlotState::Parked(heap.parked.len() as u32);
        let state = std::mem::replace(&mut slot.state, parked);
        heap.parked.push(id.slot() as u32);
        self.live -= 1;
        if heap.parked.len() > MAX_PARKED {
            self.free_parked(id.heap());
        }
        match state {
            SlotState::Live(action) => Some(action),
            SlotState::Parked(_) => unreachable!("a parked slot has no id"),
        }
    }

    /// Frees the parked slots of a heap, and removes their entries, if they are more than half of all.
    #[cold]
    fn free_parked(&mut self, heap: usize) {
        let (heap, slots) = (&mut self.heaps[heap], &mut self.slots);
        if heap.parked.len() * 2 <= heap.entries.len() {
            return;
        }
        for slot in heap.parked.drain(..) {
            slots.remove(slot as usize);
        }
        heap.entries.retain(|entry| slots.contains(entry.id().slot()));
    }

    /// The action of a timer that has neither fired nor been cancelled.
    #[inline]
    pub(crate) fn get(&mut self, id: TimerId) -> Option<&mut Action> {
        let slot = self.slots.get_mut(id.slot())?;
        match &mut slot.state {
            SlotState::Live(action) if slot.id == id => Some(action),
            _ => None,
        }
    }

    /// When to wake up for the first timer: at the latest time at which it may fire, or earlier. `now` may be in the past.
    #[inline]
    pub(crate) fn next_wake(&mut self, now: Instant) -> Option<Instant> {
        if self.live == 0 {
            return None;
        }
        let mut wake: Option<u64> = None;
        self.for_each_first(now + self.settle_within, |slack, entry| {
            let latest = entry.deadline().as_nanos().saturating_add(slack);
            wake = Some(wake.map_or(latest, |wake| wake.min(latest)));
        });
        wake.map(Instant::from_nanos)
    }

    /// The earliest deadline, or a time before it: that of an entry that is not settled.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        let first = |heap: &Heap| heap.entries.peek().map(|entry| entry.deadline());
        self.heaps.iter().filter_map(first).min()
    }

    /// As [`next_wake`](Timers::next_wake), but exact.
    pub(crate) fn exact_wake(&mut self) -> Option<Instant> {
        self.next_deadline()?;
        // All first entries are settled now.
        self.next_wake(Instant::NEVER)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        self.first(Instant::NEVER).map(Entry::deadline)
    }

    /// The timer with the earliest deadline, if it is not later than `until`.
    #[inline]
    fn first(&mut self, until: Instant) -> Option<Entry> {
        let mut first = None;
        // Entries are reversed, so the first is the greatest.
        self.for_each_first(until, |_, entry| first = first.max(Some(entry)));
        first.filter(|first: &Entry| first.deadline() <= until)
    }

    /// Calls `visit` with the slack and the first entry of each heap, settled if it is not later than `until`.
    #[inline]
    fn for_each_first(&mut self, until: Instant, mut visit: impl FnMut(u64, Entry)) {
        let mut left = self.occupied;
        while left != 0 {
            let heap = left.trailing_zeros() as usize;
            left &= left - 1;
            let first = match self.heaps[heap].entries.peek() {
                Some(entry) if entry.deadline() > until => Some(*entry),
                _ => self.settle(heap),
            };
            match first {
                Some(entry) => visit(self.slack.of(heap), entry),
                None => self.occupied &= !(1 << heap),
            }
        }
    }

    /// The first entry of a heap, with the deadline of its timer: frees parked slots and moves entries before it.
    fn settle(&mut self, heap: usize) -> Option<Entry> {
        let heap = &mut self.heaps[heap];
        loop {
            let mut first = heap.entries.peek_mut()?;
            let slot = &self.slots[first.id().slot()];
            match slot.state {
                SlotState::Live(_) if slot.id == first.id() => return Some(*first),
                SlotState::Live(_) => *first = Entry::new(slot.when, slot.id),
                SlotState::Parked(index) => {
                    let entry = PeekMut::pop(first);
                    self.slots.remove(entry.id().slot());
                    heap.parked.swap_remove(index as usize);
                    if let Some(&moved) = heap.parked.get(index as usize) {
                        self.slots[moved as usize].state = SlotState::Parked(index);
                    }
                }
            }
        }
    }

    /// Pops the first timer if it is due.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Action> {
        let first = self.first(now)?;
        Some(self.pop(first))
    }

    /// Pops the first timer, due or not.
    pub(crate) fn pop_any(&mut self) -> Option<Action> {
        self.pop_due(Instant::NEVER)
    }

    /// Pops a settled entry that is the first of its heap.
    fn pop(&mut self, first: Entry) -> Action {
        self.heaps[first.id().heap()].entries.pop();
        self.live -= 1;
        match self.slots.remove(first.id().slot()).state {
            SlotState::Live(action) => action,
            SlotState::Parked(_) => unreachable!("the entry is settled"),
        }
    }

    /// Whether there are no timers.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The number of timers that have neither fired nor been cancelled.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// The deadline and action of every live timer.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, &Action)> {
        self.slots.iter().filter_map(|(_, slot)| match &slot.state {
            SlotState::Live(action) => Some((slot.when, action)),
            SlotState::Parked(_) => None,
        })
    }

    /// The number of heap entries, including those of cancelled timers.
    pub(crate) fn heap_len(&self) -> usize {
        self.heaps.iter().map(|heap| heap.entries.len()).sum()
    }
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
            let mut timers = Timers::new(Duration::ZERO, true);
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
                let first = timers.first(Instant::NEVER)?;
                timers.pop_any().map(|_| (first.deadline(), first.id()))
            });
            assert_eq!(fired.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn timers_can_be_set_between_others_that_fire() {
        let mut timers = Timers::new(Duration::ZERO, true);
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let when = at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
            let id = timers.add(at(0), when, wake());
            model.insert((when, id.0));
            if key % 3 == 0 {
                let first = timers
                    .first(Instant::NEVER)
                    .map(|entry| (entry.deadline(), entry.id().0));
                assert_eq!(first, model.pop_first());
                assert!(timers.pop_any().is_some());
            }
        }
        assert_eq!(timers.live(), model.len());
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let mut timers = Timers::new(Duration::ZERO, true);
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
        assert_eq!(timers.next_wake(at(0)), Some(at(1 << 40)));
    }

    #[test]
    fn an_old_id_does_not_cancel_a_reused_slot() {
        let mut timers = Timers::new(Duration::ZERO, true);
        let old = timers.add(at(0), at(1), wake());
        assert!(timers.cancel(old).is_some());
        let new = timers.add(at(0), at(2), wake());
        assert_eq!(old.slot(), new.slot());
        assert!(timers.cancel(old).is_none());
        assert_eq!(timers.next_wake(at(0)), Some(at(2)));
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
        let mut timers = Timers::new(Duration::from_nanos(1 << 20), true);
        assert_eq!(timers.next_wake(at(0)), None);
        let second = 1_000_000_000;
        let long = timers.add(at(0), at(10 * second), wake());
        assert_eq!(timers.next_wake(at(0)), Some(at(10 * second + (1 << 20))));
        // A short timer inside the slack of the long one is not delayed.
        let short = timers.add(at(10 * second - 50), at(10 * second + 50), wake());
        assert_eq!(timers.next_wake(at(0)), Some(at(10 * second + 50)));
        assert!(timers.pop_due(at(10 * second - 1)).is_none());
        drop((timers.cancel(short), timers.cancel(long)));
        assert!(timers.next_wake(at(0)).is_none() && timers.is_empty());
        timers.add(at(0), Instant::NEVER, wake());
        assert_eq!(timers.next_wake(at(0)), Some(Instant::NEVER));
    }

    #[test]
    fn due_timers_fire_in_the_order_of_their_deadlines_whatever_their_slack() {
        let mut timers = Timers::new(Duration::from_nanos(1 << 20), true);
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
            let first = timers.first(Instant::NEVER)?;
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

    /// Sets, moves, cancels and fires timers at random, next to a model.
    #[test]
    fn lazy_changes_of_the_heap_do_not_show() {
        let second = 1_000_000_000;
        for has_virtual_clock in [false, true] {
            let mut timers = Timers::new(Duration::from_nanos(1 << 20), has_virtual_clock);
            let (mut model, mut now, mut random) = (std::collections::BTreeMap::new(), 0, 1u64);
            let mut below = |limit: u64| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (random >> 33) % limit
            };
            let seq = |id: TimerId| id.0 >> (SLOT_BITS + HEAP_BITS);
            for _ in 0..if cfg!(miri) { 500 } else { 100_000 } {
                // Few lengths, so that deadlines are equal now and then, and slots are taken again.
                let when = now + [0, 5, 1_000, second / 50, 3 * second, 3 * second, 60 * second][below(7) as usize];
                match below(8) {
                    0..3 => {
                        let id = timers.add(at(now), at(when), wake());
                        assert_eq!(model.insert((when, seq(id)), id), None);
                    }
                    choice @ 3..6 if !model.is_empty() => {
                        let (&key, &id) = model.iter().nth(below(model.len() as u64) as usize).expect("not empty");
                        model.remove(&key);
                        if choice == 3 {
                            let id = timers.reset(at(now), id, at(when)).expect("it has not fired");
                            model.insert((when, seq(id)), id);
                        } else {
                            assert!(timers.cancel(id).is_some());
                        }
                        assert!(timers.cancel(id).is_none() && timers.get(id).is_none());
                        assert_eq!(timers.reset(at(now), id, at(when)), None);
                    }
                    6 => {
                        now += [0, 1, 1_000, second / 100, second][below(5) as usize];
                        while let Some(due) = timers.first(at(now)) {
                            let first = model.pop_first().map(|((when, _), id)| (at(when), id));
                            assert_eq!(Some((due.deadline(), due.id())), first);
                            assert!(timers.pop_due(at(now)).is_some());
                        }
                        assert!(model.keys().next().is_none_or(|&(when, _)| when > now));
                    }
                    _ => {
                        let exact = model.keys().map(|&(when, _)| when).min();
                        let wake = timers.next_wake(at(now)).map(Instant::as_nanos);
                        assert_eq!(wake.is_some(), exact.is_some());
                        if let (Some(wake), Some(exact)) = (wake, exact) {
                            assert!(wake <= exact + (1 << 20), "never late");
                            let is_near = has_virtual_clock || wake < now + second;
                            assert!(wake >= exact || !is_near, "early by {} ns", exact - wake);
                        }
                        if below(2) == 0 {
                            assert_eq!(timers.next_deadline().map(Instant::as_nanos), exact);
                        }
                    }
                }
                assert_eq!(timers.live(), model.len());
                assert!(timers.heap_len() <= 2 * timers.live() + HEAPS * (MAX_PARKED + 1));
            }
        }
    }

    #[test]
    fn a_timeout_that_is_set_again_leaves_the_heap_alone() {
        let mut timers = Timers::new(Duration::from_nanos(1 << 20), false);
        let second = 1_000_000_000;
        let other = timers.add(at(0), at(3600 * second), wake());
        for round in 0..100 {
            let id = timers.add(at(round), at(60 * second + 2 * round), wake());
            let id = timers
                .reset(at(round), id, at(60 * second + 2 * round + 1))
                .expect("it is set");
            assert_eq!(timers.heap_len(), 2);
            assert_eq!(timers.next_wake(at(round)), Some(at(60 * second + (1 << 20))));
            assert!(timers.pop_due(at(round)).is_none());
            assert!(timers.cancel(id).is_some());
        }
        assert_eq!(timers.next_deadline(), Some(at(3600 * second)));
        assert_eq!((timers.heap_len(), timers.live()), (1, 1));
        assert!(timers.cancel(other).is_some() && timers.next_wake(at(0)).is_none());
    }
}
