//! How late timers may fire, as a fraction of their length.

use std::time::Duration;

use super::HEAPS;
use crate::time::Instant;

/// How late timers may fire: a power of two of nanoseconds, at most 1/1024 of a timer's length. There are seven of them; timers
/// that are too short for the smallest have none.
#[derive(Clone, Copy)]
pub(super) struct Slack {
    /// The exponent of half the smallest slack: that of heap `n` is 2 to the power of this plus `n`.
    base: u32,
    /// Timers that are longer than this have the largest slack.
    long: u64,
}

impl Slack {
    pub(super) fn up_to(largest: Duration) -> Slack {
        let exponent = largest.as_nanos().checked_ilog2().unwrap_or(0);
        let long = 1u64.checked_shl(exponent + 10).map_or(u64::MAX, |long| long - 1);
        match exponent.checked_sub(HEAPS as u32 - 1) {
            Some(base) => Slack { base, long },
            // No timer is so long that it would have a slack of 2^64 ns.
            None => Slack {
                base: u64::BITS,
                long: u64::MAX,
            },
        }
    }

    /// Whether a timer that is set at `now` has the largest slack: most timeouts. One comparison instead of a logarithm.
    #[inline]
    pub(super) fn is_long(self, now: Instant, when: Instant) -> bool {
        let length = when.as_nanos().checked_sub(now.as_nanos());
        length.is_some_and(|length| length > self.long)
    }

    /// The heap for a timer that is set at `now`.
    #[inline]
    pub(super) fn heap(self, now: Instant, when: Instant) -> usize {
        let length = when.as_nanos().saturating_sub(now.as_nanos());
        let exponent = (length >> 10 | 1).ilog2();
        (exponent.saturating_sub(self.base) as usize).min(HEAPS - 1)
    }

    #[inline]
    pub(super) fn of(self, heap: usize) -> u64 {
        match heap {
            0 => 0,
            heap => 1 << (self.base as usize + heap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_origin(Duration::from_nanos(ns))
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
            let (now, when) = (at(5), at(5 + length));
            assert_eq!(slack.of(slack.heap(now, when)), expected, "{length} ns");
            assert_eq!(slack.is_long(now, when), expected == 1 << 20, "{length} ns");
        }
        // A deadline that has passed.
        assert_eq!(slack.heap(at(5), at(4)), 0);
        assert!(!slack.is_long(at(5), at(4)));
        for none in [0, 1, 127] {
            let slack = Slack::up_to(Duration::from_nanos(none));
            assert_eq!(slack.heap(at(0), Instant::NEVER), 0);
            assert!(!slack.is_long(at(0), Instant::NEVER));
        }
        for largest in [128, 1_000, u64::MAX] {
            let slack = Slack::up_to(Duration::from_nanos(largest));
            let given = slack.of(HEAPS - 1);
            assert!(given <= largest && given > largest / 2, "{given} of {largest}");
        }
        assert_eq!(Slack::up_to(Duration::MAX).heap(at(0), Instant::NEVER), 0);
    }
}
