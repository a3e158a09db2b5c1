//! The loop's pool of receive buffers.
//!
//! A managed receive names no buffer: the driver takes one from the pool when bytes arrive, so that ten thousand idle
//! connections hold none, and reports its index. The loop wraps it in a [`ManagedBuf`](crate::io::ManagedBuf), which returns
//! it to the pool when it is dropped: after use, or because the future of the receive was dropped. A driver that gives
//! buffers to the kernel takes the returned ones when it next polls.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{DriverCounters, OpResult};
use crate::sys::{OsResult, errno};

/// Buffers of one size in one allocation.
pub struct BufferPool {
    base: NonNull<u8>,
    buffer_len: usize,
    headers: Box<[BufferHeader]>,
    count: u16,
    /// Buffers that neither the program nor the kernel holds: the first `free_count` entries. There is room for all.
    free: Box<[Cell<u16>]>,
    free_count: Cell<usize>,
}

/// A buffer that the program has: the received bytes, and where they go.
pub(crate) struct BufferHeader {
    /// The bytes that were not consumed.
    pub(crate) ptr: Cell<*mut u8>,
    pub(crate) len: Cell<usize>,
    /// The pool, of whose `Rc` the program has one count for each buffer. Null for bytes that are not in a pool.
    pool: Cell<*const BufferPool>,
    index: u16,
}

impl BufferHeader {
    /// The header of bytes that are not in a pool.
    pub(crate) const fn new(ptr: *mut u8, len: usize) -> BufferHeader {
        BufferHeader {
            ptr: Cell::new(ptr),
            len: Cell::new(len),
            pool: Cell::new(std::ptr::null()),
            index: 0,
        }
    }

    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        !self.pool.get().is_null()
    }
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
        let header = |index| BufferHeader {
            index,
            ..BufferHeader::new(std::ptr::null_mut(), 0)
        };
        let pool = Rc::new(BufferPool {
            base,
            buffer_len,
            headers: (0..count).map(header).collect(),
            count,
            free: (0..count).rev().map(Cell::new).collect(),
            free_count: Cell::new(usize::from(count)),
        });
        for header in &pool.headers {
            header.pool.set(Rc::as_ptr(&pool));
        }
        Some(pool)
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

    /// How many buffers the program or the kernel holds.
    #[cfg(all(feature = "proactor", target_os = "linux"))]
    #[inline]
    pub(crate) fn taken(&self) -> u16 {
        self.count - self.free_count.get() as u16
    }

    /// Takes a free buffer. It returns to the pool when the loop has got it in a result, or by
    /// [`give_back`](BufferPool::give_back).
    #[inline]
    pub fn take(&self) -> Option<u16> {
        self.take_with_address().map(|(index, _)| index)
    }

    /// As [`take`](BufferPool::take), with the buffer's address.
    #[inline]
    pub(crate) fn take_with_address(&self) -> Option<(u16, *mut u8)> {
        let next = self.next_free()?;
        self.free_count.set(self.free_count.get() - 1);
        Some(next)
    }

    /// The buffer that is taken next, and its address.
    #[inline]
    fn next_free(&self) -> Option<(u16, *mut u8)> {
        let last = self.free_count.get().checked_sub(1)?;
        // SAFETY: the count is at most the length: `give_back`, which increases it, checks that.
        let index = unsafe { self.free.get_unchecked(last) }.get();
        // SAFETY: only `new` and `give_back` store indices, and both store those of buffers of this pool.
        Some((index, unsafe { self.address_unchecked(index) }))
    }

    /// Returns a buffer that no result named.
    ///
    /// # Safety
    ///
    /// The caller took the buffer from this pool, did not report it in a result, and neither uses it any more nor does
    /// the kernel.
    #[inline]
    pub unsafe fn give_back(&self, index: u16) {
        let count = self.free_count.get();
        self.free[count].set(index);
        self.free_count.set(count + 1);
    }

    /// The address of a buffer. Panics if the pool has no such buffer.
    #[inline]
    pub fn address(&self, index: u16) -> *mut u8 {
        assert!(index < self.count, "buffer {index} of a pool of {}", self.count);
        // SAFETY: just asserted.
        unsafe { self.address_unchecked(index) }
    }

    /// # Safety
    ///
    /// The pool has this buffer.
    #[inline]
    unsafe fn address_unchecked(&self, index: u16) -> *mut u8 {
        // SAFETY: the caller's promise: the buffer is within the allocation.
        unsafe { self.base.as_ptr().add(usize::from(index) * self.buffer_len) }
    }

    /// The header of a taken buffer whose first `len` bytes were received. It keeps the pool alive until
    /// [`take_back`](BufferPool::take_back).
    #[inline]
    pub(crate) fn lend(self: &Rc<Self>, index: u16, len: usize) -> NonNull<BufferHeader> {
        assert!(len <= self.buffer_len);
        let header = &self.headers[usize::from(index)];
        // SAFETY: there is a header for each buffer, and this one exists.
        header.ptr.set(unsafe { self.address_unchecked(index) });
        header.len.set(len);
        std::mem::forget(self.clone());
        NonNull::from(header)
    }

    /// Ends a loan.
    ///
    /// # Safety
    ///
    /// [`lend`](BufferPool::lend) made the header for a buffer that is not used any more, and neither is the header.
    #[inline]
    pub(crate) unsafe fn take_back(header: NonNull<BufferHeader>) {
        // Not a reference parameter: the header may be freed with the pool before this returns.
        // SAFETY: the header holds a count of the pool that it is part of.
        let (pool, index) = unsafe { (header.as_ref().pool.get(), header.as_ref().index) };
        // SAFETY: `lend` has forgotten a reference, which this is, and the caller promises that this is done once. On a panic,
        // which means that more buffers were given back than taken, the pool leaks.
        let pool = std::mem::ManuallyDrop::new(unsafe { Rc::from_raw(pool) });
        // SAFETY: the caller's promise.
        unsafe { pool.give_back(index) };
        drop(std::mem::ManuallyDrop::into_inner(pool));
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
            .field("free", &self.free_count.get())
            .finish()
    }
}

