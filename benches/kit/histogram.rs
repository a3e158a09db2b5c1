//! A histogram of durations in constant memory, with a resolution of 1/32 of the value.

use std::time::Duration;

const STEPS: usize = 32;

/// Counts of durations.
#[derive(Clone, Default)]
pub(crate) struct Histogram {
    /// The first 32 buckets are single nanoseconds; each further 32 cover a factor of two.
    counts: Vec<u64>,
    total: u64,
    most: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, duration: Duration) {
        self.add_nanos(duration.as_nanos() as u64);
    }

    pub(crate) fn add_nanos(&mut self, nanos: u64) {
        let place = place(nanos);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.total += 1;
        self.most = self.most.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.most = self.most.max(other.most);
    }

    pub(crate) fn len(&self) -> u64 {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(crate) fn most(&self) -> Duration {
        Duration::from_nanos(self.most)
    }

    /// The percentile for a share, in nanoseconds; NaN if the histogram is empty.
    pub(crate) fn nanos(&self, share: f64) -> f64 {
        if self.total == 0 {
            return f64::NAN;
        }
        let wanted = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(place).min(self.most as f64);
            }
        }
        self.most as f64
    }

    pub(crate) fn micros(&self, share: f64) -> f64 {
        self.nanos(share) / 1e3
    }

    /// The non-empty buckets: the middle in nanoseconds, and the count.
    pub(crate) fn bars(&self) -> impl Iterator<Item = (f64, u64)> {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(place, count)| (middle(place), *count))
    }
}

fn place(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let octave = nanos.ilog2() - STEPS.ilog2();
    (octave as usize) * STEPS + (nanos >> octave) as usize
}

fn middle(place: usize) -> f64 {
    if place < 2 * STEPS {
        return place as f64;
    }
    let octave = place / STEPS - 1;
    let first = ((place - octave * STEPS) as u64) << octave;
    first as f64 + ((1u64 << octave) - 1) as f64 / 2.0
}
