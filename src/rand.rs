//! Random numbers and hash keys that a simulation can replay.
//!
//! [`Rng`] is a small, fast, non-cryptographic generator. [`RandomState`] makes the hashers of a
//! [`HashMap`](std::collections::HashMap). The operating system seeds both. In a simulation, the simulation's seed does, so
//! that the same seed gives the same numbers and the same iteration order of maps. The `RandomState` of std cannot be
//! seeded: a program that iterates over such a map behaves differently in each run.
//!
//! ```
//! use std::collections::HashMap;
//! use windlass::rand::{RandomState, Rng};
//!
//! let mut rng = Rng::new();
//! let back_off_ms = rng.range(50..=100);
//! assert!((50..=100).contains(&back_off_ms));
//!
//! let mut peers: HashMap<u32, &str, RandomState> = HashMap::default();
//! peers.insert(1, "a:7000");
//! ```

use std::cell::Cell;
#[cfg(feature = "sim")]
use std::cell::RefCell;
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::ops::{Bound, RangeBounds};

use crate::event_loop::core::LoopCore;
use crate::sys;

/// A pseudo-random number generator: xoshiro256++, with a period of 2^256 - 1.
///
/// [`Rng::new`] is seeded by the simulation inside one, and by the operating system elsewhere. **Not for secrets**: a few
/// outputs reveal all others.
///
/// A clone continues with the same numbers as the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator with a new seed: from the operating system or, in a simulation, from the simulation.
    ///
    /// ```
    /// let mut rng = windlass::rand::Rng::new();
    /// assert!(rng.below(6) < 6);
    /// ```
    #[allow(
        clippy::new_without_default,
        reason = "a default is expected to be the same each time"
    )]
    pub fn new() -> Rng {
        let mut bytes = [0; 32];
        entropy(&mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        match std::array::from_fn(|index| u64::from_le_bytes(words[index])) {
            // This state yields only zeros.
            [0, 0, 0, 0] => Rng::from_seed(0),
            state => Rng { state },
        }
    }

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
        -ln(1.0 - self.unit()) * mean
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

/// Makes the hashers of a [`HashMap`](std::collections::HashMap) or [`HashSet`](std::collections::HashSet), as
/// [`std::hash::RandomState`] does, and like it with secret keys. In a simulation the keys depend on the seed, so the
/// iteration order is the same in each run.
///
/// ```
/// use std::collections::{HashMap, HashSet};
/// use windlass::rand::RandomState;
///
/// let mut sessions: HashMap<u64, String, RandomState> = HashMap::default();
/// sessions.insert(7, "seven".to_owned());
/// let seen: HashSet<u64, RandomState> = sessions.keys().copied().collect();
/// assert!(seen.contains(&7));
/// ```
#[derive(Clone, Debug)]
pub struct RandomState {
    keys: [u64; 2],
}

impl RandomState {
    /// Keys that differ from those of other maps.
    pub fn new() -> RandomState {
        RandomState { keys: new_keys() }
    }
}

impl Default for RandomState {
    fn default() -> RandomState {
        RandomState::new()
    }
}

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        // The keys of `DefaultHasher` cannot be set. As the beginning of the hashed text they make its state just as
        // unknown.
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.keys[0]);
        hasher.write_u64(self.keys[1]);
        hasher
    }
}

