//! The read state of a bridge between two polls.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use crate::driver::OpResult;
use crate::driver::op::{Medium, Op};
use crate::error::from_code;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::{IoQueue, OwnedQueueGuard};
use crate::inflight::stream::{ByteStream, count};
use crate::inflight::{OnOrphan, RawOp};
use crate::io::{DuplexStream, HEAP_READ_LEN, IncomingPipe, ManagedBuf};
use crate::sys::errno;

/// The read state of a [`Bridge`](super::Bridge) between two polls, for [`PollRead`](super::PollRead): unconsumed
/// bytes, and the read in flight. Dropping it returns both to the stream for the next read.
#[derive(Default)]
pub struct Reading {
    /// Received but not consumed. While it is not empty, no read is in flight.
    unconsumed: ManagedBuf,
    backend: ReadBackend,
}

#[derive(Default)]
enum ReadBackend {
    #[default]
    Unbound,
    /// With the pending read, if any. Without one, this does not keep the descriptor open.
    Kernel(Weak<Descriptor>, Option<PendingRead>),
    Memory(IncomingPipe),
}

/// A read waiting in the queue or in flight.
struct PendingRead {
    hold: OwnedQueueGuard<Descriptor>,
    op: Option<ReadOp>,
}

enum ReadOp {
    Pooled(RawOp<Rc<Descriptor>>),
    /// Used when the buffer pool is empty.
    Heap(RawOp<(Rc<Descriptor>, Vec<u8>)>),
}

impl Reading {
    /// Reads from a socket or pipe.
    pub(super) fn poll_kernel(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let descriptor = &bytes.owned.descriptor;
        let is_bound =
            matches!(&self.backend, ReadBackend::Kernel(of, _) if std::ptr::eq(of.as_ptr(), Rc::as_ptr(descriptor)));
        if !is_bound {
            self.give_back();
            self.backend = ReadBackend::Kernel(Rc::downgrade(descriptor), None);
        }
        if self.unconsumed.is_empty()
            && let ReadBackend::Kernel(_, pending) = &mut self.backend
        {
            let read = pending.get_or_insert_with(|| PendingRead {
                hold: OwnedQueueGuard::new(descriptor.clone(), |descriptor| &descriptor.read),
                op: None,
            });
            let result = ready!(read.poll(bytes.medium(), cx));
            *pending = None;
            self.unconsumed = result?;
        }
        Poll::Ready(Ok(&self.unconsumed))
    }

    /// Reads from an in-memory stream.
    pub(super) fn poll_memory(&mut self, stream: &DuplexStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let is_bound = matches!(&self.backend, ReadBackend::Memory(pipe) if pipe.is_of(stream));
        if !is_bound {
            self.give_back();
            self.backend = ReadBackend::Memory(stream.incoming_pipe());
        }
        if self.unconsumed.is_empty()
            && let ReadBackend::Memory(pipe) = &mut self.backend
        {
            self.unconsumed = ready!(pipe.poll_take(cx));
        }
        Poll::Ready(Ok(&self.unconsumed))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.unconsumed.advance(count);
        if self.unconsumed.is_empty() {
            // Return it to its pool.
            self.unconsumed = ManagedBuf::default();
        }
    }

    /// Returns unconsumed bytes to the stream for the next read.
    fn give_back(&mut self) {
        let unconsumed = std::mem::take(&mut self.unconsumed);
        if unconsumed.is_empty() {
            return;
        }
        match &self.backend {
            ReadBackend::Kernel(of, _) => {
                if let Some(descriptor) = of.upgrade() {
                    descriptor.read.put_front(&descriptor.core, &unconsumed);
                }
            }
            ReadBackend::Memory(pipe) => pipe.put_back(&unconsumed),
            ReadBackend::Unbound => {}
        }
    }
}

impl PendingRead {
    fn poll(&mut self, medium: Medium, cx: &mut Context<'_>) -> Poll<io::Result<ManagedBuf>> {
        if self.op.is_none() {
            ready!(self.hold.poll(cx));
            let (descriptor, queue) = (self.hold.owner(), self.hold.queue());
            ready!(queue.poll_orphan(&descriptor.core, cx));
            if ready!(queue.poll_leftover(&descriptor.core, cx))
                && let Some(served) = queue.serve_all()
            {
                return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
            }
            self.op = Some(ReadOp::pooled(descriptor, queue, medium));
        }
        let (descriptor, queue) = (self.hold.owner(), self.hold.queue());
        if let Some(ReadOp::Pooled(op)) = &mut self.op {
            let (op_result, _) = ready!(op.poll(&descriptor.core, queue, cx));
            let received = op_result.buffer.as_ref().map_or(&[][..], |buffer| buffer.filled());
            if queue.append_if_overtaken(received, None, op_result.res)
                && let Some(served) = queue.serve_all()
            {
                self.op = None;
                return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
            }
            match op_result {
                OpResult {
                    buffer: Some(buffer), ..
                } => {
                    self.op = None;
                    return Poll::Ready(Ok(ManagedBuf::from_pool(buffer)));
                }
                OpResult {
                    res: Err(errno::NO_BUFFERS),
                    ..
                } => self.op = Some(ReadOp::heap(descriptor, queue, medium)),
                OpResult { res, .. } => {
                    self.op = None;
                    return Poll::Ready(count(res).map(|_| ManagedBuf::default()));
                }
            }
        }
        let Some(ReadOp::Heap(op)) = &mut self.op else {
            unreachable!("one of the two operations is in flight")
        };
        let (op_result, (_, buf)) = ready!(op.poll(&descriptor.core, queue, cx));
        self.op = None;
        let received = *count(op_result.res).as_ref().unwrap_or(&0);
        if queue.append_if_overtaken(&buf[..received], None, op_result.res)
            && let Some(served) = queue.serve_all()
        {
            return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
        }
        Poll::Ready(count(op_result.res).map(|count| {
            let mut bytes = ManagedBuf::from(buf);
            bytes.truncate(count);
            bytes
        }))
    }
}

impl ReadOp {
    fn pooled(descriptor: &Rc<Descriptor>, queue: &IoQueue, medium: Medium) -> ReadOp {
        let fd = descriptor.fd;
        let payload = descriptor.clone();
        let plan = |_: &mut _| Op::RecvManaged { fd, medium };
        ReadOp::Pooled(RawOp::start_op(
            &descriptor.core,
            queue,
            OnOrphan::Keep,
            payload,
            0,
            plan,
        ))
    }

    fn heap(descriptor: &Rc<Descriptor>, queue: &IoQueue, medium: Medium) -> ReadOp {
        let fd = descriptor.fd;
        let payload = (descriptor.clone(), vec![0; HEAP_READ_LEN]);
        let plan = |(_, buf): &mut (_, Vec<u8>)| {
            let (ptr, len) = (buf.as_mut_ptr(), buf.len());
            Op::Recv { fd, medium, ptr, len }
        };
        ReadOp::Heap(RawOp::start_op(
            &descriptor.core,
            queue,
            OnOrphan::Keep,
            payload,
            0,
            plan,
        ))
    }
}

impl Drop for PendingRead {
    /// The operation stays in its queue: the next read gets its bytes.
    fn drop(&mut self) {
        let core = &self.hold.owner().core;
        match &mut self.op {
            Some(ReadOp::Pooled(op)) => op.abandon(core),
            Some(ReadOp::Heap(op)) => op.abandon(core),
            None => {}
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("unconsumed", &self.unconsumed.len())
            .finish()
    }
}
