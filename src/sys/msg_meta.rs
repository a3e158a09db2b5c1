//! The metadata of a received message.

use std::fmt;

use super::{Foreign, Message, Name};

/// A received message's metadata.
#[derive(Debug, Default)]
pub(crate) struct MsgMeta {
    /// The sender, if it has a name.
    pub(crate) sender: Option<Name>,
    /// Whether the buffer was too small for all bytes.
    pub(crate) is_truncated: bool,
    /// The length of each of the datagrams that the kernel has coalesced into this message, except for the last one, which
    /// may be shorter; `None` if it is a single datagram.
    pub(crate) segment_size: Option<u16>,
    /// Whether the control buffer was too small for all descriptors.
    pub(crate) lost_descriptors: bool,
    /// The descriptors that were passed along; always empty on Windows.
    pub(crate) descriptors: Vec<Foreign>,
}

impl MsgMeta {
    /// Closes descriptors beyond the requested number. More can arrive than were requested: the control buffer is
    /// padded, and an earlier receive may have reserved space for more.
    pub(crate) fn with_at_most(mut self, descriptors: usize) -> MsgMeta {
        self.lost_descriptors |= self.descriptors.len() > descriptors;
        self.descriptors.truncate(descriptors);
        self
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Message")
    }
}
