//! The provided-buffer ring: the kernel picks a buffer when bytes arrive, so an idle connection holds none.
//!
//! The ring is a page-aligned array of (address, length, buffer id). The driver appends entries and the kernel consumes
//! them; the tail counter lies in an unused field of the first entry. The kernel owns a buffer from the tail update
//! that publishes it until a completion names it. Then a [`PoolBuffer`] owns it, then the pool, then the ring.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::Uring;
use crate::driver::pool::{BufferPool, PoolBuffer};

/// The ring's only buffer group.
pub(super) const GROUP: u16 = 0;

/// The ring must be page-aligned; this is the largest base page size that Linux has.
const PAGE: usize = 64 * 1024;

pub(super) struct BufferRing {
    pool: Rc<BufferPool>,
    /// `count` entries, registered with the kernel until the io_uring is closed.
    entries: NonNull<BufRingEntry>,
    tail: u16,
}

impl BufferRing {
    fn layout(count: u16) -> Layout {
        Layout::from_size_align(usize::from(count) * size_of::<BufRingEntry>(), PAGE).expect("at most half a MiB")
    }

    /// Takes the buffer that a completion names.
    pub(super) fn filled(&self, index: u16, len: usize) -> PoolBuffer {
        // SAFETY: a completion names this buffer, so the kernel has filled `len` bytes and no longer uses it. It was
        // taken from the pool when the kernel got it.
        unsafe { self.pool.wrap(index, len) }
    }

    /// Appends every free buffer of the pool to the ring.
    pub(super) fn give_to_kernel(&mut self) {
        let before = self.tail;
        while let Some(index) = self.pool.take_free() {
            let slot = usize::from(self.tail & (self.pool.count() - 1));
            // SAFETY: `slot` is within the array. There are no more buffers than slots, so the kernel has consumed this
            // one. The fields are written one by one, because the tail lies in the first entry's unused field.
            unsafe {
                let entry = &mut *self.entries.as_ptr().add(slot);
                entry.set_addr(self.pool.address(index) as u64);
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
    /// Creates the pool and its ring for the first managed receive. False without kernel support or memory.
    pub(super) fn ensure_buffers(&mut self) -> bool {
        if self.buffers.is_none() && self.features.buffer_ring {
            self.buffers = self.make_buffers().ok();
            self.features.buffer_ring = self.buffers.is_some();
        }
        self.buffers.is_some()
    }

    fn make_buffers(&mut self) -> io::Result<BufferRing> {
        let count = self.settings.managed_count.next_power_of_two();
        let pool = BufferPool::new(count, self.settings.managed_len).ok_or(io::ErrorKind::OutOfMemory)?;
        let layout = BufferRing::layout(count);
        // SAFETY: the layout is not empty: the count is at least one.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(entries) = NonNull::new(memory.cast::<BufRingEntry>()) else {
            handle_alloc_error(layout)
        };
        let mut buffers = BufferRing { pool, entries, tail: 0 };
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
