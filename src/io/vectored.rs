//! Several buffers, lent at once.

use super::buf::{IoBuf, IoBufMut};
use crate::op::MAX_SLICES;
use crate::sys::IoVec;

/// The places that may be written to, in order, as far as one operation carries them.
pub(crate) fn lend_to_fill<B: IoBufMut>(bufs: &mut [B], slices: &mut Vec<IoVec>) {
    slices.clear();
    let parts = bufs.iter_mut().map(|buf| IoVec {
        len: buf.capacity(),
        base: buf.as_mut_ptr(),
    });
    slices.extend(parts.filter(|part| part.len > 0).take(MAX_SLICES));
}

/// What follows the first `skip` bytes, in order, as far as one operation carries it.
pub(crate) fn lend_to_read<B: IoBuf>(bufs: &[B], mut skip: usize, slices: &mut Vec<IoVec>) {
    slices.clear();
    for buf in bufs {
        let begin = skip.min(buf.len());
        skip -= begin;
        if begin < buf.len() && slices.len() < MAX_SLICES {
            slices.push(IoVec {
                base: buf.as_ptr().cast_mut().wrapping_add(begin),
                len: buf.len() - begin,
            });
        }
    }
}

/// Tells each buffer how much of it was filled.
///
/// # Safety
///
/// `count` bytes were written into the buffers' places, in order, each to its capacity before the next.
pub(crate) unsafe fn set_all_filled<B: IoBufMut>(bufs: &mut [B], count: usize) {
    let mut left = count;
    for buf in bufs {
        let part = left.min(buf.capacity());
        // SAFETY: the caller's promise.
        unsafe { buf.set_filled(part) };
        left -= part;
    }
}
