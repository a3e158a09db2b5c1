//! The loop's pool of receive buffers.
//!
//! A managed receive names no buffer: the driver takes one from the pool when bytes arrive, so that ten thousand idle
//! connections hold none, and reports its index. The loop wraps it in a [`PoolBuffer`], which returns to the pool when
//! it is dropped: after use, or because the future of the receive was dropped. A driver that gives buffers to the kernel
//! takes the returned ones when it next polls.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{DriverCounters, OpResult};
use crate::copy_vec::CopyVec;
use crate::sys::{OsResult, errno};

/// Buffers of one size in one allocation.
pub struct BufferPool {
    base: NonNull<u8>,
    buffer_len: usize,
    count: u16,
    /// Buffers that neither a `PoolBuffer` nor the kernel holds.
    free: CopyVec<u16>,
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
        let free = CopyVec::new();
        (0..count).rev().for_each(|index| free.push(index));
        Some(Rc::new(BufferPool {
            base,
            buffer_len,
            count,
            free,
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

    /// Takes a free buffer. It returns to the pool when the loop has got it in a result, or by
    /// [`give_back`](BufferPool::give_back).
    pub fn take(&self) -> Option<u16> {
        self.free.pop()
    }

    /// Returns a buffer that no result named.
    ///
    /// # Safety
    ///
    /// The caller took the buffer from this pool, did not report it in a result, and neither uses it any more nor does
    /// the kernel.
    pub unsafe fn give_back(&self, index: u16) {
        self.free.push(index);
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
    #[inline]
    pub(crate) unsafe fn wrap(self: &Rc<Self>, index: u16, filled: usize) -> PoolBuffer {
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
            .field("free", &self.free.len())
            .finish()
    }
}

/// A filled buffer of the pool, which returns to the pool when dropped.
pub(crate) struct PoolBuffer {
    pool: Rc<BufferPool>,
    index: u16,
    filled: u32,
}

impl PoolBuffer {
    /// The received bytes.
    #[inline]
    pub(crate) fn filled(&self) -> &[u8] {
        // SAFETY: `wrap`'s caller promised that these bytes are initialised, and only this `PoolBuffer` holds the
        // buffer.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.index), self.filled as usize) }
    }

    /// Its address and its size.
    #[cfg(windows)]
    pub(crate) fn memory(&mut self) -> (*mut u8, usize) {
        (self.pool.address(self.index), self.pool.buffer_len())
    }

    /// The result of a receive that may have used `buffer`. If it received nothing, the buffer returns to its pool.
    #[cfg(windows)]
    pub(crate) fn report(buffer: Option<PoolBuffer>, res: OsResult) -> OpResult {
        let op_result = OpResult::new(res);
        match (buffer, res) {
            (Some(buffer), Ok(count)) if count > 0 => {
                let buffer = std::mem::ManuallyDrop::new(buffer);
                // SAFETY: the buffer is not used again, so its reference to the pool is moved out once.
                drop(unsafe { std::ptr::read(&buffer.pool) });
                op_result.with_buffer(buffer.index)
            }
            _ => op_result,
        }
    }

    /// The received bytes, to change in place.
    pub(crate) fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `filled`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.pool.address(self.index), self.filled as usize) }
    }
}

impl Drop for PoolBuffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.free.push(self.index);
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({}, {} bytes)", self.index, self.filled)
    }
}

/// The pool of a driver that receives with plain system calls: empty until the loop provides it.
#[derive(Default)]
pub(crate) struct ProvidedPool(pub(crate) Option<Rc<BufferPool>>);

impl ProvidedPool {
    #[cfg(feature = "reactor")]
    pub(crate) fn buffer_len(&self) -> usize {
        self.0.as_ref().map_or(0, |pool| pool.buffer_len())
    }

    /// Receives with `recv` into a free buffer; `ENOBUFS` if there is none, and `None` if it would block.
    ///
    /// # Safety
    ///
    /// `recv` gets the buffer's address and length, and initialises as many bytes as it returns.
    #[inline(always)]
    pub(crate) unsafe fn receive(
        &self,
        counters: &mut DriverCounters,
        recv: impl FnOnce(*mut u8, usize) -> Option<OsResult>,
    ) -> Option<OpResult> {
        let Some((pool, index)) = self.0.as_ref().and_then(|pool| Some((pool, pool.take()?))) else {
            counters.pool_empty += 1;
            return Some(OpResult::new(Err(errno::NO_BUFFERS)));
        };
        match recv(pool.address(index), pool.buffer_len()) {
            Some(Ok(count)) if count > 0 => Some(OpResult::new(Ok(count)).with_buffer(index)),
            res => {
                // SAFETY: the buffer was taken above, and the call that used it has returned.
                unsafe { pool.give_back(index) };
                res.map(OpResult::new)
            }
        }
    }

    /// Takes a free buffer for an overlapped read; `ENOBUFS` if there is none.
    #[cfg(windows)]
    pub(crate) fn take(&self, counters: &mut DriverCounters) -> Result<PoolBuffer, i32> {
        let taken = self.0.as_ref().and_then(|pool| Some((pool.clone(), pool.take()?)));
        match taken {
            Some((pool, index)) => Ok(PoolBuffer { pool, index, filled: 0 }),
            None => {
                counters.pool_empty += 1;
                Err(errno::NO_BUFFERS)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_comes_back_and_outlives_nothing() {
        let pool = BufferPool::new(2, 16).unwrap();
        let index = pool.take().unwrap();
        // SAFETY: the buffer was just taken and is written before it is wrapped.
        let buffer = unsafe {
            pool.address(index).write_bytes(7, 16);
            pool.wrap(index, 16)
        };
        assert_eq!(buffer.filled(), [7; 16]);
        assert!(pool.take().is_some());
        assert!(pool.take().is_none());
        drop(buffer);
        assert_eq!(pool.take(), Some(index));
    }
}
