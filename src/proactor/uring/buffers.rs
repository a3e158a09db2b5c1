//! The provided-buffer ring: the kernel picks a buffer when bytes arrive, so an idle connection holds none.
//!
//! The ring is a page-aligned array of (address, length, buffer id). The driver appends entries and the kernel consumes
//! them; the tail counter lies in an unused field of the first entry. The kernel owns a buffer from the tail update
//! that publishes it until a completion names it. Then the program owns it, then the pool, then the ring.
//!
//! The kernel uses the buffers of the ring in turn. If all of them were in it, a loop with little to do would touch the
//! memory of all, and evict it from the cache; so only as many as needed leave the pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::Uring;
use crate::driver::BufferPool;

/// The ring's only buffer group. `word_entry` relies on the number.
pub(super) const GROUP: u16 = 0;

/// The ring must be page-aligned; this is the largest base page size that Linux has.
const PAGE: usize = 64 * 1024;

pub(super) struct BufferRing {
    pool: Rc<BufferPool>,
    /// `count` entries, registered with the kernel until the io_uring is closed.
    entries: NonNull<BufRingEntry>,
    tail: u16,
    /// At most this many buffers are outside of the pool, in the ring or with the program.
    limit: u16,
}

/// The first limit. At 8 KiB per buffer that is half a MiB.
const FIRST_LIMIT: u16 = 64;

impl BufferRing {
    fn layout(count: u16) -> Layout {
        Layout::from_size_align(usize::from(count) * size_of::<BufRingEntry>(), PAGE).expect("at most half a MiB")
    }

    /// A receive has found the ring empty: allows twice as many buffers. False if there are no more.
    pub(super) fn raise_limit(&mut self) -> bool {
        let before = self.limit;
        self.limit = self.pool.count().min(before.saturating_mul(2));
        self.limit > before
    }

    /// Appends free buffers of the pool to the ring, up to the limit.
    pub(super) fn give_to_kernel(&mut self) {
        let before = self.tail;
        while self.pool.taken() < self.limit
            && let Some((index, address)) = self.pool.take_with_address()
        {
            let slot = usize::from(self.tail & (self.pool.count() - 1));
            // SAFETY: `slot` is within the array. There are no more buffers than slots, so the kernel has consumed this
            // one. The fields are written one by one, because the tail lies in the first entry's unused field.
            unsafe {
                let entry = &mut *self.entries.as_ptr().add(slot);
                entry.set_addr(address as u64);
                entry.set_len(self.pool.buffer_len() as u32);
                entry.set_bid(index);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            // SAFETY: the tail lies within the array, is aligned, and is shared with the kernel as an atomic.
            let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
            // Release: the kernel must see the entries before the tail.
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: `make_buffers` allocated exactly this. `Uring` drops its ring, which ends the registration, before
        // this field; and the loop leaks the whole driver if a receive may still be in flight.
        unsafe { dealloc(self.entries.as_ptr().cast(), Self::layout(self.pool.count())) }
    }
}

impl Uring {
    /// Creates the ring for the pool's buffers.
    pub(super) fn make_buffers(&mut self, pool: &Rc<BufferPool>) -> io::Result<BufferRing> {
        let (pool, count) = (pool.clone(), pool.count());
        let layout = BufferRing::layout(count);
        // SAFETY: the layout is not empty: the count is at least one.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(entries) = NonNull::new(memory.cast::<BufRingEntry>()) else {
            handle_alloc_error(layout)
        };
        let mut buffers = BufferRing {
            pool,
            entries,
            tail: 0,
            limit: FIRST_LIMIT.min(count),
        };
        // SAFETY: the array is page-aligned, has `count` entries, and outlives the io_uring: see `drop`.
        unsafe {
            self.ring
                .submitter()
                .register_buf_ring_with_flags(entries.as_ptr() as u64, count, GROUP, 0)
        }?;
        buffers.give_to_kernel();
        Ok(buffers)
    }
}
