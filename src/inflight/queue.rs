//! Lanes: why nothing is lost.
//!
//! Each descriptor has a read lane (for a listener: its accepts) and a write lane, and a lane has room for one flight.
//! Two sends in flight on one stream interleave; two receives deliver in whatever order they complete. So whoever wants
//! to use a lane holds it first, in the order of asking.
//!
//! Dropping a read leaves its flight in the lane and asks for its cancel, but the kernel may have received already. So
//! the next read first waits for that flight to land, and serves what it brought before it asks the kernel for more.
//! A bridge that goes puts back what it had lent, perhaps while another read waits already: that one is called back from the
//! kernel, and serves these bytes before its own.
//! A dropped write may have sent any prefix; the next write waits until it is known to be over.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use crate::driver::{OpId, OsResult};
use crate::event_loop::core::LoopCore;
use crate::inflight::lasting_error;
use crate::inflight::lazy_box::LazyBox;
use crate::io::{IoBufMut, fill_target};
use crate::sys::MsgMeta;
use crate::task::WaitReason;

/// One direction of a descriptor.
#[derive(Default)]
pub(crate) struct IoQueue {
    /// The flight that is in this lane, whether its future lives or not.
    pub(crate) op: OpIdCell,
    fifo_lock: FifoLock,
    leftover: RefCell<LazyBox<Leftover>>,
}

/// A flight's id, or none, in one word.
pub(crate) struct OpIdCell(Cell<u64>);

impl OpIdCell {
    /// No flight has this number: see [`OpId::to_u64`].
    const EMPTY: u64 = u64::MAX;

    #[inline]
    pub(crate) fn get(&self) -> Option<OpId> {
        match self.0.get() {
            OpIdCell::EMPTY => None,
            number => Some(OpId::from_u64(number)),
        }
    }

    #[inline]
    pub(crate) fn set(&self, id: Option<OpId>) {
        self.0.set(id.map_or(OpIdCell::EMPTY, OpId::to_u64));
    }
}

impl Default for OpIdCell {
    fn default() -> OpIdCell {
        OpIdCell(Cell::new(OpIdCell::EMPTY))
    }
}

/// What was received for reads that are gone.
#[derive(Default)]
struct Leftover {
    bytes: Vec<u8>,
    at: usize,
    /// What came with the bytes, if they are a message: then they are served as one.
    meta: Option<MsgMeta>,
    error: Option<i32>,
}

