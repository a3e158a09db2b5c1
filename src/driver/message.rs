//! A message with the memory of its header, for callers of a driver other than the loop.

use std::fmt;

use crate::sys::{Message, MsgHdrBuf, Name};

/// A message with the memory of its header, for code that calls [`Driver::start`](super::Driver::start) without a loop:
/// a driver's tests, or a driver that forwards operations to another.
///
/// ```
/// use windlass::driver::{MessageBuf, Name};
/// let mut buf = MessageBuf::new();
/// let name = Name::from(std::net::SocketAddr::from(([127, 0, 0, 1], 53)));
/// let message = buf.to_send(b"query", Some(&name));
/// // SAFETY: the buffer and the bytes are valid, and nothing else uses them.
/// let (bytes, to) = unsafe { ((*message).bytes(), (*message).name()) };
/// assert_eq!(bytes.len, 5);
/// assert_eq!(to.and_then(|name| name.as_socket()), name.as_socket());
/// ```
pub struct MessageBuf(Box<MsgHdrBuf>);

impl MessageBuf {
    /// An empty message.
    pub fn new() -> MessageBuf {
        MessageBuf(MsgHdrBuf::new())
    }

    /// Prepares a send of these bytes to this address, or to the peer that the socket is connected to. The pointer is
    /// for [`Op::SendMessage`](super::Op::SendMessage). It is valid while the bytes and `self` stay in place and are
    /// not used otherwise.
    pub fn to_send(&mut self, bytes: &[u8], to: Option<&Name>) -> *const Message {
        self.0.set_descriptors(Vec::new());
        self.0.address(to);
        self.0.ready_to_send(bytes.as_ptr(), bytes.len())
    }

    /// Prepares a receive into these bytes. The pointer is for [`Op::RecvMessage`](super::Op::RecvMessage). It is valid
    /// while the bytes and `self` stay in place and are not used otherwise.
    pub fn to_receive(&mut self, bytes: &mut [u8]) -> *mut Message {
        self.0.reserve_descriptors(0);
        self.0.ready_to_receive(bytes.as_mut_ptr(), bytes.len())
    }

    /// The sender of the received message, if it has a name, and whether the message was truncated.
    pub fn received(&mut self) -> (Option<Name>, bool) {
        let meta = self.0.open();
        (meta.sender, meta.is_truncated)
    }
}

impl Default for MessageBuf {
    fn default() -> MessageBuf {
        MessageBuf::new()
    }
}

impl fmt::Debug for MessageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageBuf")
    }
}
