//! Several buffers, lent at once.

use super::buf::{IoBuf, IoBufMut, rest_of, room_of};
use crate::driver::op::MAX_SLICES;
use crate::sys::IoVec;

/// The places that may be written to, in order, as far as one operation carries them.
pub(crate) fn lend_to_fill<B: IoBufMut>(bufs: &mut [B], slices: &mut Vec<IoVec>) {
    slices.clear();
    let parts = bufs.iter_mut().map(|buf| {
        let (base, len) = room_of(buf);
        IoVec { base, len }
    });
    slices.extend(parts.filter(|part| part.len > 0).take(MAX_SLICES));
}

/// What follows the first `skip` bytes, in order, as far as one operation carries it.
pub(crate) fn lend_to_read<B: IoBuf>(bufs: &[B], mut skip: usize, slices: &mut Vec<IoVec>) {
    slices.clear();
    for buf in bufs {
        let (start, len) = rest_of(buf, 0);
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

/// Sets how much of each buffer was filled.
///
/// # Panics
///
/// If a buffer's capacity is not what it was when it was lent: then its share of the bytes is unknown.
///
/// # Safety
///
/// `lend_to_fill` has made `slices` of these buffers, and `count` bytes were written there, in order, each filled before the next.
pub(crate) unsafe fn set_all_filled<B: IoBufMut>(bufs: &mut [B], slices: &[IoVec], count: usize) {
    let (mut left, mut lent) = (count, slices.iter());
    for buf in bufs {
        let capacity = buf.capacity();
        // Empty ones were left out, and so were those behind the last that one operation can carry.
        let part = match (capacity, lent.as_slice()) {
            (0, _) | (_, []) => 0,
            (_, [slice, ..]) => {
                assert!(
                    slice.len == capacity,
                    "a buffer had a capacity of {} when it was lent, and now of {capacity}: its implementation of IoBufMut is wrong",
                    slice.len
                );
                lent.next();
                left.min(capacity)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { buf.set_filled(part) };
        left -= part;
    }
}

/// Sets that every buffer but `bufs[filled]` is empty, after a read that filled only that one.
pub(crate) fn set_others_empty<B: IoBufMut>(bufs: &mut [B], filled: usize) {
    for (index, buf) in bufs.iter_mut().enumerate() {
        if index != filled {
            buf.fill_from(&[]);
        }
    }
}
