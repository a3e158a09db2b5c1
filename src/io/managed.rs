//! The buffer of a managed read.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use super::buf::impl_io_buf;
use crate::driver::pool::BufferPool;

/// Received bytes in a buffer that the runtime provides, usually one from a pool, to which it returns on drop.
///
/// It dereferences to `[u8]` and can be written to a stream directly. From a read, an empty one means end of stream.
/// Holding many of them empties the pool: further reads use heap buffers, which are a little slower.
///
/// ```
/// # windlass::run(async {
/// # let listener = windlass::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let client = windlass::net::TcpStream::connect(listener.local_addr()?).await?;
/// # let (stream, _) = listener.accept().await?;
/// # client.write_all(b"ping").await.0?;
/// let bytes = stream.read_managed().await?;
/// assert_eq!(&*bytes, b"ping");
/// stream.write_all(bytes).await.0?;
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ManagedBuf {
    /// The bytes that were not consumed. Stored rather than derived from the owner, because each request of a server
    /// asks for them several times. Their end does not change.
    ptr: NonNull<u8>,
    len: usize,
    /// Dropped by `drop` alone, which must match on it anyway.
    owner: ManuallyDrop<MemoryOwner>,
}

/// What owns a buffer's memory. Both variants are one word, so that a buffer is moved in whole words.
enum MemoryOwner {
    /// The bytes end within a buffer of this pool.
    Pool(Rc<BufferPool>),
    /// The bytes end where a boxed slice ends that begins here. There is no pool, it was empty, or the bytes were received
    /// for a read that was dropped.
    Heap(NonNull<u8>),
}

impl ManagedBuf {
    /// The first `len` bytes, at least one, of a pool buffer, which returns to the pool when this is dropped. Panics if
    /// the pool has no such buffer, or only shorter ones.
    ///
    /// # Safety
    ///
    /// The buffer was taken from this pool, the kernel is done with it, nothing else uses it or returns it to the pool,
    /// and its first `len` bytes are initialised.
    #[inline]
    pub(crate) unsafe fn from_pool(pool: &Rc<BufferPool>, index: u16, len: usize) -> ManagedBuf {
        assert!(len > 0 && len <= pool.buffer_len());
        ManagedBuf {
            ptr: pool.address(index),
            len,
            owner: ManuallyDrop::new(MemoryOwner::Pool(pool.clone())),
        }
    }

    pub(crate) fn from_heap(bytes: Vec<u8>) -> ManagedBuf {
        let len = bytes.len();
        let ptr = NonNull::from(Box::leak(bytes.into_boxed_slice())).cast();
        let owner = ManuallyDrop::new(MemoryOwner::Heap(ptr));
        ManagedBuf { ptr, len, owner }
    }

    /// The boxed slice that `from_heap` made, as a vector, and how many of its bytes were consumed.
    ///
    /// # Safety
    ///
    /// `begin` is the owner's, and the memory is not used through this buffer any more.
    unsafe fn rebuild(&self, begin: NonNull<u8>) -> (Vec<u8>, usize) {
        // SAFETY: `from_heap` made both pointers from one slice, and `advance` moved the second one within it.
        let used = unsafe { self.ptr.offset_from_unsigned(begin) };
        let slice = NonNull::slice_from_raw_parts(begin, used + self.len);
        // SAFETY: this is the slice that `from_heap` leaked, and the caller promises that nothing else uses it.
        (unsafe { Box::from_raw(slice.as_ptr()) }.into_vec(), used)
    }

    /// Removes the first `count` bytes.
    ///
    /// ```
    /// use windlass::io::ManagedBuf;
    /// let mut bytes = ManagedBuf::from(b"hello".to_vec());
    /// bytes.advance(2);
    /// assert_eq!(&*bytes, b"llo");
    /// ```
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "cannot advance by {count} of {} bytes", self.len);
        // SAFETY: the buffer has at least `count` bytes.
        self.ptr = unsafe { self.ptr.add(count) };
        self.len -= count;
    }

    /// Converts to a vector, without an allocation if the bytes are on the heap.
    pub fn into_vec(self) -> Vec<u8> {
        match *self.owner {
            MemoryOwner::Heap(begin) => {
                // SAFETY: it is the owner's, and this buffer does not drop its memory.
                let (mut bytes, used) = unsafe { ManuallyDrop::new(self).rebuild(begin) };
                bytes.drain(..used);
                bytes
            }
            MemoryOwner::Pool(_) => self.to_vec(),
        }
    }

    /// Moves the bytes to the heap, to keep them for long.
    pub(crate) fn into_heap(self) -> ManagedBuf {
        ManagedBuf::from_heap(self.into_vec())
    }

    /// Whether the bytes are in a pool buffer.
    pub fn is_pooled(&self) -> bool {
        matches!(*self.owner, MemoryOwner::Pool(_))
    }
}

impl Drop for ManagedBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the owner is taken only here.
        match unsafe { ManuallyDrop::take(&mut self.owner) } {
            MemoryOwner::Pool(pool) => {
                // SAFETY: the buffer has at least one byte in front of its end.
                let last = unsafe { self.ptr.add(self.len).sub(1) };
                // SAFETY: `from_pool`'s caller passed the buffer on, and it is not used any more.
                unsafe { pool.give_back(pool.index_of(last)) }
            }
            // SAFETY: it is the owner's, and the memory is not used any more.
            MemoryOwner::Heap(begin) => drop(unsafe { self.rebuild(begin) }),
        }
    }
}

/// An empty buffer.
impl Default for ManagedBuf {
    fn default() -> ManagedBuf {
        ManagedBuf::from_heap(Vec::new())
    }
}

/// A heap buffer, for custom implementations of `read_managed`.
impl From<Vec<u8>> for ManagedBuf {
    fn from(bytes: Vec<u8>) -> ManagedBuf {
        ManagedBuf::from_heap(bytes)
    }
}

impl Deref for ManagedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner keeps these bytes, which are initialised, and changes only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for ManagedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for ManagedBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ManagedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManagedBuf").field(&&**self).finish()
    }
}

impl_io_buf!([] ManagedBuf);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_returns_to_its_pool() {
        let pool = BufferPool::new(2, 16).unwrap();
        let index = pool.take().unwrap();
        // SAFETY: the buffer was just taken, is written here, and is used by nothing else.
        let mut buffer = unsafe {
            pool.address(index).write_bytes(7, 16);
            ManagedBuf::from_pool(&pool, index, 16)
        };
        buffer.advance(15);
        assert_eq!(*buffer, [7]);
        assert!(pool.take().is_some());
        assert!(pool.take().is_none());
        drop(buffer);
        assert_eq!(pool.take(), Some(index));
    }

    #[test]
    fn a_heap_buffer_keeps_its_allocation() {
        let bytes = b"0123456789".to_vec();
        let address = bytes.as_ptr();
        let mut buffer = ManagedBuf::from_heap(bytes);
        buffer.advance(3);
        buffer.advance(2);
        buffer[0] = b'x';
        assert_eq!(&*buffer, b"x6789");
        let bytes = buffer.into_vec();
        assert_eq!((&*bytes, bytes.as_ptr()), (&b"x6789"[..], address));
    }
}
