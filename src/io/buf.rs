//! Owned buffers.
//!
//! The rule that makes them sound: a buffer is moved to its final address inside a flight *before* a pointer into it is
//! taken, and nobody touches it until the flight has landed. So even an array that holds its bytes inline may be lent.

use std::io;
use std::ops::{Bound, Deref, RangeBounds};

/// A buffer that the kernel may read from.
///
/// # Safety
///
/// `as_ptr` points to `len` initialised bytes, and they stay there, unchanged, as long as the value is neither moved nor
/// touched through a reference.
pub unsafe trait IoBuf: 'static {
    /// Where the bytes are.
    fn as_ptr(&self) -> *const u8;

    /// How many bytes there are to read.
    fn len(&self) -> usize;

    /// Whether there is nothing to read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of this buffer, for instance the rest of it after a short write. The bounds are checked against
    /// [`len`](IoBuf::len).
    ///
    /// ```
    /// use windlass::io::IoBuf;
    /// let rest = b"hello".slice(2..);
    /// assert_eq!(&*rest, b"llo");
    /// assert_eq!(rest.into_inner(), b"hello");
    /// ```
    ///
    /// # Panics
    ///
    /// If the range does not lie within the buffer.
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let begin = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at + 1,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        assert!(
            begin <= end && end <= self.len(),
            "slice {begin}..{end} of a buffer of {} bytes",
            self.len()
        );
        Slice { buf: self, begin, end }
    }
}

/// A buffer that the kernel may write to.
///
/// # Safety
///
/// `as_mut_ptr` points to `capacity` bytes, perhaps uninitialised, that stay there as long as the value is neither moved
/// nor touched through a reference, and that nobody else reads or writes.
pub unsafe trait IoBufMut: IoBuf {
    /// Where the bytes go.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// How many bytes fit, counted from the start: what the buffer holds now is overwritten.
    fn capacity(&self) -> usize;

    /// Told after a read that the first `len` bytes are initialised. A buffer of fixed length leaves its length alone.
    ///
    /// # Safety
    ///
    /// The first `len` bytes are initialised, and `len` is at most `capacity`.
    unsafe fn set_filled(&mut self, len: usize);
}

// SAFETY: a vector's bytes are on the heap, at the same place wherever the vector is.
unsafe impl IoBuf for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as for reading; the vector owns its bytes alone.
unsafe impl IoBufMut for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: the caller vouches that these bytes are initialised and within the capacity.
        unsafe { self.set_len(len) }
    }
}

// SAFETY: the bytes are on the heap, at the same place wherever the box is.
unsafe impl IoBuf for Box<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: as for reading; the box owns its bytes alone.
unsafe impl IoBufMut for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        (**self).len()
    }
    unsafe fn set_filled(&mut self, _len: usize) {}
}

// SAFETY: the bytes move only with the array itself.
unsafe impl<const N: usize> IoBuf for [u8; N] {
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        N
    }
}

// SAFETY: as for reading; the array owns its bytes alone.
unsafe impl<const N: usize> IoBufMut for [u8; N] {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        N
    }
    unsafe fn set_filled(&mut self, _len: usize) {}
}

// SAFETY: static bytes stay for ever and never change.
unsafe impl IoBuf for &'static [u8] {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: static bytes stay for ever and never change.
unsafe impl<const N: usize> IoBuf for &'static [u8; N] {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_slice().as_ptr()
    }
    fn len(&self) -> usize {
        N
    }
}

// SAFETY: static bytes stay for ever and never change.
unsafe impl IoBuf for &'static str {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: a string's bytes are on the heap, at the same place wherever the string is.
unsafe impl IoBuf for String {
    fn as_ptr(&self) -> *const u8 {
        self.as_bytes().as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: the bytes are shared but immutable, and the count keeps them in place.
unsafe impl IoBuf for std::rc::Rc<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: the bytes are shared but immutable, and the count keeps them in place.
unsafe impl IoBuf for std::sync::Arc<[u8]> {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

/// A part of a buffer, made by [`IoBuf::slice`].
#[derive(Debug, Clone)]
pub struct Slice<B> {
    buf: B,
    begin: usize,
    end: usize,
}

impl<B> Slice<B> {
    /// The whole buffer again.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

// SAFETY: a part of the inner buffer is as fixed as the whole. The bounds are clamped again, since the inner buffer may
// be one that answers differently each time.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn as_ptr(&self) -> *const u8 {
        self.buf.as_ptr().wrapping_add(self.begin.min(self.buf.len()))
    }
    fn len(&self) -> usize {
        self.end.min(self.buf.len()).saturating_sub(self.begin)
    }
}

impl<B: IoBuf> Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the inner buffer vouches for these bytes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

pub(crate) fn no_room() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the buffer has no room to read into: give it a capacity, as in Vec::with_capacity(4096)",
    )
}

pub(crate) fn no_length() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "read_exact fills a buffer to its length, and this one's is 0: give it one, as in vec![0; 16]",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_keep_to_their_bounds() {
        let slice = vec![1u8, 2, 3, 4].slice(1..3);
        assert_eq!(&*slice, [2, 3]);
        assert_eq!(&*slice.slice(1..), [3]);
        assert_eq!(b"abc".slice(3..).len(), 0);
    }

    #[test]
    #[should_panic(expected = "slice 2..9 of a buffer of 3 bytes")]
    fn a_slice_past_the_end_is_refused() {
        let _ = b"abc".slice(2..9);
    }
}
