//! Starting reads and writes: one place that turns a buffer into the pointer and the length of an operation.
//!
//! The payload contains the descriptor, which stays open until the operation has completed, and the buffer, whose
//! pointer is taken at its final address.

use std::ops::Range;
use std::rc::Rc;

use super::descriptor::{Descriptor, OwnedDescriptor};
use super::queue::IoQueue;
use super::{OnOrphan, OpFuture};
use crate::driver::op::{MAX_LEN, Op};
use crate::io::vectored::{iovecs_to_fill, iovecs_to_send};
use crate::io::{IoBuf, IoBufMut, bytes_from, fill_range};
use crate::sys::IoVec;

pub(crate) type Payload<B> = (Rc<Descriptor>, B);

/// The descriptor, the buffers, and the iovecs that point to them.
pub(crate) type VectoredPayload<B> = (Rc<Descriptor>, Vec<B>, Vec<IoVec>);

impl OwnedDescriptor {
    /// Starts one read into a range of `buf`.
    pub(crate) fn start_read<'a, B: IoBufMut>(
        &'a self,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        buf: B,
        range: Range<usize>,
        op: impl FnOnce(*mut u8, usize) -> Op,
    ) -> OpFuture<'a, Payload<B>> {
        let payload = (self.descriptor.clone(), buf);
        OpFuture::start_op(self.core(), queue, on_orphan, payload, |(_, buf)| {
            let (ptr, len) = fill_range(buf, range.start, range.end);
            op(ptr, len.min(MAX_LEN))
        })
    }

    /// Starts one read into the capacities of `bufs`.
    pub(crate) fn start_read_vectored<'a, B: IoBufMut>(
        &'a self,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        bufs: Vec<B>,
        op: impl FnOnce(*const IoVec, usize) -> Op,
    ) -> OpFuture<'a, VectoredPayload<B>> {
        let payload = (self.descriptor.clone(), bufs, Vec::new());
        OpFuture::start_op(self.core(), queue, on_orphan, payload, |(_, bufs, slices)| {
            iovecs_to_fill(bufs, slices);
            op(slices.as_ptr(), slices.len())
        })
    }

    /// Starts one write from `buf[begin..]`.
    pub(crate) fn start_write<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        buf: B,
        begin: usize,
        op: impl FnOnce(*const u8, usize) -> Op,
    ) -> OpFuture<'a, Payload<B>> {
        let payload = (self.descriptor.clone(), buf);
        OpFuture::start_op(self.core(), queue, OnOrphan::Discard, payload, |(_, buf)| {
            let (ptr, len) = bytes_from(buf, begin);
            op(ptr, len.min(MAX_LEN))
        })
    }

    /// Starts one write of everything after the first `skip` bytes. `slices` is passed only to reuse its memory.
    pub(crate) fn start_write_vectored<'a, B: IoBuf>(
        &'a self,
        queue: &'a IoQueue,
        bufs: Vec<B>,
        skip: usize,
        slices: Vec<IoVec>,
        op: impl FnOnce(*const IoVec, usize) -> Op,
    ) -> OpFuture<'a, VectoredPayload<B>> {
        let payload = (self.descriptor.clone(), bufs, slices);
        let plan = |(_, bufs, slices): &mut VectoredPayload<B>| {
            iovecs_to_send(bufs, skip, slices);
            op(slices.as_ptr(), slices.len())
        };
        OpFuture::start_op(self.core(), queue, OnOrphan::Discard, payload, plan)
    }
}
