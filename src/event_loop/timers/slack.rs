//! How late timers may fire, as a fraction of their length.

use std::num::NonZeroU32;
use std::time::Duration;

use super::HEAPS;
use crate::time::Instant;

/// How late timers may fire: a power of two of nanoseconds, at most 1/1024 of a timer's length. There are seven of them; timers
/// that are too short for the smallest have none.
///
/// By default each slack is twice the one before. For a larger setting they are further apart, so that the smallest is still
/// [`SMALLEST`] at most: the setting takes no slack from timers that had some.
#[derive(Clone, Copy)]
pub(super) struct Slack {
    /// The exponent of the slack of heap `n` is this plus `n` steps.
    base: u32,
    step: NonZeroU32,
    /// Timers that are longer than this have the largest slack.
    long: u64,
}

/// The exponent of the smallest slack by default, 16 us.
const SMALLEST: u32 = 14;

impl Slack {
    pub(super) fn up_to(largest: Duration) -> Slack {
        let steps = HEAPS as u32 - 1;
        let exponent = largest.as_nanos().checked_ilog2().unwrap_or(0).min(u64::BITS - 1);
        let step = exponent.saturating_sub(SMALLEST).div_ceil(steps - 1);
        let step = NonZeroU32::new(step).unwrap_or(NonZeroU32::MIN);
        match exponent.checked_sub(steps * step.get()) {
            Some(base) => Slack {
                base,
                step,
                long: 1u64.checked_shl(exponent + 10).map_or(u64::MAX, |long| long - 1),
            },
            // No timer is so long that it would have a slack of 2^64 ns.
            None => Slack {
                base: u64::BITS,
                step,
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
        ((exponent.saturating_sub(self.base) / self.step) as usize).min(HEAPS - 1)
    }

    #[inline]
    pub(super) fn of(self, heap: usize) -> u64 {
        match heap {
            0 => 0,
            heap => 1 << (self.base + heap as u32 * self.step.get()),
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
    }

    #[test]
    fn a_larger_setting_takes_no_slack_from_shorter_timers() {
        let default = Slack::up_to(Duration::from_nanos(1 << 20));
        let settings = (21..64).map(|exponent| Duration::from_nanos(1 << exponent));
        for setting in settings.chain([Duration::MAX]) {
            let larger = Slack::up_to(setting);
            for length in (17..44).map(|n| 1 << n) {
                let (now, when) = (at(5), at(5 + length));
                let (usual, given) = (default.of(default.heap(now, when)), larger.of(larger.heap(now, when)));
                assert!(given <= length >> 10, "{given} of {length} with {setting:?}");
                assert!(usual == 0 || given > 0, "none for {length} with {setting:?}");
            }
        }
    }
}
