//! The timers of a loop: heaps of deadlines and a table of slots with their actions.
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
//! So that a program that cancels many timers does not accumulate parked slots, they are all freed and the heaps are rebuilt when
//! a cancel would leave more than 100 and more than live timers: after it, there are at most twice the entries of the live timers
//! plus 100. Rebuilding costs amortized O(1) per cancelled timer.
//!
//! Timers with equal deadlines fire in the order in which they were set: a sequence number, which is also the generation of the slot,
//! decides.

mod slack;
mod slots;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use dary_heap::{PeekMut, QuaternaryHeap};

use self::slack::Slack;
pub(crate) use self::slots::Wakes;
use self::slots::{ParkedList, Slot, SlotTable};
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
    #[inline]
    fn new(seq: u64, heap: usize, slot: usize) -> TimerId {
        TimerId((seq << HEAP_BITS | heap as u64) << SLOT_BITS | slot as u64)
    }

    /// The id of the next timer in the same slot and heap.
    #[inline]
    fn with_seq(self, seq: u64) -> TimerId {
        let place = self.0 & ((1 << (HEAP_BITS + SLOT_BITS)) - 1);
        TimerId(seq << (HEAP_BITS + SLOT_BITS) | place)
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

/// A timer's id and the address of its slot. Plain data: only the timers that made it use the address, on their thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    pub(crate) id: TimerId,
    slot: NonNull<Slot>,
}

// SAFETY: the address is used by methods of `Timers` only. They demand that these timers made it, and are not `Sync`.
unsafe impl Send for Timer {}
// SAFETY: as above.
unsafe impl Sync for Timer {}

impl Timer {
    #[inline]
    fn of(slot: &Slot) -> Timer {
        Timer {
            id: slot.id.get(),
            slot: NonNull::from(slot),
        }
    }
}

/// Changed through `&self`: no method calls foreign code. Setting and cancelling a timer touches its slot and a list of slots
/// only, all of them cells; the heaps are behind a borrow flag.
pub(crate) struct Timers {
    slack: Slack,
    slots: SlotTable,
    /// Of each heap.
    parked: [ParkedList; HEAPS],
    heaps: RefCell<Heaps>,
    /// The slots with a timer. Not as wide as `next_seq`: the compiler would load both as one vector, which waits for the store by
    /// which the last cancel changed one of them.
    live: Cell<u32>,
    next_seq: Cell<u64>,
    /// The number of entries in all heaps: of live and of parked slots.
    entries: Cell<u32>,
    /// No entry is due earlier.
    due_from: Cell<Instant>,
    /// Entries that are due later than this from now are not settled for a wake-up.
    settle_within: Duration,
}

#[derive(Default)]
struct Heaps {
    /// By slack; the timers of the first have none. Four children per node: half the levels of a binary heap. With 100,000
    /// timers, each level is a cache miss.
    entries: [QuaternaryHeap<Entry>; HEAPS],
    /// A bit for each heap that has entries.
    occupied: u8,
}

/// See the module's documentation.
const SETTLE_WITHIN: Duration = Duration::from_secs(1);

/// There may be this many parked slots, whatever the number of live timers.
const MAX_PARKED: u32 = 100;

/// The deadline in nanoseconds, and below it the id: one number, compared without a branch. Reversed, because the heap's
/// first element is its greatest. 16 bytes, so that the four children of a node fit in 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(Reverse<u128>);