impl IoQueue {
    /// Waits for this lane to be free, in the order of asking, and holds it.
    pub(crate) fn hold(&self) -> Acquire<'_> {
        Acquire {
            queue: self,
            ticket: None,
        }
    }

    /// Holds this lane if nobody does.
    #[cfg(feature = "tls")]
    pub(crate) fn try_acquire(&self) -> Option<QueueGuard<'_>> {
        match self.fifo_lock.held.replace(true) {
            true => None,
            false => Some(QueueGuard { queue: self }),
        }
    }

    /// Waits until no flight of an earlier call is in the lane, and takes in what it had received. To be called by who
    /// holds the lane.
    #[inline]
    pub(crate) fn settle<'a>(&'a self, core: &'a LoopCore) -> impl Future<Output = ()> + 'a {
        std::future::poll_fn(|cx| match self.op.get() {
            None => Poll::Ready(()),
            Some(_) => self.poll_orphan(core, cx),
        })
    }

    /// Takes in what an earlier call's flight had received, if it is down.
    pub(crate) fn absorb_orphan(&self, core: &LoopCore) {
        if let Some(id) = self.op.get()
            && core.is_down(id)
        {
            self.op.set(None);
            let salvage = core.salvage(id);
            let mut leftover = self.leftover.borrow_mut();
            if salvage.is_empty() {
                return;
            }
            let leftover = leftover.make();
            if leftover.is_empty() {
                *leftover = Leftover {
                    bytes: salvage.bytes,
                    at: 0,
                    meta: salvage.meta,
                    error: salvage.error,
                };
            } else {
                // What a bridge had lent was put back while the read was under way.
                leftover.append(&salvage.bytes, salvage.meta, salvage.error);
            }
        }
    }

    /// Whether something is unread. If so, takes one from the budget of results that are there at once.
    #[inline]
    pub(crate) fn has_leftover<'a>(&'a self, core: &'a LoopCore) -> impl Future<Output = bool> + 'a {
        std::future::poll_fn(|cx| self.poll_leftover(core, cx))
    }

    /// The same, polled.
    #[inline]
    pub(crate) fn poll_leftover(&self, core: &LoopCore, cx: &mut Context<'_>) -> Poll<bool> {
        let has_some = self.has_leftover_now();
        match has_some && !core.spend_budget(cx) {
            true => Poll::Pending,
            false => Poll::Ready(has_some),
        }
    }

    /// Waits, polled, until no flight of an earlier call is in the lane: see [`settle`](Lane::settle).
    pub(crate) fn poll_orphan(&self, core: &LoopCore, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(id) = self.op.get() {
            if core.register_waiter(id, cx.waker()) {
                return Poll::Pending;
            }
            self.absorb_orphan(core);
        }
        Poll::Ready(())
    }

    /// Serves unread bytes into `buf`; `None` if there are none.
    pub(crate) fn serve<B: IoBufMut>(&self, buf: &mut B) -> Option<Result<usize, i32>> {
        // The buffer's methods are foreign code: none is called under the borrow, and none after the pointer was taken: a
        // buffer that holds its bytes inline is touched by it.
        let (ptr, capacity) = fill_target(buf);
        // 0 bytes would be the end of the stream.
        assert!(
            capacity > 0,
            "a buffer has lost its capacity while it waited: its implementation of IoBufMut is wrong"
        );
        let count = {
            let mut leftover = self.leftover.borrow_mut();
            let leftover = leftover.get_mut()?;
            let left = &leftover.bytes[leftover.at..];
            if left.is_empty() {
                leftover.meta = None;
                return leftover.error.take().map(Err);
            }
            let count = left.len().min(capacity);
            // SAFETY: the buffer vouches for `capacity` bytes that are its alone; `count` is no more than that.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), ptr, count) };
            leftover.at += count;
            leftover.forget_if_done();
            count
        };
        // SAFETY: these bytes were just copied.
        unsafe { buf.set_filled(count) };
        Some(Ok(count))
    }

    /// Serves all unread bytes at once; `None` if there are none.
    pub(crate) fn serve_all(&self) -> Option<Result<Vec<u8>, i32>> {
        let mut leftover = self.leftover.borrow_mut();
        let leftover = leftover.get_mut()?;
        leftover.meta = None;
        if leftover.at == leftover.bytes.len() {
            return leftover.error.take().map(Err);
        }
        let mut bytes = std::mem::take(&mut leftover.bytes);
        bytes.drain(..std::mem::take(&mut leftover.at));
        Some(Ok(bytes))
    }

    /// Serves an unread message into `buf`; `None` if there is none. What does not fit is cut off, or, on a stream (which
    /// has no ends of messages), left.
    pub(crate) fn serve_message<B: IoBufMut>(
        &self,
        buf: &mut B,
        is_stream: bool,
    ) -> Option<Result<(usize, MsgMeta), i32>> {
        let meta = self.take_meta();
        let (len, is_message) = (self.leftover_len(), meta.is_some());
        let served = match self.serve(buf) {
            None if is_message => Ok(0),
            None => return None,
            Some(served) => served,
        };
        Some(served.map(|count| {
            let mut meta = meta.unwrap_or_default();
            if !is_stream && count < len {
                meta.is_truncated = true;
                self.serve_all();
            }
            (count, meta)
        }))
    }

    /// The same, whole.
    pub(crate) fn serve_whole_message(&self) -> Option<Result<(Vec<u8>, MsgMeta), i32>> {
        let meta = self.take_meta();
        let bytes = match self.serve_all() {
            Some(Ok(bytes)) => bytes,
            Some(Err(code)) => return Some(Err(code)),
            None if meta.is_some() => Vec::new(),
            None => return None,
        };
        Some(Ok((bytes, meta.unwrap_or_default())))
    }

    fn take_meta(&self) -> Option<MsgMeta> {
        self.leftover.borrow_mut().get_mut()?.meta.take()
    }

    fn leftover_len(&self) -> usize {
        let leftover = self.leftover.borrow();
        leftover.get().map_or(0, |leftover| leftover.bytes.len() - leftover.at)
    }

    /// Whether there is something that the next reader must be told.
    #[inline]
    fn has_leftover_now(&self) -> bool {
        self.leftover
            .borrow()
            .get()
            .is_some_and(|leftover| !leftover.is_empty())
    }

    /// Takes the error that stands behind the unread bytes, once these are served.
    pub(crate) fn take_error(&self) -> Option<i32> {
        let mut leftover = self.leftover.borrow_mut();
        let leftover = leftover.get_mut()?;
        match leftover.has_bytes() {
            true => None,
            false => leftover.error.take(),
        }
    }

    /// Puts received bytes back, for the next read, behind what is unread.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.leftover.borrow_mut().make().append(bytes, None, None);
    }

    /// Puts received bytes back in front of what is unread, and calls a read that waits back from the kernel: it is to serve
    /// them.
    pub(crate) fn put_front(&self, core: &LoopCore, bytes: &[u8]) {
        {
            let mut leftover = self.leftover.borrow_mut();
            let leftover = leftover.make();
            let at = std::mem::take(&mut leftover.at);
            leftover.bytes.splice(..at, bytes.iter().copied());
        }
        if let Some(id) = self.op.get() {
            core.request_cancel(id);
        }
    }

    /// Whether bytes were put in front of a read that has just landed. Then what it received goes behind them, and it serves
    /// what is unread. To be called by who holds the lane.
    #[inline]
    pub(crate) fn overtaken(&self, received: &[u8], meta: Option<MsgMeta>, res: OsResult) -> bool {
        if !self.has_bytes() {
            return false;
        }
        let mut leftover = self.leftover.borrow_mut();
        leftover.make().append(received, meta, lasting_error(res));
        true
    }

    /// Whether bytes are unread.
    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        self.leftover.borrow().get().is_some_and(Leftover::has_bytes)
    }

    /// Whether nobody holds it and no flight is in it.
    pub(crate) fn is_free(&self) -> bool {
        !self.fifo_lock.held.get() && self.op.get().is_none()
    }

    /// Whether a flight is in the lane or bytes are unread.
    pub(crate) fn is_busy(&self) -> bool {
        self.op.get().is_some() || self.has_leftover_now()
    }
}

