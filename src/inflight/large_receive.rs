//! Managed reads of bulk data: larger buffers when there is more data than one of the pool holds.
//!
//! Per byte, receiving 8 KiB at a time takes 1.6 times the CPU time of receiving 64 KiB at a time. io_uring reports
//! whether a receive left data in the socket. If the last one did, the next managed read is into a large buffer. Its data
//! is there already, so an idle stream still holds no buffer.
//!
//! The large buffers have as much memory as the pool, and are allocated when first needed. While all of them are in use,
//! reads are into the pool.

use std::io;
use std::task::{Context, Poll, ready};

use super::RawOp;
use super::descriptor::Descriptor;
use super::stream::{count, plan_recv};
use crate::driver::BufferPool;
use crate::driver::op::Medium;
use crate::error::from_code;
use crate::event_loop::core::LoopCore;
use crate::inflight::OnOrphan;
use crate::io::ManagedBuf;

/// The size of a large buffer. Receiving 256 KiB at a time takes a tenth less CPU time, but there would be a quarter as many.
const LARGE_LEN: usize = 64 * 1024;

impl LoopCore {
    /// A free large buffer, without bytes. `None` if the pool's own are as large, or if it has less memory than one.
    #[cold]
    pub(super) fn large_buffer(&self) -> Option<ManagedBuf> {
        let make = || {
            let (pool_count, len) = (self.settings.driver.managed_count, self.settings.driver.managed_len);
            let large_count = usize::from(pool_count) * len / LARGE_LEN;
            let is_useful = len < LARGE_LEN && large_count > 0;
            is_useful.then(|| BufferPool::new(large_count as u16, LARGE_LEN))?
        };
        let pool = self.large_pool.get_or_init(make).as_ref()?;
        let index = pool.take()?;
        // SAFETY: the buffer was just taken, and nothing else uses it.
        Some(unsafe { ManagedBuf::from_pool(pool, index, 0) })
    }
}

/// Starts a receive into `buffer`.
pub(super) fn start(descriptor: &Descriptor, medium: Medium, buffer: ManagedBuf) -> RawOp<ManagedBuf> {
    let core = &descriptor.core;
    let plan = plan_recv(descriptor, medium, |buffer: &mut ManagedBuf| {
        (buffer.memory(), LARGE_LEN)
    });
    let op = core.start_op(&descriptor.read, OnOrphan::Keep, || buffer, plan);
    core.trace(op.id);
    op
}

/// The bytes received, or the leftover if bytes were put in front of them meanwhile.
pub(super) fn poll(
    op: &mut RawOp<ManagedBuf>,
    descriptor: &Descriptor,
    cx: &mut Context<'_>,
) -> Poll<io::Result<ManagedBuf>> {
    let (result, mut buffer) = ready!(op.poll(&descriptor.core, &descriptor.read, cx));
    if let Some(served) = descriptor.read.serve_all() {
        return Poll::Ready(served.map(ManagedBuf::from_heap).map_err(from_code));
    }
    Poll::Ready(count(result.res()).map(|count| {
        // SAFETY: the operation has received this many bytes into the buffer.
        unsafe { buffer.set_received(count) };
        buffer
    }))
}
