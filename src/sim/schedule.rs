//! What happens when in a world: an event heap, the turns of the loops, and the clocks of the hosts.
//!
//! Events at the same time run in an order that the seed chooses. A turn takes time, so a loop that yields until a deadline
//! reaches it.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use dary_heap::QuaternaryHeap;

use super::net::NetEvent;
use crate::driver::OpId;
use crate::rand::Rng;
use crate::sys::Instant;

/// The time of a turn, and of each entry that it runs.
const TURN_COST: u64 = 1_000;
const LEAST_ENTRY_COST: u64 = 200;
const MOST_ENTRY_COST: u64 = 2_000;

/// The wall clock at the start of every run: 2025-01-01.
const EPOCH: u64 = 1_735_689_600;

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

/// The events to come, the loops and the clocks.
pub(super) struct Schedule {
    /// The next event, if it is known without the heap: what arrives now gives a loop its turn now.
    next: Option<Entry>,
    heap: QuaternaryHeap<Reverse<Entry>>,
    serial: u32,
    tie: Rng,
    fifo_ties: bool,
    turn_cost: Rng,
    loops: Vec<LoopTurns>,
    pub(super) clocks: Vec<HostClock>,
}

/// When a loop runs.
struct LoopTurns {
    host: u16,
    /// The loop runs until then.
    busy_until: u64,
    /// The time of the next turn; `NEVER` if none is planned.
    run_at: u64,
    /// The time of a later event of this loop, which an earlier turn has replaced; or `NEVER`. A loop that waits for a timer
    /// plans the same turn again after each of its other turns, and needs no other event for it.
    replaced: u64,
    is_paused: bool,
    is_dead: bool,
}

const NEVER: u64 = u64::MAX;

impl LoopTurns {
    /// The planned turn does not take place then. Its event stays.
    #[inline]
    fn replace(&mut self) {
        if self.run_at != NEVER {
            self.replaced = std::mem::replace(&mut self.run_at, NEVER);
        }
    }
}

/// The clocks of a host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostClock {
    /// How many nanoseconds per millisecond its monotonic clock is too fast.
    pub(super) drift_ppm: i32,
    /// How far its wall clock is off.
    pub(super) wall_offset: i64,
    pub(super) is_paused: bool,
}

impl HostClock {
    /// The host's monotonic time at this true time.
    #[inline]
    pub(super) fn local(&self, at: u64) -> u64 {
        match self.drift_ppm {
            0 => at,
            ppm => (u128::from(at) * (1_000_000 + i128::from(ppm)) as u128 / 1_000_000) as u64,
        }
    }

    /// The first true time at which the host's monotonic clock has reached `local`.
    fn true_time(&self, local: u64) -> u64 {
        match self.drift_ppm {
            0 => local,
            ppm => {
                let at = (u128::from(local) * 1_000_000).div_ceil((1_000_000 + i128::from(ppm)) as u128);
                u64::try_from(at).unwrap_or(u64::MAX)
            }
        }
    }

    pub(super) fn wall(&self, at: u64) -> SystemTime {
        let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH) + Duration::from_nanos(at);
        let offset = Duration::from_nanos(self.wall_offset.unsigned_abs());
        match self.wall_offset < 0 {
            true => epoch - offset,
            false => epoch + offset,
        }
    }
}

impl Schedule {
    pub(super) fn new(tie: Rng, fifo_ties: bool, turn_cost: Rng) -> Schedule {
        Schedule {
            next: None,
            heap: QuaternaryHeap::new(),
            serial: 0,
            tie,
            fifo_ties,
            turn_cost,
            loops: Vec::new(),
            clocks: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, at: u64, event: Event) {
        let tie = match self.fifo_ties {
            true => 0,
            false => self.tie.next_u64() << 32,
        };
        self.serial = self.serial.wrapping_add(1);
        let order = tie | u64::from(self.serial);
        let entry = Entry { at, order, event };
        let is_next = match &self.next {
            Some(next) => entry < *next,
            None => self.heap.peek().is_none_or(|Reverse(first)| entry < *first),
        };
        let entry = match is_next {
            true => self.next.replace(entry),
            false => Some(entry),
        };
        if let Some(entry) = entry {
            self.heap.push(Reverse(entry));
        }
    }

    /// The next event, with its time.
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        let entry = match self.next.take() {
            Some(entry) => entry,
            None => self.heap.pop()?.0,
        };
        Some((entry.at, entry.event))
    }

