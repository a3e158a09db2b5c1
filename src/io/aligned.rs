//! Aligned buffers for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::buf::{IoBufMut, impl_io_buf};

/// A buffer with aligned memory, as `O_DIRECT` requires. Like a `Vec`, it has a length and a capacity, and dereferences
/// to `[u8]`.
///
/// ```
/// use windlass::io::AlignedBuf;
/// let mut block = AlignedBuf::zeroed(8192, 4096);
/// block[..5].copy_from_slice(b"hello");
/// assert_eq!(block.as_ptr() as usize % 4096, 0);
/// assert_eq!(block.len(), 8192);
/// ```
pub struct AlignedBuf {
    memory: NonNull<u8>,
    layout: Layout,
    len: usize,
}

impl AlignedBuf {
    /// Creates an empty buffer for `capacity` bytes.
    ///
    /// # Panics
    ///
    /// If `align` is not a power of two, or the size overflows.
    pub fn with_capacity(capacity: usize, align: usize) -> AlignedBuf {
        let layout = match Layout::from_size_align(capacity.max(1), align) {
            Ok(layout) => layout,
            Err(_) => panic!("invalid buffer: {capacity} bytes with an alignment of {align}"),
        };
        // SAFETY: the layout's size is not 0.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        AlignedBuf { memory, layout, len: 0 }
    }

    /// Creates a buffer of `len` zeroes.
    ///
    /// # Panics
    ///
    /// As [`with_capacity`](AlignedBuf::with_capacity).
    pub fn zeroed(len: usize, align: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::with_capacity(len, align);
        buf.len = len;
        buf
    }

    /// The number of bytes that fit.
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Sets the length. Bytes that become visible have the value last written there, initially 0.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes exceed the buffer's capacity of {}",
            self.capacity()
        );
        self.len = len;
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and this value owns it.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all of the memory was zeroed at allocation, and this value owns it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("align", &self.layout.align())
            .finish()
    }
}

// SAFETY: this value has exclusive ownership of the memory, which is not bound to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only permits reads.
unsafe impl Sync for AlignedBuf {}

impl_io_buf!([] AlignedBuf);

// SAFETY: as for `IoBuf`; the value has exclusive ownership of its bytes.
unsafe impl IoBufMut for AlignedBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        self.set_len(len);
    }
}
