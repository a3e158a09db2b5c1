//! The iovec arrays of vectored reads and writes.

use super::BufResult;
use super::buf::{IoBuf, IoBufMut, bytes_from, fill_target, no_capacity};
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
/// If a buffer's capacity changed since the operation started: then its share of the bytes is unknown. All capacities
/// are checked before the first length is set, so no update is partial.
///
/// # Safety
///
/// `slices` were collected from these buffers by `iovecs_to_fill`, and `count` bytes were written to them in order.
pub(crate) unsafe fn set_all_filled<B: IoBufMut>(bufs: &mut [B], slices: &[IoVec], count: usize) {
    let changed = "the capacity of a buffer changed during a read: its implementation of IoBufMut is wrong";
    // Buffers without capacity, and those beyond `MAX_SLICES`, have no slice.
    let capacities = bufs.iter().map(IoBufMut::capacity).filter(|&capacity| capacity > 0);
    assert!(
        capacities.take(MAX_SLICES).eq(slices.iter().map(|slice| slice.len)),
        "{changed}"
    );
    let (mut left, mut slices) = (count, slices.iter());
    for buf in bufs {
        let part = match buf.capacity() {
            0 => 0,
            capacity => slices.next().map_or(0, |slice| {
                assert!(slice.len == capacity, "{changed}");
                left.min(capacity)
            }),
        };
        // SAFETY: the kernel has written this many bytes to the buffer's slice, as guaranteed by the caller.
        unsafe { buf.set_filled(part) };
        left -= part;
    }
}

/// A vectored read by a plain `read` into the first buffer that has capacity.
pub(crate) async fn read_into_first<B: IoBufMut>(
    mut bufs: Vec<B>,
    read: impl AsyncFnOnce(B) -> BufResult<usize, B>,
) -> BufResult<usize, Vec<B>> {
    let Some(first) = bufs.iter().position(|buf| buf.capacity() > 0) else {
        return (Err(no_capacity()), bufs);
    };
    let (result, buf) = read(bufs.remove(first)).await;
    bufs.insert(first, buf);
    if result.is_ok() {
        set_others_empty(&mut bufs, first);
    }
    (result, bufs)
}

/// Empties all buffers except `bufs[filled]`, after a read that filled only that one.
pub(crate) fn set_others_empty<B: IoBufMut>(bufs: &mut [B], filled: usize) {
    for (index, buf) in bufs.iter_mut().enumerate() {
        if index != filled {
            buf.fill_from(&[]);
        }
    }
}
