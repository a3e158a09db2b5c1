//! A buffer restricted to a range.
//!
//! The inner buffer is user code that may return a different length on each call. So a slice clamps every result to the
//! current length and capacity of its buffer, and never reaches beyond them.

use std::ops::Deref;

use super::buf::{IoBuf, IoBufMut};

/// A range of a buffer, created by [`IoBuf::slice`], [`IoBufMut::slice_mut`] or [`IoBufMut::spare`].
///
/// ```
/// use windlass::io::IoBuf;
/// let rest = vec![1, 2, 3, 4].slice(2..);
/// assert_eq!(&*rest, [3, 4]);
/// assert_eq!(rest.into_inner(), [1, 2, 3, 4]);
/// ```
#[derive(Debug, Clone)]
pub struct Slice<B> {
    buf: B,
    begin: usize,
    end: usize,
}

impl<B> Slice<B> {
    pub(super) fn new(buf: B, begin: usize, end: usize) -> Slice<B> {
        Slice { buf, begin, end }
    }

    /// Returns the whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// The whole buffer.
    pub fn get_ref(&self) -> &B {
        &self.buf
    }
}

impl<B: IoBuf> Slice<B> {
    /// The start of the range, clamped to the buffer's length: later bytes are not initialised.
    fn start(&self) -> usize {
        self.begin.min(self.buf.len())
    }
}

// SAFETY: a range of the inner buffer is as stable as the whole. The bounds are clamped on each call, since the inner
// buffer may return a different length each time.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn as_ptr(&self) -> *const u8 {
        self.buf.as_ptr().wrapping_add(self.start())
    }
    fn len(&self) -> usize {
        self.end.min(self.buf.len()).saturating_sub(self.begin)
    }
}

// SAFETY: as for `IoBuf`; the range lies within the inner buffer's capacity and starts within its length, so the bytes
// before it are initialised.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        let start = self.start();
        self.buf.as_mut_ptr().wrapping_add(start)
    }
    fn capacity(&self) -> usize {
        self.end.min(self.buf.capacity()).saturating_sub(self.begin)
    }
    unsafe fn set_filled(&mut self, len: usize) {
        let old_len = self.buf.len();
        let filled = self.begin.saturating_add(len);
        let has_bytes_behind = self.end < old_len;
        if has_bytes_behind || self.begin > old_len || filled > self.buf.capacity() {
            return;
        }
        // SAFETY: the bytes before the range are within the inner buffer's length; the caller guarantees those in it.
        unsafe { self.buf.set_filled(filled) };
    }
}

impl<B: IoBuf> Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl<B: IoBuf> AsRef<[u8]> for Slice<B> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn slices_stay_in_bounds() {
        let slice = vec![1u8, 2, 3, 4].slice(1..3);
        assert_eq!(&*slice, [2, 3]);
        assert_eq!(&*slice.slice(1..), [3]);
        assert_eq!(b"abc".slice(3..).len(), 0);
    }

    #[test]
    #[should_panic(expected = "slice 2..9 is out of bounds for a buffer of 3 bytes")]
    fn a_slice_past_the_end_is_refused() {
        let _ = b"abc".slice(2..9);
    }

    #[test]
    #[should_panic(expected = "slice 0..")]
    fn the_largest_bound_is_refused() {
        let _ = b"abc".slice(0..=usize::MAX);
    }

    #[test]
    #[should_panic(expected = "slice 4..16 is out of bounds for a buffer of 3 bytes with a capacity of 16")]
    fn a_gap_before_the_range_is_refused() {
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"abc");
        let _ = buf.slice_mut(4..16);
    }

    #[test]
    fn bytes_before_and_behind_the_range_are_kept() {
        let mut middle = b"hello world".to_vec().slice_mut(2..4);
        assert_eq!((middle.capacity(), middle.fill_from(b"LL and more")), (2, 2));
        assert_eq!(middle.into_inner(), b"heLLo world");

        let mut tail = b"hello world".to_vec().slice_mut(6..11);
        assert_eq!(tail.fill_from(b"you"), 3);
        assert_eq!(&*tail, b"you");
        assert_eq!(tail.into_inner(), b"hello you");

        let mut array = b"hello".slice(..).into_inner().slice_mut(1..);
        assert_eq!(array.fill_from(b"u"), 1);
        assert_eq!(&array.into_inner(), b"hullo");
        assert_eq!(b"full".spare().capacity(), 0);
    }

    #[test]
    fn slices_of_slices_append() {
        let mut buf = Vec::with_capacity(32);
        buf.extend_from_slice(b"0123456789");
        let mut inner = buf.slice_mut(2..20).slice_mut(8..);
        assert_eq!(inner.capacity(), 10);
        assert_eq!(inner.fill_from(b"abc"), 3);
        assert_eq!(inner.into_inner().into_inner(), b"0123456789abc");
    }

    /// A buffer whose length shrinks on each call.
    struct Shrinking(Box<[u8; 8]>, Cell<usize>);

    // SAFETY: all 8 bytes are initialised, and the slice below ends at byte 6, whatever length this returns.
    unsafe impl IoBuf for Shrinking {
        fn as_ptr(&self) -> *const u8 {
            self.0.as_slice().as_ptr()
        }
        fn len(&self) -> usize {
            self.1.set(self.1.get().saturating_sub(1));
            self.1.get()
        }
    }

    // SAFETY: as for `IoBuf`.
    unsafe impl IoBufMut for Shrinking {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_slice().as_mut_ptr()
        }
        fn capacity(&self) -> usize {
            self.len()
        }
        unsafe fn set_filled(&mut self, len: usize) {
            assert!(len <= 8);
        }
    }

    #[test]
    fn a_shrinking_buffer_is_never_exceeded() {
        for first in 0..12 {
            let mut slice = Slice::new(Shrinking(Box::new([0; 8]), Cell::new(first)), 3, 6);
            for _ in 0..4 {
                let begin = slice.buf.0.as_ptr() as usize;
                assert!(slice.as_ptr() as usize - begin + slice.len() <= 8);
                assert!(slice.as_mut_ptr() as usize - begin + slice.capacity() <= 8);
                slice.fill_from(b"0123456789");
            }
        }
    }
}
