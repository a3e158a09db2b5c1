//! What a call becomes on its way to the kernel.
//!
//! An [`Op`] is plain data: numbers and raw pointers, `Copy`, no generics. The typed layer above (streams, listeners)
//! owns the descriptor and the buffer and puts them into a flight first; only then does it take the pointers that stand
//! here. A driver matches on the whole enum, without a wildcard arm, so that a new operation breaks the build of every
//! driver that does not know it.

use std::net::SocketAddr;

use crate::sys::{Fd, IoVec};

/// One operation for the kernel.
///
/// The memory behind every pointer belongs to the flight under whose id the operation is started, and stays where it is
/// until that flight's last completion has landed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Takes connections off a listening socket. A driver may land many (each but the last with `more`) or just one.
    /// Lands the new descriptor's number.
    Accept {
        /// The listening socket.
        fd: Fd,
    },
    /// Connects a stream socket. Lands 0.
    Connect {
        /// The socket to connect.
        fd: Fd,
        /// The peer to connect to.
        addr: SocketAddr,
    },
    /// Receives into one buffer. Lands the number of bytes; 0 is the end of the stream.
    Recv {
        /// The connected socket.
        fd: Fd,
        /// Where the bytes go.
        ptr: *mut u8,
        /// How many may be written there; never 0.
        len: usize,
    },
    /// Receives into a buffer of the driver's pool, chosen when bytes arrive. Lands the number of bytes and the buffer,
    /// or the error `ENOBUFS` when the pool is empty.
    RecvManaged {
        /// The connected socket.
        fd: Fd,
    },
    /// Receives into several buffers in order. Lands the number of bytes; 0 is the end of the stream.
    RecvVectored {
        /// The connected socket.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
    },
    /// Sends from one buffer. Lands the number of bytes taken.
    Send {
        /// The connected socket.
        fd: Fd,
        /// Where the bytes are.
        ptr: *const u8,
        /// How many; never 0.
        len: usize,
    },
    /// Sends from several buffers in order. Lands the number of bytes taken.
    SendVectored {
        /// The connected socket.
        fd: Fd,
        /// The first of `count` slices.
        slices: *const IoVec,
        /// How many slices; between 1 and [`MAX_SLICES`].
        count: usize,
    },
    /// Waits until a descriptor can be read from or written to without waiting, or has an error to tell; moves no
    /// bytes. Lands 0, at the earliest in the next poll.
    Readiness {
        /// Any descriptor that can be waited for.
        fd: Fd,
        /// Which of the two.
        direction: Direction,
    },
}

/// Reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Bytes come in; for a listener, connections.
    Read,
    /// Bytes go out; for a connect, its end.
    Write,
}

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
            Op::Readiness { .. } => "readiness",
        }
    }

    /// The descriptor that the operation uses.
    pub fn fd(&self) -> Fd {
        match *self {
            Op::Accept { fd }
            | Op::Connect { fd, .. }
            | Op::Recv { fd, .. }
            | Op::RecvManaged { fd }
            | Op::RecvVectored { fd, .. }
            | Op::Send { fd, .. }
            | Op::SendVectored { fd, .. }
            | Op::Readiness { fd, .. } => fd,
        }
    }

    /// Whether the operation waits for its descriptor to be readable or to be writable.
    pub fn direction(&self) -> Direction {
        match *self {
            Op::Accept { .. } | Op::Recv { .. } | Op::RecvManaged { .. } | Op::RecvVectored { .. } => Direction::Read,
            Op::Connect { .. } | Op::Send { .. } | Op::SendVectored { .. } => Direction::Write,
            Op::Readiness { direction, .. } => direction,
        }
    }
}
