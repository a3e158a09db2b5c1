//! The operations of a driver.
//!
//! An [`Op`] is plain data: numbers and raw pointers, `Copy`, no generics. The typed layers above (streams, listeners,
//! files) move the descriptor and the buffer into the operation's slot first and take the pointers there. The
//! built-in drivers match without a wildcard arm, so that a new operation breaks their build; a driver in another crate
//! needs one, because the enum is `non_exhaustive`.

pub use crate::sys::{CURRENT, Direction, FileOp, Medium};
use crate::sys::{Fd, IoVec, LookUp, LookUpResult, Message, Name};

/// One operation.
///
/// The memory behind every pointer belongs to the operation's slot and stays in place until its completion. Fields with
/// the same name have the same meaning everywhere:
///
/// - `fd`: the descriptor that the operation is for: a listening socket, a socket, or for a byte stream also a pipe.
/// - `medium`: the kind of the byte stream.
/// - `ptr` and `len`: the memory that is received into or sent from, and its length in bytes, never 0.
/// - `slices` and `count`: the first of `count` slices, between 1 and [`MAX_SLICES`].
/// - `drained`: a hint: the last receive took everything that the socket had.
/// - `message`: the message's header, which says where everything is or goes.
// The tag is a byte of its own, and fields that several variants have are at the same offset in each: the tag would otherwise be
// shared with that of `FileOp` and take four instructions to decode.
#[repr(u8)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the enum's documentation describes fields that recur, a variant's the others"
)]
pub enum Op {
    /// Accepts one connection. Its result is the new descriptor's number.
    Accept { fd: Fd },
    /// Connects a socket to the peer with this name. Its result is 0.
    Connect { fd: Fd, name: *const Name },
    /// Receives into one buffer. Its result is the number of bytes; 0 is the end of the stream.
    Recv {
        medium: Medium,
        drained: bool,
        fd: Fd,
        ptr: *mut u8,
        len: usize,
    },
    /// Receives into a buffer of the loop's pool, chosen when bytes arrive. Its result is the number of bytes and the
    /// buffer, or the error `ENOBUFS` when the pool is empty.
    RecvManaged { medium: Medium, drained: bool, fd: Fd },
    /// Receives into several buffers in order. Its result is the number of bytes; 0 is the end of the stream.
    RecvVectored {
        medium: Medium,
        fd: Fd,
        slices: *const IoVec,
        count: usize,
    },
    /// Sends from one buffer. Its result is the number of bytes taken.
    Send {
        medium: Medium,
        fd: Fd,
        ptr: *const u8,
        len: usize,
    },
    /// Sends from several buffers in order. Its result is the number of bytes taken.
    SendVectored {
        medium: Medium,
        fd: Fd,
        slices: *const IoVec,
        count: usize,
    },
    /// Receives one message, with its sender's name and the descriptors passed along. Its result is the number of its
    /// bytes.
    RecvMessage { fd: Fd, message: *mut Message },
    /// [`RecvMessage`](Op::RecvMessage) into a buffer of the loop's pool, as [`RecvManaged`](Op::RecvManaged). The
    /// header has no memory for the bytes.
    RecvMessageManaged { fd: Fd, message: *mut Message },
    /// Sends one message. Its result is the number of its bytes.
    SendMessage {
        /// Whether to complete with the error `EAGAIN` instead of waiting for space.
        at_once: bool,
        fd: Fd,
        message: *const Message,
    },
    /// Waits until a descriptor, of any kind that can be waited for, is readable or writable, or has an error or
    /// hang-up; transfers no bytes. Its result is 0, from the next poll at the earliest.
    Readiness { fd: Fd, direction: Direction },
    /// Looks a host's name up. Its result is 0, and `out` is the addresses or the resolver's error.
    LookUp {
        query: *const LookUp,
        out: *mut LookUpResult,
    },
    /// An operation on a file or a path.
    File(FileOp),
}

// SAFETY: an op is plain data: sending it to another thread sends numbers. The operation's owner keeps the memory
// behind its pointers in place and does not use it until the completion, so the thread that carries the op out is the
// only one that does.
unsafe impl Send for Op {}

// Those of sockets have a word for the tag and the descriptor and two more, those of files have five.
const _: () = assert!(size_of::<Op>() <= 5 * size_of::<u64>());

/// The most slices that one vectored operation carries: the kernel's `IOV_MAX`.
pub const MAX_SLICES: usize = 1024;

/// The most bytes that one operation carries. Linux moves no more than this in one call, and it fits every kernel's
/// length field, so a length of 2 GiB or 4 GiB never wraps around on its way down.
pub const MAX_LEN: usize = 0x7fff_f000;

impl Op {
    /// The operation's name, as counters and dumps print it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Accept { .. } => "accept",
            Op::Connect { .. } => "connect",
            Op::Recv { .. } => "recv",
            Op::RecvManaged { .. } => "recv_managed",
            Op::RecvVectored { .. } => "recv_vectored",
            Op::Send { .. } => "send",
            Op::SendVectored { .. } => "send_vectored",
            Op::RecvMessage { .. } => "recv_message",
            Op::RecvMessageManaged { .. } => "recv_message_managed",
            Op::SendMessage { .. } => "send_message",
            Op::Readiness { .. } => "readiness",
            Op::LookUp { .. } => "look_up",
            Op::File(op) => op.name(),
        }
    }

    /// The descriptor that the operation is for; `None` if it names a file by its path or looks
    /// up a host's name.
    pub fn fd(&self) -> Option<Fd> {
        match self {
            Op::File(op) => op.fd(),
            op => op.waits_for().map(|(fd, _)| fd),
        }
    }

    /// The medium, for an operation on a byte stream.
    #[cfg(any(windows, all(target_os = "linux", feature = "proactor")))]
    pub(crate) fn medium(&self) -> Option<Medium> {
        match *self {
            Op::Recv { medium, .. }
            | Op::RecvManaged { medium, .. }
            | Op::RecvVectored { medium, .. }
            | Op::Send { medium, .. }
            | Op::SendVectored { medium, .. } => Some(medium),
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::RecvMessage { .. }
            | Op::RecvMessageManaged { .. }
            | Op::SendMessage { .. }
            | Op::Readiness { .. }
            | Op::LookUp { .. }
            | Op::File(_) => None,
        }
    }

    /// The descriptor whose readiness the operation waits for, and the direction; `None` for a lookup or a file
    /// operation.
    pub fn waits_for(&self) -> Option<(Fd, Direction)> {
        match *self {
            Op::Accept { fd }
            | Op::Recv { fd, .. }
            | Op::RecvManaged { fd, .. }
            | Op::RecvVectored { fd, .. }
            | Op::RecvMessage { fd, .. }
            | Op::RecvMessageManaged { fd, .. } => Some((fd, Direction::Read)),
            Op::Connect { fd, .. } | Op::Send { fd, .. } | Op::SendVectored { fd, .. } | Op::SendMessage { fd, .. } => {
                Some((fd, Direction::Write))
            }
            Op::Readiness { fd, direction } => Some((fd, direction)),
            Op::LookUp { .. } | Op::File(_) => None,
        }
    }
}