impl Entry {
    /// After all entries: no timer has this id.
    const NONE: Entry = Entry(Reverse(u128::MAX));

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
            slots: SlotTable::default(),
            parked: Default::default(),
            heaps: RefCell::default(),
            live: Cell::new(0),
            next_seq: Cell::new(0),
            entries: Cell::new(0),
            due_from: Cell::new(Instant::NEVER),
            settle_within: if has_virtual_clock {
                Duration::MAX
            } else {
                SETTLE_WITHIN
            },
        }
    }

    /// Adds a timer. Its slack depends on the time from `now` to its deadline.
    pub(crate) fn add(&self, now: Instant, when: Instant, action: Action) -> Timer {
        let heap = self.slack.heap(now, when);
        let slot = self.take_parked(heap, when).unwrap_or_else(|| self.push(heap, when));
        slot.set(action);
        Timer::of(slot)
    }

    /// [`add`](Timers::add) in a frequent case: a timer that wakes a task, and takes over the entry of a cancelled one. `None` in
    /// other cases; if it is `LONG`, also for a timer without the largest slack.
    #[inline(always)]
    pub(crate) fn try_add_wake_task<const LONG: bool>(
        &self,
        now: Instant,
        when: Instant,
        key: TaskKey,
    ) -> Option<Timer> {
        let heap = match LONG {
            true if self.slack.is_long(now, when) => HEAPS - 1,
            true => return None,
            false => self.slack.heap(now, when),
        };
        let slot = self.take_parked(heap, when)?;
        slot.set_wake_task(key);
        Some(Timer::of(slot))
    }

    /// Takes a parked slot of a heap for a timer with this deadline, if it has a suitable one. The caller sets its action.
    #[inline(always)]
    fn take_parked(&self, heap: usize, when: Instant) -> Option<&Slot> {
        let slot = self.parked[heap].take_until(when, &self.slots)?;
        self.begin(slot, slot.id.get(), when);
        Some(slot)
    }

    /// Gives a slot the next sequence number, and counts its timer.
    #[inline(always)]
    fn begin(&self, slot: &Slot, place: TimerId, when: Instant) {
        let seq = self.next_seq.get();
        self.next_seq.set(seq + 1);
        self.live.set(self.live.get() + 1);
        slot.id.set(place.with_seq(seq));
        slot.when.set(when);
    }

    /// Takes a free slot, with an entry of its own. The caller sets its action.
    fn push(&self, heap: usize, when: Instant) -> &Slot {
        self.parked[heap].free_first(&self.slots, false);
        let slot = self.slots.take();
        self.begin(slot, TimerId::new(0, heap, slot.id.get().slot()), when);
        let heaps = &mut *self.heaps.borrow_mut();
        heaps.entries[heap].push(Entry::new(when, slot.id.get()));
        heaps.occupied |= 1 << heap;
        self.entries.set(self.entries.get() + 1);
        self.due_from.set(self.due_from.get().min(when));
        slot
    }

    /// Changes the deadline of a timer, and its id. It fires after the timers that were set for the same deadline before. `None`
    /// if it has fired or was cancelled.
    pub(crate) fn reset(&self, now: Instant, id: TimerId, when: Instant) -> Option<Timer> {
        let heap = self.slack.heap(now, when);
        let slot = self.live_slot(id)?;
        if slot.when.get() <= when && id.heap() == heap {
            self.live.set(self.live.get() - 1);
            self.begin(slot, id, when);
            return Some(Timer::of(slot));
        }
        let action = self.cancel(id)?;
        Some(self.add(now, when, action))
    }

    /// The slot of a timer that has neither fired nor been cancelled.
    #[inline]
    fn live_slot(&self, id: TimerId) -> Option<&Slot> {
        self.slots
            .get(id.slot())
            .filter(|slot| slot.id.get() == id && slot.is_live())
    }

    /// [`cancel`](Timers::cancel) in the most frequent case: a timer that wakes a task, with no action to move and to drop, and
    /// few parked slots. False in other cases.
    ///
    /// # Safety
    ///
    /// These timers made `timer`.
    #[inline(always)]
    pub(crate) unsafe fn cancel_wake_task(&self, timer: Timer) -> bool {
        // SAFETY: the caller's promise. Slots are freed with the table, which is borrowed.
        let slot = unsafe { timer.slot.as_ref() };
        if slot.id.get() != timer.id || !slot.wakes_task() {
            return false;
        }
        let live = self.live.get() - 1;
        if self.has_too_many_entries(live) {
            return false;
        }
        self.live.set(live);
        self.parked[timer.id.heap()].push(slot);
        true
    }

    /// Whether more slots would be parked than may be, with this many live timers.
    #[inline(always)]
    fn has_too_many_entries(&self, live: u32) -> bool {
        self.entries.get() > 2 * live + MAX_PARKED
    }

    /// Cancels a timer; `None` if it has fired or was cancelled before. Returns the action, whose destructor is foreign code.
    #[must_use]
    pub(crate) fn cancel(&self, id: TimerId) -> Option<Action> {
        let slot = self.live_slot(id)?;
        let action = self.slots.park(slot, &self.parked[id.heap()]);
        self.live.set(self.live.get() - 1);
        if self.has_too_many_entries(self.live.get()) {
            self.free_parked();
        }
        Some(action)
    }

    /// Frees all parked slots, and removes their entries.
    #[cold]
    fn free_parked(&self) {
        for (parked, entries) in self.parked.iter().zip(&mut self.heaps.borrow_mut().entries) {
            parked.free_first(&self.slots, true);
            entries.retain(|entry| self.slots.of(entry.id()).is_live());
        }
        self.entries.set(self.live.get());
    }

    /// Whether a timer wakes this task, or this waker if there is no task. `None` if it has fired or was cancelled.
    ///
    /// # Safety
    ///
    /// These timers made `timer`.
    #[inline]
    pub(crate) unsafe fn would_wake(&self, timer: Timer, task: Option<TaskKey>, waker: &Waker) -> Option<bool> {
        // SAFETY: the caller's promise. Slots are freed with the table, which is borrowed.
        let slot = unsafe { timer.slot.as_ref() };
        (slot.id.get() == timer.id && slot.is_live()).then(|| slot.would_wake(task, waker))
    }

    /// Replaces the action of a timer, and returns the old one, whose destructor is foreign code. `Err` if the timer has fired or
    /// was cancelled.
    pub(crate) fn replace(&self, id: TimerId, action: Action) -> Result<Action, Action> {
        match self.live_slot(id) {
            Some(slot) => Ok(slot.replace_action(action)),
            None => Err(action),
        }
    }

    /// When to wake up for the first timer: at the latest time at which it may fire, or earlier. `now` may be in the past.
    #[inline]
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let mut wake: Option<u64> = None;
        let heaps = &mut self.heaps.borrow_mut();
        self.for_each_first(heaps, now + self.settle_within, |slack, entry| {
            let latest = entry.deadline().as_nanos().saturating_add(slack);
            wake = Some(wake.map_or(latest, |wake| wake.min(latest)));
        });
        wake.map(Instant::from_nanos)
    }

    /// The earliest deadline, or a time before it: that of an entry that is not settled.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        let first = |entries: &QuaternaryHeap<Entry>| entries.peek().map(|entry| entry.deadline());
        self.heaps.borrow().entries.iter().filter_map(first).min()
    }

    /// As [`next_wake`](Timers::next_wake), but exact.
    pub(crate) fn exact_wake(&self) -> Option<Instant> {
        self.next_deadline()?;
        // All first entries are settled now.
        self.next_wake(Instant::NEVER)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.first(&mut self.heaps.borrow_mut(), Instant::NEVER)
            .map(Entry::deadline)
    }

    /// The timer with the earliest deadline, if it is not later than `until`.
    #[inline]
    fn first(&self, heaps: &mut Heaps, until: Instant) -> Option<Entry> {
        let mut first = Entry::NONE;
        // Entries are reversed, so the first is the greatest.
        self.for_each_first(heaps, until, |_, entry| first = first.max(entry));
        self.due_from.set(first.deadline());
        (first.deadline() <= until && first != Entry::NONE).then_some(first)
    }

    /// Calls `visit` with the slack and the first entry of each heap, settled if it is not later than `until`.
    #[inline]
    fn for_each_first(&self, heaps: &mut Heaps, until: Instant, mut visit: impl FnMut(u64, Entry)) {
        let mut left = heaps.occupied;
        while left != 0 {
            let heap = left.trailing_zeros() as usize;
            left &= left - 1;
            let entries = &mut heaps.entries[heap];
            let first = match entries.peek() {
                Some(&entry) if entry.deadline() > until || self.is_settled(entry) => Some(entry),
                _ => self.settle(entries),
            };
            match first {
                Some(entry) => visit(self.slack.of(heap), entry),
                None => heaps.occupied &= !(1 << heap),
            }
        }
    }

    /// Whether an entry has the deadline of its timer.
    #[inline]
    fn is_settled(&self, entry: Entry) -> bool {
        let slot = self.slots.of(entry.id());
        slot.id.get() == entry.id() && slot.is_live()
    }

    /// The first entry of a heap, with the deadline of its timer: frees parked slots and moves entries before it.
    #[inline(never)]
    fn settle(&self, entries: &mut QuaternaryHeap<Entry>) -> Option<Entry> {
        loop {
            let mut first = entries.peek_mut()?;
            let slot = self.slots.of(first.id());
            if slot.is_parked() {
                PeekMut::pop(first);
                self.entries.set(self.entries.get() - 1);
                slot.lose_entry();
            } else if slot.id.get() == first.id() {
                return Some(*first);
            } else {
                *first = Entry::new(slot.when.get(), slot.id.get());
            }
        }
    }

    /// Pops the first timer if it is due.
    #[inline(always)]
    pub(crate) fn pop_due(&self, now: Instant) -> Option<Action> {
        if now < self.due_from.get() {
            return None;
        }
        let heaps = &mut *self.heaps.borrow_mut();
        // Settled, and the first of its heap.
        let first = self.first(heaps, now)?.id();
        heaps.entries[first.heap()].pop();
        self.entries.set(self.entries.get() - 1);
        self.live.set(self.live.get() - 1);
        Some(self.slots.take_action(self.slots.of(first)))
    }

    /// Pops the first timer, due or not.
    pub(crate) fn pop_any(&self) -> Option<Action> {
        self.pop_due(Instant::NEVER)
    }

    /// Whether there are no timers.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live.get() == 0
    }

    /// The number of timers that have neither fired nor been cancelled.
    pub(crate) fn live(&self) -> usize {
        self.live.get() as usize
    }

    /// The deadline of every live timer, and what it wakes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Instant, Wakes)> {
        let live = self.slots.iter().filter(|slot| slot.is_live());
        live.map(|slot| (slot.when.get(), slot.wakes()))
    }

    /// The number of heap entries, including those of cancelled timers.
    pub(crate) fn heap_len(&self) -> usize {
        self.entries.get() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_origin(Duration::from_nanos(ns))
    }

    fn first(timers: &Timers, until: Instant) -> Option<Entry> {
        timers.first(&mut timers.heaps.borrow_mut(), until)
    }

    fn wake() -> Action {
        Action::Wake(Waker::noop().clone())
    }

    #[test]
    fn timers_fire_in_the_order_of_their_deadlines() {
        let count = if cfg!(miri) { 200 } else { 5_000 };
        for kept_of_8 in [8, 4, 1] {
            let timers = Timers::new(Duration::ZERO, true);
            // Deadlines in a fixed pseudo-random order, many of them equal.
            let set: Vec<_> = (0..count)
                .map(|key: u64| at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54))
                .map(|when| (when, timers.add(at(0), when, wake()).id))
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
                let first = first(&timers, Instant::NEVER)?;
                timers.pop_any().map(|_| (first.deadline(), first.id()))
            });
            assert_eq!(fired.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn timers_can_be_set_between_others_that_fire() {
        let timers = Timers::new(Duration::ZERO, true);
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let when = at(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
            let id = timers.add(at(0), when, wake()).id;
            model.insert((when, id.0));
            if key % 3 == 0 {
                let first = first(&timers, Instant::NEVER).map(|entry| (entry.deadline(), entry.id().0));
                assert_eq!(first, model.pop_first());
                assert!(timers.pop_any().is_some());
            }
        }
        assert_eq!(timers.live(), model.len());
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let timers = Timers::new(Duration::ZERO, true);
        let count = if cfg!(miri) { 400 } else { 1_000_000 };
        let kept: Vec<_> = (0..50).map(|i| timers.add(at(0), at(1 << 40 | i), wake()).id).collect();
        for i in 0..count {
            let id = timers.add(at(0), at(i), wake()).id;
            assert!(timers.cancel(id).is_some());
            assert!(timers.cancel(id).is_none(), "a second cancel finds nothing");
            assert!(timers.heap_len() <= 2 * timers.live() + 100);
        }
        // Added first, cancelled afterwards: the heap must shrink too.
        let many: Vec<_> = (0..count).map(|i| timers.add(at(0), at(i), wake()).id).collect();
        for id in many {
            drop(timers.cancel(id));
        }
        assert!(timers.heap_len() <= 2 * timers.live() + 100);
        assert_eq!(timers.live(), kept.len());
        assert_eq!(timers.next_wake(at(0)), Some(at(1 << 40)));
    }

    #[test]
    fn an_old_id_does_not_cancel_a_reused_slot() {
        let timers = Timers::new(Duration::ZERO, true);
        let old = timers.add(at(0), at(1), wake()).id;
        assert!(timers.cancel(old).is_some());
        let new = timers.add(at(0), at(2), wake()).id;
        assert_eq!(old.slot(), new.slot());
        assert!(timers.cancel(old).is_none());
        assert_eq!(timers.next_wake(at(0)), Some(at(2)));
        assert!(timers.pop_due(at(1)).is_none());
        assert!(timers.pop_due(at(2)).is_some());
    }

    #[test]
    fn the_wake_up_is_at_the_first_deadline_and_its_slack() {
        let timers = Timers::new(Duration::from_nanos(1 << 20), true);
        assert_eq!(timers.next_wake(at(0)), None);
        let second = 1_000_000_000;
        let long = timers.add(at(0), at(10 * second), wake()).id;
        assert_eq!(timers.next_wake(at(0)), Some(at(10 * second + (1 << 20))));
        // A short timer inside the slack of the long one is not delayed.
        let short = timers.add(at(10 * second - 50), at(10 * second + 50), wake()).id;
        assert_eq!(timers.next_wake(at(0)), Some(at(10 * second + 50)));
        assert!(timers.pop_due(at(10 * second - 1)).is_none());
        drop((timers.cancel(short), timers.cancel(long)));
        assert!(timers.next_wake(at(0)).is_none() && timers.is_empty());
        timers.add(at(0), Instant::NEVER, wake());
        assert_eq!(timers.next_wake(at(0)), Some(Instant::NEVER));
    }

    /// On every driver with a real clock.
    #[test]
    fn settings_limit_the_slack() {
        use crate::{Builder, DriverChoice};
        if cfg!(miri) {
            return;
        }
        let slack_of = |builder: Builder, length| {
            let event_loop = builder.build().ok()?;
            let core = &event_loop.core;
            let when = core.now() + length;
            core.call_at(when, || {});
            Some(core.timers.next_wake(when)? - when)
        };
        let (short, long) = (Duration::from_millis(16), Duration::from_secs(20));
        for driver in [DriverChoice::Proactor, DriverChoice::Reactor] {
            let builder = || Builder::new().driver(driver);
            let Some(usual) = slack_of(builder(), long) else {
                println!("skipped: {driver:?} is not available");
                continue;
            };
            assert_eq!(usual, Duration::from_nanos(1 << 20));
            assert_eq!(slack_of(builder(), short), Some(Duration::ZERO));
            assert_eq!(slack_of(builder().precise_timers(true), long), Some(Duration::ZERO));
            assert_eq!(
                slack_of(builder().timer_slack(Duration::ZERO), long),
                Some(Duration::ZERO)
            );
            let ten_ms = slack_of(builder().timer_slack(Duration::from_millis(10)), long);
            assert_eq!(ten_ms, Some(Duration::from_nanos(1 << 23)));
        }
    }

    /// The length of a timer counts from when it is set, even if the loop has not read its clock for long.
    #[test]
    fn the_slack_of_a_deadline_depends_on_the_time_left() {
        if cfg!(miri) {
            return;
        }
        let event_loop = crate::EventLoop::new().unwrap();
        let core = &event_loop.core;
        let when = core.now() + Duration::from_millis(10);
        let long_ago = at(0);
        core.times.set_recent(long_ago);
        let timer = event_loop.call_at(when, || {});
        assert_eq!(core.timers.next_wake(when), Some(when));
        timer.cancel();
        event_loop
            .run_until_complete(async {
                let core = crate::event_loop::core::LoopCore::current("a test");
                core.times.set_recent(long_ago);
                crate::event_loop::call_at(when, || {});
                assert!(core.times.recent() > long_ago);
                core.times.set_recent(long_ago);
                let sleep = crate::time::sleep_until(when);
                assert!(core.times.recent() > long_ago);
                sleep.await;
            })
            .unwrap();
    }

    #[test]
    fn due_timers_fire_in_the_order_of_their_deadlines_whatever_their_slack() {
        let timers = Timers::new(Duration::from_nanos(1 << 20), true);
        let mut model = std::collections::BTreeSet::new();
        for key in 0..if cfg!(miri) { 200 } else { 5_000u64 } {
            let random = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // Few deadlines, each set from near and far, and so with different slacks.
            let when = (1 << 40) + (random >> 60);
            let length = 1 << (random >> 40 & 31);
            let id = timers.add(at(when - length), at(when), wake()).id;
            model.insert((when, id.0 >> (SLOT_BITS + HEAP_BITS), id.0));
        }
        let first = std::iter::from_fn(|| {
            let first = first(&timers, Instant::NEVER)?;
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

    /// Sets a timer as `Sleep` does.
    fn set_by_a_task(timers: &Timers, now: Instant, when: Instant) -> Timer {
        let key = TaskKey::new(1, 2);
        timers
            .try_add_wake_task::<true>(now, when, key)
            .or_else(|| timers.try_add_wake_task::<false>(now, when, key))
            .unwrap_or_else(|| timers.add(now, when, Action::WakeTask(key)))
    }

    /// Cancels a timer as `Sleep` does.
    fn cancel_as_a_task(timers: &Timers, timer: Timer) -> bool {
        // SAFETY: these timers made it.
        let is_parked = unsafe { timers.cancel_wake_task(timer) };
        is_parked || timers.cancel(timer.id).is_some()
    }

    /// Sets, moves, cancels and fires timers at random, next to a model.
    #[test]
    fn lazy_changes_of_the_heap_do_not_show() {
        let second = 1_000_000_000;
        for has_virtual_clock in [false, true] {
            let timers = Timers::new(Duration::from_nanos(1 << 20), has_virtual_clock);
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
                        let timer = set_by_a_task(&timers, at(now), at(when));
                        assert_eq!(model.insert((when, seq(timer.id)), timer), None);
                    }
                    choice @ 3..6 if !model.is_empty() => {
                        let (&key, &timer) = model.iter().nth(below(model.len() as u64) as usize).expect("not empty");
                        model.remove(&key);
                        if choice == 3 {
                            let timer = timers.reset(at(now), timer.id, at(when)).expect("it has not fired");
                            model.insert((when, seq(timer.id)), timer);
                        } else {
                            assert!(cancel_as_a_task(&timers, timer));
                        }
                        let id = timer.id;
                        assert!(
                            !cancel_as_a_task(&timers, timer)
                                && timers.cancel(id).is_none()
                                && timers.replace(id, wake()).is_err()
                        );
                        assert!(timers.reset(at(now), id, at(when)).is_none());
                    }
                    6 => {
                        now += [0, 1, 1_000, second / 100, second][below(5) as usize];
                        while let Some(due) = first(&timers, at(now)) {
                            let first = model.pop_first().map(|((when, _), timer)| (at(when), timer.id));
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
                assert!(timers.heap_len() <= 2 * timers.live() + MAX_PARKED as usize);
                let entries: usize = timers.heaps.borrow().entries.iter().map(QuaternaryHeap::len).sum();
                assert_eq!(timers.heap_len(), entries);
            }
        }
    }

    #[test]
    fn a_timeout_that_is_set_again_leaves_the_heap_alone() {
        let timers = Timers::new(Duration::from_nanos(1 << 20), false);
        let second = 1_000_000_000;
        let other = timers.add(at(0), at(3600 * second), wake()).id;
        for round in 0..100 {
            let id = timers.add(at(round), at(60 * second + 2 * round), wake()).id;
            let id = timers
                .reset(at(round), id, at(60 * second + 2 * round + 1))
                .expect("it is set")
                .id;
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
