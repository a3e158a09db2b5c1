//! Traits for buffers that the runtime passes to the kernel.
//!
//! Soundness rests on one rule: an operation moves its buffer to its final address before it takes a pointer into the
//! buffer, and does not touch the buffer until it has completed. So a buffer may hold its bytes inline, like an array.
//!
//! The traits are unsafe to implement; all common buffer types implement them. Implementing a custom reader or writer
//! needs no unsafe code: use [`IoBuf::as_slice`] and [`IoBufMut::fill_from`].

use std::borrow::Cow;
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that can be written: a write takes ownership of its buffer",
    label = "not an owned buffer of bytes",
    note = "pass the buffer by value and take it back: `let (result, buf) = stream.write_all(buf).await;`, or without \
            taking it back: `stream.write_all(buf).await.0?;`",
    note = "to keep a vector or string, pass a clone, or share it as `Rc<[u8]>`, `Arc<[u8]>` or `Bytes`; to write a part \
            of it, pass `buf.slice(range)`",
    note = "literals such as `\"text\"` and `b\"bytes\"` can be passed as they are"
)]
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that can be read into: a read takes ownership of its buffer",
    label = "not an owned buffer of bytes that can be read into",
    note = "pass the buffer by value and take it back: `let (result, buf) = stream.read(buf).await;`",
    note = "a buffer is a `Vec<u8>`, as in `Vec::with_capacity(4096)`, or `[u8; N]`, `Box<[u8]>` or `BytesMut`; to read \
            into a part of it, pass `buf.slice_mut(range)`, to append to it, `buf.spare()`",
    note = "without a buffer of your own: `let bytes = stream.read_managed().await?;`"
)]
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

/// Implements `IoBuf` for types that dereference to bytes or text that is static or on the heap.
macro_rules! impl_io_buf {
    ($([$($generics:tt)*] $kind:ty),* $(,)?) => {$(
        // SAFETY: moving the value does not move its bytes. It keeps them alive, and they change only through a mutable
        // reference to it.
        unsafe impl<$($generics)*> $crate::io::IoBuf for $kind {
            #[inline]
            fn as_ptr(&self) -> *const u8 {
                AsRef::<[u8]>::as_ref(&**self).as_ptr()
            }
            #[inline]
            fn len(&self) -> usize {
                AsRef::<[u8]>::as_ref(&**self).len()
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
    [] Cow<'static, [u8]>,
    [] Cow<'static, str>,
    [] Box<[u8]>,
    [const N: usize] Box<[u8; N]>,
    [] Box<str>,
    // Other owners can only read: changing the bytes through an `Rc` or `Arc` requires that it is the only one.
    [] Rc<[u8]>,
    [] Rc<str>,
    [] Rc<Vec<u8>>,
    [] Arc<[u8]>,
    [] Arc<str>,
    [] Arc<Vec<u8>>,
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

// SAFETY: as for `IoBuf`; the box has exclusive ownership of its bytes.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        N
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each type returns its bytes, at an address that does not change when the value is moved.
    #[test]
    fn every_owner_of_bytes_is_a_buffer() {
        fn check<B: IoBuf>(buf: B) {
            assert_eq!(buf.as_slice(), b"hello");
            let address = buf.as_ptr();
            let moved = Box::new(buf);
            assert_eq!((moved.as_ptr(), moved.as_slice()), (address, &b"hello"[..]));
        }
        check("hello");
        check(b"hello");
        check(&b"hello"[..]);
        check(String::from("hello"));
        check(b"hello".to_vec());
        check(Cow::<'static, [u8]>::Borrowed(b"hello"));
        check(Cow::<'static, [u8]>::Owned(b"hello".to_vec()));
        check(Cow::<'static, str>::Owned("hello".into()));
        check(Box::new(*b"hello"));
        check(Box::<[u8]>::from(*b"hello"));
        check(Box::<str>::from("hello"));
        check(Rc::<[u8]>::from(*b"hello"));
        check(Rc::<str>::from("hello"));
        check(Rc::new(b"hello".to_vec()));
        check(Arc::<[u8]>::from(*b"hello"));
        check(Arc::<str>::from("hello"));
        check(Arc::new(b"hello".to_vec()));
    }

    #[test]
    fn a_boxed_array_is_filled_from_its_start() {
        let mut buf = Box::new(*b"hello");
        assert_eq!((buf.capacity(), buf.fill_from(b"HE")), (5, 2));
        assert_eq!(&*buf, b"HEllo");
        assert_eq!(buf.fill_from(b"too long"), 5);
    }
}
