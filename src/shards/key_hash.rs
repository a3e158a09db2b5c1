//! The hash behind [`Shard::by_key`](super::Shard::by_key): the same for the same key in every run, so that a program can
//! store data by shard. std's hasher promises that only within one version.

use std::hash::{Hash, Hasher};

/// FNV-1a over the bytes, with a final mix, because FNV's high bits depend little on the last bytes.
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    fn finish(&self) -> u64 {
        // The finalizer of MurmurHash3.
        let mut hash = self.0;
        hash = (hash ^ hash >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        hash = (hash ^ hash >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        hash ^ hash >> 33
    }

    // Integers as little-endian bytes: the default writes them in the machine's order.
    fn write_u16(&mut self, value: u16) {
        self.write(&value.to_le_bytes());
    }

    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }

    fn write_u128(&mut self, value: u128) {
        self.write(&value.to_le_bytes());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// The shard of a key, of `count` shards.
pub(super) fn shard_of<K: Hash + ?Sized>(key: &K, count: usize) -> usize {
    let mut hasher = KeyHasher(0xCBF2_9CE4_8422_2325);
    key.hash(&mut hasher);
    // The high half of the product: as uniform as a remainder, without a division.
    ((u128::from(hasher.finish()) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_shard_and_spread_evenly() {
        // Stored data depends on these.
        assert_eq!(shard_of("alice", 16), shard_of(&"alice".to_owned(), 16));
        assert_eq!(
            [shard_of("alice", 16), shard_of("bob", 16), shard_of(&7_u64, 16)],
            EXPECTED
        );
        if cfg!(miri) {
            return;
        }
        let mut counts = [0_u32; 7];
        for key in 0..70_000_u32 {
            counts[shard_of(&format!("user:{key}"), 7)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    const EXPECTED: [usize; 3] = [13, 4, 12];
}
