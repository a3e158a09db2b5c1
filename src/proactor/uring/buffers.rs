//! The provided-buffer ring: receive buffers that the kernel picks from when bytes arrive.
//!
//! The ring is a page-aligned array of (address, length, number) that we append to and the kernel consumes; its tail
//! counter lies in the unused field of the first entry. A buffer is the kernel's from the moment the tail passes it until a
//! completion names it, then the [`PoolBuffer`]'s, and when that is dropped, the pool's, from where it comes back here.

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

/// The ring must start on a page; this is the largest page there is.
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

    /// Gives a completion's buffer to its reader.
    pub(super) fn filled(&self, index: u16, len: usize) -> PoolBuffer {
        // SAFETY: the kernel has named this buffer in a completion, so it has filled `len` bytes and let go of it; it
        // was taken from the pool when it was given to the kernel.
        unsafe { self.pool.wrap(index, len) }
    }

    /// Appends every buffer that has come back.
    pub(super) fn give_to_kernel(&mut self) {
        let before = self.tail;
        while let Some(index) = self.pool.take_free() {
            let place = usize::from(self.tail & (self.pool.count() - 1));
            // SAFETY: `place` is within the array, and there are no more buffers than places, so the kernel has consumed
            // what stood there. The fields are written one by one: the tail lies in the first entry's unused field.
            unsafe {
                let entry = &mut *self.entries.as_ptr().add(place);
                entry.set_addr(self.pool.address(index) as u64);
                entry.set_len(self.pool.buffer_len() as u32);
                entry.set_bid(index);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            // SAFETY: the tail's place is within the array, aligned, and shared with the kernel as an atomic.
            let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
            // The entries must be visible before the tail is.
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: `make_buffers` allocated exactly this. `Uring` drops its ring, which ends the registration, before its
        // buffers; and the loop leaks the whole driver if a receive might still be under way.
        unsafe { dealloc(self.entries.as_ptr().cast(), Self::layout(self.pool.count())) }
    }
}

impl Uring {
    /// Makes the pool and its ring for the first managed receive. False if this kernel has no buffer rings, or
    /// there is no memory for the pool.
    pub(super) fn ready_buffers(&mut self) -> bool {
        if self.buffers.is_none() && self.abilities.buffer_ring {
            self.buffers = self.make_buffers().ok();
            self.abilities.buffer_ring = self.buffers.is_some();
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
        // SAFETY: the array is page-aligned, has `count` entries, and lives until the ring is gone: see `drop`.
        unsafe {
            self.ring
                .submitter()
                .register_buf_ring_with_flags(entries.as_ptr() as u64, count, GROUP, 0)
        }?;
        buffers.give_to_kernel();
        Ok(buffers)
    }
}