impl Leftover {
    #[inline]
    fn has_bytes(&self) -> bool {
        self.at < self.bytes.len()
    }

    fn append(&mut self, bytes: &[u8], meta: Option<MsgMeta>, error: Option<i32>) {
        self.bytes.extend_from_slice(bytes);
        // Descriptors that came with later bytes are given with the first.
        self.meta = self.meta.take().or(meta);
        self.error = self.error.or(error);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len() && self.error.is_none() && self.meta.is_none()
    }

    fn forget_if_done(&mut self) {
        if self.at == self.bytes.len() {
            self.bytes = Vec::new();
            self.at = 0;
            self.meta = None;
        }
    }
}

/// Lets one holder in at a time, first come, first served. The uncontended way in and out is one flag.
#[derive(Default)]
struct FifoLock {
    held: Cell<bool>,
    waiting: RefCell<LazyBox<VecDeque<Waiting>>>,
}

struct Waiting {
    ticket: u64,
    /// Taken when it is called.
    waker: Option<Waker>,
    /// The lane was handed to this one; it is still at the front of the queue until it notices.
    called: bool,
}

/// Waits for a lane, then holds it until dropped.
#[must_use = "a lane is held only once this is awaited"]
pub(crate) struct Acquire<'a> {
    queue: &'a IoQueue,
    ticket: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = QueueGuard<'a>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<QueueGuard<'a>> {
        let queue = self.queue;
        ready!(queue.fifo_lock.poll_enter(&mut self.ticket, cx));
        Poll::Ready(QueueGuard { queue })
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue.fifo_lock.give_up(ticket);
        }
    }
}

/// The right to use a lane.
pub(crate) struct QueueGuard<'a> {
    queue: &'a IoQueue,
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.fifo_lock.hand_over();
    }
}

