//! What was written and is not sent yet.
//!
//! The driver is asked first whether the kernel takes the bytes at once, as they are. Else they are copied: one send
//! is in the air; what is written meanwhile gathers behind it. When a send lands, the loop calls the outbox
//! ([`Listener`]), which starts the next one: poll-based code may write and then never poll again (it reads, or sleeps), and
//! its bytes are to arrive all the same. Whoever waits for room or for the end is woken, and nobody else.
//!
//! The lane is held from the first send until nothing is left, so calls of the stream's own come before or after all of it.
//! So is the descriptor: an outbox with nothing to send keeps nothing open.
//!
//! When the stream is gone, nobody waits for its peer any more. What the kernel takes at once is still sent; if something is left
//! then, the connection is reset, so that the peer does not take a part for the whole. The same holds when a send fails.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};

use super::spares;
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

/// How many bytes may wait; a write that finds as many waits for room.
pub(super) const BOUND: usize = 64 * 1024;

pub(super) struct WriteBuffer {
    descriptor: Weak<Descriptor>,
    medium: Medium,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The lane, while something is to be sent.
    hold: Option<OwnedQueueGuard<Descriptor>>,
    op: Option<RawOp<Payload>>,
    /// What is being sent; with the flight while that is in the air.
    front: Vec<u8>,
    /// How long it is, and how much of it was sent by earlier flights.
    front_len: usize,
    sent: usize,
    /// What comes next.
    gathered: Vec<u8>,
    /// How a send failed. Something that was taken is lost then, so nothing comes after it.
    failed: Option<OsResult>,
    waiting: Option<Waiting>,
}

struct Waiting {
    waker: Waker,
    /// For room; else until nothing is left.
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

    /// Takes what there is room for, and starts a send if none is under way.
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
            // Where the kernel can be asked at once, what it takes now is not copied at all.
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
            self.send_on(&descriptor);
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

    /// Waits until nothing is left, and holds the lane.
    pub(super) fn poll_alone(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        self.poll_queue_turn(&self.descriptor()?, cx).map(Ok)
    }

    /// What went wrong with what was taken. It is told by every call from then on.
    pub(super) fn failure(&self) -> io::Result<()> {
        match self.state.borrow().failed {
            Some(Err(code)) => Err(from_code(code)),
            Some(Ok(_)) => Err(io::ErrorKind::WriteZero.into()),
            None => Ok(()),
        }
    }

    pub(super) fn let_go(&self) {
        let hold = self.state.borrow_mut().hold.take();
        drop(hold);
    }

    pub(super) fn unsent(&self) -> usize {
        self.state.borrow().unsent()
    }

    fn is_idle(&self) -> bool {
        self.state.borrow().op.is_none()
    }

    /// Waits for the lane, and for the orphan of an earlier write in it.
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
        set_wait_reason(WaitReason::Named("its writes"));
        let waker = cx.waker().clone();
        let old = self.state.borrow_mut().waiting.replace(Waiting { waker, for_room });
        drop(old);
        // Cloning and dropping wakers is foreign code, inside of which the send may have landed.
        let (is_idle, has_failed) = (self.is_idle(), self.failure().is_err());
        if is_idle || has_failed || for_room && self.unsent() < BOUND {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends until something is in the air, or nothing is left. To be called by who holds the lane.
    fn send_on(self: &Rc<Self>, descriptor: &Rc<Descriptor>) {
        loop {
            let mut state = self.state.borrow_mut();
            let Some((front, sent)) = state.next() else {
                state.give_back();
                let hold = state.hold.take();
                drop(state);
                // This calls the next in the lane's queue.
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
                    // What cannot be sent at once is not.
                    descriptor.core.request_cancel(id);
                }
                return;
            }
            self.absorb_orphan(descriptor);
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

    /// Notes how a landed send went.
    fn absorb_orphan(&self, descriptor: &Descriptor) {
        let op = self.state.borrow_mut().op.take();
        let Some(mut op) = op else { return };
        let Some((op_result, (_, front))) = op.fetch(&descriptor.core, &descriptor.write) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        state.front = front;
        match as_of_a_stream(descriptor, op_result.res) {
            Ok(count) if count > 0 => state.sent += count as usize,
            failed => {
                state.failed = Some(failed);
                descriptor.ends_with_reset.set(true);
                state.forget_all();
            }
        }
    }

    /// Nobody will write here any more. What is left is sent by the loop, which has a share of this as long as a send is in the
    /// air.
    pub(super) fn leave(&self) {
        let waiting = self.state.borrow_mut().waiting.take();
        drop(waiting);
    }
}

fn sent(descriptor: &Descriptor, res: OsResult) -> io::Result<usize> {
    match as_of_a_stream(descriptor, res) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        res => count(res),
    }
}

/// As for a write of the stream's own: what was closed here is as what the other end has closed.
fn as_of_a_stream(descriptor: &Descriptor, res: OsResult) -> OsResult {
    match res {
        Err(errno::BAD_FD) if descriptor.fd == Fd::MIN => Err(errno::BROKEN_PIPE),
        res => res,
    }
}

impl Listener for WriteBuffer {
    fn completed(self: Rc<Self>) {
        // The flight that has landed has a share of it, and so has the hold.
        let Some(descriptor) = self.descriptor.upgrade() else {
            return;
        };
        self.absorb_orphan(&descriptor);
        if descriptor.core.is_closed() {
            let mut state = self.state.borrow_mut();
            if state.unsent() > 0 {
                descriptor.ends_with_reset.set(true);
            }
            state.forget_all();
        }
        self.send_on(&descriptor);
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

    /// Copies what there is room for.
    fn gather(&mut self, bufs: &[IoSlice<'_>]) -> usize {
        let room = BOUND.saturating_sub(self.unsent());
        let mut left = room;
        if left > 0 && self.gathered.capacity() == 0 {
            self.gathered = spares::take();
        }
        for buf in bufs {
            let part = left.min(buf.len());
            self.gathered.extend_from_slice(&buf[..part]);
            left -= part;
        }
        room - left
    }

    /// What is to be sent next, and from where on.
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

    /// A connection that waits holds no buffer.
    fn give_back(&mut self) {
        spares::give_back(std::mem::take(&mut self.front));
        spares::give_back(std::mem::take(&mut self.gathered));
    }
}
