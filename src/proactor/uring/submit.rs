//! Converts an op to a submission. One arm per op and no wildcard: a new op does not compile until it has an arm.

use io_uring::{opcode, squeue, types};

use super::buffers;
use super::setup::Features;
use crate::driver::op::{CURRENT, Direction, FileOp, Medium, Op};
use crate::driver::{OpId, SCRATCH_LEN, Scratch};
use crate::sys::{self, Fd, IoVec};

// An operation's scratch holds a message header.
const _: () = assert!(size_of::<libc::msghdr>() <= SCRATCH_LEN && align_of::<libc::msghdr>() <= align_of::<Scratch>());

/// A write to a closed connection returns EPIPE instead of raising SIGPIPE.
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;

/// `IORING_RECVSEND_POLL_FIRST`: poll the socket before the first attempt to receive. After a receive that took
/// everything the attempt would find nothing. It loses nothing if data has arrived since.
const POLL_FIRST: u16 = 1;

/// The submission for a managed receive or a send on a socket, the most frequent operations; `None` for all others. As those of
/// [`word_entry`], it consists of whole words, which go straight into the ring. The crate's builders write byte by byte to the
/// stack, and the copy then waits for these stores.
#[inline(always)]
pub(super) fn frequent_entry(op: &Op, id: OpId, features: &Features) -> Option<squeue::Entry> {
    match *op {
        // From buffer group 0.
        Op::RecvManaged { fd, medium, drained } if medium != Medium::Pipe => {
            let flags = squeue::Flags::BUFFER_SELECT.bits();
            Some(words(recv_head(medium, drained, flags, features), fd, 0, 0, 0, id))
        }
        // Without MSG_WAITALL: with it the kernel continues a short send by itself, and if the peer then resets,
        // reports the count so far and swallows the reset.
        Op::Send { fd, medium, ptr, len } if medium != Medium::Pipe => {
            let (head, len_and_flags) = (head(opcode::Send::CODE, 0, 0), pair(len as u64, NO_SIGNAL as u64));
            Some(words(head, fd, 0, ptr as u64, len_and_flags, id))
        }
        _ => None,
    }
}

/// The submission for a plain receive or send on a socket, or for a read of a file; `None` for all other operations.
#[inline]
pub(super) fn word_entry(op: &Op, id: OpId, features: &Features) -> Option<squeue::Entry> {
    match *op {
        Op::Recv {
            fd,
            medium,
            drained,
            ptr,
            len,
        } if medium != Medium::Pipe => {
            let head = recv_head(medium, drained, 0, features);
            Some(words(head, fd, 0, ptr as u64, pair(len as u64, 0), id))
        }
        Op::File(FileOp::ReadAt { fd, ptr, len, offset }) => {
            let head = head(opcode::Read::CODE, 0, 0);
            Some(words(head, fd, offset, ptr as u64, pair(len as u64, 0), id))
        }
        _ => frequent_entry(op, id, features),
    }
}

#[inline(always)]
fn recv_head(medium: Medium, drained: bool, flags: u8, features: &Features) -> u64 {
    // Only TCP sockets report on every kernel whether they have more data.
    let poll_first = drained && medium == Medium::Tcp && features.buffer_ring;
    head(opcode::Recv::CODE, flags, if poll_first { POLL_FIRST } else { 0 })
}

#[inline(always)]
fn words(head: u64, fd: Fd, offset: u64, addr: u64, len_and_flags: u64, id: OpId) -> squeue::Entry {
    let head = pair(head, u64::from(fd as u32));
    // Opcode, flags, ioprio, fd; offset; address; length, flags of the operation; user data; buffer group and others.
    let words = [head, offset, addr, len_and_flags, id.to_u64(), 0, 0, 0];
    // SAFETY: an entry is the kernel's `io_uring_sqe`: 64 bytes of plain numbers.
    unsafe { std::mem::transmute::<[u64; 8], squeue::Entry>(words) }
}

/// The first three fields of an entry.
const fn head(opcode: u8, flags: u8, ioprio: u16) -> u64 {
    match cfg!(target_endian = "little") {
        true => opcode as u64 | (flags as u64) << 8 | (ioprio as u64) << 16,
        false => (opcode as u64) << 24 | (flags as u64) << 16 | ioprio as u64,
    }
}

/// Two fields of 32 bits that follow each other in memory.
const fn pair(first: u64, second: u64) -> u64 {
    match cfg!(target_endian = "little") {
        true => first | second << 32,
        false => first << 32 | second,
    }
}

