//! A per-thread cache of empty write buffers.

use std::cell::RefCell;

use super::write_buffer::BOUND;

/// The size of the cache.
const CACHED_MAX: usize = 32;

thread_local! {
    static CACHE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, reused if the cache has one. The cache is gone while its thread exits.
pub(super) fn take() -> Vec<u8> {
    let cached = CACHE.try_with(|cache| cache.borrow_mut().pop());
    cached.ok().flatten().unwrap_or_default()
}

/// Caches a buffer for reuse.
pub(super) fn put(mut buf: Vec<u8>) {
    // Do not cache buffers that grew beyond their intended size.
    if buf.capacity() == 0 || buf.capacity() > 2 * BOUND {
        return;
    }
    buf.clear();
    let _ = CACHE.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.len() < CACHED_MAX {
            cache.push(buf);
        }
    });
}