/// The same for who is polled and borrows nothing: it has a share of what the lane belongs to.
pub(crate) struct OwnedQueueGuard<T> {
    of: Rc<T>,
    queue: fn(&T) -> &IoQueue,
    ticket: Option<u64>,
    is_held: bool,
}

impl<T> OwnedQueueGuard<T> {
    pub(crate) fn new(of: Rc<T>, queue: fn(&T) -> &IoQueue) -> OwnedQueueGuard<T> {
        OwnedQueueGuard {
            of,
            queue,
            ticket: None,
            is_held: false,
        }
    }

    /// What the lane belongs to.
    pub(crate) fn of(&self) -> &Rc<T> {
        &self.of
    }

    pub(crate) fn queue(&self) -> &IoQueue {
        (self.queue)(&self.of)
    }

    /// Waits for the lane, if it is not held, and holds it until it is let go.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_held {
            ready!((self.queue)(&self.of).fifo_lock.poll_enter(&mut self.ticket, cx));
            self.is_held = true;
        }
        Poll::Ready(())
    }

    /// Lets go of the lane, or leaves its queue.
    pub(crate) fn let_go(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue().fifo_lock.give_up(ticket);
        }
        if std::mem::replace(&mut self.is_held, false) {
            self.queue().fifo_lock.hand_over();
        }
    }
}

impl<T> Drop for OwnedQueueGuard<T> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl FifoLock {
    /// Waits to be let in. `ticket` is the caller's place in the queue.
    #[inline]
    fn poll_enter(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        if ticket.is_none() && !self.held.replace(true) {
            return Poll::Ready(());
        }
        self.poll_queue(ticket, cx)
    }

    /// Takes a place in the queue, or looks whether it was called.
    #[cold]
    fn poll_queue(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(number) = *ticket else {
            crate::task::set_wait_reason(WaitReason::Named("its turn"));
            // Cloning is foreign code: the holder may release the queue inside of it, and nothing would wake this caller then.
            let waker = Some(cx.waker().clone());
            if !self.held.replace(true) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            let waiting = waiting.make();
            let number = waiting.back().map_or(0, |last| last.ticket + 1);
            waiting.push_back(Waiting {
                ticket: number,
                waker,
                called: false,
            });
            *ticket = Some(number);
            return Poll::Pending;
        };
        if self.is_called(number) {
            drop(self.leave_queue(number));
            *ticket = None;
            return Poll::Ready(());
        }
        crate::task::set_wait_reason(WaitReason::Named("its turn"));
        let mut waker = Some(cx.waker().clone());
        // Inside of the clone it may have been called, through the waker that it had before.
        if self.is_called(number) {
            return self.poll_queue(ticket, cx);
        }
        if let Some(waiting) = self.waiting.borrow_mut().make().iter_mut().find(|w| w.ticket == number) {
            std::mem::swap(&mut waiting.waker, &mut waker);
        }
        Poll::Pending
    }

    /// Leaves the queue. Who had been called already calls the next.
    fn give_up(&self, ticket: u64) {
        let was_called = self.is_called(ticket);
        drop(self.leave_queue(ticket));
        if was_called {
            self.hand_over();
        }
    }

    /// Calls the next in the queue, or leaves the lane free.
    #[inline]
    fn hand_over(&self) {
        let nobody_waits = self.waiting.borrow().get().is_none_or(VecDeque::is_empty);
        if nobody_waits {
            self.held.set(false);
        } else {
            self.call_next();
        }
    }

    #[cold]
    fn call_next(&self) {
        let waker = self.waiting.borrow_mut().make().front_mut().and_then(|next| {
            next.called = true;
            next.waker.take()
        });
        if let Some(waker) = waker {
            // This runs in a destructor, perhaps of a task that is unwinding already.
            crate::event_loop::exception::guard("a waker", || waker.wake());
        }
    }

    fn is_called(&self, ticket: u64) -> bool {
        let waiting = self.waiting.borrow();
        let first = waiting.get().and_then(VecDeque::front);
        first.is_some_and(|first| first.called && first.ticket == ticket)
    }

    fn leave_queue(&self, ticket: u64) -> Option<Waiting> {
        let mut waiting = self.waiting.borrow_mut();
        let waiting = waiting.get_mut()?;
        let at = waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        waiting.remove(at)
    }
}
