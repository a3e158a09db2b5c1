//! Batches of messages: one system call that receives or sends several datagrams.
//!
//! Linux's `recvmmsg` and `sendmmsg` take an array of message headers, each with the number of its bytes. A
//! [`MessageEntry`] is laid out like one. Where no such call exists, a loop makes one call per message. FreeBSD's
//! `recvmmsg` is such a loop, too, in its C library; it drops an error that follows a received message, so it is not
//! used.
//!
//! A [`MsgBatchBuf`] keeps the memory of the headers, and is used again for the next batch without an allocation.

use super::{IoVec, Message, MsgHdrBuf, MsgMeta, Name, OsResult};

/// A message of a batch, and its result.
///
/// [`Driver::recv_batch`](crate::driver::Driver::recv_batch) and
/// [`send_batch`](crate::driver::Driver::send_batch) take several of them. On Linux it is an `mmsghdr`.
#[derive(Debug)]
#[repr(C)]
pub struct MessageEntry {
    message: Message,
    /// The number of bytes, or a negated error code. The kernel writes the number.
    result: i32,
}

impl MessageEntry {
    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The message, to [deliver](Message::deliver) a received datagram.
    pub fn message_mut(&mut self) -> &mut Message {
        &mut self.message
    }

    /// The number of bytes that were received or sent, or the error.
    pub fn result(&self) -> OsResult {
        match self.result {
            code if code < 0 => Err(-code),
            count => Ok(count as u32),
        }
    }

    /// Sets the number of bytes that were received or sent, or the error.
    pub fn set_result(&mut self, result: OsResult) {
        self.result = match result {
            Ok(count) => count as i32,
            Err(code) => -code,
        };
    }
}

/// Performs one call per message until one would block or fails. Returns how many entries have a result.
pub(crate) fn one_by_one(
    entries: &mut [MessageEntry],
    mut call: impl FnMut(&mut MessageEntry) -> Option<OsResult>,
) -> usize {
    for (index, entry) in entries.iter_mut().enumerate() {
        let Some(result) = call(entry) else { return index };
        entry.set_result(result);
        if result.is_err() {
            return index + 1;
        }
    }
    entries.len()
}

/// As [`recv_batch`](super::recv_batch), with a call for each message.
///
/// # Safety
///
/// The memory that the messages point to may be written, and nothing else uses it during the call.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn recv_one_by_one(fd: super::Fd, entries: &mut [MessageEntry]) -> usize {
    // SAFETY: the caller's promise.
    one_by_one(entries, |entry| unsafe {
        super::recv_message(fd, &raw mut entry.message)
    })
}

/// As [`send_batch`](super::send_batch), with a call for each message.
///
/// # Safety
///
/// The memory that the messages point to is valid and does not change during the call.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn send_one_by_one(fd: super::Fd, entries: &mut [MessageEntry]) -> usize {
    // SAFETY: the caller's promise.
    one_by_one(entries, |entry| unsafe {
        super::send_message(fd, &raw const entry.message)
    })
}

/// The headers of a batch, and the memory that they point to, except for the bytes.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "headers point into the box, which must not move")]
pub(crate) struct MsgBatchBuf {
    headers: Vec<Box<MsgHdrBuf>>,
    entries: Vec<MessageEntry>,
}

/// One message to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) bytes: IoVec,
    pub(crate) to: Option<&'a Name>,
    /// The kernel splits the bytes into datagrams of this length: see [`MsgHdrBuf::set_segment_size`].
    pub(crate) segment_size: Option<u16>,
}

impl MsgBatchBuf {
    /// Makes room for `count` messages, and forgets earlier ones.
    fn begin(&mut self, count: usize) {
        self.entries.clear();
        self.entries.reserve(count);
        while self.headers.len() < count {
            self.headers.push(MsgHdrBuf::new());
        }
    }

    /// Prepares a receive into each of the buffers. The entries are valid while the buffers are, until the next call of
    /// a method.
    pub(crate) fn prepare_receive(
        &mut self,
        buffers: impl ExactSizeIterator<Item = IoVec>,
        wants_segment_size: bool,
    ) -> &mut [MessageEntry] {
        self.begin(buffers.len());
        for (header, buffer) in self.headers.iter_mut().zip(buffers) {
            header.reserve_descriptors(0);
            if wants_segment_size {
                header.reserve_segment_size();
            }
            let message = header.ready_to_receive(buffer.base, buffer.len);
            // SAFETY: the pointer is to a header of this batch, which is borrowed mutably.
            let message = unsafe { (*message).duplicate() };
            self.entries.push(MessageEntry { message, result: 0 });
        }
        &mut self.entries
    }

    /// Prepares to send these messages, as many as `most`. The entries are valid while the bytes are, until the next
    /// call of a method.
    pub(crate) fn prepare_send<'a>(
        &mut self,
        messages: impl Iterator<Item = Outgoing<'a>>,
        most: usize,
    ) -> &mut [MessageEntry] {
        self.begin(most);
        for (header, outgoing) in self.headers.iter_mut().zip(messages.take(most)) {
            header.address(outgoing.to);
            header.set_descriptors(Vec::new());
            if let Some(size) = outgoing.segment_size {
                header.set_segment_size(size);
            }
            let message = header.ready_to_send(outgoing.bytes.base, outgoing.bytes.len);
            // SAFETY: as in `prepare_receive`.
            let message = unsafe { (*message).duplicate() };
            self.entries.push(MessageEntry { message, result: 0 });
        }
        &mut self.entries
    }

    /// The result of a message.
    pub(crate) fn result(&self, index: usize) -> OsResult {
        self.entries[index].result()
    }

    /// The metadata of a received message. Call it once, after the receive.
    pub(crate) fn open(&mut self, index: usize) -> MsgMeta {
        let header = &mut self.headers[index];
        header.restore(&self.entries[index].message);
        header.open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_ends_a_batch_and_has_a_result() {
        let mut batch = MsgBatchBuf::default();
        let empty = (0..4).map(|_| IoVec::EMPTY).collect::<Vec<_>>();
        let entries = batch.prepare_receive(empty.into_iter(), false);
        let mut results = [Some(Ok(3)), Some(Err(7)), Some(Ok(5)), None].into_iter();
        assert_eq!(one_by_one(entries, |_| results.next().flatten()), 2);
        assert_eq!((entries[0].result(), entries[1].result()), (Ok(3), Err(7)));
        assert_eq!(one_by_one(entries, |_| results.next().flatten()), 1);
        assert_eq!(one_by_one(entries, |_| results.next().flatten()), 0);
        assert_eq!(one_by_one(entries, |_| Some(Ok(1))), 4);
    }
}
