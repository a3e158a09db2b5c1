//! The buffer of a managed read.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use super::buf::impl_io_buf;
use crate::driver::pool::{BufferHeader, BufferPool};

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
    /// `EMPTY` if there was nothing to receive. One word, so that a buffer is passed in a register: a larger one would be
    /// written to the stack word by word and then copied sixteen bytes at a time, and each copy would wait for these stores.
    header: NonNull<BufferHeader>,
}

/// The header of all empty buffers.
static EMPTY: EmptyHeader = EmptyHeader(BufferHeader::new(NonNull::dangling().as_ptr(), 0));

struct EmptyHeader(BufferHeader);

// SAFETY: nothing writes to it: `advance` and the pool change only headers of buffers with bytes.
unsafe impl Sync for EmptyHeader {}

/// Bytes on the heap: there is no pool, it was empty, or they were received for a read that was dropped. The header comes
/// first, so a pointer to the header is one to this.
#[repr(C)]
struct HeapBuffer {
    header: BufferHeader,
    bytes: Vec<u8>,
}

impl ManagedBuf {
    /// The first `len` bytes of a pool buffer, which returns to the pool when this is dropped. Panics if the pool has no
    /// such buffer, or only shorter ones.
    ///
    /// # Safety
    ///
    /// The buffer was taken from this pool, the kernel is done with it, nothing else uses it or returns it to the pool,
    /// and its first `len` bytes are initialised.
    #[inline]
    pub(crate) unsafe fn from_pool(pool: &Rc<BufferPool>, index: u16, len: usize) -> ManagedBuf {
        ManagedBuf {
            header: BufferPool::lend(pool, index, len),
        }
    }

    /// The memory of a pool buffer that was lent without bytes, to receive into.
    pub(crate) fn memory(&mut self) -> *mut u8 {
        self.header().ptr.get()
    }

    /// Sets the number of bytes that were received into [`memory`](ManagedBuf::memory).
    ///
    /// # Safety
    ///
    /// This many bytes were received there.
    pub(crate) unsafe fn set_received(&mut self, len: usize) {
        assert!(self.is_pooled());
        self.header().len.set(len);
    }

    pub(crate) fn from_heap(mut bytes: Vec<u8>) -> ManagedBuf {
        if bytes.is_empty() {
            return ManagedBuf::default();
        }
        let header = BufferHeader::new(bytes.as_mut_ptr(), bytes.len());
        let heap = Box::leak(Box::new(HeapBuffer { header, bytes }));
        ManagedBuf {
            header: NonNull::from(heap).cast(),
        }
    }

    #[inline]
    fn header(&self) -> &BufferHeader {
        // SAFETY: the pool, of which the header holds a reference, or the heap buffer lives as long as this; `EMPTY` is static.
        unsafe { self.header.as_ref() }
    }

    /// Takes the heap buffer, if it is one. Otherwise returns the buffer.
    fn into_heap_buffer(self) -> Result<Box<HeapBuffer>, ManagedBuf> {
        if self.is_pooled() || self.header == NonNull::from(&EMPTY.0) {
            return Err(self);
        }
        let header = std::mem::ManuallyDrop::new(self).header;
        // SAFETY: `from_heap` leaked this box, and this was its only owner.
        Ok(unsafe { Box::from_raw(header.cast().as_ptr()) })
    }

    /// Frees a buffer that is not in a pool.
    #[cold]
    fn drop_heap_buffer(&mut self) {
        drop(std::mem::take(self).into_heap_buffer().map_err(std::mem::forget));
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
        let len = self.len();
        assert!(count <= len, "cannot advance by {count} of {len} bytes");
        if count > 0 {
            let header = self.header();
            header.ptr.set(header.ptr.get().wrapping_add(count));
            header.len.set(len - count);
        }
    }

    /// Converts to a vector, without an allocation if the bytes are on the heap.
    pub fn into_vec(self) -> Vec<u8> {
        match self.into_heap_buffer() {
            Ok(mut heap) => {
                let used = heap.bytes.len() - heap.header.len.get();
                heap.bytes.drain(..used);
                heap.bytes
            }
            Err(pooled) => pooled.to_vec(),
        }
    }

    /// Moves the bytes to the heap, to keep them for long.
    pub(crate) fn into_heap(self) -> ManagedBuf {
        ManagedBuf::from_heap(self.into_vec())
    }

    /// Whether the bytes are in a pool buffer.
    pub fn is_pooled(&self) -> bool {
        self.header().is_pooled()
    }
}

impl Drop for ManagedBuf {
    #[inline]
    fn drop(&mut self) {
        match self.is_pooled() {
            // SAFETY: `from_pool` lent the buffer, and it is not used any more.
            true => unsafe { BufferPool::take_back(self.header) },
            false => self.drop_heap_buffer(),
        }
    }
}

/// An empty buffer.
impl Default for ManagedBuf {
    fn default() -> ManagedBuf {
        ManagedBuf {
            header: NonNull::from(&EMPTY.0),
        }
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
        let header = self.header();
        // SAFETY: these bytes are initialised. The pool or the heap buffer keeps them, and they change only through
        // `&mut self`. Without bytes, the pointer is dangling.
        unsafe { std::slice::from_raw_parts(header.ptr.get(), header.len.get()) }
    }
}

impl DerefMut for ManagedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        // SAFETY: as in `deref`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(header.ptr.get(), header.len.get()) }
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
    fn a_buffer_outlives_its_pool_handle() {
        let pool = BufferPool::new(1, 16).unwrap();
        let (index, weak) = (pool.take().unwrap(), Rc::downgrade(&pool));
        // SAFETY: the buffer was just taken, is written here, and is used by nothing else.
        let buffer = unsafe {
            pool.address(index).write_bytes(7, 16);
            ManagedBuf::from_pool(&pool, index, 16)
        };
        drop(pool);
        assert_eq!(*buffer, [7; 16]);
        drop(buffer);
        assert_eq!(weak.strong_count(), 0);
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
