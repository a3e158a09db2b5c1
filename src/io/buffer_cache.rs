//! A per-thread cache of buffers for outgoing bytes: an idle connection holds none.

use std::cell::RefCell;

/// The maximum number of buffers in a thread's cache.
const CACHED_MAX: usize = 64;

/// A buffer of more than this capacity is freed instead of cached.
const CACHED_CAPACITY_MAX: usize = 128 * 1024;

thread_local! {
    static CACHE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A `Vec` from the cache of its thread, returned to it on drop. While the thread exits, there is no cache any more.
#[derive(Debug)]
pub struct CachedVec(pub(super) Vec<u8>);

impl CachedVec {
    /// An empty buffer.
    pub(super) fn new() -> CachedVec {
        let cached = CACHE.try_with(|cache| cache.borrow_mut().pop());
        CachedVec(cached.ok().flatten().unwrap_or_default())
    }
}

impl Drop for CachedVec {
    fn drop(&mut self) {
        let mut buf = std::mem::take(&mut self.0);
        if buf.capacity() == 0 || buf.capacity() > CACHED_CAPACITY_MAX {
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
}
