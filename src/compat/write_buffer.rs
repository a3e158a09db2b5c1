//! Bytes that were accepted and are not sent yet.
//!
//! A write first offers its bytes to the kernel without a copy. The rest is copied: one send is in flight, and later
//! writes are coalesced behind it. When a send completes, the loop calls this buffer ([`Listener`]), which starts the
//! next send, because poll-based code may write and never poll again. Only a task that waits for space or for the end
//! is woken.
//!
//! The buffer holds the write queue and the descriptor from its first send until nothing is left. So the stream's own
//! calls run entirely before or after, and an empty buffer keeps nothing open.
//!
//! After the stream is dropped, the buffer sends only what the kernel accepts at once. If bytes remain, or if a send
//! fails, the connection is reset, so that the peer does not mistake the part for the whole.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use super::buffer_cache;
use crate::driver::OsResult;
use crate::driver::op::{MAX_LEN, Medium, Op};
use crate::error::from_code;
use crate::event_loop::exception::guard;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::OwnedQueueGuard;
use crate::inflight::stream::{ByteStream, count};
use crate::inflight::{Listener, OnOrphan, RawOp, StartedOp};
use crate::sys::{Fd, errno};
use crate::task::{WaitReason, set_wait_reason};

/// The maximum number of unsent bytes; a write beyond it waits for space.
pub(super) const BOUND: usize = 64 * 1024;

pub(super) struct WriteBuffer {
    descriptor: Weak<Descriptor>,
    medium: Medium,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Held while there is something to send.
    hold: Option<OwnedQueueGuard<Descriptor>>,
    op: Option<RawOp<Payload>>,
    /// The bytes being sent; owned by the operation while it is in flight.
    front: Vec<u8>,
    /// The length of `front`, and how much of it earlier sends have completed.
    front_len: usize,
    sent: usize,
    /// The bytes after `front`.
    gathered: Vec<u8>,
    /// The result of a failed send. Accepted bytes are lost then, so no later bytes are sent.
    failed: Option<OsResult>,
    waiting: Option<Waiting>,
}

struct Waiting {
    waker: Waker,
    /// Wake when there is space; otherwise when nothing is left.
    for_room: bool,
}

type Payload = (Rc<Descriptor>, Vec<u8>);

