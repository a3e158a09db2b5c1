//! Messages: bytes with an address and, on Unix sockets, with descriptors.
//!
//! The kernel sends and receives them through a `msghdr`, which points to the bytes, to the other socket's name and to
//! a control buffer for the descriptors. A [`MsgHdrBuf`] holds all of these in one box, which the operation owns while
//! it is in flight and the socket reuses afterwards.

#![allow(
    clippy::unnecessary_cast,
    reason = "the lengths are of different types on different systems"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::{IoVec, Name};

/// A message's header: on Unix, a `msghdr`. A driver that uses the kernel's sockets casts the pointer and hands it to
/// `sendmsg` or `recvmsg`, which also carries the descriptors that are passed along.
#[repr(transparent)]
pub struct Message(libc::msghdr);

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

/// A received message's metadata.
#[derive(Debug, Default)]
pub(crate) struct MsgMeta {
    /// The sender, if it has a name.
    pub(crate) sender: Option<Name>,
    /// Whether the buffer was too small for all bytes.
    pub(crate) is_truncated: bool,
    /// Whether the control buffer was too small for all descriptors.
    pub(crate) lost_descriptors: bool,
    pub(crate) descriptors: Enclosure,
}

impl MsgMeta {
    /// Closes what is more than this many. The room for one is, padded, room for two; and an earlier receive may have
    /// made more room than the one that gets it.
    pub(crate) fn with_at_most(mut self, descriptors: usize) -> MsgMeta {
        self.lost_descriptors |= self.descriptors.len() > descriptors;
        self.descriptors.truncate(descriptors);
        self
    }
}

/// Descriptors that are passed along with a message.
pub(crate) type Enclosure = Vec<OwnedFd>;

/// Descriptors that come are closed on exec. Where the flag is missing it is set afterwards.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const RECEIVE_FLAGS: libc::c_int = libc::MSG_CMSG_CLOEXEC;
#[cfg(target_vendor = "apple")]
pub(crate) const RECEIVE_FLAGS: libc::c_int = 0;

/// The most descriptors that Linux passes with one message.
pub(crate) const MOST_DESCRIPTORS: usize = 253;

/// Whether a send of a datagram within the machine failed only because the other's queue is full. BSDs do not say that
/// one can wait for it.
pub(crate) fn is_full_queue(code: i32) -> bool {
    code == libc::EAGAIN || (code == libc::ENOBUFS && !cfg!(target_os = "linux"))
}

/// Everything that a message's header points to, except the bytes.
pub(crate) struct MsgHdrBuf {
    message: Message,
    slice: IoVec,
    name: libc::sockaddr_storage,
    /// The control buffer. Between a receive and [`open`](MsgHdrBuf::open) it owns the descriptors that were received.
    control: Vec<u64>,
    /// How many bytes of it count. To be exact: macOS refuses descriptors with anything behind them.
    control_len: usize,
    /// What is sent along, which stays open until then.
    enclosed: Enclosure,
    receives: bool,
}

impl MsgHdrBuf {
    pub(crate) fn new() -> Box<MsgHdrBuf> {
        Box::new(MsgHdrBuf {
            message: Message(super::message(std::ptr::null(), 0)),
            slice: IoVec {
                base: std::ptr::null_mut(),
                len: 0,
            },
            // SAFETY: zeroes are an address of no family.
            name: unsafe { std::mem::MaybeUninit::zeroed().assume_init() },
            control: Vec::new(),
            control_len: 0,
            enclosed: Vec::new(),
            receives: false,
        })
    }

    /// Sets the destination; `None` is the peer that the socket is connected to.
    pub(crate) fn address(&mut self, to: Option<&Name>) {
        self.message.0.msg_namelen = to.map_or(0, Name::len);
        if let Some(to) = to {
            // SAFETY: a name is no longer than the storage for any name; the two do not overlap.
            unsafe {
                let place = (&raw mut self.name).cast::<u8>();
                std::ptr::copy_nonoverlapping(to.as_ptr().cast::<u8>(), place, to.len() as usize);
            }
        }
    }