/// The submission for an op; `None` if this kernel has no opcode for it.
///
/// # Safety
///
/// The memory that `op` points to and `scratch` belong to the operation until it completes.
pub(super) unsafe fn entry(op: &Op, id: OpId, scratch: *mut Scratch, features: &Features) -> Option<squeue::Entry> {
    if let Some(entry) = word_entry(op, id, features) {
        return Some(entry);
    }
    // An operation without a descriptor names a path.
    let fd = types::Fd(op.fd().unwrap_or(libc::AT_FDCWD));
    let none: *mut u8 = std::ptr::null_mut();
    let is_pipe = op.medium() == Some(Medium::Pipe);
    let entry = match *op {
        Op::Accept { .. } => {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            opcode::Accept::new(fd, none.cast(), none.cast()).flags(flags).build()
        }
        Op::Connect { name, .. } => {
            // SAFETY: the operation owns the name.
            let (ptr, len) = unsafe { ((*name).as_ptr(), (*name).len()) };
            opcode::Connect::new(fd, ptr, len).build()
        }
        // These three are for pipes: `word_entry` has the others.
        Op::Recv { ptr, len, .. } => opcode::Read::new(fd, ptr, len as u32).offset(CURRENT).build(),
        Op::RecvManaged { .. } => opcode::Read::new(fd, none, 0)
            .offset(CURRENT)
            .buf_group(buffers::GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT),
        Op::Send { ptr, len, .. } => opcode::Write::new(fd, ptr, len as u32).offset(CURRENT).build(),
        Op::RecvVectored { slices, count, .. } if is_pipe => readv(fd, slices, count, CURRENT),
        Op::SendVectored { slices, count, .. } if is_pipe => writev(fd, slices, count, CURRENT),
        Op::RecvVectored { slices, count, .. } => {
            // SAFETY: the scratch is ours to write.
            let message = unsafe { message(scratch, slices, count) };
            opcode::RecvMsg::new(fd, message).build()
        }
        Op::SendVectored { slices, count, .. } => {
            // SAFETY: the scratch is ours to write.
            let message = unsafe { message(scratch, slices, count) };
            opcode::SendMsg::new(fd, message).flags(NO_SIGNAL as u32).build()
        }
        Op::RecvMessage { message, .. } => opcode::RecvMsg::new(fd, message.cast())
            .flags(sys::RECEIVE_FLAGS as u32)
            .build(),
        Op::RecvMessageManaged { message, .. } => opcode::RecvMsg::new(fd, message.cast())
            .flags(sys::RECEIVE_FLAGS as u32)
            .buf_group(buffers::GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT),
        Op::SendMessage { at_once, message, .. } => {
            let flags = NO_SIGNAL | if at_once { libc::MSG_DONTWAIT } else { 0 };
            opcode::SendMsg::new(fd, message.cast()).flags(flags as u32).build()
        }
        Op::Readiness { direction, .. } => {
            let events = match direction {
                Direction::Read => libc::POLLIN,
                Direction::Write => libc::POLLOUT,
            };
            opcode::PollAdd::new(fd, events as u32).build()
        }
        Op::LookUp { .. } => return None,
        Op::File(op) => file_entry(op, fd, features)?,
    };
    Some(entry.user_data(id.to_u64()))
}

/// The submission for a file operation; `None` if this kernel has none for it.
fn file_entry(op: FileOp, fd: types::Fd, features: &Features) -> Option<squeue::Entry> {
    let here = types::Fd(libc::AT_FDCWD);
    let entry = match op {
        FileOp::Open { path, flags, mode } => opcode::OpenAt::new(here, path)
            .flags(flags | libc::O_CLOEXEC)
            .mode(mode)
            .build(),
        FileOp::ReadAt { .. } => unreachable!("`word_entry` has built it"),
        FileOp::ReadVectoredAt {
            slices, count, offset, ..
        } => readv(fd, slices, count, offset),
        FileOp::WriteAt { ptr, len, offset, .. } => opcode::Write::new(fd, ptr, len as u32).offset(offset).build(),
        FileOp::WriteVectoredAt {
            slices, count, offset, ..
        } => writev(fd, slices, count, offset),
        FileOp::Sync { data_only, .. } => {
            let flags = if data_only {
                types::FsyncFlags::DATASYNC
            } else {
                types::FsyncFlags::empty()
            };
            opcode::Fsync::new(fd).flags(flags).build()
        }
        FileOp::Stat { fd, path, follow, out } => {
            let (fd, path, flags) = sys::stat_arguments(fd, path, follow);
            opcode::Statx::new(types::Fd(fd), path, out.cast())
                .flags(flags)
                .mask(sys::STAT_MASK)
                .build()
        }
        FileOp::Truncate { len, .. } if features.truncate => opcode::Ftruncate::new(fd, len).build(),
        FileOp::Truncate { .. } => return None,
        FileOp::Allocate { offset, len, .. } => opcode::Fallocate::new(fd, len).offset(offset).build(),
        FileOp::Rename { .. }
        | FileOp::Remove { .. }
        | FileOp::MakeDir { .. }
        | FileOp::HardLink { .. }
        | FileOp::SymLink { .. }
            if !features.paths =>
        {
            return None;
        }
        FileOp::Rename { from, to } => opcode::RenameAt::new(here, from, here, to).build(),
        FileOp::Remove { path, is_dir } => {
            let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
            opcode::UnlinkAt::new(here, path).flags(flags).build()
        }
        FileOp::MakeDir { path, mode } => opcode::MkDirAt::new(here, path).mode(mode).build(),
        FileOp::HardLink { from, to } => opcode::LinkAt::new(here, from, here, to).build(),
        FileOp::SymLink { target, link } => opcode::SymlinkAt::new(here, target, link).build(),
        // No kernel has an opcode for these.
        FileOp::ReadLink { .. }
        | FileOp::SetMode { .. }
        | FileOp::ReadDir { .. }
        | FileOp::RealPath { .. }
        | FileOp::Copy { .. }
        | FileOp::RemoveAll { .. } => return None,
    };
    Some(entry)
}

fn readv(fd: types::Fd, slices: *const IoVec, count: usize, offset: u64) -> squeue::Entry {
    let readv = opcode::Readv::new(fd, slices.cast(), count as u32);
    readv.offset(offset).build()
}

fn writev(fd: types::Fd, slices: *const IoVec, count: usize, offset: u64) -> squeue::Entry {
    let writev = opcode::Writev::new(fd, slices.cast(), count as u32);
    writev.offset(offset).build()
}

/// Writes a message header for these slices into the scratch.
///
/// # Safety
///
/// The scratch and the slices belong to the operation.
unsafe fn message(scratch: *mut Scratch, slices: *const IoVec, count: usize) -> *mut libc::msghdr {
    let message = scratch.cast::<libc::msghdr>();
    // SAFETY: the caller's promise; it fits, as asserted above.
    unsafe { message.write(sys::message(slices, count)) };
    message
}
