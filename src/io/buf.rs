//! Traits for buffers that the runtime passes to the kernel.
//!
//! Soundness rests on one rule: an operation moves its buffer to its final address before it takes a pointer into the
//! buffer, and does not touch the buffer until it has completed. So a buffer may hold its bytes inline, like an array.
//!
//! The traits are unsafe to implement; all common buffer types implement them. Implementing a custom reader or writer
//! needs no unsafe code: use [`IoBuf::as_slice`] and [`IoBufMut::fill_from`].

use std::io;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;

use super::slice::Slice;

/// A buffer whose bytes can be written to a stream or file.
///
/// # Safety
///
/// `as_ptr` points to `len` initialised bytes. They stay at this address, unchanged, while the value is neither moved
/// nor accessed through a mutable reference.
pub unsafe trait IoBuf: 'static {
    /// A pointer to the first byte.
    fn as_ptr(&self) -> *const u8;

    /// The number of initialised bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes as a slice, for custom implementations of [`AsyncWrite`](super::AsyncWrite).
    ///
    /// ```
    /// use windlass::io::IoBuf;
    /// assert_eq!(IoBuf::as_slice(&"hello"), b"hello");
    /// ```
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the implementation guarantees `len` initialised bytes at `as_ptr` while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Restricts the buffer to a range within [`len`](IoBuf::len), for instance to the rest after a short write.
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
    /// If the range is out of bounds.
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let len = self.len();
        let (begin, end) = bounds(range, len);
        assert!(
            begin <= end && end <= len,
            "slice {begin}..{end} is out of bounds for a buffer of {len} bytes"
        );
        Slice::new(self, begin, end)
    }
}

/// A buffer that can be read into.
///
/// # Safety
///
/// `as_mut_ptr` points to `capacity` bytes, which may be uninitialised. They stay at this address while the value is
/// neither moved nor accessed through a reference, and nothing else reads or writes them. They start where
/// [`as_ptr`](IoBuf::as_ptr) points, and initialised bytes stay initialised.
///
/// [`len`](IoBuf::len) is at most [`capacity`](IoBufMut::capacity), and neither changes while an operation owns the
/// buffer. Each operation checks these two rules, and that both pointers are equal, and panics on a violation: a wrong
/// length never reaches the kernel.
pub unsafe trait IoBufMut: IoBuf {
    /// A pointer to the first byte to fill.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// The number of bytes that fit, counted from the start of the buffer: a read overwrites the current content.
    fn capacity(&self) -> usize;

    /// Sets the length to `len` after a read. A buffer of fixed length, such as an array, keeps its length.
    ///
    /// # Safety
    ///
    /// The first `len` bytes are initialised, and `len` is at most `capacity`.
    unsafe fn set_filled(&mut self, len: usize);

    /// Overwrites the content with the bytes that fit and returns their number, for a custom
    /// [`AsyncRead`](super::AsyncRead).
    ///
    /// ```
    /// use windlass::io::IoBufMut;
    /// let mut buf = Vec::with_capacity(16);
    /// assert_eq!(buf.fill_from(b"hello"), 5);
    /// assert_eq!(buf, b"hello");
    /// ```
    fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.capacity());
        let target = self.as_mut_ptr();
        // SAFETY: the implementation guarantees exclusive access to `capacity` bytes, so they do not overlap `bytes`;
        // `count` is at most `capacity`, and the copy initialises that many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, count);
            self.set_filled(count);
        }
        count
    }

    /// Restricts the buffer to a range to read into; the bytes before the range are kept. The bounds are checked
    /// against [`capacity`](IoBufMut::capacity), and the range may start at [`len`](IoBuf::len) at the latest.
    ///
    /// If the range ends at or after the current length, the length is set to the end of the data read, as for a `Vec`.
    /// If initialised bytes follow the range, they are kept and the length does not change.
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
    /// If the range exceeds the capacity, or starts after the length.
    fn slice_mut(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let (len, capacity) = (self.len(), self.capacity());
        let (begin, end) = bounds(range, capacity);
        assert!(
            begin <= len && begin <= end && end <= capacity,
            "slice {begin}..{end} is out of bounds for a buffer of {len} bytes with a capacity of {capacity}"
        );
        Slice::new(self, begin, end)
    }

    /// The spare capacity after the current content, to append to it. A full `Vec` needs a `reserve` first; a buffer of
    /// fixed length has none.
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

