//! The read state of a bridge between two polls.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

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
    op: Option<RawOp<ReadPayload>>,
}

/// The buffer is empty for a read into a pool buffer, and used when the pool is empty.
type ReadPayload = (Rc<Descriptor>, Vec<u8>);

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
        }
        let (descriptor, queue) = (self.hold.owner(), self.hold.queue());
        loop {
            let op = self
                .op
                .get_or_insert_with(|| start_read(descriptor, queue, medium, first_buffer(descriptor)));
            let (op_result, (_, buf)) = ready!(op.poll(&descriptor.core, queue, cx));
            self.op = None;
            let is_pooled = buf.is_empty();
            let result = count(op_result.res());
            let received = match descriptor.core.take_buffer(op_result) {
                Some(buffer) => ManagedBuf::from_pool(buffer),
                None => {
                    let mut bytes = ManagedBuf::from(buf);
                    bytes.truncate(*result.as_ref().unwrap_or(&0));
                    bytes
                }
            };
            if queue.append_if_overtaken(&received, None, op_result.res())
                && let Some(served) = queue.serve_all()
            {
                return Poll::Ready(served.map(ManagedBuf::from).map_err(from_code));
            }
            if op_result.res() != Err(errno::NO_BUFFERS) || !is_pooled {
                return Poll::Ready(result.map(|_| received));
            }
            self.op = Some(start_read(descriptor, queue, medium, vec![0; HEAP_READ_LEN]));
        }
    }
}

/// None for a read into a pool buffer, if there is a pool.
fn first_buffer(descriptor: &Descriptor) -> Vec<u8> {
    match descriptor.core.pool() {
        Some(_) => Vec::new(),
        None => vec![0; HEAP_READ_LEN],
    }
}

fn start_read(descriptor: &Rc<Descriptor>, queue: &IoQueue, medium: Medium, buf: Vec<u8>) -> RawOp<ReadPayload> {
    let fd = descriptor.fd;
    let plan = |(_, buf): &mut ReadPayload| match buf.len() {
        0 => Op::RecvManaged { fd, medium },
        len => Op::Recv {
            fd,
            medium,
            ptr: buf.as_mut_ptr(),
            len,
        },
    };
    let payload = (descriptor.clone(), buf);
    RawOp::start_op(&descriptor.core, queue, OnOrphan::Keep, payload, 0, plan)
}

impl Drop for PendingRead {
    /// The operation stays in its queue: the next read gets its bytes.
    fn drop(&mut self) {
        if let Some(op) = &mut self.op {
            op.abandon(&self.hold.owner().core);
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