    /// Adds a loop of a host. Loops are added to the schedule in the order of their index.
    pub(super) fn add_loop(&mut self, host: u16) {
        self.loops.push(LoopTurns {
            host,
            busy_until: 0,
            run_at: NEVER,
            replaced: NEVER,
            is_paused: false,
            is_dead: false,
        });
    }

    pub(super) fn host_of(&self, loop_index: u32) -> u16 {
        self.loops[loop_index as usize].host
    }

    pub(super) fn is_dead(&self, loop_index: u32) -> bool {
        self.loops[loop_index as usize].is_dead
    }

    /// The loop gets no turns any more.
    pub(super) fn end_loop(&mut self, loop_index: u32) {
        self.loops[loop_index as usize].is_dead = true;
    }

    /// Plans a turn at this time, or later if the loop is busy. An earlier plan stands.
    pub(super) fn run(&mut self, loop_index: u32, at: u64) {
        let turns = &mut self.loops[loop_index as usize];
        let at = at.max(turns.busy_until);
        if turns.is_dead || turns.run_at <= at {
            return;
        }
        if turns.replaced == at {
            turns.replaced = std::mem::replace(&mut turns.run_at, at);
            return;
        }
        turns.replace();
        turns.run_at = at;
        self.push(at, Event::Run { loop_index });
    }

    /// Whether a loop gets a turn at once, without an event: nothing else happens now, and the loop is neither busy nor
    /// paused.
    pub(super) fn run_at_once(&mut self, loop_index: u32, now: u64) -> bool {
        let first = match &self.next {
            Some(next) => next.at,
            None => self.heap.peek().map_or(NEVER, |Reverse(first)| first.at),
        };
        let turns = &mut self.loops[loop_index as usize];
        let is_paused = self.clocks[usize::from(turns.host)].is_paused || turns.is_paused;
        if first <= now || turns.is_dead || turns.busy_until > now || is_paused {
            return false;
        }
        turns.replace();
        true
    }

    /// Whether a turn that was planned for `now` takes place. A paused loop gets its turn when it is resumed.
    pub(super) fn begin_turn(&mut self, loop_index: u32, now: u64) -> bool {
        let turns = &mut self.loops[loop_index as usize];
        let is_paused = self.clocks[usize::from(turns.host)].is_paused || turns.is_paused;
        if turns.replaced == now {
            turns.replaced = NEVER;
        }
        if turns.is_dead || turns.run_at != now || is_paused {
            return false;
        }
        turns.run_at = NEVER;
        true
    }

    /// Turns that were due during a pause take place.
    pub(super) fn resume(&mut self, host: u16, now: u64) {
        for index in 0..self.loops.len() {
            let turns = &mut self.loops[index];
            if turns.host == host && turns.run_at != NEVER {
                // Its event may have passed during the pause.
                turns.run_at = NEVER;
                self.run(index as u32, now);
            }
        }
    }

    /// Pauses one loop, or ends its pause.
    pub(super) fn pause_loop(&mut self, loop_index: u32, is_paused: bool, now: u64) {
        let turns = &mut self.loops[loop_index as usize];
        turns.is_paused = is_paused;
        if !is_paused && std::mem::replace(&mut turns.run_at, NEVER) != NEVER {
            self.run(loop_index, now);
        }
    }

    /// A turn has run `entries`; returns how long it took.
    pub(super) fn end_turn(&mut self, loop_index: u32, now: u64, entries: u64) -> u64 {
        let mut cost = TURN_COST;
        if entries > 0 {
            let most = MOST_ENTRY_COST - LEAST_ENTRY_COST;
            cost += entries.saturating_mul(LEAST_ENTRY_COST + self.turn_cost.below(most));
        }
        self.loops[loop_index as usize].busy_until = now + cost;
        cost
    }

