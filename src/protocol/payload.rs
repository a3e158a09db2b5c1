//! What can be written, and how it waits for its turn.
//!
//! Lent bytes are gone when the call returns, so they are copied, into a buffer that is used again and again. Owned ones
//! are kept as they are if copying them would cost more than a slot in the queue.

use std::rc::Rc;
use std::sync::Arc;

use crate::io::{IoBuf, ManagedBuf};

/// What `write` takes: lent bytes (`&[u8]`, `&str`, `&Vec<u8>`, ...), which are copied, or owned ones (`Vec<u8>`, `String`,
/// `Box<[u8]>`, `Rc<[u8]>`, `Arc<[u8]>`, [`ManagedBuf`], and with the feature `bytes` its `Bytes` and `BytesMut`), which are not
/// copied unless they are few.
///
/// ```
/// use windlass::protocol::Payload;
/// fn takes(_: impl Payload) {}
/// takes("lent");
/// takes(b"lent");
/// takes(vec![1, 2, 3]);
/// takes(String::from("owned"));
/// ```
pub trait Payload: sealed::Sealed {
    #[doc(hidden)]
    fn bytes(&self) -> &[u8];

    /// Whether they can be kept without copying.
    #[doc(hidden)]
    fn is_owned(&self) -> bool;

    /// The bytes themselves if they are owned, else a copy.
    #[doc(hidden)]
    fn into_kept(self) -> Kept;
}

mod sealed {
    pub trait Sealed {}
}

/// Bytes that wait to be sent.
#[doc(hidden)]
#[derive(Debug)]
pub enum Kept {
    Vec(Vec<u8>),
    Boxed(Box<[u8]>),
    Rc(Rc<[u8]>),
    Arc(Arc<[u8]>),
    Managed(ManagedBuf),
    /// Of a kind that a feature brings.
    Foreign(Box<dyn Stays>),
}

/// Bytes that stay where they are, and as they are, until they are dropped.
#[doc(hidden)]
pub trait Stays: std::fmt::Debug {
    fn bytes(&self) -> &[u8];
}

impl Kept {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Kept::Vec(bytes) => bytes,
            Kept::Boxed(bytes) => bytes,
            Kept::Rc(bytes) => bytes,
            Kept::Arc(bytes) => bytes,
            Kept::Managed(bytes) => bytes,
            Kept::Foreign(bytes) => bytes.bytes(),
        }
    }
}

macro_rules! lent {
    ($([$($generics:tt)*] $kind:ty),*) => {$(
        impl<$($generics)*> sealed::Sealed for $kind {}

        impl<$($generics)*> Payload for $kind {
            fn bytes(&self) -> &[u8] {
                (**self).as_ref()
            }
            fn is_owned(&self) -> bool {
                false
            }
            fn into_kept(self) -> Kept {
                Kept::Vec(Payload::bytes(&self).to_vec())
            }
        }
    )*};
}

lent!([] &[u8], [] &str, [] &Vec<u8>, [] &String, [] &Box<[u8]>, [] &ManagedBuf, [const N: usize] &[u8; N]);

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> Payload for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn is_owned(&self) -> bool {
        false
    }
    fn into_kept(self) -> Kept {
        Kept::Vec(self.to_vec())
    }
}

macro_rules! owned {
    ($($kind:ty => $keep:expr),*) => {$(
        impl sealed::Sealed for $kind {}

        impl Payload for $kind {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }
            fn is_owned(&self) -> bool {
                true
            }
            fn into_kept(self) -> Kept {
                $keep(self)
            }
        }
    )*};
}

owned!(
    Vec<u8> => Kept::Vec,
    Box<[u8]> => Kept::Boxed,
    Rc<[u8]> => Kept::Rc,
    Arc<[u8]> => Kept::Arc,
    ManagedBuf => Kept::Managed,
    String => |text: String| Kept::Vec(text.into_bytes())
);

#[cfg(feature = "bytes")]
mod with_bytes {
    use bytes::{Bytes, BytesMut};

    use super::{Kept, Payload, Stays, sealed};

    impl Stays for Bytes {
        fn bytes(&self) -> &[u8] {
            self
        }
    }

    lent!([] & Bytes, [] & BytesMut);
    owned!(
        Bytes => |bytes| Kept::Foreign(Box::new(bytes)),
        BytesMut => |bytes: BytesMut| Kept::Foreign(Box::new(bytes.freeze()))
    );
}

/// Kept bytes, of which some may have been sent.
pub(super) struct Piece {
    pub(super) kept: Kept,
    pub(super) sent: usize,
    /// Small writes are appended to it, and it is used again.
    pub(super) joins: bool,
}

impl Piece {
    pub(super) fn left(&self) -> usize {
        self.kept.bytes().len() - self.sent
    }
}

// SAFETY: every kind of kept bytes is on the heap, in the driver's pool, static, or with the owner of a `Bytes`: at the same
// place wherever the piece is, until it is dropped. Shared ones are immutable.
unsafe impl IoBuf for Piece {
    fn as_ptr(&self) -> *const u8 {
        self.kept.bytes()[self.sent..].as_ptr()
    }
    fn len(&self) -> usize {
        self.left()
    }
}
