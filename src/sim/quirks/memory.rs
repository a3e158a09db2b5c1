//! The memory of operations: shortened copies, scribbling, and a fingerprint of what must not change.

use std::fmt::{self, Write};

use crate::driver::{FileOp, Medium, Op};
use crate::rand::Rng;
use crate::sys::IoVec;

/// Writes to a file or pipe up to this size stay whole: writes to a pipe are atomic up to here, and direct I/O needs
/// lengths that are multiples of a block.
const BLOCK: usize = 4096;

/// Direct I/O has lengths that are multiples of this, and they stay so.
const SECTOR: usize = 512;

/// How many bytes at either end of a buffer are part of a fingerprint.
const EDGE: usize = 256;

/// The operation without hints, and with a shorter length if `shorten`; whether it is shorter. Messages are never
/// shortened.
///
/// # Safety
///
/// The operation owns its slices.
pub(super) unsafe fn adapt(op: &Op, shorten: bool, rng: &mut Rng) -> (Op, bool) {
    let mut op = *op;
    let is_shorter = match &mut op {
        Op::Recv { drained, len, .. } => {
            // A short count does not mean that the socket is empty.
            *drained = false;
            shorten_if(shorten, len, rng)
        }
        Op::RecvManaged { drained, .. } => {
            *drained = false;
            false
        }
        Op::Send { medium, len, .. } => shorten_if(shorten && (*medium != Medium::Pipe || *len > BLOCK), len, rng),
        Op::SendVectored {
            medium: Medium::Pipe, ..
        } => false,
        Op::RecvVectored { slices, count, .. }
        | Op::SendVectored { slices, count, .. }
        | Op::File(FileOp::ReadVectoredAt { slices, count, .. } | FileOp::WriteVectoredAt { slices, count, .. })
            if shorten =>
        {
            let before = *count;
            // SAFETY: the caller's promise.
            *count = unsafe { fewer_slices(*slices, before, rng) };
            *count < before
        }
        Op::File(FileOp::ReadAt { len, .. } | FileOp::WriteAt { len, .. }) if shorten && *len > BLOCK => {
            *len = BLOCK * rng.range(1..=(*len as u64 - 1) / BLOCK as u64) as usize;
            true
        }
        Op::File(FileOp::ReadAt { len, .. } | FileOp::WriteAt { len, .. }) => {
            shorten_if(shorten && !len.is_multiple_of(SECTOR), len, rng)
        }
        _ => false,
    };
    (op, is_shorter)
}

fn shorten_if(shorten: bool, len: &mut usize, rng: &mut Rng) -> bool {
    let is_shorter = shorten && *len > 1;
    if is_shorter {
        // Half of the cuts are small: a single byte splits every header and every character.
        let most = if rng.chance(0.5) { (*len - 1).min(4) } else { *len - 1 };
        *len = rng.range(1..=most as u64) as usize;
    }
    is_shorter
}

/// A smaller number of slices that are not all empty.
///
/// # Safety
///
/// There are `count` slices.
unsafe fn fewer_slices(slices: *const IoVec, count: usize, rng: &mut Rng) -> usize {
    // SAFETY: the caller's promise.
    let slices = unsafe { std::slice::from_raw_parts(slices, count) };
    match slices.iter().position(|slice| slice.len > 0) {
        Some(first) => rng.range(first as u64 + 1..=count as u64) as usize,
        None => count,
    }
}

/// The rest of a send whose first `sent` bytes were sent; `None` if nothing is left, or if the op is not a send from one
/// buffer.
pub(super) fn rest_of(op: &Op, sent: usize) -> Option<Op> {
    match *op {
        Op::Send { fd, medium, ptr, len } if sent < len => Some(Op::Send {
            fd,
            medium,
            // Still within the buffer.
            ptr: ptr.wrapping_add(sent),
            len: len - sent,
        }),
        _ => None,
    }
}

/// The length of a send from one buffer.
pub(super) fn send_len(op: &Op) -> Option<usize> {
    match *op {
        Op::Send { len, .. } => Some(len),
        _ => None,
    }
}

/// Overwrites the memory that an operation reads into; false if it does not read.
///
/// # Safety
///
/// The operation has not completed, and no driver or kernel writes to its memory any more.
pub(super) unsafe fn scribble(op: &Op, byte: u8) -> bool {
    // SAFETY: the caller's promise: the operation owns all this memory.
    unsafe {
        match *op {
            Op::Recv { ptr, len, .. } | Op::File(FileOp::ReadAt { ptr, len, .. }) => ptr.write_bytes(byte, len),
            Op::RecvVectored { slices, count, .. } | Op::File(FileOp::ReadVectoredAt { slices, count, .. }) => {
                for slice in std::slice::from_raw_parts(slices, count) {
                    slice.base.write_bytes(byte, slice.len);
                }
            }
            Op::RecvMessage { message, .. } => {
                let buffer = (*message).bytes();
                buffer.base.write_bytes(byte, buffer.len);
            }
            _ => return false,
        }
    }
    true
}

/// A hash of the op and of the bytes that it sends: the loop changes neither while the operation is in flight.
///
/// # Safety
///
/// The operation has not completed.
pub(super) unsafe fn fingerprint(op: &Op) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    write!(hash, "{op:?}").expect("hashing does not fail");
    // SAFETY: the operation owns the memory that it sends from, and nothing changes it.
    unsafe {
        match *op {
            Op::Send { ptr, len, .. } => hash.add_edges(ptr, len),
            Op::SendVectored { slices, count, .. } => {
                for slice in std::slice::from_raw_parts(slices, count) {
                    hash.add_edges(slice.base, slice.len);
                }
            }
            _ => {}
        }
    }
    hash.0
}

struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// # Safety
    ///
    /// There are `len` initialised bytes, which nothing changes during the call.
    unsafe fn add_edges(&mut self, ptr: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
        self.add(&bytes[..len.min(EDGE)]);
        self.add(&bytes[len - len.min(EDGE)..]);
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}
