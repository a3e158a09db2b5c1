//! Messages: bytes with an address.
//!
//! Winsock writes the sender's name, and how long that is, while the receive is under way. So both live in the header
//! that a [`MsgHdrBuf`] carries, in one box, which a flight carries and a socket uses again. Descriptors cannot be
//! passed along here.

use std::io;

use windows_sys::Win32::Networking::WinSock::{SOCKADDR, SOCKADDR_STORAGE};

use super::{Foreign, IoVec, Name};

/// A message's header: its name and where its bytes are.
pub struct Message {
    name: SOCKADDR_STORAGE,
    name_len: i32,
    bytes: IoVec,
    is_truncated: bool,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

/// What came with a message beside its bytes.
#[derive(Debug, Default)]
pub(crate) struct MsgMeta {
    /// Who sent it, where that has a name.
    pub(crate) sender: Option<Name>,
    /// Whether bytes were cut off that found no room.
    pub(crate) is_truncated: bool,
}

impl MsgMeta {
    /// None come here.
    pub(crate) fn with_at_most(self, _descriptors: usize) -> MsgMeta {
        self
    }
}

/// Descriptors that are passed along with a message: never any.
pub(crate) type Enclosure = Vec<Foreign>;

/// Everything of a message, except the bytes.
pub(crate) struct MsgHdrBuf {
    message: Message,
}

/// How much room there is for a name.
const NAME_LEN: i32 = size_of::<SOCKADDR_STORAGE>() as i32;

impl MsgHdrBuf {
    pub(crate) fn new() -> Box<MsgHdrBuf> {
        Box::new(MsgHdrBuf {
            message: Message {
                // SAFETY: zeroes are an address of no family.
                name: unsafe { std::mem::MaybeUninit::zeroed().assume_init() },
                name_len: 0,
                bytes: IoVec {
                    base: std::ptr::null_mut(),
                    len: 0,
                },
                is_truncated: false,
            },
        })
    }

    /// Sets the destination; `None` is the peer that the socket is connected to.
    pub(crate) fn address(&mut self, to: Option<&Name>) {
        self.message.name_len = 0;
        if let Some(to) = to {
            // SAFETY: the letter is borrowed whole, and its name has room for any.
            unsafe { self.message.set_name(to) };
        }
    }

    pub(crate) fn enclose(&mut self, _descriptors: Enclosure) {}

    pub(crate) fn take_enclosed(&mut self) -> Enclosure {
        Vec::new()
    }

    pub(crate) fn make_room(&mut self, _descriptors: usize) {}

    /// Ready to be sent, with these bytes. To be called where the letter stays.
    pub(crate) fn ready_to_send(&mut self, ptr: *const u8, len: usize) -> *const Message {
        self.message.bytes = IoVec {
            base: ptr.cast_mut(),
            len,
        };
        &raw const self.message
    }

    /// Ready to be filled, with the bytes going there; null lets the driver choose. To be called where the letter
    /// stays.
    pub(crate) fn ready_to_receive(&mut self, ptr: *mut u8, len: usize) -> *mut Message {
        self.message.bytes = IoVec { base: ptr, len };
        self.message.name_len = NAME_LEN;
        self.message.is_truncated = false;
        &raw mut self.message
    }

    /// Takes a received message's metadata out. To be called after the operation's completion.
    pub(crate) fn open(&mut self) -> MsgMeta {
        // SAFETY: the buffer is borrowed whole, and the operation has completed.
        unsafe { self.message.open() }
    }
}

impl Message {
    /// Where the bytes to send are, or where received ones go: one slice, which is empty for
    /// [`Op::RecvMessageManaged`](crate::driver::Op::RecvMessageManaged).
    ///
    /// # Safety
    ///
    /// The message does not change during the call.
    pub unsafe fn bytes(&self) -> IoVec {
        self.bytes
    }

    /// The name that it is addressed to, or came from; `None` if that has none.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn name(&self) -> Option<Name> {
        if self.name_len == 0 || self.name.ss_family == 0 {
            return None;
        }
        // SAFETY: the storage is as long as the target's, and the length that was written is no more.
        let filled = unsafe {
            socket2::SockAddr::try_init(|storage, len| {
                storage.cast::<SOCKADDR_STORAGE>().write(self.name);
                len.write(self.name_len.min(NAME_LEN));
                io::Result::Ok(())
            })
        };
        filled.ok().map(|((), name)| Name::from(name))
    }

    /// Where the name is, for a send: null if there is none.
    pub(crate) fn destination(&self) -> (*const SOCKADDR, i32) {
        match self.name_len {
            0 => (std::ptr::null(), 0),
            len => ((&raw const self.name).cast(), len),
        }
    }

    /// Where a receive writes the sender's name, and its length.
    ///
    /// # Safety
    ///
    /// The message is the caller's to write to for as long as the pointers are used.
    pub(crate) unsafe fn sender_place(message: *mut Message) -> (*mut SOCKADDR, *mut i32) {
        // SAFETY: the caller's promise; these are addresses, no references.
        unsafe {
            (*message).name.ss_family = 0;
            (*message).name_len = NAME_LEN;
            ((&raw mut (*message).name).cast(), &raw mut (*message).name_len)
        }
    }

    /// A receive has found more bytes than room.
    pub(crate) fn cut_off(&mut self) {
        self.is_truncated = true;
    }

    /// # Safety
    ///
    /// Nothing else uses the message.
    unsafe fn set_name(&mut self, name: &Name) {
        let len = name.len().min(NAME_LEN);
        // SAFETY: a name is no longer than the storage for any name; the two do not overlap.
        unsafe {
            let place = (&raw mut self.name).cast::<u8>();
            std::ptr::copy_nonoverlapping(name.as_ptr().cast::<u8>(), place, len as usize);
        }
        self.name_len = len;
    }

    /// Fills in a received message's sender, and whether bytes were lost for lack of room. The driver has written the
    /// bytes to [`bytes`](Message::bytes), or to a buffer of its pool, and completes the operation with their count.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn deliver(&mut self, sender: &Name, is_truncated: bool) {
        // SAFETY: the caller's promise.
        unsafe { self.set_name(sender) };
        self.is_truncated = is_truncated;
    }

    /// Lets the bytes go elsewhere for the length of a call.
    pub(crate) fn divert<T>(&mut self, slice: &mut IoVec, call: impl FnOnce(*mut Message) -> T) -> T {
        self.bytes = *slice;
        let result = call(&raw mut *self);
        self.bytes = IoVec {
            base: std::ptr::null_mut(),
            len: 0,
        };
        result
    }

    /// Takes out what came with the bytes.
    ///
    /// # Safety
    ///
    /// Nothing else uses the message; the last call that filled it has ended.
    pub(crate) unsafe fn open(&mut self) -> MsgMeta {
        MsgMeta {
            // SAFETY: the caller's promise.
            sender: unsafe { self.name() },
            is_truncated: self.is_truncated,
        }
    }
}
