//! Sends the bytes that a bridge has accepted.
//!
//! A write first offers its bytes to the kernel without a copy. The rest is copied to a write buffer. When a send
//! completes, the loop calls this sender ([`Listener`]), which starts the next one, because poll-based code may write
//! and never poll again. Only a task that waits for space or for a flush is woken.
//!
//! The sender holds the write queue and the descriptor from its first send until nothing is left. So the stream's own
//! calls run entirely before or after, and an empty buffer keeps nothing open.
//!
//! Once the stream is dropped, the sender sends only what the kernel accepts at once. If bytes remain, or if a send
//! fails, the connection is reset, so that the peer does not mistake the part for the whole.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, MAX_SLICES, Medium, Op};
use crate::error::{LoopClosed, from_code};
use crate::event_loop::exception::guard;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::Ticket;
use crate::inflight::stream::{ByteStream, count};
use crate::inflight::{Listener, OnOrphan, RawOp};
use crate::io::IoBuf;
use crate::io::payload::Piece;
use crate::io::write_buffer::{WriteBuffer, nonzero};
use crate::sys::{self, Fd, errno};
use crate::task::{WaitReason, set_wait_reason};

/// The maximum number of unsent bytes; a write beyond it waits for space.
const BOUND: usize = 64 * 1024;

/// Slices of up to this many bytes in total are copied into one buffer.
const SMALL: usize = 512;

pub(super) struct Sender {
    descriptor: Weak<Descriptor>,
    medium: Medium,
    buffer: WriteBuffer,
    /// Holds the write queue while there is something to send.
    ticket: Cell<Ticket>,
    op: Cell<Option<RawOp<SendPayload>>>,
    waiting: Cell<Option<Waiting>>,
}

struct Waiting {
    waker: Waker,
    /// Wake when there is space; otherwise when all bytes are sent.
    for_room: bool,
}

type SendPayload = (Rc<Descriptor>, Piece);

impl Sender {
    pub(super) fn new(bytes: &ByteStream) -> Rc<Sender> {
        Rc::new(Sender {
            descriptor: Rc::downgrade(&bytes.owned.descriptor),
            medium: bytes.medium(),
            buffer: WriteBuffer::default(),
            ticket: Cell::default(),
            op: Cell::default(),
            waiting: Cell::default(),
        })
    }

    pub(super) fn is_for(&self, bytes: &ByteStream) -> bool {
        std::ptr::eq(self.descriptor.as_ptr(), Rc::as_ptr(&bytes.owned.descriptor))
    }

    fn descriptor(&self) -> io::Result<Rc<Descriptor>> {
        self.descriptor.upgrade().ok_or_else(|| from_code(errno::BROKEN_PIPE))
    }

