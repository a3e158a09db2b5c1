//! The lateness of sleeps. Sleeps that end early are counted separately: they are wrong, and must not count as the
//! best.

use std::time::Duration;

use super::histogram::Histogram;

#[derive(Clone, Default)]
pub(crate) struct Lateness {
    late: Histogram,
    /// By how much sleeps ended early.
    early: Histogram,
}

impl Lateness {
    /// Records a sleep of length `wanted` and its actual length.
    pub(crate) fn add(&mut self, lasted: Duration, wanted: Duration) {
        match lasted.checked_sub(wanted) {
            Some(late) => self.late.add(late),
            None => self.early.add(wanted - lasted),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.late.len() + self.early.len()
    }

    /// The number of sleeps that ended early.
    pub(crate) fn early(&self) -> u64 {
        self.early.len()
    }

    /// The percentile of the lateness, in nanoseconds: negative for early ends, NaN without sleeps.
    pub(crate) fn nanos(&self, share: f64) -> f64 {
        let rank = ((self.len() as f64 * share).ceil() as u64).max(1);
        let of = |histogram: &Histogram, rank: u64| histogram.nanos((rank as f64 - 0.5) / histogram.len() as f64);
        match rank.checked_sub(self.early()) {
            // Early ends sort first.
            None | Some(0) if self.early() > 0 => -of(&self.early, self.early() + 1 - rank),
            _ => of(&self.late, rank - self.early()),
        }
    }

    pub(crate) fn most(&self) -> f64 {
        match self.late.is_empty() {
            true => self.nanos(1.0),
            false => self.late.most().as_nanos() as f64,
        }
    }
}
