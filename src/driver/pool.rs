//! The driver's pool of receive buffers.
//!
//! A managed receive names no buffer: the driver takes one from the pool when bytes arrive, so that ten thousand idle
//! connections hold none. A [`PoolBuffer`] returns to the pool when it is dropped: after use, with a completion whose
//! future was dropped, or with a loop that has closed. The driver collects returned buffers before it next gives some
//! to the kernel.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{DriverCounters, OpResult, Settings};
use crate::sys::{OsResult, errno};

/// Buffers of one size in one allocation.
pub struct BufferPool {
    base: NonNull<u8>,
    buffer_len: usize,
    count: u16,
    /// Buffers that neither a `PoolBuffer` nor the kernel holds.
    free: RefCell<Vec<u16>>,
}

/// The pool is page-aligned, so buffers whose length is a multiple of the page size share no page.
const PAGE: usize = 4096;

impl BufferPool {
    /// Allocates `count` buffers of `buffer_len` bytes each. `None` if that fails, or if the length exceeds `u32::MAX`.
    /// A driver without a pool fails managed receives with `ENOBUFS`, and the loop then reads into the heap.
    pub fn new(count: u16, buffer_len: usize) -> Option<Rc<BufferPool>> {
        u32::try_from(buffer_len).ok()?;
        let layout = Self::layout(count, buffer_len)?;
        // SAFETY: the layout is not empty: `layout` rounds both factors up to at least one.
        let base = NonNull::new(unsafe { alloc(layout) })?;
        Some(Rc::new(BufferPool {
            base,
            buffer_len,
            count,
            free: RefCell::new((0..count).rev().collect()),
        }))
    }

    fn layout(count: u16, buffer_len: usize) -> Option<Layout> {
        let bytes = usize::from(count.max(1)).checked_mul(buffer_len.max(1))?;
        Layout::from_size_align(bytes, PAGE).ok()
    }

    /// The size of each buffer.
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// How many buffers there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Takes a free buffer. It returns to the pool only as a [`PoolBuffer`]: see [`wrap`](BufferPool::wrap).
    pub fn take_free(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    /// Takes a free buffer, empty, for a receive that is about to be made.
    pub(crate) fn take(self: &Rc<Self>) -> Option<PoolBuffer> {
        let index = self.take_free()?;
        Some(PoolBuffer {
            pool: self.clone(),
            index,
            filled: 0,
        })
    }

    /// The address of a buffer. Panics if the pool has no such buffer.
    #[inline]
    pub fn address(&self, index: u16) -> *mut u8 {
        assert!(index < self.count, "buffer {index} of a pool of {}", self.count);
        // SAFETY: the index is within the allocation, as just asserted.
        unsafe { self.base.as_ptr().add(usize::from(index) * self.buffer_len) }
    }

    /// Wraps a buffer whose first `filled` bytes were received. Panics if the index or the length is out of range.
    ///
    /// # Safety
    ///
    /// The buffer was taken from this pool, the kernel is done with it, no other `PoolBuffer` holds it, and its first
    /// `filled` bytes are initialised.
    pub unsafe fn wrap(self: &Rc<Self>, index: u16, filled: usize) -> PoolBuffer {
        assert!(filled <= self.buffer_len && index < self.count);
        PoolBuffer {
            pool: self.clone(),
            index,
            filled: filled as u32,
        }
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let layout = Self::layout(self.count, self.buffer_len).expect("it was allocated with this layout");
        // SAFETY: `new` allocated exactly this; the last owner is gone, and a driver keeps an owner as long as the
        // kernel may write here.
        unsafe { dealloc(self.base.as_ptr(), layout) }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("count", &self.count)
            .field("buffer_len", &self.buffer_len)
            .field("free", &self.free.borrow().len())
            .finish()
    }
}

/// A filled buffer of the pool, which returns to the pool when dropped.
pub struct PoolBuffer {
    pool: Rc<BufferPool>,
    index: u16,
    filled: u32,
}

impl PoolBuffer {
    /// The received bytes.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: `wrap`'s caller promised that these bytes are initialised, and only this `PoolBuffer` holds the
        // buffer.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.index), self.filled as usize) }
    }

    /// Its address and its size.
    pub(crate) fn memory(&mut self) -> (*mut u8, usize) {
        (self.pool.address(self.index), self.pool.buffer_len())
    }

    /// Sets how many bytes were received.
    ///
    /// # Safety
    ///
    /// The buffer's first `filled` bytes are initialised.
    pub(crate) unsafe fn set_filled(&mut self, filled: usize) {
        assert!(filled <= self.pool.buffer_len());
        self.filled = filled as u32;
    }

    /// The received bytes, to change in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `filled`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.pool.address(self.index), self.filled as usize) }
    }
}

impl Drop for PoolBuffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.index);
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({}, {} bytes)", self.index, self.filled)
    }
}

/// The pool of a driver that receives with plain system calls, allocated by the first managed receive.
pub(crate) struct LazyPool {
    pool: Option<Rc<BufferPool>>,
    count: u16,
    pub(crate) buffer_len: usize,
}

impl LazyPool {
    pub(crate) fn new(settings: &Settings) -> LazyPool {
        LazyPool {
            pool: None,
            count: settings.managed_count.next_power_of_two(),
            buffer_len: settings.managed_len,
        }
    }

    /// Takes a free buffer; `ENOBUFS` if there is none.
    #[inline]
    pub(crate) fn take(&mut self, counters: &mut DriverCounters) -> Result<PoolBuffer, i32> {
        if self.pool.is_none() {
            self.pool = BufferPool::new(self.count, self.buffer_len);
        }
        self.pool.as_ref().and_then(BufferPool::take).ok_or_else(|| {
            counters.pool_empty += 1;
            errno::NO_BUFFERS
        })
    }

    /// Receives with `recv` into a free buffer. `None` if it would block.
    ///
    /// # Safety
    ///
    /// `recv` gets the buffer's address and length, and initialises as many bytes as it returns.
    pub(crate) unsafe fn receive(
        &mut self,
        counters: &mut DriverCounters,
        recv: impl FnOnce(*mut u8, usize) -> Option<OsResult>,
    ) -> Option<OpResult> {
        let mut buffer = match self.take(counters) {
            Ok(buffer) => buffer,
            Err(code) => return Some(OpResult::last(Err(code))),
        };
        let (ptr, len) = buffer.memory();
        let res = recv(ptr, len)?;
        // SAFETY: the caller's promise.
        Some(unsafe { OpResult::with_buffer(res, Some(buffer)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_comes_back_and_outlives_nothing() {
        let pool = BufferPool::new(2, 16).unwrap();
        let index = pool.take_free().unwrap();
        // SAFETY: the buffer was just taken and is written before it is wrapped.
        let buffer = unsafe {
            pool.address(index).write_bytes(7, 16);
            pool.wrap(index, 16)
        };
        assert_eq!(buffer.filled(), [7; 16]);
        assert!(pool.take_free().is_some());
        assert!(pool.take_free().is_none());
        drop(buffer);
        assert_eq!(pool.take_free(), Some(index));
    }
}
