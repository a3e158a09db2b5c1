//! `IoBuf` and `IoBufMut` for the types of the `bytes` crate.

use bytes::{Bytes, BytesMut};

use super::buf::{IoBufMut, impl_io_buf};

impl_io_buf!([] Bytes, [] BytesMut);

// SAFETY: as for `IoBuf`; the handle also has exclusive access to its capacity.
unsafe impl IoBufMut for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        // A pointer valid for the whole capacity: one derived from the slice would be valid for the length only.
        let len = (**self).len();
        self.truncate(0);
        let target = self.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: these bytes were initialised before the truncation and have not been touched since.
        unsafe { self.set_len(len) };
        target
    }
    fn capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes exceed the buffer's capacity of {}",
            self.capacity()
        );
        // SAFETY: the caller guarantees that these bytes are initialised.
        unsafe { self.set_len(len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoBuf;

    #[test]
    fn bytes_mut_is_filled_from_its_start_and_appended_to() {
        let mut buf = BytesMut::with_capacity(16);
        assert_eq!(buf.fill_from(b"hello"), 5);
        let mut spare = buf.spare();
        assert_eq!(spare.fill_from(b", world"), 7);
        let mut buf = spare.into_inner();
        assert_eq!(&buf[..], b"hello, world");
        // A split-off part does not overlap the rest.
        let mut head = buf.split_to(5);
        assert_eq!(head.fill_from(b"HELLO, and more"), 5);
        assert_eq!((&head[..], &buf[..]), (&b"HELLO"[..], &b", world"[..]));
        assert_eq!(&*buf.freeze().slice(2..), b"world");
    }
}
