//! Independent random streams, one per purpose and name.
//!
//! A run draws from many streams (`tie`, `net/a>b`, `disk/a`, `clock/a`, `quirk/a`, `app/a`), each seeded by a hash of the
//! run's seed and the stream's name. So one stream's draws do not shift another's: without the faults of one disk, the
//! network behaves as before. Shrinking depends on this.

pub(crate) use crate::rand::Rng;
use crate::rand::mix;

/// The random streams of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    seed: u64,
}

impl Streams {
    pub(crate) fn new(seed: u64) -> Streams {
        Streams { seed }
    }

    /// The stream with this name. Each call returns it from its beginning, so it is asked for once and kept.
    pub(crate) fn stream(&self, name: &str) -> Rng {
        self.stream_of(name, "")
    }

    /// The stream of this purpose for one host: the one whose name is both texts together.
    pub(crate) fn stream_of(&self, purpose: &str, host: &str) -> Rng {
        let hash = purpose.bytes().chain(host.bytes()).fold(FNV_BASIS, fnv_step);
        Rng::from_seed(mix(mix(self.seed) ^ hash))
    }
}

/// A Weyl sequence and a multiplicative hash of it: of lower quality than [`Rng`], in half of the instructions. For the
/// numbers that every event and every turn draws.
pub(crate) struct FastRng {
    state: u64,
}

impl FastRng {
    /// With its start from another stream.
    pub(crate) fn new(mut rng: Rng) -> FastRng {
        FastRng { state: rng.next_u64() }
    }

    /// 64 random bits, the upper ones of better quality than the lower ones.
    #[inline(always)]
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (self.state ^ self.state >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// A number in `0..bound`. Some are more probable than others by `bound / 2^32`.
    #[inline(always)]
    pub(crate) fn below(&mut self, bound: u32) -> u64 {
        ((self.next_u64() >> 32) * u64::from(bound)) >> 32
    }
}

/// A 64-bit hash of a text that is the same on every platform and in every version of Rust: FNV-1a.
pub(crate) fn hash_text(text: &str) -> u64 {
    hash_bytes(text.as_bytes())
}

/// As [`hash_text`].
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().copied().fold(FNV_BASIS, fnv_step)
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

#[inline]
fn fnv_step(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_depend_on_seed_and_name_alone() {
        let streams = Streams::new(7);
        let mut first = streams.stream("net/a>b");
        let expected: Vec<u64> = (0..100).map(|_| first.next_u64()).collect();
        let mut other = streams.stream("disk/a");
        other.next_u64();
        let mut again = streams.stream("net/a>b");
        assert_eq!(expected, (0..100).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_eq!(streams.stream_of("disk/", "a"), streams.stream("disk/a"));
        assert_ne!(Streams::new(7).stream("net/a>b"), Streams::new(7).stream("net/b>a"));
        assert_ne!(Streams::new(7).stream("net/a>b"), Streams::new(8).stream("net/a>b"));
    }

    #[test]
    fn small_numbers_are_equally_probable() {
        let mut rng = FastRng::new(Rng::from_seed(1));
        let mut counts = [0; 6];
        (0..6_000).for_each(|_| counts[rng.below(6) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
