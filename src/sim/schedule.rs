//! The schedule of a world: the events to come, the turns of the loops, and the clocks of the hosts.
//!
//! A turn takes time, so a loop that yields until a deadline reaches it.

use std::time::{Duration, SystemTime};

pub(super) use super::events::Event;
use super::events::EventQueue;
use super::rng::FastRng;
use crate::rand::Rng;
use crate::sys::Instant;

/// The time of a turn, and of each entry that it runs.
const TURN_COST: u64 = 1_000;
const LEAST_ENTRY_COST: u64 = 200;
const MOST_ENTRY_COST: u64 = 2_000;

/// The wall clock at the start of every run: 2025-01-01.
const EPOCH: u64 = 1_735_689_600;

/// The events to come, the loops and the clocks.
pub(super) struct Schedule {
    events: EventQueue,
    turn_cost: FastRng,
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
    /// With the streams of the order of events at the same time, which is that of their planning if there is none, and
    /// of the times of turns.
    pub(super) fn new(ties: Option<Rng>, turn_cost: Rng) -> Schedule {
        Schedule {
            events: EventQueue::new(ties.map(FastRng::new)),
            turn_cost: FastRng::new(turn_cost),
            loops: Vec::new(),
            clocks: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.events.push(at, event);
    }

    /// The next event, with its time.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.events.pop()
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
        let first = self.events.next_at().unwrap_or(NEVER);
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
            cost += entries.saturating_mul(LEAST_ENTRY_COST + self.turn_cost.below(most as u32));
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

    fn one_loop() -> Schedule {
        let mut schedule = Schedule::new(None, Rng::from_seed(2));
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
}
