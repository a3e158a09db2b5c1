//! Carries out any operation with plain system calls: a first attempt, a retry after readiness, or on a pool thread.

use super::{CURRENT, Direction, DriverCounters, FileOp, Medium, MessageEntry, Op};
#[cfg(any(feature = "reactor", windows))]
use super::{OpResult, pool::ProvidedPool};
use crate::sys::{self, Fd, OsResult, errno, files};

/// Carries an operation out; `None` if it would block. Lookups and file operations block until they are done.
///
/// # Safety
///
/// The memory that `op` points to is valid, and the caller's to use, until this returns.
pub(crate) unsafe fn perform(op: &Op) -> Option<OsResult> {
    // SAFETY: the caller's promise, which is what each call asks for.
    unsafe {
        match *op {
            Op::Accept { fd } => sys::accept(fd),
            Op::Connect { fd, name } => sys::connect(fd, &*name),
            Op::Recv {
                fd, medium, ptr, len, ..
            } => sys::recv(fd, medium, ptr, len),
            // There is no pool here: a driver that has one takes a buffer and performs the plain operation.
            Op::RecvManaged { .. } | Op::RecvMessageManaged { .. } => Some(Err(errno::NO_BUFFERS)),
            Op::RecvVectored {
                fd,
                medium,
                slices,
                count,
            } => sys::recv_vectored(fd, medium, slices, count),
            Op::Send { fd, medium, ptr, len } => sys::send(fd, medium, ptr, len),
            Op::SendVectored {
                fd,
                medium,
                slices,
                count,
            } => sys::send_vectored(fd, medium, slices, count),
            Op::RecvMessage { fd, message } => sys::recv_message(fd, message),
            Op::SendMessage { fd, at_once, message } => {
                sys::send_message(fd, message).or(at_once.then_some(Err(errno::AGAIN)))
            }
            Op::Readiness { fd, direction } => sys::ready(fd, direction),
            Op::LookUp { query, out } => {
                *out = sys::look_up(&*query);
                Some(Ok(0))
            }
            Op::File(op) => files::perform(op),
        }
    }
}

/// Carries out a managed receive as the plain operation, into a buffer of the pool; `None` if it would block.
///
/// # Safety
///
/// As for [`perform`].
#[cfg(any(feature = "reactor", windows))]
#[inline(always)]
pub(crate) unsafe fn perform_managed(op: &Op, pool: &ProvidedPool, counters: &mut DriverCounters) -> Option<OpResult> {
    // SAFETY: the bytes go to a buffer that was just taken from the pool, and a receive initialises as many as it
    // returns. The caller promises that the message is the operation's.
    unsafe {
        match *op {
            Op::RecvManaged { fd, medium, .. } => pool.receive(counters, |ptr, len| sys::recv(fd, medium, ptr, len)),
            Op::RecvMessageManaged { fd, message } => pool.receive(counters, |ptr, len| {
                (*message).with_buffer(ptr, len, |message| sys::recv_message(fd, message))
            }),
            other => unreachable!("{other:?} is not a managed receive"),
        }
    }
}

/// Receives or sends a batch of datagrams, and counts it as one submission. Returns how many entries have a result.
///
/// # Safety
///
/// As for [`Driver::recv_batch`](super::Driver::recv_batch) or [`Driver::send_batch`](super::Driver::send_batch).
pub(crate) unsafe fn perform_batch(
    fd: Fd,
    direction: Direction,
    entries: &mut [MessageEntry],
    counters: &mut DriverCounters,
) -> usize {
    // SAFETY: the caller's promise.
    let count = unsafe {
        match direction {
            Direction::Read => sys::recv_batch(fd, entries),
            Direction::Write => sys::send_batch(fd, entries),
        }
    };
    counters.submissions += u64::from(count > 0);
    counters.completions += u64::from(count > 0);
    count
}

/// Whether an operation on a pool thread may wait for another process or for the user: it is on a pipe, or at the
/// descriptor's own position, as on a console.
pub(crate) fn waits_for_peer(op: &Op) -> bool {
    match *op {
        Op::Recv { medium, .. }
        | Op::RecvVectored { medium, .. }
        | Op::Send { medium, .. }
        | Op::SendVectored { medium, .. } => medium == Medium::Pipe,
        Op::File(
            FileOp::ReadAt { offset, .. }
            | FileOp::ReadVectoredAt { offset, .. }
            | FileOp::WriteAt { offset, .. }
            | FileOp::WriteVectoredAt { offset, .. },
        ) => offset == CURRENT,
        _ => false,
    }
}