    /// Plans a turn for a deadline on the loop's own clock.
    pub(super) fn run_at_deadline(&mut self, loop_index: u32, deadline: Instant) {
        let clock = &self.clocks[usize::from(self.host_of(loop_index))];
        let at = clock.true_time(deadline.as_nanos());
        self.run(loop_index, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pops between pushes, at times that are equal, earlier or later than the next event's.
    #[test]
    fn events_come_in_the_order_of_their_times_and_ties() {
        let mut rng = Rng::from_seed(7);
        let mut schedule = Schedule::new(Rng::from_seed(1), true, Rng::from_seed(2));
        let (mut pushed, mut now) = (Vec::new(), 0);
        for call in 0..if cfg!(miri) { 200 } else { 10_000 } {
            let at = now + rng.below(5);
            schedule.push(at, Event::Call { call });
            pushed.push((at, call));
            while rng.chance(0.5) && !pushed.is_empty() {
                let first = pushed.iter().copied().min().unwrap();
                pushed.retain(|event| *event != first);
                assert_eq!(schedule.pop(), Some((first.0, Event::Call { call: first.1 })));
                now = first.0;
            }
        }
    }

    fn one_loop() -> Schedule {
        let mut schedule = Schedule::new(Rng::from_seed(1), true, Rng::from_seed(2));
        schedule.clocks.push(HostClock::default());
        schedule.add_loop(0);
        schedule
    }

    /// The loop waits for a timer at 100, and something arrives every now and then.
    #[test]
    fn a_turn_that_is_planned_again_has_one_event() {
        let mut schedule = one_loop();
        let run = Event::Run { loop_index: 0 };
        schedule.run(0, 100);
        for now in [10, 20, 30] {
            schedule.run(0, now);
            assert_eq!(schedule.pop(), Some((now, run)));
            assert!(schedule.begin_turn(0, now));
            schedule.run(0, 100);
        }
        // The timer moves to 50, and back.
        schedule.run(0, 50);
        assert_eq!(schedule.pop(), Some((50, run)));
        assert!(schedule.begin_turn(0, 50));
        schedule.run(0, 100);
        assert_eq!(schedule.pop(), Some((100, run)));
        assert!(schedule.begin_turn(0, 100));
        // Its event is gone, so that the same time needs another one.
        schedule.run(0, 100);
        assert_eq!(schedule.pop(), Some((100, run)));
        assert_eq!(schedule.pop(), None);
    }

    #[test]
    fn a_turn_at_once_needs_a_loop_that_can_run_and_no_other_event() {
        let mut schedule = one_loop();
        schedule.run(0, 100);
        assert!(schedule.run_at_once(0, 10));
        // The turn at 100 was replaced, and is planned again without another event.
        schedule.run(0, 100);
        schedule.push(20, Event::Call { call: 0 });
        assert!(!schedule.run_at_once(0, 20));
        assert_eq!(schedule.pop(), Some((20, Event::Call { call: 0 })));
        schedule.clocks[0].is_paused = true;
        assert!(!schedule.run_at_once(0, 20));
        schedule.clocks[0].is_paused = false;
        schedule.end_turn(0, 20, 0);
        assert!(!schedule.run_at_once(0, 20 + TURN_COST - 1));
        schedule.end_loop(0);
        assert!(!schedule.run_at_once(0, 20 + TURN_COST));
        assert_eq!(schedule.pop(), Some((100, Event::Run { loop_index: 0 })));
        assert_eq!(schedule.pop(), None);
    }

    /// The event of a turn may pass during a pause; the turn takes place when the host is resumed, also at the same time.
    #[test]
    fn a_turn_that_was_due_in_a_pause_takes_place_afterwards() {
        for resumed_at in [40, 60] {
            let mut schedule = one_loop();
            let run = Event::Run { loop_index: 0 };
            schedule.run(0, 40);
            schedule.clocks[0].is_paused = true;
            assert_eq!(schedule.pop(), Some((40, run)));
            assert!(!schedule.begin_turn(0, 40));
            schedule.clocks[0].is_paused = false;
            schedule.resume(0, resumed_at);
            assert_eq!(schedule.pop(), Some((resumed_at, run)));
            assert!(schedule.begin_turn(0, resumed_at));
        }
    }

    #[test]
    fn events_at_the_same_time_come_in_an_order_of_the_seed() {
        let order = |seed| {
            let mut schedule = Schedule::new(Rng::from_seed(seed), false, Rng::from_seed(2));
            (0..20).for_each(|call| schedule.push(5, Event::Call { call }));
            std::iter::from_fn(|| schedule.pop()).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
