//! The buffer of a managed read.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::buf::impl_io_buf;
use crate::driver::pool::PoolBuffer;

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
    memory: Memory,
    /// The number of consumed bytes at the front.
    used: usize,
}

enum Memory {
    Pool(PoolBuffer),
    /// There is no pool, it was empty, or the bytes were received for a read that was dropped.
    Heap(Vec<u8>),
}

impl ManagedBuf {
    pub(crate) fn from_pool(buffer: PoolBuffer) -> ManagedBuf {
        ManagedBuf {
            memory: Memory::Pool(buffer),
            used: 0,
        }
    }

    pub(crate) fn from_heap(bytes: Vec<u8>) -> ManagedBuf {
        ManagedBuf {
            memory: Memory::Heap(bytes),
            used: 0,
        }
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
        assert!(count <= self.len(), "cannot advance by {count} of {} bytes", self.len());
        self.used += count;
    }

    /// Converts to a vector, without an allocation if the bytes are on the heap.
    pub fn into_vec(self) -> Vec<u8> {
        match self.memory {
            Memory::Heap(mut bytes) => {
                bytes.drain(..self.used);
                bytes
            }
            Memory::Pool(buffer) => buffer.filled()[self.used..].to_vec(),
        }
    }

    /// Moves the bytes to the heap, to keep them for long.
    pub(crate) fn into_heap(self) -> ManagedBuf {
        ManagedBuf::from_heap(self.into_vec())
    }

    /// Whether the bytes are in a pool buffer.
    pub fn is_pooled(&self) -> bool {
        matches!(self.memory, Memory::Pool(_))
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
        match &self.memory {
            Memory::Pool(buffer) => &buffer.filled()[self.used..],
            Memory::Heap(bytes) => &bytes[self.used..],
        }
    }
}

impl DerefMut for ManagedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Pool(buffer) => &mut buffer.filled_mut()[self.used..],
            Memory::Heap(bytes) => &mut bytes[self.used..],
        }
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
