//! The types that the `write` of a transport accepts, and how their bytes are queued.
//!
//! Borrowed bytes are only valid during the call, so they are copied into a reused buffer. Owned bytes are queued as
//! they are, unless copying them is cheaper than a queue entry.

use std::rc::Rc;
use std::sync::Arc;

use super::buffer_cache::CachedVec;
use super::{IoBuf, ManagedBuf};

/// Data that [`Transport::write`](crate::protocol::Transport::write) and the like accept.
///
/// - Borrowed bytes are copied: `&[u8]`, `&str` and a reference to any other `AsRef<[u8]>`, also `[u8; N]`.
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
pub trait Payload: sealed::IntoOwnedBytes {}

impl<P: sealed::IntoOwnedBytes> Payload for P {}

pub(crate) mod sealed {
    use super::OwnedBytes;

    pub trait IntoOwnedBytes {
        /// Whether the bytes can be queued without a copy.
        const IS_OWNED: bool;

        fn bytes(&self) -> &[u8];

        /// The bytes themselves if owned, else a copy.
        fn into_owned_bytes(self) -> OwnedBytes;
    }
}

/// Bytes in a write buffer.
#[derive(Debug)]
pub enum OwnedBytes {
    /// Small writes, copied one after another.
    Coalesced(CachedVec),
    Vec(Vec<u8>),
    Boxed(Box<[u8]>),
    Rc(Rc<[u8]>),
    Arc(Arc<[u8]>),
    Managed(ManagedBuf),
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

impl OwnedBytes {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            OwnedBytes::Coalesced(bytes) => &bytes.0,
            OwnedBytes::Vec(bytes) => bytes,
            OwnedBytes::Boxed(bytes) => bytes,
            OwnedBytes::Rc(bytes) => bytes,
            OwnedBytes::Arc(bytes) => bytes,
            OwnedBytes::Managed(bytes) => bytes,
            #[cfg(feature = "bytes")]
            OwnedBytes::Bytes(bytes) => bytes,
        }
    }
}

impl<T: AsRef<[u8]> + ?Sized> sealed::IntoOwnedBytes for &T {
    const IS_OWNED: bool = false;

    fn bytes(&self) -> &[u8] {
        (**self).as_ref()
    }

    fn into_owned_bytes(self) -> OwnedBytes {
        OwnedBytes::Vec(self.bytes().to_vec())
    }
}

impl<const N: usize> sealed::IntoOwnedBytes for [u8; N] {
    const IS_OWNED: bool = false;

    fn bytes(&self) -> &[u8] {
        self
    }

    fn into_owned_bytes(self) -> OwnedBytes {
        OwnedBytes::Vec(self.to_vec())
    }
}

macro_rules! owned {
    ($kind:ty, $keep:expr) => {
        impl sealed::IntoOwnedBytes for $kind {
            const IS_OWNED: bool = true;

            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }

            fn into_owned_bytes(self) -> OwnedBytes {
                $keep(self)
            }
        }
    };
}

owned!(Vec<u8>, OwnedBytes::Vec);
owned!(String, |text: String| OwnedBytes::Vec(text.into_bytes()));
owned!(Box<[u8]>, OwnedBytes::Boxed);
owned!(Rc<[u8]>, OwnedBytes::Rc);
owned!(Arc<[u8]>, OwnedBytes::Arc);
owned!(ManagedBuf, OwnedBytes::Managed);
#[cfg(feature = "bytes")]
owned!(bytes::Bytes, OwnedBytes::Bytes);
#[cfg(feature = "bytes")]
owned!(bytes::BytesMut, |bytes: bytes::BytesMut| OwnedBytes::Bytes(
    bytes.freeze()
));

/// An entry of a write buffer, possibly partly sent.
pub(crate) struct Piece {
    pub(super) bytes: OwnedBytes,
    pub(super) sent: usize,
}

impl Piece {
    pub(super) fn new(bytes: OwnedBytes) -> Piece {
        Piece { bytes, sent: 0 }
    }

    /// An empty buffer for small writes.
    pub(super) fn coalesced() -> Piece {
        Piece::new(OwnedBytes::Coalesced(CachedVec::new()))
    }

    pub(crate) fn copy_of(data: &[u8]) -> Piece {
        let mut bytes = CachedVec::new();
        bytes.0.extend_from_slice(data);
        Piece::new(OwnedBytes::Coalesced(bytes))
    }

    pub(crate) fn left(&self) -> usize {
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
