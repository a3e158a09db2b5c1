//! Owned buffers.
//!
//! The rule that makes them sound: a buffer is moved to its final address inside a flight *before* a pointer into it is
//! taken, and nobody touches it until the flight has landed. So even an array that holds its bytes inline may be lent.
//!
//! The traits are unsafe to implement, and every common buffer has them. Whoever writes a reader or a writer of their own
//! needs no unsafe code: [`IoBuf::as_slice`] and [`IoBufMut::fill_from`] say it all.

use std::io;
use std::ops::{Bound, RangeBounds};

use super::slice::Slice;

/// A buffer that the kernel may read from.
///
/// # Safety
///
/// `as_ptr` points to `len` initialised bytes, and they stay there, unchanged, as long as the value is neither moved nor
/// touched through a mutable reference.
pub unsafe trait IoBuf: 'static {
    /// Where the bytes are.
    fn as_ptr(&self) -> *const u8;

    /// How many bytes there are to read.
    fn len(&self) -> usize;

    /// Whether there is nothing to read.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, for who writes an [`AsyncWrite`](super::AsyncWrite) of their own.
    ///
    /// ```
    /// use windlass::io::IoBuf;
    /// assert_eq!(IoBuf::as_slice(&"hello"), b"hello");
    /// ```
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer vouches for these bytes as long as it is borrowed.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
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
        let len = self.len();
        let (begin, end) = bounds(range, len);
        assert!(
            begin <= end && end <= len,
            "slice {begin}..{end} of a buffer of {len} bytes"
        );
        Slice::new(self, begin, end)
    }
}

/// A buffer that the kernel may write to.
///
/// # Safety
///
/// `as_mut_ptr` points to `capacity` bytes, perhaps uninitialised, that stay there as long as the value is neither moved
/// nor touched through a reference, and that nobody else reads or writes. They begin where [`as_ptr`](IoBuf::as_ptr) points,
/// and what was initialised stays so.
///
/// [`len`](IoBuf::len) is at most [`capacity`](IoBufMut::capacity), and neither changes while the buffer is lent to an
/// operation. Each operation checks these two rules, and that both pointers agree, and panics if one is broken: a wrong length
/// never reaches the kernel.
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

    /// Copies `bytes` to the start, as many as fit, as a read does, and gives how many that were. For who writes an
    /// [`AsyncRead`](super::AsyncRead) of their own.
    ///
    /// ```
    /// use windlass::io::IoBufMut;
    /// let mut buf = Vec::with_capacity(16);
    /// assert_eq!(buf.fill_from(b"hello"), 5);
    /// assert_eq!(buf, b"hello");
    /// ```
    fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.capacity());
        let place = self.as_mut_ptr();
        // SAFETY: the buffer vouches for `capacity` bytes that are its alone, so they are not those of `bytes`; `count` is
        // no more than that, and these bytes are initialised by the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, count);
            self.set_filled(count);
        }
        count
    }

    /// A part of this buffer to read into; what stands before it stays. The bounds are checked against
    /// [`capacity`](IoBufMut::capacity), and the part may begin no later than right behind what the buffer holds.
    ///
    /// If the part reaches to the end of what the buffer holds, or past it, the buffer then ends with what was read, as a
    /// `Vec` that is read into does. If something stands behind the part, that stays too, and so does the length.
    ///
    /// ```
    /// # use windlass::io::{AsyncRead, IoBufMut};
    /// # windlass::run(async {
    /// let mut source = &b"world"[..];
    /// let mut buf = Vec::with_capacity(64);
    /// buf.extend_from_slice(b"hello, you!");
    /// let (result, part) = source.read(buf.slice_mut(7..)).await;
    /// result?;
    /// assert_eq!(&*part, b"world");
    /// assert_eq!(part.into_inner(), b"hello, world");
    /// # Ok::<(), std::io::Error>(())
    /// # })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the range does not lie within the capacity, or begins behind the length.
    fn slice_mut(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let (len, capacity) = (self.len(), self.capacity());
        let (begin, end) = bounds(range, capacity);
        assert!(
            begin <= len && begin <= end && end <= capacity,
            "slice {begin}..{end} of a buffer of {len} bytes with room for {capacity}"
        );
        Slice::new(self, begin, end)
    }

    /// The room behind what the buffer holds, to append to it. A `Vec` that is full needs a `reserve` first, and a buffer
    /// of fixed length has none.
    ///
    /// ```
    /// # use windlass::io::{AsyncRead, IoBufMut};
    /// # windlass::run(async {
    /// let mut source = &b"world"[..];
    /// let mut buf = b"hello, ".to_vec();
    /// buf.reserve(64);
    /// let (result, part) = source.read(buf.spare()).await;
    /// result?;
    /// assert_eq!(part.into_inner(), b"hello, world");
    /// # Ok::<(), std::io::Error>(())
    /// # })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    fn spare(self) -> Slice<Self>
    where
        Self: Sized,
    {
        let len = self.len();
        let capacity = self.capacity().max(len);
        Slice::new(self, len, capacity)
    }
}

/// A range's first byte, and the one behind its last. Saturates: what lies past everything is refused by who asked.
fn bounds(range: impl RangeBounds<usize>, end: usize) -> (usize, usize) {
    let begin = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => end,
    };
    (begin, end)
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
        assert!(
            len <= self.capacity(),
            "{len} bytes in a vector for {}",
            self.capacity()
        );
        // SAFETY: the caller vouches that these bytes are initialised.
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

/// Where a buffer's bytes go, and how many fit. Every operation that fills a buffer gets both from here: the buffer's methods
/// are foreign code.
///
/// `as_mut_ptr` is called last: the other methods touch a buffer that holds its bytes inline, which would invalidate the pointer.
///
/// # Panics
///
/// If the buffer breaks a rule of [`IoBufMut`] that can be checked.
#[inline]
pub(crate) fn room_of<B: IoBufMut>(buf: &mut B) -> (*mut u8, usize) {
    let (len, capacity, start) = (buf.len(), buf.capacity(), buf.as_ptr());
    let place = buf.as_mut_ptr();
    assert!(
        len <= capacity,
        "a buffer has a length of {len} and a capacity of {capacity}: its implementation of IoBufMut is wrong"
    );
    assert!(
        start.addr() == place.addr(),
        "a buffer's as_ptr and as_mut_ptr differ: its implementation of IoBufMut is wrong"
    );
    (place, capacity)
}

/// The part `begin..end` of a buffer's capacity: where it is, and how long.
///
/// # Panics
///
/// As [`room_of`]; and if the capacity is less than `end`, which is what the buffer had before.
#[inline]
pub(crate) fn part_of<B: IoBufMut>(buf: &mut B, begin: usize, end: usize) -> (*mut u8, usize) {
    let (place, capacity) = room_of(buf);
    assert!(
        begin <= end && end <= capacity,
        "a buffer's capacity of {capacity} was at least {end} before: its implementation of IoBufMut is wrong"
    );
    (place.wrapping_add(begin), end - begin)
}

/// The bytes of a buffer from `begin` on: where they are, and how many.
///
/// # Panics
///
/// If the length is less than `begin`, which is what the buffer had before.
#[inline]
pub(crate) fn rest_of<B: IoBuf>(buf: &B, begin: usize) -> (*const u8, usize) {
    let len = buf.len();
    assert!(
        begin <= len,
        "a buffer's length of {len} was at least {begin} before: its implementation of IoBuf is wrong"
    );
    (buf.as_ptr().wrapping_add(begin), len - begin)
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
