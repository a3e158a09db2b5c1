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
    mean: u64,
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
            mean: 0,
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
        dist.mean = nanos(mean);
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
        Duration::from_nanos(self.min + self.mean + self.spread / 2 + tail)
    }

    #[inline(always)]
    pub(super) fn sample(&self, rng: &mut Rng) -> u64 {
        let mut time = self.min;
        if self.spread > 0 {
            time += rng.below(self.spread + 1);
        }
        if self.mean > 0 {
            time += exponential(rng, self.mean);
        }
        if self.tail_chance > 0.0 && rng.chance(self.tail_chance) {
            time += self.tail;
        }
        time
    }
}

/// A number from the exponential distribution with this mean. A table of quantiles, with a line between two of them, takes
/// a third of the instructions of a logarithm, and every latency is one. Only the last quantile, which has no upper
/// end, needs the logarithm.
#[inline(always)]
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    let word = rng.next_u64();
    let index = (word >> 56) as usize;
    let Some(&[from, to]) = QUANTILES.get(index..).and_then(<[u64]>::first_chunk::<2>) else {
        return beyond_last_quantile(rng, mean);
    };
    let part = word << 8 >> 32;
    let times_mean = from + (((to - from) * part) >> 32);
    ((u128::from(times_mean) * u128::from(mean)) >> 32) as u64
}

#[cold]
fn beyond_last_quantile(rng: &mut Rng, mean: u64) -> u64 {
    // The distribution has no memory.
    let times_mean = QUANTILES[255] as f64 / (1u64 << 32) as f64;
    ((times_mean + rng.exponential(1.0)) * mean as f64) as u64
}

/// The quantiles `0 / 256` to `255 / 256` of the exponential distribution with mean 1, as multiples of 2^-32:
/// `-ln(1 - index / 256)`.
static QUANTILES: [u64; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        // ln(x) = 2 artanh((x - 1) / (x + 1)); doubling keeps the argument small.
        let (mut x, mut log) = (1.0 - index as f64 / 256.0, 0.0);
        while x < 0.75 {
            x *= 2.0;
            log -= std::f64::consts::LN_2;
        }
        let s = (x - 1.0) / (x + 1.0);
        let (mut sum, mut odd) = (0.0, 25.0);
        while odd > 0.0 {
            sum = sum * s * s + 1.0 / odd;
            odd -= 2.0;
        }
        log += 2.0 * s * sum;
        table[index] = (-log * (1u64 << 32) as f64) as u64;
        index += 1;
    }
    table
};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_logarithms() {
        assert_eq!(QUANTILES[0], 0);
        for (index, quantile) in QUANTILES.iter().enumerate() {
            let expected = -crate::rand::ln(1.0 - index as f64 / 256.0);
            let quantile = *quantile as f64 / (1u64 << 32) as f64;
            assert!((quantile - expected).abs() < 1e-9, "{index}: {quantile} {expected}");
        }
    }

    #[test]
    fn exponential_latencies_have_their_mean_and_their_tail() {
        let mut rng = Rng::from_seed(11);
        let (count, mean) = (if cfg!(miri) { 2_000 } else { 200_000 }, 100_000);
        let samples: Vec<u64> = (0..count).map(|_| exponential(&mut rng, mean)).collect();
        let measured = samples.iter().sum::<u64>() as f64 / count as f64;
        assert!(
            (measured / mean as f64 - 1.0).abs() < 6.0 / (count as f64).sqrt(),
            "{measured}"
        );
        // exp(-6) of them are above six times the mean, beyond the last quantile.
        let above = samples.iter().filter(|sample| **sample > 6 * mean).count() as f64;
        let expected = count as f64 * (-6.0f64).exp();
        assert!((above - expected).abs() < 6.0 * expected.sqrt(), "{above} {expected}");
    }
}
