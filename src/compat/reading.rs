//! What a bridge keeps of its reading between two polls.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use crate::driver::OpResult;
use crate::driver::op::{Medium, Op};
use crate::error::from_code;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::{IoQueue, OwnedQueueGuard};
use crate::inflight::stream::{ByteStream, HEAP_READ_LEN, count};
use crate::inflight::{OnOrphan, RawOp};
use crate::io::{DuplexStream, IncomingPipe, ManagedBuf};
use crate::sys::errno;

/// What is kept of a [`Bridge`](super::Bridge)'s reading between two polls: bytes that were received and not consumed, and the
/// read that is under way. For [`PollRead`](super::PollRead).
///
/// Dropped, it gives both back to the stream, for the next read.
#[derive(Default)]
pub struct Reading {
    /// Received and not consumed; empty: nothing. While it is not empty, no read is under way.
    lent: ManagedBuf,
    source: Source,
}

/// Where the bytes come from.
#[derive(Default)]
enum Source {
    #[default]
    Unknown,
    /// With the read that is under way. Without one it keeps nothing open.
    Kernel(Weak<Descriptor>, Option<Receiving>),
    Memory(IncomingPipe),
}

/// A read that is polled.
struct Receiving {
    hold: OwnedQueueGuard<Descriptor>,
    op: Option<Receive>,
}

/// The read that is in the air, by what it carries.
enum Receive {
    Managed(RawOp<Rc<Descriptor>>),
    /// The pool was empty.
    Heap(RawOp<(Rc<Descriptor>, Vec<u8>)>),
}

impl Reading {
    /// What the kernel sends next.
    pub(super) fn poll_kernel(&mut self, bytes: &ByteStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let descriptor = &bytes.owned.descriptor;
        let is_known =
            matches!(&self.source, Source::Kernel(of, _) if std::ptr::eq(of.as_ptr(), Rc::as_ptr(descriptor)));
        if !is_known {
            self.give_back();
            self.source = Source::Kernel(Rc::downgrade(descriptor), None);
        }
        if self.lent.is_empty()
            && let Source::Kernel(_, under_way) = &mut self.source
        {
            let receiving = under_way.get_or_insert_with(|| Receiving {
                hold: OwnedQueueGuard::new(descriptor.clone(), |descriptor| &descriptor.read),
                op: None,
            });
            let result = ready!(receiving.poll(bytes.medium(), cx));
            *under_way = None;
            self.lent = result?;
        }
        Poll::Ready(Ok(&self.lent))
    }

    /// What is written to the other end of a connection in memory.
    pub(super) fn poll_memory(&mut self, stream: &DuplexStream, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let is_known = matches!(&self.source, Source::Memory(pipe) if pipe.is_of(stream));
        if !is_known {
            self.give_back();
            self.source = Source::Memory(stream.incoming_pipe());
        }
        if self.lent.is_empty()
            && let Source::Memory(pipe) = &mut self.source
        {
            self.lent = ready!(pipe.poll_take(cx));
        }
        Poll::Ready(Ok(&self.lent))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.lent.advance(count);
        if self.lent.is_empty() {
            // Back to its pool.
            self.lent = ManagedBuf::default();
        }
    }

    /// What was received and not consumed is read from the stream next.
    fn give_back(&mut self) {
        let lent = std::mem::take(&mut self.lent);
        if lent.is_empty() {
            return;
        }
        match &self.source {
            Source::Kernel(of, _) => {
                if let Some(descriptor) = of.upgrade() {
                    descriptor.read.put_front(&descriptor.core, &lent);
                }
            }
            Source::Memory(pipe) => pipe.put_back(&lent),
            Source::Unknown => {}
        }
    }
}

impl Receiving {
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
            self.op = Some(Receive::managed(descriptor, queue, medium));
        }
        let (descriptor, queue) = (self.hold.owner(), self.hold.queue());
        if let Some(Receive::Managed(op)) = &mut self.op {
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
                } => self.op = Some(Receive::to_heap(descriptor, queue, medium)),
                OpResult { res, .. } => {
                    self.op = None;
                    return Poll::Ready(count(res).map(|_| ManagedBuf::default()));
                }
            }
        }
        let Some(Receive::Heap(op)) = &mut self.op else {
            unreachable!("one of the two is in the air")
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

impl Receive {
    fn managed(descriptor: &Rc<Descriptor>, queue: &IoQueue, medium: Medium) -> Receive {
        let fd = descriptor.fd;
        let payload = descriptor.clone();
        let plan = |_: &mut _| Op::RecvManaged { fd, medium };
        Receive::Managed(RawOp::start_op(
            &descriptor.core,
            queue,
            OnOrphan::Keep,
            payload,
            0,
            plan,
        ))
    }

    fn to_heap(descriptor: &Rc<Descriptor>, queue: &IoQueue, medium: Medium) -> Receive {
        let fd = descriptor.fd;
        let payload = (descriptor.clone(), vec![0; HEAP_READ_LEN]);
        let plan = |(_, buf): &mut (_, Vec<u8>)| {
            let (ptr, len) = (buf.as_mut_ptr(), buf.len());
            Op::Recv { fd, medium, ptr, len }
        };
        Receive::Heap(RawOp::start_op(
            &descriptor.core,
            queue,
            OnOrphan::Keep,
            payload,
            0,
            plan,
        ))
    }
}

impl Drop for Receiving {
    /// The read stays in its lane: what it receives, the next one gets.
    fn drop(&mut self) {
        let core = &self.hold.owner().core;
        match &mut self.op {
            Some(Receive::Managed(op)) => op.abandon(core),
            Some(Receive::Heap(op)) => op.abandon(core),
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
        f.debug_struct("Reading").field("unconsumed", &self.lent.len()).finish()
    }
}