/// The start and the exclusive end of a range. Saturates; the callers check the bounds.
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

/// Implements `IoBuf` for types whose bytes are static or on the heap.
macro_rules! impl_io_buf {
    ($([$($generics:tt)*] $kind:ty),* $(,)?) => {$(
        // SAFETY: moving the value does not move its bytes. It keeps them alive, and they change only through a mutable
        // reference to it.
        unsafe impl<$($generics)*> $crate::io::IoBuf for $kind {
            #[inline]
            fn as_ptr(&self) -> *const u8 {
                AsRef::<[u8]>::as_ref(self).as_ptr()
            }
            #[inline]
            fn len(&self) -> usize {
                AsRef::<[u8]>::as_ref(self).len()
            }
        }
    )*};
}
pub(crate) use impl_io_buf;

impl_io_buf!(
    [] &'static [u8],
    [const N: usize] &'static [u8; N],
    [] &'static str,
    [] String,
    [] Box<[u8]>,
    [] Rc<[u8]>,
    [] Arc<[u8]>,
);

// SAFETY: the bytes are on the heap, at the same address wherever the vector is moved.
unsafe impl IoBuf for Vec<u8> {
    fn as_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as for `IoBuf`; the vector has exclusive ownership of its capacity.
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
            "{len} bytes exceed the vector's capacity of {}",
            self.capacity()
        );
        // SAFETY: the caller guarantees that these bytes are initialised.
        unsafe { self.set_len(len) }
    }
}

// SAFETY: as for `IoBuf`; the box has exclusive ownership of its bytes.
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

// SAFETY: as for `IoBuf`; the array has exclusive ownership of its bytes.
unsafe impl<const N: usize> IoBufMut for [u8; N] {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        N
    }
    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// The pointer to fill and the capacity of a buffer, checked. Every operation that fills a buffer gets both from here,
/// because the buffer's methods are user code.
///
/// `as_mut_ptr` is called last: the other methods borrow a buffer that may hold its bytes inline, which would
/// invalidate the pointer.
///
/// # Panics
///
/// If the buffer violates a checkable rule of [`IoBufMut`].
#[inline]
pub(crate) fn fill_target<B: IoBufMut>(buf: &mut B) -> (*mut u8, usize) {
    let (len, capacity, start) = (buf.len(), buf.capacity(), buf.as_ptr());
    let target = buf.as_mut_ptr();
    assert!(
        len <= capacity,
        "a buffer has a length of {len} but a capacity of {capacity}: its implementation of IoBufMut is wrong"
    );
    assert!(
        start.addr() == target.addr(),
        "a buffer's as_ptr and as_mut_ptr differ: its implementation of IoBufMut is wrong"
    );
    (target, capacity)
}

/// The pointer to and the length of the range `begin..end` of a buffer's capacity.
///
/// # Panics
///
/// As [`fill_target`]; and if the capacity has shrunk below `end`.
#[inline]
pub(crate) fn fill_range<B: IoBufMut>(buf: &mut B, begin: usize, end: usize) -> (*mut u8, usize) {
    let (target, capacity) = fill_target(buf);
    assert!(
        begin <= end && end <= capacity,
        "a buffer's capacity shrank from at least {end} to {capacity}: its implementation of IoBufMut is wrong"
    );
    (target.wrapping_add(begin), end - begin)
}

/// The pointer to and the number of a buffer's bytes from `begin` on.
///
/// # Panics
///
/// If the length has shrunk below `begin`.
#[inline(always)]
pub(crate) fn bytes_from<B: IoBuf>(buf: &B, begin: usize) -> (*const u8, usize) {
    let len = buf.len();
    assert!(
        begin <= len,
        "a buffer's length shrank from at least {begin} to {len}: its implementation of IoBuf is wrong"
    );
    (buf.as_ptr().wrapping_add(begin), len - begin)
}

pub(crate) fn no_capacity() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the buffer has no capacity to read into: allocate some, as in Vec::with_capacity(4096)",
    )
}
