//! Limits how often a busy loop polls the kernel.
//!
//! A poll costs as much as running ten tasks, so while tasks are ready the kernel is polled every 64 turns or 50 us,
//! whichever comes first. Reading the clock costs as much as running one task, so it is read every eighth turn while
//! turns are short, and every turn after a long one.

use std::time::Duration;

use crate::sys::{self, Instant};

const MOST_TURNS: u32 = 64;
const LONGEST: Duration = Duration::from_micros(50);
const LONGEST_STRIDE: u32 = 8;

pub(crate) struct PollThrottle {
    turns: u32,
    /// The turn at which the clock is read next.
    next_clock_read: u32,
    stride: u32,
    last: Instant,
}

impl PollThrottle {
    pub(crate) fn new() -> PollThrottle {
        PollThrottle {
            turns: 0,
            next_clock_read: 1,
            stride: 1,
            last: sys::monotonic(),
        }
    }

    /// Counts a turn with ready tasks. True if the kernel must be polled all the same.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.turns += 1;
        self.turns >= MOST_TURNS || (self.turns >= self.next_clock_read && self.is_late(sys::monotonic()))
    }

    fn is_late(&mut self, now: Instant) -> bool {
        if now - self.last >= LONGEST {
            self.stride = 1;
            return true;
        }
        self.stride = (self.stride * 2).min(LONGEST_STRIDE);
        self.next_clock_read = self.turns + self.stride;
        false
    }

    /// The kernel was polled.
    pub(crate) fn polled(&mut self) {
        self.turns = 0;
        self.next_clock_read = self.stride;
        self.last = sys::monotonic();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn short_turns_are_counted() {
        let mut throttle = PollThrottle::new();
        throttle.last += Duration::from_secs(3600);
        let turns = (1..).find(|_| throttle.is_due());
        assert_eq!(turns, Some(64));
    }

    #[test]
    fn long_turns_ask_each_time_and_one_long_turn_is_noticed_soon() {
        let mut throttle = PollThrottle::new();
        for _ in 0..20 {
            throttle.polled();
            throttle.last = throttle.last - Duration::from_micros(60);
            assert!(throttle.is_due());
        }
        throttle.polled();
        throttle.last += Duration::from_secs(3600);
        for _ in 0..40 {
            assert!(!throttle.is_due());
        }
        throttle.last = Instant::from_origin(Duration::ZERO);
        assert!((0..8).any(|_| throttle.is_due()), "a long turn is noticed within eight");
    }
}
