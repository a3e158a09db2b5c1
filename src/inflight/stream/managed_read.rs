//! Receives into a buffer of the loop's pool: `read_managed`, and the reads of bridges.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::read::{finish_read, start_recv};
use super::{ByteStream, count};
use crate::driver::OpResult;
use crate::driver::op::{Medium, Op};
use crate::error::from_code;
use crate::event_loop::task_key::TaskKey;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::large_receive;
use crate::inflight::queue::Ticket;
use crate::inflight::{OnOrphan, RawOp};
use crate::io::{HEAP_READ_LEN, ManagedBuf, fill_target};
use crate::sys::errno;

/// Receives once into a buffer of the pool.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct ReadManaged<'a> {
    pub(super) bytes: &'a ByteStream,
    pub(super) read: ManagedRead,
}

impl Future for ReadManaged<'_> {
    type Output = io::Result<ManagedBuf>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        let this = &mut *self;
        this.read.poll(&this.bytes.owned.descriptor, this.bytes.medium, cx)
    }
}

impl Drop for ReadManaged<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.read.ticket != Ticket::NONE {
            self.read.give_up(&self.bytes.owned.descriptor);
        }
    }
}

/// A managed receive of a stream or a bridge, which pass the descriptor to every call.
#[derive(Default)]
pub(crate) struct ManagedRead {
    ticket: Ticket,
    op: ManagedOp,
}

#[derive(Default)]
enum ManagedOp {
    #[default]
    NotStarted,
    Pooled(RawOp<()>),
    /// Into a large buffer: there was more data than one of the pool holds.
    Large(RawOp<ManagedBuf>),
    /// Without a pool, or when it is empty.
    Heap(RawOp<Vec<u8>>),
}

impl ManagedRead {
    /// The two most frequent cases: a read that nothing is in front of, and one that has received. All others are
    /// [`poll_slowly`](ManagedRead::poll_slowly), out of line, so that they take no registers here.
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<ManagedBuf>> {
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        match &mut self.op {
            ManagedOp::NotStarted => {
                let task = core.waiter(cx);
                let is_plain = task != TaskKey::NONE && core.has_pool() && !queue.has_more.get();
                if is_plain && queue.try_begin(&mut self.ticket) {
                    let (op, is_waiting) = start_managed(task, descriptor, medium);
                    self.op = ManagedOp::Pooled(op);
                    if is_waiting {
                        return Poll::Pending;
                    }
                }
            }
            ManagedOp::Pooled(op) => {
                let has_bytes = |result: OpResult| result.received_in_pool().is_some();
                if !queue.has_leftover()
                    && let Some(done) = op.try_done(core, has_bytes)
                {
                    queue.note_received(done.result());
                    queue.op.set(None);
                    queue.end_held(&mut self.ticket);
                    let (result, ()) = op.take(core, done);
                    // As for a write, the buffer comes last.
                    if let Some(buffer) = core.take_buffer(result) {
                        return Poll::Ready(Ok(buffer));
                    }
                }
            }
            ManagedOp::Large(_) | ManagedOp::Heap(_) => {}
        }
        self.poll_slowly(descriptor, medium, cx)
    }