impl WriteBuffer {
    pub(super) fn new(bytes: &ByteStream) -> Rc<WriteBuffer> {
        Rc::new(WriteBuffer {
            descriptor: Rc::downgrade(&bytes.owned.descriptor),
            medium: bytes.medium(),
            state: RefCell::default(),
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
        let is_idle = self.is_idle();
        if is_idle {
            // Avoids the copy for bytes that the kernel accepts now.
            if let Some(res) = descriptor.send_now(self.medium, bufs) {
                return Poll::Ready(sent(&descriptor, res));
            }
            ready!(self.poll_queue_turn(&descriptor, cx));
        }
        let taken = self.state.borrow_mut().gather(bufs);
        if taken == 0 {
            return self.wait(cx, true);
        }
        if is_idle {
            self.send_next(&descriptor);
        }
        Poll::Ready(Ok(taken))
    }

    /// Waits until nothing is left.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.failure()?;
        match self.is_idle() {
            true => Poll::Ready(Ok(())),
            false => self.wait(cx, false),
        }
    }

    /// Waits until nothing is left, then acquires the write queue.
    pub(super) fn poll_alone(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        self.poll_queue_turn(&self.descriptor()?, cx).map(Ok)
    }

    /// The send error, which every later call returns.
    pub(super) fn failure(&self) -> io::Result<()> {
        match self.state.borrow().failed {
            Some(Err(code)) => Err(from_code(code)),
            Some(Ok(_)) => Err(io::ErrorKind::WriteZero.into()),
            None => Ok(()),
        }
    }

    pub(super) fn release_queue(&self) {
        let hold = self.state.borrow_mut().hold.take();
        drop(hold);
    }

    pub(super) fn unsent(&self) -> usize {
        self.state.borrow().unsent()
    }

    fn is_idle(&self) -> bool {
        self.state.borrow().op.is_none()
    }

    /// Waits for the write queue, and for an orphaned write in it.
    fn poll_queue_turn(&self, descriptor: &Rc<Descriptor>, cx: &mut Context<'_>) -> Poll<()> {
        let hold = self.state.borrow_mut().hold.take();
        let mut hold = hold.unwrap_or_else(|| OwnedQueueGuard::new(descriptor.clone(), |descriptor| &descriptor.write));
        let result = match hold.poll(cx) {
            Poll::Ready(()) => hold.queue().poll_orphan(&descriptor.core, cx),
            Poll::Pending => Poll::Pending,
        };
        self.state.borrow_mut().hold = Some(hold);
        result
    }

    fn wait<T>(&self, cx: &mut Context<'_>, for_room: bool) -> Poll<T> {
        set_wait_reason(WaitReason::Named("pending writes"));
        let waker = cx.waker().clone();
        let old = self.state.borrow_mut().waiting.replace(Waiting { waker, for_room });
        drop(old);
        // Cloning or dropping a waker runs foreign code, during which the send may have completed.
        let (is_idle, has_failed) = (self.is_idle(), self.failure().is_err());
        if is_idle || has_failed || for_room && self.unsent() < BOUND {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends until an operation is in flight or nothing is left. The caller holds the write queue.
    fn send_next(self: &Rc<Self>, descriptor: &Rc<Descriptor>) {
        loop {
            let mut state = self.state.borrow_mut();
            let Some((front, sent)) = state.next() else {
                state.give_back();
                let hold = state.hold.take();
                drop(state);
                // Wakes the next caller in the queue.
                drop(hold);
                return;
            };
            let (op, started) = self.start_op(descriptor, front, sent);
            let is_up = op.listen(&descriptor.core, self.clone());
            state.op = Some(op);
            drop(state);
            descriptor.core.trace(started);
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
    }

    fn start_op(&self, descriptor: &Rc<Descriptor>, front: Vec<u8>, sent: usize) -> (RawOp<Payload>, StartedOp) {
        let (fd, medium) = (descriptor.fd, self.medium);
        let plan = |(_, front): &mut Payload| Op::Send {
            fd,
            medium,
            ptr: front.as_ptr().wrapping_add(sent),
            len: (front.len() - sent).min(MAX_LEN),
        };
        let payload = (descriptor.clone(), front);
        RawOp::start_op_untraced(&descriptor.core, &descriptor.write, OnOrphan::Discard, payload, 0, plan)
    }

    /// Records the result of a completed send.
    fn finish_send(&self, descriptor: &Descriptor) {
        let op = self.state.borrow_mut().op.take();
        let Some(mut op) = op else { return };
        let Some((op_result, (_, front))) = op.fetch(&descriptor.core, &descriptor.write) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        state.front = front;
        match normalize(descriptor, op_result.res) {
            Ok(count) if count > 0 => state.sent += count as usize,
            failed => {
                state.failed = Some(failed);
                descriptor.ends_with_reset.set(true);
                state.forget_all();
            }
        }
    }

    /// The bridge was dropped. The loop sends the rest: the operation in flight keeps this buffer alive.
    pub(super) fn detach(&self) {
        let waiting = self.state.borrow_mut().waiting.take();
        drop(waiting);
    }
}

fn sent(descriptor: &Descriptor, res: OsResult) -> io::Result<usize> {
    match normalize(descriptor, res) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        res => count(res),
    }
}

/// As for the stream's own writes, a local close gives the same error as a close by the peer.
fn normalize(descriptor: &Descriptor, res: OsResult) -> OsResult {
    match res {
        Err(errno::BAD_FD) if descriptor.fd == Fd::MIN => Err(errno::BROKEN_PIPE),
        res => res,
    }
}

impl Listener for WriteBuffer {
    fn completed(self: Rc<Self>) {
        // The completed operation and the queue guard keep the descriptor open.
        let Some(descriptor) = self.descriptor.upgrade() else {
            return;
        };
        self.finish_send(&descriptor);
        if descriptor.core.is_closed() {
            let mut state = self.state.borrow_mut();
            if state.unsent() > 0 {
                descriptor.ends_with_reset.set(true);
            }
            state.forget_all();
        }
        self.send_next(&descriptor);
        let waiting = {
            let mut state = self.state.borrow_mut();
            let is_idle = state.op.is_none();
            state.waiting.take_if(|waiting| waiting.for_room || is_idle)
        };
        if let Some(Waiting { waker, .. }) = waiting {
            guard("a waker", || waker.wake());
        }
    }
}

impl State {
    fn unsent(&self) -> usize {
        self.front_len - self.sent + self.gathered.len()
    }

    /// Copies the bytes that fit.
    fn gather(&mut self, bufs: &[IoSlice<'_>]) -> usize {
        let room = BOUND.saturating_sub(self.unsent());
        let mut left = room;
        if left > 0 && self.gathered.capacity() == 0 {
            self.gathered = buffer_cache::take();
        }
        for buf in bufs {
            let part = left.min(buf.len());
            self.gathered.extend_from_slice(&buf[..part]);
            left -= part;
        }
        room - left
    }

    /// The next bytes to send, and where in them to start.
    fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.sent == self.front_len {
            self.front.clear();
            std::mem::swap(&mut self.front, &mut self.gathered);
            (self.front_len, self.sent) = (self.front.len(), 0);
        }
        match self.front_len {
            0 => None,
            _ => Some((std::mem::take(&mut self.front), self.sent)),
        }
    }

    fn forget_all(&mut self) {
        self.front.clear();
        self.gathered.clear();
        (self.front_len, self.sent) = (0, 0);
    }

    /// An idle connection holds no buffer.
    fn give_back(&mut self) {
        buffer_cache::put(std::mem::take(&mut self.front));
        buffer_cache::put(std::mem::take(&mut self.gathered));
    }
}
