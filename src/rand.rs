//! Pseudo-random numbers.
//!
//! [`Rng`] is a small, fast, non-cryptographic generator.
//!
//! ```
//! use windlass::rand::Rng;
//!
//! let mut rng = Rng::from_seed(7);
//! let back_off_ms = rng.range(50..=100);
//! assert!((50..=100).contains(&back_off_ms));
//! ```

use std::ops::{Bound, RangeBounds};

/// A pseudo-random number generator: xoshiro256++, with a period of 2^256 - 1.
///
/// **Not for secrets**: a few outputs reveal all others.
///
/// A clone continues with the same numbers as the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator with a fixed seed: the same seed gives the same numbers, on every platform.
    ///
    /// ```
    /// use windlass::rand::Rng;
    /// assert_eq!(Rng::from_seed(1).next_u64(), Rng::from_seed(1).next_u64());
    /// assert_ne!(Rng::from_seed(1).next_u64(), Rng::from_seed(2).next_u64());
    /// ```
    pub fn from_seed(seed: u64) -> Rng {
        // SplitMix64, as the authors of xoshiro recommend: similar seeds give unrelated states, and never the state
        // that is all zero, which yields only zeros.
        let mut next = seed;
        Rng {
            state: std::array::from_fn(|_| {
                next = next.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(next)
            }),
        }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let s2 = s2 ^ s0;
        let s3 = s3 ^ s1;
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// A number in `0..bound`, each with the same probability.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "windlass: Rng::below(0) has no number to return");
        // Lemire's method: the high word of the product, and a retry for the few low words that would favour some
        // results. The division runs only if a retry is possible at all.
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let unfair = bound.wrapping_neg() % bound;
            while (product as u64) < unfair {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// A number in `range`, each with the same probability.
    ///
    /// ```
    /// use windlass::rand::Rng;
    /// let mut rng = Rng::from_seed(3);
    /// assert!((10..20).contains(&rng.range(10..20)));
    /// assert_eq!(rng.range(5..=5), 5);
    /// ```
    ///
    /// # Panics
    ///
    /// If the range is empty.
    #[inline]
    pub fn range(&mut self, range: impl RangeBounds<u64>) -> u64 {
        let first = match range.start_bound() {
            Bound::Included(first) => Some(*first),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let last = match range.end_bound() {
            Bound::Included(last) => Some(*last),
            Bound::Excluded(end) => end.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        match (first, last) {
            (Some(0), Some(u64::MAX)) => self.next_u64(),
            (Some(first), Some(last)) if first <= last => first + self.below(last - first + 1),
            _ => panic!("windlass: Rng::range of an empty range"),
        }
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability: never for 0.0 or less, always for 1.0 or more.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number from the exponential distribution with this mean, as the times between independent events have. At most
    /// 37 times the mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // `1 - unit` is never zero.
        -(1.0 - self.unit()).ln() * mean
    }

    /// Fills the bytes with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Brings the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// One of the items, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        match items.len() {
            0 => None,
            len => Some(&items[self.below(len as u64) as usize]),
        }
    }
}

/// The finalizer of SplitMix64: every bit of the input changes every bit of the output with probability one half.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are part of what a simulation's seed means: a change voids every recorded seed.
    #[test]
    fn the_generator_matches_the_reference() {
        // The first outputs of xoshiro256++ for the state 1, 2, 3, 4, from the authors' C code.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let expected = [
            41943041,
            58720359,
            3588806011781223,
            3591011842654386,
            9228616714210784205,
            9973669472204895162,
        ];
        assert_eq!(expected, std::array::from_fn(|_| rng.next_u64()));
        // The published first outputs of SplitMix64 for seed 0.
        let state = [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
            0xf88b_b8a8_724c_81ec,
        ];
        assert_eq!(Rng::from_seed(0), Rng { state });
    }

    #[test]
    fn every_number_of_a_range_is_as_likely() {
        let mut rng = Rng::from_seed(1);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // Ten standard deviations; the seed is fixed, so this does not depend on luck.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 1_000), "{counts:?}");
        // A bound for which almost every second product is unfair.
        let bound = (1 << 63) + 1;
        assert!((0..1_000).all(|_| rng.below(bound) < bound));
    }

    #[test]
    fn ranges_keep_their_ends() {
        let mut rng = Rng::from_seed(2);
        let drawn: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.range(3..=6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(rng.range(u64::MAX..), u64::MAX);
        assert_eq!(rng.range(..1), 0);
        rng.range(..);
        for (first, end) in [(3, 3), (4, 3)] {
            assert!(std::panic::catch_unwind(|| Rng::from_seed(0).range(first..end)).is_err());
        }
    }

    #[test]
    fn chances_and_means_are_met() {
        let mut rng = Rng::from_seed(3);
        let hits = (0..10_000).filter(|_| rng.chance(0.25)).count();
        assert!(hits.abs_diff(2_500) < 200, "{hits}");
        assert!((0..1_000).all(|_| !rng.chance(0.0)));
        assert!((0..1_000).all(|_| rng.chance(1.0)));
        let mean = (0..10_000).map(|_| rng.exponential(5.0)).sum::<f64>() / 10_000.0;
        assert!((4.5..5.5).contains(&mean), "{mean}");
    }

    #[test]
    fn shuffling_permutes_and_filling_fills_all() {
        let mut rng = Rng::from_seed(4);
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
        assert_eq!(rng.pick::<u32>(&[]), None);
        assert_eq!(rng.pick(&[9]), Some(&9));
        for len in [0, 1, 7, 8, 9, 31] {
            let mut seen = vec![0u8; len];
            for _ in 0..20 {
                let mut bytes = vec![0u8; len];
                rng.fill(&mut bytes);
                for (seen, byte) in seen.iter_mut().zip(bytes) {
                    *seen |= byte;
                }
            }
            assert!(seen.iter().all(|byte| *byte != 0), "{len}: {seen:?}");
        }
    }
}