    /// Accepts the bytes that fit, and starts a send if none is in flight.
    pub(super) fn poll_write(self: &Rc<Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.failure()?;
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let descriptor = self.descriptor()?;
        if !descriptor.core.spend_budget(cx) {
            return Poll::Pending;
        }
        let is_idle = !self.buffer.is_sending();
        if is_idle {
            // Avoids the copy for bytes that the kernel accepts now.
            if let Some(res) = self.send_now(&descriptor, bufs) {
                return Poll::Ready(sent(&descriptor, res));
            }
            ready!(self.poll_queue_turn(&descriptor, cx));
        }
        let taken = self.buffer.put_slices(bufs, BOUND);
        if taken == 0 {
            return self.wait(cx, true);
        }
        if is_idle {
            self.send_next(&descriptor);
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends synchronously from the slices; `None` if the driver does not support it, another send is active or the
    /// kernel accepts nothing at once. The caller has already spent the budget.
    fn send_now(&self, descriptor: &Descriptor, bufs: &[IoSlice<'_>]) -> Option<OsResult> {
        // Without a chance, the slices are not joined: `put_slices` copies them, too.
        if !descriptor.write.is_free() || !descriptor.core.may_attempt() {
            return None;
        }
        let (fd, medium) = (descriptor.fd, self.medium);
        let mut small = [0; SMALL];
        let bytes: &[u8] = if let [buf] = bufs {
            buf
        } else if let Some(len) = join_small(bufs, &mut small) {
            // For example an HTTP head and a short body: one buffer costs the kernel less than a list of two.
            &small[..len]
        } else {
            return sys::with_slices(bufs, |slices, count| {
                let op = Op::SendVectored {
                    fd,
                    medium,
                    slices,
                    count: count.min(MAX_SLICES),
                };
                // SAFETY: the slices and their memory live until this call returns, and a send only reads them.
                unsafe { descriptor.core.attempt_unbudgeted(&op) }
            });
        };
        let op = Op::Send {
            fd,
            medium,
            ptr: bytes.as_ptr(),
            len: bytes.len().min(MAX_LEN),
        };
        // SAFETY: what `op` points to, `small` included, lives until this call returns, and a send only reads it.
        unsafe { descriptor.core.attempt_unbudgeted(&op) }
    }

    /// Waits until all accepted bytes are sent.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.failure()?;
        match self.buffer.is_sending() {
            true => self.wait(cx, false),
            false => Poll::Ready(Ok(())),
        }
    }

    /// Waits until all accepted bytes are sent, then acquires the write queue.
    pub(super) fn poll_alone(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        self.poll_queue_turn(&self.descriptor()?, cx).map(Ok)
    }

    /// The send error, which every later call returns.
    pub(super) fn failure(&self) -> io::Result<()> {
        self.buffer.failure()
    }

    pub(super) fn release_queue(&self) {
        let mut ticket = self.ticket.take();
        if let Some(descriptor) = self.descriptor.upgrade() {
            descriptor.write.end(&mut ticket);
        }
    }

    pub(super) fn unsent(&self) -> usize {
        self.buffer.watermarks.size()
    }

    /// Waits for the write queue, and for an orphaned write in it.
    fn poll_queue_turn(&self, descriptor: &Rc<Descriptor>, cx: &mut Context<'_>) -> Poll<()> {
        // Put back also if a waker panics.
        let mut ticket = PutBack(&self.ticket, self.ticket.take());
        let begin = descriptor.write.poll_begin(&descriptor.core, &mut ticket.1, cx);
        begin.map(|_| ())
    }

    fn wait<T>(&self, cx: &mut Context<'_>, for_room: bool) -> Poll<T> {
        set_wait_reason(WaitReason::Named(&"pending writes"));
        let waker = cx.waker().clone();
        drop(self.waiting.replace(Some(Waiting { waker, for_room })));
        // Cloning or dropping a waker runs foreign code, during which the send may have completed.
        if !self.buffer.is_sending() || for_room && self.unsent() < BOUND {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends until an operation is in flight or nothing is left. The caller holds the write queue.
    fn send_next(self: &Rc<Self>, descriptor: &Rc<Descriptor>) {
        while let Some(piece) = self.buffer.next_piece() {
            let op = self.start_op(descriptor, piece);
            let (id, is_up) = (op.id, op.listen(&descriptor.core, self.clone()));
            self.op.set(Some(op));
            descriptor.core.trace(id);
            descriptor.core.queued();
            if is_up {
                if descriptor.is_handle_dropped.get()
                    && let Some(id) = descriptor.write.op.get()
                {
                    // The stream was dropped: do not wait for the kernel to accept more.
                    descriptor.core.request_cancel(id);
                }
                return;
            }
            self.finish_send(descriptor);
        }
        // Wakes the next caller in the queue.
        self.release_queue();
    }

    fn start_op(&self, descriptor: &Rc<Descriptor>, piece: Piece) -> RawOp<SendPayload> {
        let (fd, medium) = (descriptor.fd, self.medium);
        let plan = |(_, piece): &mut SendPayload| Op::Send {
            fd,
            medium,
            ptr: piece.as_ptr(),
            len: piece.len().min(MAX_LEN),
        };
        let payload = (descriptor.clone(), piece);
        descriptor
            .core
            .start_op(&descriptor.write, OnOrphan::Discard, || payload, plan)
    }

    /// Records the result of a completed send.
    fn finish_send(&self, descriptor: &Descriptor) {
        let Some(mut op) = self.op.take() else { return };
        let Some((op_result, (_, piece))) = op.fetch(&descriptor.core, &descriptor.write) else {
            return;
        };
        match sent(descriptor, op_result.res()) {
            Ok(count) => drop(self.buffer.give_back(piece, count)),
            Err(error) => self.fail(descriptor, error),
        }
    }

    fn fail(&self, descriptor: &Descriptor, error: io::Error) {
        descriptor.ends_with_reset.set(true);
        self.buffer.fail(error);
    }

    /// The bridge was dropped. The loop sends the rest: the operation in flight keeps this sender alive.
    pub(super) fn detach(&self) {
        drop(self.waiting.take());
    }
}

struct PutBack<'a>(&'a Cell<Ticket>, Ticket);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.release_queue();
    }
}

fn join_small(bufs: &[IoSlice<'_>], into: &mut [u8; SMALL]) -> Option<usize> {
    let mut len = 0;
    for buf in bufs {
        into.get_mut(len..len + buf.len())?.copy_from_slice(buf);
        len += buf.len();
    }
    Some(len)
}

/// The result of a send. As for the stream's own writes, a local close gives the same error as a close by the peer.
fn sent(descriptor: &Descriptor, res: OsResult) -> io::Result<usize> {
    nonzero(count(match res {
        Err(errno::BAD_FD) if descriptor.fd == Fd::MIN => Err(errno::BROKEN_PIPE),
        res => res,
    }))
}

impl Listener for Sender {
    fn completed(self: Rc<Self>) {
        // The completed operation keeps the descriptor open until this returns.
        let Some(descriptor) = self.descriptor.upgrade() else {
            return;
        };
        self.finish_send(&descriptor);
        if descriptor.core.is_closed() && self.unsent() > 0 {
            self.fail(&descriptor, LoopClosed.into());
        }
        self.send_next(&descriptor);
        match self.waiting.take() {
            Some(waiting) if waiting.for_room || !self.buffer.is_sending() => {
                guard("a waker", || waiting.waker.wake());
            }
            waiting => self.waiting.set(waiting),
        }
    }
}
