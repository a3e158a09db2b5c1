//! The events to come, in the order of their times; equal times in an order that the seed chooses.
//!
//! Most events are soon over: a message arrives, and its answer is sent. So the next few events are kept in order in an
//! array, and only the others in a heap.

use std::cmp::Reverse;

use dary_heap::QuaternaryHeap;

use super::net::NetEvent;
use super::rng::FastRng;
use crate::driver::OpId;

/// How many of the next events are kept outside of the heap.
const NEAR: usize = 8;

/// An event of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A loop gets a turn.
    Run {
        loop_index: u32,
    },
    Net(NetEvent),
    /// A blocking job runs.
    Job {
        job: u32,
    },
    /// An operation that takes a time of its own can complete. Its id is in two halves, so that an event has 16 bytes.
    Op {
        loop_index: u32,
        id: [u32; 2],
    },
    /// A callback of the test runs.
    Call {
        call: u32,
    },
}

impl Event {
    pub(super) fn op(loop_index: u32, id: OpId) -> Event {
        let id = id.to_u64();
        Event::Op {
            loop_index,
            id: [id as u32, (id >> 32) as u32],
        }
    }

    /// The id of an operation from its halves.
    pub(super) fn op_id([low, high]: [u32; 2]) -> OpId {
        OpId::from_u64(u64::from(low) | u64::from(high) << 32)
    }
}

/// An event with its place in the order of all events.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    at: u64,
    /// The tie in the upper half, and a serial number in the lower.
    order: u64,
    event: Event,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    /// Its place in the order, as one number: it is compared without branches.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.order)
    }
}

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Entry) -> bool {
        self.key() < other.key()
    }

    #[inline]
    fn le(&self, other: &Entry) -> bool {
        self.key() <= other.key()
    }

    #[inline]
    fn gt(&self, other: &Entry) -> bool {
        self.key() > other.key()
    }

    #[inline]
    fn ge(&self, other: &Entry) -> bool {
        self.key() >= other.key()
    }
}

/// The events to come.
pub(super) struct EventQueue {
    near: Near,
    /// None of them is earlier than one of `near`.
    heap: QuaternaryHeap<Reverse<Entry>>,
    serial: u32,
    /// `None`: events at the same time run in the order in which they were planned.
    ties: Option<FastRng>,
}

/// Up to [`NEAR`] events in order, in a ring: a new one is mostly the last.
struct Near {
    ring: [Entry; NEAR],
    first: usize,
    len: usize,
}

impl Near {
    fn new() -> Near {
        const NONE: Entry = Entry {
            at: 0,
            order: 0,
            event: Event::Call { call: 0 },
        };
        Near {
            ring: [NONE; NEAR],
            first: 0,
            len: 0,
        }
    }

    #[inline(always)]
    fn first(&self) -> Option<&Entry> {
        (self.len > 0).then(|| &self.ring[self.first % NEAR])
    }

    #[inline(always)]
    fn pop_first(&mut self) -> Option<Entry> {
        let first = *self.first()?;
        self.first += 1;
        self.len -= 1;
        Some(first)
    }

    fn pop_last(&mut self) -> Entry {
        self.len -= 1;
        self.ring[(self.first + self.len) % NEAR]
    }

    /// Adds an event where it belongs; there is room for it.
    #[inline(always)]
    fn insert(&mut self, entry: Entry) {
        let mut place = self.first + self.len;
        while place > self.first && self.ring[(place - 1) % NEAR] > entry {
            self.ring[place % NEAR] = self.ring[(place - 1) % NEAR];
            place -= 1;
        }
        self.ring[place % NEAR] = entry;
        self.len += 1;
    }
}

impl EventQueue {
    pub(super) fn new(ties: Option<FastRng>) -> EventQueue {
        EventQueue {
            near: Near::new(),
            heap: QuaternaryHeap::new(),
            serial: 0,
            ties,
        }
    }

    pub(super) fn push(&mut self, at: u64, event: Event) {
        let tie = self.ties.as_mut().map_or(0, FastRng::next_u64);
        self.serial = self.serial.wrapping_add(1);
        let order = tie >> 32 << 32 | u64::from(self.serial);
        let entry = Entry { at, order, event };
        if self.heap.peek().is_some_and(|Reverse(first)| *first < entry) {
            return self.push_to_heap(entry);
        }
        if self.near.len == NEAR {
            let last = self.near.pop_last();
            self.push_to_heap(last.max(entry));
            return self.near.insert(last.min(entry));
        }
        self.near.insert(entry);
    }

    #[inline(never)]
    fn push_to_heap(&mut self, entry: Entry) {
        self.heap.push(Reverse(entry));
    }

    /// The next event, with its time.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let entry = match self.near.pop_first() {
            Some(entry) => entry,
            None => self.pop_from_heap()?,
        };
        Some((entry.at, entry.event))
    }

    #[inline(never)]
    fn pop_from_heap(&mut self) -> Option<Entry> {
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The time of the next event.
    #[inline]
    pub(super) fn next_at(&self) -> Option<u64> {
        match self.near.first() {
            Some(next) => Some(next.at),
            None => self.heap.peek().map(|Reverse(first)| first.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rand::Rng;

    /// Pops between pushes, at times that are equal, earlier or later than the next event's.
    #[test]
    fn events_come_in_the_order_of_their_times_and_ties() {
        let mut rng = Rng::from_seed(7);
        let mut queue = EventQueue::new(None);
        let (mut pushed, mut now) = (Vec::new(), 0);
        for call in 0..if cfg!(miri) { 200 } else { 10_000 } {
            let at = now + rng.below(5) * rng.below(5);
            queue.push(at, Event::Call { call });
            pushed.push((at, call));
            while rng.chance(0.5) && !pushed.is_empty() {
                let first = pushed.iter().copied().min().unwrap();
                pushed.retain(|event| *event != first);
                assert_eq!(queue.pop(), Some((first.0, Event::Call { call: first.1 })));
                now = first.0;
            }
        }
    }

    /// The next events are full, and earlier and later ones are added.
    #[test]
    fn more_events_than_are_kept_outside_of_the_heap_come_in_order() {
        let mut queue = EventQueue::new(None);
        let times = (0..40).map(|call| (call * 17 % 40, call as u32));
        times
            .clone()
            .for_each(|(at, call)| queue.push(at, Event::Call { call }));
        let mut expected: Vec<(u64, u32)> = times.collect();
        expected.sort_unstable();
        for (at, call) in expected {
            assert_eq!(queue.next_at(), Some(at));
            assert_eq!(queue.pop(), Some((at, Event::Call { call })));
        }
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn events_at_the_same_time_come_in_an_order_of_the_seed() {
        let order = |seed| {
            let mut queue = EventQueue::new(Some(FastRng::new(Rng::from_seed(seed))));
            (0..20).for_each(|call| queue.push(5, Event::Call { call }));
            std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
