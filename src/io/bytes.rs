//! The buffers of the crate `bytes`.

use bytes::{Bytes, BytesMut};

use super::buf::{IoBuf, IoBufMut};

// SAFETY: the bytes are shared but immutable, and the handle's share keeps them in place wherever the handle is.
unsafe impl IoBuf for Bytes {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: the bytes are on the heap, and this handle's part of them is its alone.
unsafe impl IoBuf for BytesMut {
    fn as_ptr(&self) -> *const u8 {
        (**self).as_ptr()
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: as for reading; the capacity is this handle's alone too.
unsafe impl IoBufMut for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        // A pointer to all of the capacity: one made of the slice would be good for the length only.
        let len = (**self).len();
        self.truncate(0);
        let place = self.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: these bytes were held a moment ago, and nobody has touched them.
        unsafe { self.set_len(len) };
        place
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes in a buffer for {}",
            self.capacity()
        );
        // SAFETY: the caller vouches that these bytes are initialised.
        unsafe { self.set_len(len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_mut_is_filled_from_its_start_and_behind_what_it_holds() {
        let mut buf = BytesMut::with_capacity(16);
        assert_eq!(buf.fill_from(b"hello"), 5);
        let mut spare = buf.spare();
        assert_eq!(spare.fill_from(b", world"), 7);
        let mut buf = spare.into_inner();
        assert_eq!(&buf[..], b"hello, world");
        // A part that was split off is its own.
        let mut head = buf.split_to(5);
        assert_eq!(head.fill_from(b"HELLO, and more"), 5);
        assert_eq!((&head[..], &buf[..]), (&b"HELLO"[..], &b", world"[..]));
        assert_eq!(&*buf.freeze().slice(2..), b"world");
    }
}
