//! The iovec arrays of vectored reads and writes.

use super::buf::{IoBuf, IoBufMut, bytes_from, fill_target};
use crate::driver::op::MAX_SLICES;
use crate::sys::IoVec;

/// Collects the non-empty capacities of the buffers in order, at most `MAX_SLICES` of them.
pub(crate) fn iovecs_to_fill<B: IoBufMut>(bufs: &mut [B], slices: &mut Vec<IoVec>) {
    slices.clear();
    let parts = bufs.iter_mut().map(|buf| {
        let (base, len) = fill_target(buf);
        IoVec { base, len }
    });
    slices.extend(parts.filter(|part| part.len > 0).take(MAX_SLICES));
}

/// Collects the bytes of the buffers in order without the first `skip` bytes, at most `MAX_SLICES` slices.
pub(crate) fn iovecs_to_send<B: IoBuf>(bufs: &[B], mut skip: usize, slices: &mut Vec<IoVec>) {
    slices.clear();
    for buf in bufs {
        let (start, len) = bytes_from(buf, 0);
        let begin = skip.min(len);
        skip -= begin;
        if begin < len && slices.len() < MAX_SLICES {
            slices.push(IoVec {
                base: start.cast_mut().wrapping_add(begin),
                len: len - begin,
            });
        }
    }
}

/// Distributes `count` bytes over the buffers, in order, and sets their lengths.
///
/// # Panics
///
/// If a buffer's capacity changed since the operation started: then its share of the bytes is unknown.
///
/// # Safety
///
/// `slices` were collected from these buffers by `iovecs_to_fill`, and `count` bytes were written to them in order.
pub(crate) unsafe fn set_all_filled<B: IoBufMut>(bufs: &mut [B], slices: &[IoVec], count: usize) {
    let (mut left, mut slices) = (count, slices.iter());
    for buf in bufs {
        let capacity = buf.capacity();
        // Buffers without capacity, and those beyond `MAX_SLICES`, have no slice.
        let part = match (capacity, slices.as_slice()) {
            (0, _) | (_, []) => 0,
            (_, [slice, ..]) => {
                assert!(
                    slice.len == capacity,
                    "a buffer's capacity changed from {} to {capacity} during a read: its implementation of IoBufMut is wrong",
                    slice.len
                );
                slices.next();
                left.min(capacity)
            }
        };
        // SAFETY: guaranteed by the caller.
        unsafe { buf.set_filled(part) };
        left -= part;
    }
}

/// Empties all buffers except `bufs[filled]`, after a read that filled only that one.
pub(crate) fn set_others_empty<B: IoBufMut>(bufs: &mut [B], filled: usize) {
    for (index, buf) in bufs.iter_mut().enumerate() {
        if index != filled {
            buf.fill_from(&[]);
        }
    }
}