    /// Puts descriptors in, which stay open until they are [taken out](MsgHdrBuf::take_enclosed).
    pub(crate) fn enclose(&mut self, descriptors: Enclosure) {
        // From here on the numbers in there are not ones that have come.
        self.receives = false;
        self.control.clear();
        self.control_len = 0;
        self.enclosed = descriptors;
        if self.enclosed.is_empty() {
            return;
        }
        let bytes = size_of_val(&*self.enclosed) as u32;
        // SAFETY: these two only compute.
        let (space, len) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        self.control.resize((space as usize).div_ceil(8), 0);
        self.message.0.msg_control = self.control.as_mut_ptr().cast();
        self.message.0.msg_controllen = space as _;
        self.control_len = space as usize;
        let numbers: Vec<RawFd> = self.enclosed.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the control buffer has `space` bytes, which hold one header and the numbers behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&self.message.0);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = len as _;
            let place = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), place, bytes as usize);
        }
    }

    /// The descriptors that were put in. To be called when the letter is sent.
    pub(crate) fn take_enclosed(&mut self) -> Enclosure {
        std::mem::take(&mut self.enclosed)
    }

    /// Makes room for this many descriptors, for a receive.
    pub(crate) fn make_room(&mut self, descriptors: usize) {
        self.control.clear();
        if descriptors > 0 {
            let bytes = descriptors.min(MOST_DESCRIPTORS) * size_of::<RawFd>();
            // SAFETY: this only computes.
            let space = unsafe { libc::CMSG_SPACE(bytes as u32) } as usize;
            self.control.resize(space.div_ceil(8), 0);
        }
        self.control_len = size_of_val(&*self.control);
    }

    /// Ready to be sent, with these bytes. To be called where the letter stays.
    pub(crate) fn ready_to_send(&mut self, ptr: *const u8, len: usize) -> *const Message {
        self.receives = false;
        let name_len = self.message.0.msg_namelen;
        self.seal(ptr.cast_mut(), len, name_len);
        &raw const self.message
    }

    /// Ready to be filled, with the bytes going there; null lets the driver choose. To be called where the letter
    /// stays.
    pub(crate) fn ready_to_receive(&mut self, ptr: *mut u8, len: usize) -> *mut Message {
        self.receives = true;
        self.seal(ptr, len, size_of::<libc::sockaddr_storage>() as _);
        &raw mut self.message
    }

    fn seal(&mut self, ptr: *mut u8, len: usize, name_len: libc::socklen_t) {
        self.slice = IoVec { base: ptr, len };
        let header = &mut self.message.0;
        header.msg_iov = (&raw mut self.slice).cast();
        header.msg_iovlen = usize::from(!ptr.is_null()) as _;
        header.msg_namelen = name_len;
        header.msg_name = match name_len {
            0 => std::ptr::null_mut(),
            _ => (&raw mut self.name).cast(),
        };
        header.msg_control = match self.control.is_empty() {
            true => std::ptr::null_mut(),
            false => self.control.as_mut_ptr().cast(),
        };
        header.msg_controllen = self.control_len as _;
        header.msg_flags = 0;
    }

    /// Takes a received message's metadata out. To be called after the operation's completion.
    pub(crate) fn open(&mut self) -> MsgMeta {
        // The buffer may have moved since, so the pointers are made anew.
        if !self.message.0.msg_name.is_null() {
            self.message.0.msg_name = (&raw mut self.name).cast();
        }
        if !self.message.0.msg_control.is_null() {
            self.message.0.msg_control = self.control.as_mut_ptr().cast();
        }
        // SAFETY: the header's pointers lead into this buffer, which is borrowed whole. The operation has completed, so
        // the kernel is done with it.
        unsafe { self.message.open() }
    }
}

impl Drop for MsgHdrBuf {
    /// Closes received descriptors that were not taken out.
    fn drop(&mut self) {
        if self.receives && !self.control.is_empty() {
            drop(self.open());
        }
    }
}

impl Message {
    /// Where the bytes to send are, or where received ones go: one slice, which is empty for
    /// [`Op::RecvMessageManaged`](crate::driver::Op::RecvMessageManaged).
    ///
    /// # Safety
    ///
    /// The memory that the header points to is valid and does not change during the call.
    pub unsafe fn bytes(&self) -> IoVec {
        match self.0.msg_iovlen {
            0 => IoVec {
                base: std::ptr::null_mut(),
                len: 0,
            },
            // SAFETY: the caller's promise; a message has one slice.
            _ => unsafe { self.0.msg_iov.cast::<IoVec>().read() },
        }
    }

