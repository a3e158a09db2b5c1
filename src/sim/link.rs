//! Links between hosts: latency, bandwidth and the faults of the network.

use std::time::Duration;

use crate::rand::Rng;

/// A distribution of durations: at least `min`, plus an exponentially distributed part, plus a rare long tail.
///
/// ```
/// # #[cfg(feature = "sim")] {
/// use std::time::Duration;
/// use windlass::sim::Dist;
/// let wan = Dist::exponential(Duration::from_millis(20), Duration::from_millis(2)).tail(0.01, Duration::from_millis(200));
/// assert!(wan.mean() > Duration::from_millis(22));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dist {
    min: u64,
    /// The mean of the exponentially distributed part.
    mean: f64,
    /// The width of a uniformly distributed part.
    spread: u64,
    tail_chance: f64,
    tail: u64,
}

impl Dist {
    /// Always this long.
    pub fn constant(time: Duration) -> Dist {
        Dist {
            min: nanos(time),
            mean: 0.0,
            spread: 0,
            tail_chance: 0.0,
            tail: 0,
        }
    }

    /// Between `from` and `to`, each as likely as the others.
    pub fn uniform(from: Duration, to: Duration) -> Dist {
        let mut dist = Dist::constant(from);
        dist.spread = nanos(to.saturating_sub(from));
        dist
    }

    /// At least `min`, and an exponentially distributed time with this mean more.
    pub fn exponential(min: Duration, mean: Duration) -> Dist {
        let mut dist = Dist::constant(min);
        dist.mean = nanos(mean) as f64;
        dist
    }

    /// With this probability it takes `longer` in addition.
    pub fn tail(mut self, probability: f64, longer: Duration) -> Dist {
        self.tail_chance = probability;
        self.tail = nanos(longer);
        self
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        let tail = (self.tail as f64 * self.tail_chance) as u64;
        Duration::from_nanos(self.min + self.mean as u64 + self.spread / 2 + tail)
    }

    #[inline(always)]
    pub(super) fn sample(&self, rng: &mut Rng) -> u64 {
        let mut time = self.min;
        if self.spread > 0 {
            time += rng.below(self.spread + 1);
        }
        if self.mean > 0.0 {
            time += rng.exponential(self.mean) as u64;
        }
        if self.tail_chance > 0.0 && rng.chance(self.tail_chance) {
            time += self.tail;
        }
        time
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the network does to the packets from one host to another.
///
/// The default is a local network: 100 to 300 us, no limit of bandwidth, no loss. TCP hides loss as a delay, as real TCP does;
/// duplication and reordering concern UDP.
///
/// ```
/// # #[cfg(feature = "sim")] {
/// use std::time::Duration;
/// use windlass::sim::{Dist, Link};
/// let lossy = Link::new().latency(Dist::constant(Duration::from_millis(5))).loss(0.01).bandwidth(1 << 20);
/// # let _ = lossy;
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub(super) latency: Dist,
    /// Bytes per second.
    pub(super) bandwidth: Option<u64>,
    pub(super) loss: f64,
    pub(super) duplicate: f64,
    pub(super) reorder: f64,
    /// How often a read or a write of a stream is cut short.
    pub(super) short: f64,
    /// The most bytes of a read or a write of a stream.
    pub(super) max_count: usize,
}

impl Default for Link {
    fn default() -> Link {
        Link::new()
    }
}

impl Link {
    /// A local network without faults.
    pub fn new() -> Link {
        Link {
            latency: Dist::uniform(Duration::from_micros(100), Duration::from_micros(300)),
            bandwidth: None,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            short: 1.0 / 64.0,
            max_count: usize::MAX,
        }
    }

    /// The link of a host to itself.
    pub(super) fn loopback() -> Link {
        Link::new().latency(Dist::constant(Duration::from_micros(10)))
    }

    /// How long a packet takes.
    pub fn latency(mut self, latency: Dist) -> Link {
        self.latency = latency;
        self
    }

    /// How many bytes it carries per second.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Link {
        self.bandwidth = Some(bytes_per_second.max(1));
        self
    }

    /// The probability that a packet is lost. TCP sends it again 200 ms later, then after twice as long each time.
    pub fn loss(mut self, probability: f64) -> Link {
        self.loss = probability;
        self
    }

    /// The probability that a datagram arrives twice.
    pub fn duplicate(mut self, probability: f64) -> Link {
        self.duplicate = probability;
        self
    }

    /// The probability that a datagram is overtaken by later ones. The others keep their order.
    pub fn reorder(mut self, probability: f64) -> Link {
        self.reorder = probability;
        self
    }

    /// The probability that a read or a write of a stream transfers only a part.
    pub fn short_counts(mut self, probability: f64) -> Link {
        self.short = probability;
        self
    }

    /// The most bytes that a read or a write of a stream transfers; at least 1.
    pub fn max_count(mut self, bytes: usize) -> Link {
        self.max_count = bytes.max(1);
        self
    }

    pub(super) fn without_faults(mut self) -> Link {
        (self.loss, self.duplicate, self.reorder) = (0.0, 0.0, 0.0);
        self
    }
}
