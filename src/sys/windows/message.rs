//! Messages: bytes with an address.
//!
//! Winsock writes the sender's address and its length while a receive is in flight. So both are in the header inside a
//! [`MsgHdrBuf`], one box that the operation owns and the socket reuses. Windows cannot pass descriptors in a message.

use windows_sys::Win32::Networking::WinSock::{SOCKADDR, SOCKADDR_STORAGE};

use super::{Foreign, IoVec, Name};
use crate::sys::MsgMeta;

/// A message header: the peer's address, and a pointer to the bytes.
pub struct Message {
    name: SOCKADDR_STORAGE,
    name_len: i32,
    bytes: IoVec,
    /// The datagram was larger than the buffer.
    pub(super) is_truncated: bool,
}

/// A message header and the memory that it points to, except for the bytes.
pub(crate) struct MsgHdrBuf(Message);

/// The maximum length of an address.
const NAME_LEN: i32 = size_of::<SOCKADDR_STORAGE>() as i32;

impl MsgHdrBuf {
    pub(crate) fn new() -> Box<MsgHdrBuf> {
        Box::new(MsgHdrBuf(Message {
            // SAFETY: zeroes are a valid address, of unspecified family.
            name: unsafe { std::mem::MaybeUninit::zeroed().assume_init() },
            name_len: 0,
            bytes: IoVec::EMPTY,
            is_truncated: false,
        }))
    }

    /// Sets the destination; `None` is the peer that the socket is connected to.
    pub(crate) fn address(&mut self, to: Option<&Name>) {
        match to {
            Some(to) => self.0.set_name(to),
            None => self.0.name_len = 0,
        }
    }

    pub(crate) fn set_descriptors(&mut self, _descriptors: Vec<Foreign>) {}

    pub(crate) fn take_descriptors(&mut self) -> Vec<Foreign> {
        Vec::new()
    }

    pub(crate) fn reserve_descriptors(&mut self, _descriptors: usize) {}

    /// Never called: the loop splits datagrams itself.
    pub(crate) fn set_segment_size(&mut self, _size: u16) {}

    pub(crate) fn reserve_segment_size(&mut self) {}

    /// Takes back a header that a call has filled and that was [duplicated](Message::duplicate) from this buffer's.
    pub(crate) fn restore(&mut self, filled: &Message) {
        self.0 = filled.duplicate();
    }

    /// Prepares to send these bytes. Call it at the buffer's final address.
    pub(crate) fn ready_to_send(&mut self, ptr: *const u8, len: usize) -> *const Message {
        let base = ptr.cast_mut();
        self.0.bytes = IoVec { base, len };
        &raw const self.0
    }

    /// Prepares to receive into this memory; if null, the driver chooses the buffer. Call it at the final address.
    pub(crate) fn ready_to_receive(&mut self, ptr: *mut u8, len: usize) -> *mut Message {
        self.0.bytes = IoVec { base: ptr, len };
        self.0.name_len = NAME_LEN;
        self.0.is_truncated = false;
        &raw mut self.0
    }

    /// Returns a received message's metadata. Call it after the operation has completed.
    pub(crate) fn open(&mut self) -> MsgMeta {
        // SAFETY: the buffer is borrowed mutably, and the operation has completed.
        unsafe { self.0.open() }
    }
}

impl Message {
    /// Another header with the same contents, for an array of them.
    pub(crate) fn duplicate(&self) -> Message {
        Message {
            name: self.name,
            name_len: self.name_len,
            bytes: self.bytes,
            is_truncated: self.is_truncated,
        }
    }

    /// The bytes to send, or the memory to receive into: one slice, empty for
    /// [`Op::RecvMessageManaged`](crate::driver::Op::RecvMessageManaged).
    ///
    /// # Safety
    ///
    /// The message does not change during the call.
    pub unsafe fn bytes(&self) -> IoVec {
        self.bytes
    }

    /// The address of the recipient or the sender, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn name(&self) -> Option<Name> {
        if self.name_len == 0 || self.name.ss_family == 0 {
            return None;
        }
        let len = self.name_len.min(NAME_LEN) as usize;
        // SAFETY: the length is limited to the storage's size, and zeroes are valid bytes of an address.
        Name::from_bytes(unsafe { std::slice::from_raw_parts((&raw const self.name).cast(), len) })
    }

    /// The destination for a send: null if there is none.
    pub(crate) fn destination(&self) -> (*const SOCKADDR, i32) {
        match self.name_len {
            0 => (std::ptr::null(), 0),
            len => ((&raw const self.name).cast(), len),
        }
    }

    /// The memory where a receive writes the sender's address and its length.
    ///
    /// # Safety
    ///
    /// The caller may write to the message for as long as the pointers are used.
    pub(crate) unsafe fn sender_place(message: *mut Message) -> (*mut SOCKADDR, *mut i32) {
        // SAFETY: the caller's promise. No reference is created.
        unsafe {
            (*message).name.ss_family = 0;
            (*message).name_len = NAME_LEN;
            ((&raw mut (*message).name).cast(), &raw mut (*message).name_len)
        }
    }

    fn set_name(&mut self, name: &Name) {
        let len = name.len().min(NAME_LEN);
        // SAFETY: the length is limited to the storage's size, and the two do not overlap.
        unsafe {
            let place = (&raw mut self.name).cast::<u8>();
            std::ptr::copy_nonoverlapping(name.as_ptr().cast::<u8>(), place, len as usize);
        }
        self.name_len = len;
    }

    /// Sets a received message's sender, and whether the buffer was too small. The driver has written the bytes to
    /// [`bytes`](Message::bytes), or to a buffer of its pool, and completes the operation with their count.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn deliver(&mut self, sender: &Name, is_truncated: bool) {
        self.set_name(sender);
        self.is_truncated = is_truncated;
    }

    /// None: Windows cannot pass descriptors in a message.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub(crate) unsafe fn duplicate_descriptors(&self) -> Result<Vec<Foreign>, i32> {
        Ok(Vec::new())
    }

    /// As [`deliver`](Message::deliver), for a message that may have no sender.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub(crate) unsafe fn deliver_with(&mut self, sender: Option<&Name>, is_truncated: bool, _none: Vec<Foreign>) {
        match sender {
            // SAFETY: the caller's promise.
            Some(sender) => unsafe { self.deliver(sender, is_truncated) },
            None => self.name_len = 0,
        }
    }

    /// Makes the header point to this buffer during `call`.
    pub(crate) fn with_buffer<T>(&mut self, base: *mut u8, len: usize, call: impl FnOnce(*mut Message) -> T) -> T {
        self.bytes = IoVec { base, len };
        let result = call(&raw mut *self);
        self.bytes = IoVec::EMPTY;
        result
    }

    /// Returns the metadata.
    ///
    /// # Safety
    ///
    /// Nothing else uses the message, and the call that filled it has ended.
    pub(crate) unsafe fn open(&mut self) -> MsgMeta {
        MsgMeta {
            // SAFETY: the caller's promise.
            sender: unsafe { self.name() },
            is_truncated: self.is_truncated,
            ..MsgMeta::default()
        }
    }
}
