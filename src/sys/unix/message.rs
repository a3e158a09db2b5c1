//! Message headers: `msghdr`, and the memory that it points to.
//!
//! `sendmsg` and `recvmsg` take a `msghdr`, which points to the bytes, to the peer's address and to a control buffer
//! for the descriptors that are passed along. A [`MsgHdrBuf`] keeps the header, the address and the control buffer in
//! one box, because the kernel uses them by address while an operation is in flight. The operation owns the box until
//! it completes; the socket then reuses it.
//!
//! Received descriptors are numbers in the control buffer until [`open`](MsgHdrBuf::open) takes ownership of them. A
//! `MsgHdrBuf` that is dropped before that closes them, so a receive whose result is discarded leaks none.

#![allow(
    clippy::unnecessary_cast,
    reason = "the lengths are of different types on different systems"
)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use super::{IoVec, Name, udp};
use crate::sys::MsgMeta;

/// A message's header: on Unix, a `msghdr`. A driver that uses the kernel's sockets casts the pointer and hands it to
/// `sendmsg` or `recvmsg`, which also carries the descriptors that are passed along.
#[repr(transparent)]
pub struct Message(libc::msghdr);

/// The flag of `recvmsg` that makes received descriptors close-on-exec. Without it, [`adopt`] sets close-on-exec.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const RECEIVE_FLAGS: libc::c_int = libc::MSG_CMSG_CLOEXEC;
#[cfg(target_vendor = "apple")]
pub(crate) const RECEIVE_FLAGS: libc::c_int = 0;

/// The most descriptors that Linux passes with one message (`SCM_MAX_FD`).
pub(crate) const MOST_DESCRIPTORS: usize = 253;

/// Whether a send on a Unix datagram socket failed because the receiver's queue is full. Linux reports EAGAIN; the BSDs
/// report ENOBUFS, and the socket stays writable.
pub(crate) fn is_full_queue(code: i32) -> bool {
    code == libc::EAGAIN || (code == libc::ENOBUFS && !cfg!(target_os = "linux"))
}

/// A message header and the memory that it points to, except for the bytes.
pub(crate) struct MsgHdrBuf {
    message: Message,
    slice: IoVec,
    name: libc::sockaddr_storage,
    /// The control buffer, in words for its alignment. After a receive it owns the received descriptors until
    /// [`open`](MsgHdrBuf::open).
    control: Vec<u64>,
    /// The length of the control message, which may be less than the buffer's: macOS rejects trailing bytes.
    control_len: usize,
    /// The descriptors to send: open until [`take_descriptors`](MsgHdrBuf::take_descriptors).
    descriptors: Vec<OwnedFd>,
    /// Whether the control buffer is for a receive, so that its numbers are descriptors of ours.
    receives: bool,
}

