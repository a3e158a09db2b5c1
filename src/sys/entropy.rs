//! Random numbers from std's hasher keys, where no system call for them is bound.
//!
//! std asks the OS for the 128-bit keys of its hash maps (`ProcessPrng` on Windows, which is not in `windows-sys`; its
//! `BCryptGenRandom` would need the whole cryptography module). SipHash with such a key, over a counter, is a
//! pseudo-random function: its output cannot be predicted without the key.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Fills `bytes` from a hasher with new keys.
pub(crate) fn from_hasher(bytes: &mut [u8]) {
    let keys = RandomState::new();
    for (count, chunk) in bytes.chunks_mut(8).enumerate() {
        let mut hasher = keys.build_hasher();
        hasher.write_usize(count);
        chunk.copy_from_slice(&hasher.finish().to_ne_bytes()[..chunk.len()]);
    }
}