/// The buffer of an overlapped read in flight, which returns to the pool when dropped.
#[cfg(windows)]
#[derive(Debug)]
pub(crate) struct PoolBuffer {
    pool: Rc<BufferPool>,
    index: u16,
}

#[cfg(windows)]
impl PoolBuffer {
    /// Its address and its size.
    pub(crate) fn memory(&mut self) -> (*mut u8, usize) {
        (self.pool.address(self.index), self.pool.buffer_len())
    }

    /// The result of a receive that may have used `buffer`. If it received nothing, the buffer returns to its pool.
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
}

#[cfg(windows)]
impl Drop for PoolBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer was taken from the pool, and the read that used it has ended.
        unsafe { self.pool.give_back(self.index) }
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
        let Some(pool) = self.0.as_ref().filter(|pool| pool.free_count.get() > 0) else {
            counters.pool_empty += 1;
            return Some(OpResult::new(Err(errno::NO_BUFFERS)));
        };
        let (index, address) = pool.next_free()?;
        // The buffer is free until it has bytes; the call runs nothing else that could take it.
        match recv(address, pool.buffer_len()) {
            Some(Ok(count)) if count > 0 => {
                pool.free_count.set(pool.free_count.get() - 1);
                Some(OpResult::new(Ok(count)).with_buffer(index))
            }
            res => res.map(OpResult::new),
        }
    }

    /// Takes a free buffer for an overlapped read; `ENOBUFS` if there is none.
    #[cfg(windows)]
    pub(crate) fn take(&self, counters: &mut DriverCounters) -> Result<PoolBuffer, i32> {
        let taken = self.0.as_ref().and_then(|pool| Some((pool.clone(), pool.take()?)));
        match taken {
            Some((pool, index)) => Ok(PoolBuffer { pool, index }),
            None => {
                counters.pool_empty += 1;
                Err(errno::NO_BUFFERS)
            }
        }
    }
}