impl MsgHdrBuf {
    pub(crate) fn new() -> Box<MsgHdrBuf> {
        Box::new(MsgHdrBuf {
            message: Message(super::message(std::ptr::null(), 0)),
            slice: IoVec::EMPTY,
            // SAFETY: zeroes are an address of no family.
            name: unsafe { std::mem::MaybeUninit::zeroed().assume_init() },
            control: Vec::new(),
            control_len: 0,
            descriptors: Vec::new(),
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

    /// Sets the descriptors to send, and writes the control message for them. They stay open until
    /// [`take_descriptors`](MsgHdrBuf::take_descriptors).
    pub(crate) fn set_descriptors(&mut self, descriptors: Vec<OwnedFd>) {
        // The control buffer now holds numbers that the caller owns: `drop` must not close them.
        self.receives = false;
        self.control.clear();
        self.control_len = 0;
        self.descriptors = descriptors;
        if self.descriptors.is_empty() {
            return;
        }
        let bytes = size_of_val(&*self.descriptors) as u32;
        // SAFETY: these two only compute.
        let (space, len) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        self.control.resize((space as usize).div_ceil(8), 0);
        self.message.0.msg_control = self.control.as_mut_ptr().cast();
        self.message.0.msg_controllen = space as _;
        self.control_len = space as usize;
        let numbers: Vec<RawFd> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
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

    /// Returns the descriptors that were set. Call it after the send has completed.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Sizes the control buffer for a receive of this many descriptors.
    pub(crate) fn reserve_descriptors(&mut self, descriptors: usize) {
        self.control.clear();
        if descriptors > 0 {
            let bytes = descriptors.min(MOST_DESCRIPTORS) * size_of::<RawFd>();
            // SAFETY: this only computes.
            let space = unsafe { libc::CMSG_SPACE(bytes as u32) } as usize;
            self.control.resize(space.div_ceil(8), 0);
        }
        self.control_len = size_of_val(&*self.control);
    }

    /// Makes the kernel split the bytes into datagrams of this length; the last may be shorter. Call it after
    /// [`set_descriptors`](MsgHdrBuf::set_descriptors) with none, and only if the kernel supports `UDP_SEGMENT`.
    pub(crate) fn set_segment_size(&mut self, size: u16) {
        let Some((level, kind)) = udp::SEGMENT else { return };
        let bytes = size_of::<u16>() as u32;
        // SAFETY: these two only compute.
        let (space, len) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        self.control.resize((space as usize).div_ceil(8), 0);
        self.message.0.msg_control = self.control.as_mut_ptr().cast();
        self.message.0.msg_controllen = space as _;
        self.control_len = space as usize;
        // SAFETY: the control buffer has `space` bytes, which hold one header and the number behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&self.message.0);
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = len as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(size);
        }
    }

    /// Sizes the control buffer for the segment size of coalesced datagrams.
    pub(crate) fn reserve_segment_size(&mut self) {
        self.control.clear();
        if udp::GRO.is_some() {
            // SAFETY: this only computes.
            let space = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as usize;
            self.control.resize(space.div_ceil(8), 0);
        }
        self.control_len = size_of_val(&*self.control);
    }

    /// Takes back a header that a call has filled and that was [duplicated](Message::duplicate) from this buffer's.
    pub(crate) fn restore(&mut self, filled: &Message) {
        self.message = filled.duplicate();
    }

    /// Prepares to send these bytes. Call it at the buffer's final address.
    pub(crate) fn ready_to_send(&mut self, ptr: *const u8, len: usize) -> *const Message {
        self.receives = false;
        let name_len = self.message.0.msg_namelen;
        self.set_pointers(ptr.cast_mut(), len, name_len);
        &raw const self.message
    }

    /// Prepares to receive into this memory; if null, the driver chooses the buffer. Call it at the final address.
    pub(crate) fn ready_to_receive(&mut self, ptr: *mut u8, len: usize) -> *mut Message {
        self.receives = true;
        self.set_pointers(ptr, len, size_of::<libc::sockaddr_storage>() as _);
        &raw mut self.message
    }

    fn set_pointers(&mut self, ptr: *mut u8, len: usize, name_len: libc::socklen_t) {
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

    /// Returns a received message's metadata, and ownership of its descriptors. Call it after the operation has
    /// completed.
    pub(crate) fn open(&mut self) -> MsgMeta {
        // The box may have moved since, and moving it invalidates pointers into it (aliasing).
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
    /// Closes received descriptors that were not taken.
    fn drop(&mut self) {
        if self.receives && !self.control.is_empty() {
            drop(self.open());
        }
    }
}

impl Message {
    /// Another header with the same pointers, for an array of them.
    pub(crate) fn duplicate(&self) -> Message {
        Message(self.0)
    }

    /// The bytes to send, or the memory to receive into: one slice, empty for
    /// [`Op::RecvMessageManaged`](crate::driver::Op::RecvMessageManaged).
    ///
    /// # Safety
    ///
    /// The memory that the header points to is valid and does not change during the call.
    pub unsafe fn bytes(&self) -> IoVec {
        match self.0.msg_iovlen {
            0 => IoVec::EMPTY,
            // SAFETY: the caller's promise; a message has one slice.
            _ => unsafe { self.0.msg_iov.cast::<IoVec>().read() },
        }
    }

    /// The address of the recipient or the sender, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub unsafe fn name(&self) -> Option<Name> {
        let len = (self.0.msg_namelen as usize).min(size_of::<libc::sockaddr_storage>());
        if self.0.msg_name.is_null() || len == 0 {
            return None;
        }
        // SAFETY: the caller's promise: `len` bytes are there.
        Name::from_bytes(unsafe { std::slice::from_raw_parts(self.0.msg_name.cast(), len) })
    }

    /// Sets a received message's sender, and whether the buffer was too small. The driver has written the bytes to
    /// [`bytes`](Message::bytes), or to a buffer of its pool, and completes the operation with their count.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes), and the header has space for a name.
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

    /// Duplicates of the descriptors to send.
    ///
    /// # Safety
    ///
    /// As for [`bytes`](Message::bytes).
    pub(crate) unsafe fn duplicate_descriptors(&self) -> Result<Vec<OwnedFd>, i32> {
        let mut duplicates = Vec::new();
        if self.0.msg_control.is_null() || self.0.msg_controllen == 0 {
            return Ok(duplicates);
        }
        // SAFETY: the caller's promise: `set_descriptors` wrote one control message with the numbers of open
        // descriptors, which are borrowed for as long as they are duplicated.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&self.0);
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
            let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
            for at in 0..count {
                let borrowed = BorrowedFd::borrow_raw(numbers.add(at).read_unaligned());
                let duplicate = borrowed.try_clone_to_owned();
                duplicates.push(duplicate.map_err(|error| error.raw_os_error().unwrap_or(libc::EBADF))?);
            }
        }
        Ok(duplicates)
    }

    /// As [`deliver`](Message::deliver), with descriptors, which now belong to the message. Those that there is no
    /// space for are closed.
    ///
    /// # Safety
    ///
    /// As for [`deliver`](Message::deliver).
    pub(crate) unsafe fn deliver_with(
        &mut self,
        sender: Option<&Name>,
        is_truncated: bool,
        mut descriptors: Vec<OwnedFd>,
    ) {
        let space = match self.0.msg_control.is_null() {
            true => 0,
            false => self.0.msg_controllen as usize,
        };
        match sender {
            // SAFETY: the caller's promise.
            Some(sender) => unsafe { self.deliver(sender, is_truncated) },
            None => {
                self.0.msg_namelen = 0;
                self.0.msg_controllen = 0;
                self.0.msg_flags = 0;
            }
        }
        // SAFETY: this only computes.
        let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
        let most = space.saturating_sub(overhead) / size_of::<RawFd>();
        if descriptors.len() > most {
            descriptors.truncate(most);
            self.0.msg_flags |= libc::MSG_CTRUNC;
        }
        if descriptors.is_empty() {
            return;
        }
        self.0.msg_controllen = space as _;
        let bytes = size_of_val(&*descriptors) as u32;
        // SAFETY: the control buffer has `space` bytes, which hold one header and the numbers behind it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&self.0);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
            for (at, descriptor) in descriptors.into_iter().enumerate() {
                numbers.add(at).write_unaligned(descriptor.into_raw_fd());
            }
        }
    }

    /// Makes the header point to this buffer during `call`.
    #[cfg(feature = "reactor")]
    pub(crate) fn with_buffer<T>(&mut self, base: *mut u8, len: usize, call: impl FnOnce(*mut Message) -> T) -> T {
        let mut slice = IoVec { base, len };
        self.0.msg_iov = (&raw mut slice).cast();
        self.0.msg_iovlen = 1;
        let result = call(&raw mut *self);
        self.0.msg_iov = std::ptr::null_mut();
        self.0.msg_iovlen = 0;
        result
    }

    /// Returns the metadata, and ownership of the received descriptors.
    ///
    /// # Safety
    ///
    /// The memory that the header points to is valid and not used otherwise; the last call that filled it has ended.
    pub(crate) unsafe fn open(&mut self) -> MsgMeta {
        let mut meta = MsgMeta {
            // SAFETY: the caller's promise.
            sender: unsafe { self.name() },
            is_truncated: self.0.msg_flags & libc::MSG_TRUNC != 0,
            segment_size: None,
            lost_descriptors: self.0.msg_flags & libc::MSG_CTRUNC != 0,
            descriptors: Vec::new(),
        };
        let room = self.0.msg_controllen as usize;
        if self.0.msg_control.is_null() || room == 0 {
            return meta;
        }
        // SAFETY: the caller's promise. The control buffer was zeroed before the call, so the kernel wrote the rest,
        // and a header of length 0 ends it. Each number is a new descriptor without another owner, and zeroing the
        // buffer keeps a second call from adopting it again.
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
                        meta.descriptors.push(adopt(numbers.add(at).read_unaligned()));
                    }
                }
                if udp::GRO == Some((part.cmsg_level, part.cmsg_type)) {
                    let size = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                    meta.segment_size = u16::try_from(size).ok().filter(|size| *size > 0);
                }
                header = libc::CMSG_NXTHDR(&self.0, header);
            }
            std::ptr::write_bytes(self.0.msg_control.cast::<u8>(), 0, room);
        }
        self.0.msg_controllen = 0;
        meta
    }
}

/// Takes ownership of a received descriptor, and makes it close-on-exec if `recvmsg` could not.
///
/// # Safety
///
/// The kernel has just returned this number, and nothing else owns it.
unsafe fn adopt(number: RawFd) -> OwnedFd {
    // SAFETY: the caller's promise.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    if RECEIVE_FLAGS == 0 {
        // SAFETY: the descriptor is open, and this touches no memory of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    descriptor
}