    /// The destination or the sender; `None` if that has no name.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn name(&self) -> Option<Name> {
        let len = self.0.msg_namelen;
        if self.0.msg_name.is_null() || len == 0 {
            return None;
        }
        // SAFETY: the caller's promise: `len` bytes are there, which is no more than the storage has.
        let filled = unsafe {
            socket2::SockAddr::try_init(|storage, storage_len| {
                let most = (len as usize).min(size_of::<libc::sockaddr_storage>());
                std::ptr::copy_nonoverlapping(self.0.msg_name.cast::<u8>(), storage.cast(), most);
                storage_len.write(most as _);
                io::Result::Ok(())
            })
        };
        filled.ok().map(|((), name)| Name::from(name))
    }

    /// Fills in a received message's sender, and whether bytes were lost for lack of room. The driver has written the
    /// bytes to [`bytes`](Message::bytes), or to a buffer of its pool, and completes the operation with their count.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes), and the header has room for a name.
    pub unsafe fn deliver(&mut self, sender: &Name, is_truncated: bool) {
        // SAFETY: the caller's promise; the storage has room for any name.
        unsafe {
            let place = self.0.msg_name.cast::<u8>();
            std::ptr::copy_nonoverlapping(sender.as_ptr().cast::<u8>(), place, sender.len() as usize);
        }
        self.0.msg_namelen = sender.len();
        self.0.msg_controllen = 0;
        self.0.msg_flags = if is_truncated { libc::MSG_TRUNC } else { 0 };
    }

    /// Points the header to this slice for the length of a call.
    #[cfg(feature = "reactor")]
    pub(crate) fn divert<T>(&mut self, slice: &mut IoVec, call: impl FnOnce(*mut Message) -> T) -> T {
        self.0.msg_iov = (&raw mut *slice).cast();
        self.0.msg_iovlen = 1;
        let result = call(&raw mut *self);
        self.0.msg_iov = std::ptr::null_mut();
        self.0.msg_iovlen = 0;
        result
    }

    /// Takes out what came with the bytes; the descriptors are the caller's from now on.
    ///
    /// # Safety
    ///
    /// The memory that the header points to is valid and not used otherwise; the last call that filled it has ended.
    pub(crate) unsafe fn open(&mut self) -> MsgMeta {
        let mut meta = MsgMeta {
            // SAFETY: the caller's promise.
            sender: unsafe { self.name() },
            is_truncated: self.0.msg_flags & libc::MSG_TRUNC != 0,
            lost_descriptors: self.0.msg_flags & libc::MSG_CTRUNC != 0,
            descriptors: Vec::new(),
        };
        let room = self.0.msg_controllen as usize;
        if self.0.msg_control.is_null() || room == 0 {
            return meta;
        }
        // SAFETY: the caller's promise. The control buffer was zeroes before the call, so what is in it was put there
        // by the kernel, and a header of no length ends it. The numbers are ours alone: they are wiped once they are
        // taken.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&self.0);
            while let Some(part) = header.as_ref() {
                let empty = libc::CMSG_LEN(0) as usize;
                if (part.cmsg_len as usize) < empty {
                    break;
                }
                if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                    let count = (part.cmsg_len as usize - empty) / size_of::<RawFd>();
                    let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
                    for at in 0..count {
                        meta.descriptors.push(descriptor(numbers.add(at).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&self.0, header);
            }
            std::ptr::write_bytes(self.0.msg_control.cast::<u8>(), 0, room);
        }
        self.0.msg_controllen = 0;
        meta
    }
}

/// Takes over a descriptor that has come.
///
/// # Safety
///
/// The kernel has just given us this number.
unsafe fn descriptor(number: RawFd) -> OwnedFd {
    // SAFETY: the caller's promise.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    if RECEIVE_FLAGS == 0 {
        // SAFETY: the descriptor is open, and this touches no memory of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    descriptor
}