thread_local! {
    /// The last keys that were given out on this thread. Zero: none yet.
    static KEYS: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

#[cfg(feature = "sim")]
thread_local! {
    /// The source of entropy for a simulation's code that runs outside of a loop.
    static SEEDED: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// New keys for a hasher. On a real driver, the OS is asked once per thread, and the keys count up from there.
fn new_keys() -> [u64; 2] {
    if is_seeded() || KEYS.get() == [0; 2] {
        let mut bytes = [0; 16];
        entropy(&mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        let keys = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
        if is_seeded() {
            return keys;
        }
        KEYS.set(keys);
    }
    let [first, second] = KEYS.get();
    KEYS.set([first.wrapping_add(1), second]);
    [first, second]
}

/// Whether entropy may come from a seed here, so that none may be kept for later.
fn is_seeded() -> bool {
    #[cfg(feature = "sim")]
    if SEEDED.with_borrow(Option::is_some) {
        return true;
    }
    LoopCore::try_current().is_some_and(|core| core.has_virtual_clock)
}

/// Random bytes from the current loop's driver; outside of a loop from the simulation, if there is one, or the OS.
fn entropy(bytes: &mut [u8]) {
    if let Some(core) = LoopCore::try_current() {
        return core.driver().entropy(bytes);
    }
    #[cfg(feature = "sim")]
    if SEEDED.with_borrow_mut(|seeded| seeded.as_mut().map(|rng| rng.fill(bytes)).is_some()) {
        return;
    }
    sys::entropy(bytes);
}

/// Runs `run` with entropy from `rng` wherever this thread is outside of a loop: between turns, in blocking jobs.
#[cfg(feature = "sim")]
pub(crate) fn seeded<T>(rng: Rng, run: impl FnOnce() -> T) -> T {
    struct Restore(Option<Rng>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SEEDED.set(self.0.take());
        }
    }
    let _restore = Restore(SEEDED.replace(Some(rng)));
    run()
}

/// The natural logarithm of a positive normal number.
///
/// The standard library's is the C library's, whose last digit differs between platforms, so that a seed would mean another
/// run there. This one uses nothing but additions, multiplications and divisions, which are the same everywhere.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    // x = mantissa * 2^exponent, with a mantissa from 0.6875 to 1.375, in one of the intervals of the table.
    let above = bits.wrapping_sub(LEAST_MANTISSA);
    let exponent = above as i64 >> 52;
    let mantissa = f64::from_bits(bits.wrapping_sub((exponent as u64) << 52));
    let (center, inverse, log) = LOGARITHMS[(above >> 45) as usize % 128];
    // ln(m) = ln(c) + ln(1 + r), with r below 1/256.
    let r = (mantissa - center) * inverse;
    let square = r * r;
    let odd = (1.0 / 3.0 - r * 0.25) + square * (0.2 - r * (1.0 / 6.0));
    exponent as f64 * std::f64::consts::LN_2 + log + (r + square * (r * odd - 0.5))
}

/// 0.6875.
const LEAST_MANTISSA: u64 = 0x3fe6 << 48;

/// The centers of 128 intervals from 0.6875 to 1.375, with their inverses and logarithms: see [`ln`].
static LOGARITHMS: [(f64, f64, f64); 128] = {
    let mut table = [(0.0, 0.0, 0.0); 128];
    let mut index = 0;
    while index < 128 {
        let center = f64::from_bits(LEAST_MANTISSA + ((index as u64) << 45) + (1 << 44));
        // ln(c) = 2 artanh((c - 1) / (c + 1)), with the argument below 0.19.
        let s = (center - 1.0) / (center + 1.0);
        let (mut sum, mut odd) = (0.0, 25.0);
        while odd > 0.0 {
            sum = sum * s * s + 1.0 / odd;
            odd -= 2.0;
        }
        table[index] = (center, 1.0 / center, 2.0 * s * sum);
        index += 1;
    }
    table
};

/// The exponential function, for small numbers: see [`ln`].
#[cfg(feature = "sim")]
pub(crate) fn exp(x: f64) -> f64 {
    // e^(x / 256) by its series, then squared eight times.
    let small = x / 256.0;
    let mut sum = 1.0;
    for term in (1..=12).rev() {
        sum = 1.0 + sum * small / f64::from(term);
    }
    for _ in 0..8 {
        sum *= sum;
    }
    sum
}

/// The finalizer of SplitMix64: every bit of the input changes every bit of the output with probability one half.
#[inline]
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_and_its_inverse_are_close_to_the_platforms() {
        let mut rng = Rng::from_seed(1);
        let tiny = 1.0 / (1u64 << 53) as f64;
        for x in [1.0, 0.5, 2.0, tiny, 1.0 - tiny, 40.0]
            .into_iter()
            .chain((0..1_000).map(|_| 1.0 - rng.unit()))
        {
            assert!(
                (ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1e-2),
                "{x}: {} {}",
                ln(x),
                x.ln()
            );
            #[cfg(feature = "sim")]
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-12, "{x}: {} {}", exp(x), x.exp());
        }
    }

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
    fn hashers_of_one_state_agree_and_states_differ() {
        let states: Vec<RandomState> = (0..100).map(|_| RandomState::new()).collect();
        let hashes: std::collections::BTreeSet<u64> = states.iter().map(|state| state.hash_one(7)).collect();
        assert_eq!(hashes.len(), 100);
        assert_eq!(states[0].hash_one("x"), states[0].clone().hash_one("x"));
        let elsewhere = std::thread::spawn(RandomState::new).join().unwrap();
        assert_ne!(elsewhere.hash_one(7), states[0].hash_one(7));
        assert_ne!(Rng::new(), Rng::new());
    }

    #[cfg(feature = "sim")]
    #[test]
    fn a_seed_replaces_the_entropy_outside_of_a_loop() {
        let draw = || (Rng::new(), RandomState::new().keys, RandomState::new().keys);
        let first = seeded(Rng::from_seed(1), draw);
        assert_ne!(first.1, first.2);
        assert_eq!(first, seeded(Rng::from_seed(1), draw));
        assert_ne!(first, seeded(Rng::from_seed(2), draw));
        assert_ne!(draw(), draw());
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