    #[cold]
    fn poll_slowly(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<ManagedBuf>> {
        let (core, queue) = (&*descriptor.core, &descriptor.read);
        if let ManagedOp::NotStarted = self.op {
            ready!(queue.poll_begin(core, &mut self.ticket, cx));
            if queue.has_leftover()
                && let Some(served) = queue.serve_all()
            {
                queue.end(&mut self.ticket);
                return Poll::Ready(served.map(ManagedBuf::from_heap).map_err(from_code));
            }
            let large = match queue.has_more.get() {
                true => core.large_buffer(),
                false => None,
            };
            self.op = match (core.pool(), large) {
                (_, Some(buffer)) => ManagedOp::Large(large_receive::start(descriptor, medium, buffer)),
                (Some(_), None) => {
                    let (op, _) = start_managed(TaskKey::NONE, descriptor, medium);
                    core.trace(op.id);
                    ManagedOp::Pooled(op)
                }
                (None, None) => ManagedOp::Heap(start_heap_read(descriptor, medium)),
            };
        }
        if let ManagedOp::Pooled(op) = &mut self.op {
            let (result, ()) = ready!(op.poll(core, queue, cx));
            if !queue.has_leftover() && result.received_in_pool().is_some() {
                queue.end(&mut self.ticket);
                if let Some(buffer) = core.take_buffer(result) {
                    return Poll::Ready(Ok(buffer));
                }
            }
            if let Some(finished) = self.finish_pooled(descriptor, medium, result) {
                return Poll::Ready(finished);
            }
        }
        self.poll_other(descriptor, cx)
    }

    /// A managed receive got no bytes, or some were put in front of it meanwhile. `None` if the pool was empty: the bytes
    /// are received into the heap.
    #[cold]
    fn finish_pooled(
        &mut self,
        descriptor: &Descriptor,
        medium: Medium,
        result: OpResult,
    ) -> Option<io::Result<ManagedBuf>> {
        let queue = &descriptor.read;
        drop(descriptor.core.take_buffer(result));
        let finished = match (queue.serve_all(), result.res()) {
            (Some(served), _) => served.map(ManagedBuf::from_heap).map_err(from_code),
            (None, Err(errno::NO_BUFFERS)) => {
                self.op = ManagedOp::Heap(start_heap_read(descriptor, medium));
                return None;
            }
            (None, res) => count(res).map(|_| ManagedBuf::default()),
        };
        queue.end(&mut self.ticket);
        Some(finished)
    }

    /// A receive into a large buffer or into the heap.
    #[cold]
    fn poll_other(&mut self, descriptor: &Descriptor, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        let queue = &descriptor.read;
        let received = match &mut self.op {
            ManagedOp::Large(op) => ready!(large_receive::poll(op, descriptor, cx)),
            ManagedOp::Heap(op) => {
                let (result, buf) = ready!(op.poll(&descriptor.core, queue, cx));
                // SAFETY: the operation has received into this buffer.
                let (result, buf) = unsafe { finish_read(queue, result.res(), buf) };
                result.map(|_| ManagedBuf::from_heap(buf))
            }
            ManagedOp::NotStarted | ManagedOp::Pooled(_) => unreachable!("these are polled before"),
        };
        queue.end(&mut self.ticket);
        Poll::Ready(received)
    }

    /// Drops a read that may have been started: its operation stays in the queue, and the next read gets its bytes.
    #[cold]
    pub(crate) fn give_up(&mut self, descriptor: &Descriptor) {
        match &mut self.op {
            ManagedOp::NotStarted => {}
            ManagedOp::Pooled(op) => op.abandon(&descriptor.core),
            ManagedOp::Large(op) => op.abandon(&descriptor.core),
            ManagedOp::Heap(op) => op.abandon(&descriptor.core),
        }
        descriptor.read.end(&mut self.ticket);
    }
}

/// Starts a receive into the pool, for this task: see [`LoopCore::start_op_for`].
#[inline(always)]
fn start_managed(task: TaskKey, descriptor: &Descriptor, medium: Medium) -> (RawOp<()>, bool) {
    let (fd, queue) = (descriptor.fd, &descriptor.read);
    let drained = queue.drained.get();
    let plan = |(): &mut ()| Op::RecvManaged { medium, drained, fd };
    descriptor.core.start_op_for(task, queue, OnOrphan::Keep, || (), plan)
}

fn start_heap_read(descriptor: &Descriptor, medium: Medium) -> RawOp<Vec<u8>> {
    let buf = Vec::with_capacity(HEAP_READ_LEN);
    start_recv(descriptor, medium, buf, fill_target)
}
