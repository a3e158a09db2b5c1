//! The types that `write` accepts, and how their bytes are queued.
//!
//! Borrowed bytes are only valid during the call, so they are copied into a reused buffer. Owned bytes are queued as
//! they are, unless copying them is cheaper than a queue entry.

use std::rc::Rc;
use std::sync::Arc;

use crate::io::{IoBuf, ManagedBuf};

/// Data that `write` accepts.
///
/// - Borrowed bytes are copied: `&[u8]`, `&str`, `&Vec<u8>` and similar.
/// - Owned bytes are copied only if they are short: `Vec<u8>`, `String`, `Box<[u8]>`, `Rc<[u8]>`, `Arc<[u8]>`,
///   [`ManagedBuf`], and with the feature `bytes` its `Bytes` and `BytesMut`.
///
/// ```
/// use windlass::protocol::Payload;
/// fn takes(_: impl Payload) {}
/// takes("borrowed");
/// takes(b"borrowed");
/// takes(vec![1, 2, 3]);
/// takes(String::from("owned"));
/// ```
pub trait Payload: sealed::Sealed {
    #[doc(hidden)]
    fn bytes(&self) -> &[u8];

    /// Whether the bytes can be queued without a copy.
    #[doc(hidden)]
    fn is_owned(&self) -> bool;

    /// The bytes themselves if owned, else a copy.
    #[doc(hidden)]
    fn into_owned_bytes(self) -> OwnedBytes;
}

mod sealed {
    pub trait Sealed {}
}

/// Bytes in a write buffer.
#[doc(hidden)]
#[derive(Debug)]
pub enum OwnedBytes {
    Vec(Vec<u8>),
    Boxed(Box<[u8]>),
    Rc(Rc<[u8]>),
    Arc(Arc<[u8]>),
    Managed(ManagedBuf),
    /// A type from an optional dependency.
    Dyn(Box<dyn StableBytes>),
}

/// Bytes with a stable address and content until dropped.
#[doc(hidden)]
pub trait StableBytes: std::fmt::Debug {
    fn bytes(&self) -> &[u8];
}

impl OwnedBytes {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            OwnedBytes::Vec(bytes) => bytes,
            OwnedBytes::Boxed(bytes) => bytes,
            OwnedBytes::Rc(bytes) => bytes,
            OwnedBytes::Arc(bytes) => bytes,
            OwnedBytes::Managed(bytes) => bytes,
            OwnedBytes::Dyn(bytes) => bytes.bytes(),
        }
    }
}

macro_rules! borrowed {
    ($([$($generics:tt)*] $kind:ty),*) => {$(
        impl<$($generics)*> sealed::Sealed for $kind {}

        impl<$($generics)*> Payload for $kind {
            fn bytes(&self) -> &[u8] {
                (**self).as_ref()
            }
            fn is_owned(&self) -> bool {
                false
            }
            fn into_owned_bytes(self) -> OwnedBytes {
                OwnedBytes::Vec(Payload::bytes(&self).to_vec())
            }
        }
    )*};
}

borrowed!([] &[u8], [] &str, [] &Vec<u8>, [] &String, [] &Box<[u8]>, [] &ManagedBuf, [const N: usize] &[u8; N]);

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> Payload for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn is_owned(&self) -> bool {
        false
    }
    fn into_owned_bytes(self) -> OwnedBytes {
        OwnedBytes::Vec(self.to_vec())
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
            fn into_owned_bytes(self) -> OwnedBytes {
                $keep(self)
            }
        }
    )*};
}

owned!(
    Vec<u8> => OwnedBytes::Vec,
    Box<[u8]> => OwnedBytes::Boxed,
    Rc<[u8]> => OwnedBytes::Rc,
    Arc<[u8]> => OwnedBytes::Arc,
    ManagedBuf => OwnedBytes::Managed,
    String => |text: String| OwnedBytes::Vec(text.into_bytes())
);

#[cfg(feature = "bytes")]
mod with_bytes {
    use bytes::{Bytes, BytesMut};

    use super::{OwnedBytes, Payload, StableBytes, sealed};

    impl StableBytes for Bytes {
        fn bytes(&self) -> &[u8] {
            self
        }
    }

    borrowed!([] & Bytes, [] & BytesMut);
    owned!(
        Bytes => |bytes| OwnedBytes::Dyn(Box::new(bytes)),
        BytesMut => |bytes: BytesMut| OwnedBytes::Dyn(Box::new(bytes.freeze()))
    );
}

/// An entry of a write buffer, possibly partly sent.
pub(super) struct Piece {
    pub(super) bytes: OwnedBytes,
    pub(super) sent: usize,
    /// Small writes are appended here, and the buffer is reused.
    pub(super) is_coalesced: bool,
}

impl Piece {
    pub(super) fn left(&self) -> usize {
        self.bytes.bytes().len() - self.sent
    }
}

// SAFETY: every variant keeps its bytes outside of `Piece` (heap, driver pool, static memory or the owner of a
// `Bytes`), so moving the piece does not move them, and they live until the piece is dropped. Shared bytes are
// immutable.
unsafe impl IoBuf for Piece {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.bytes()[self.sent..].as_ptr()
    }
    fn len(&self) -> usize {
        self.left()
    }
}
