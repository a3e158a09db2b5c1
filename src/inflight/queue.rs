//! One queue per direction of a descriptor: at most one operation in flight, callers served in FIFO order.
//!
//! Why one: two sends in flight on a stream can interleave, and two receives can complete in either order. A listener's
//! accepts count as reads.
//!
//! A read or write of a socket or pipe begins with [`poll_begin`](IoQueue::poll_begin), which waits for the queue and then
//! for the operation of a dropped call, and ends with [`end`](IoQueue::end). Accepts, files with a position, TLS and
//! in-memory streams use the queue only as a FIFO lock ([`acquire`](IoQueue::acquire)).
//!
//! Cancellation is loss-free:
//! - Dropping a read requests a cancel but leaves the operation in the queue, because the kernel may already have
//!   received data. The next read waits for that operation to complete and returns its bytes first.
//! - A dropped write may have sent any prefix of its buffer. The next write waits until that operation has completed.
//! - A dropped `compat` bridge puts back the bytes that it has not returned. A read that is already in flight is then
//!   cancelled, and returns these bytes before its own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use crate::driver::{OpId, OpResult};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::wake_all;
use crate::io::{IoBufMut, fill_target};
use crate::sync::wait_queue::{Stage, WaitQueue, WaiterKey};
use crate::sys::MsgMeta;
use crate::task::WaitReason;

/// The queue of one direction of a descriptor.
#[derive(Default)]
pub(crate) struct IoQueue {
    /// The operation in flight, whether its future still exists or not.
    pub(crate) op: Cell<Option<OpId>>,
    /// A combination of the constants below.
    state: Cell<u8>,
    /// The last receive took everything that the socket had: an attempt would find nothing.
    pub(crate) drained: Cell<bool>,
    /// The last receive left data in the socket. False if the driver does not know.
    pub(crate) has_more: Cell<bool>,
    /// Boxed, because most queues never have one.
    rare: RefCell<Option<Box<QueueRare>>>,
}

/// A caller has the queue, or was just granted it.
const HELD: u8 = 1;
/// `QueueRare::waiters` has one that was not granted the queue.
const HAS_WAITERS: u8 = 2;
/// `QueueRare::leftover` is not empty.
const HAS_LEFTOVER: u8 = 4;

const _: () = assert!(size_of::<IoQueue>() <= 32);

#[derive(Default)]
struct QueueRare {
    waiters: WaitQueue<()>,
    leftover: Leftover,
}

/// A caller's place in a queue: none, holding it, or, from 2 on, waiting with this key.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(usize);

impl Ticket {
    pub(crate) const NONE: Ticket = Ticket(0);
    const HELD: Ticket = Ticket(1);

    fn key(self) -> Option<WaiterKey> {
        self.0.checked_sub(2).map(WaiterKey)
    }
}

/// Data received for dropped reads, or put back, for the next read.
#[derive(Default)]
pub(super) struct Leftover {
    pub(super) bytes: VecDeque<u8>,
    /// The metadata, if the bytes are a message: then they are returned as one.
    pub(super) meta: Option<MsgMeta>,
    pub(super) error: Option<i32>,
}

impl IoQueue {
    /// Waits for exclusive use of this queue, in FIFO order, then until the operation of an earlier, dropped call has
    /// completed. The caller calls [`end`](IoQueue::end) afterwards, also if it gives up. A read returns the leftover of
    /// earlier calls, if there is any, before it starts an operation; one unit of the task's budget was spent on it.
    #[inline]
    pub(crate) fn poll_begin(&self, core: &LoopCore, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<()> {
        match self.try_begin(ticket) {
            true => Poll::Ready(()),
            false => self.poll_begin_slow(core, ticket, cx),
        }
    }

    /// [`poll_begin`](IoQueue::poll_begin) by a new caller, if there is nothing to wait for and no leftover. False in other cases.
    #[inline]
    pub(super) fn try_begin(&self, ticket: &mut Ticket) -> bool {
        let is_idle = self.op.get().is_none() && self.state.get() & (HELD | HAS_LEFTOVER) == 0;
        if !is_idle || *ticket != Ticket::NONE {
            return false;
        }
        self.set_flag(HELD);
        *ticket = Ticket::HELD;
        true
    }

    #[cold]
    fn poll_begin_slow(&self, core: &LoopCore, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_acquire(ticket, cx));
        ready!(self.poll_orphan(core, cx));
        match !self.has_leftover() || core.spend_budget(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Gives the queue to the next caller, or stops waiting for it.
    #[inline]
    pub(crate) fn end(&self, ticket: &mut Ticket) {
        match std::mem::take(ticket) {
            Ticket::HELD => self.release(),
            ticket => {
                if let Some(key) = ticket.key() {
                    self.stop_waiting(key);
                }
            }
        }
    }

    /// [`end`](IoQueue::end) by the caller that has the queue.
    #[inline]
    pub(super) fn end_held(&self, ticket: &mut Ticket) {
        debug_assert!(*ticket == Ticket::HELD);
        *ticket = Ticket::NONE;
        self.release();
    }

    /// [`poll_begin`](IoQueue::poll_begin) for async functions.
    pub(crate) async fn begin(&self, core: &LoopCore) -> QueueGuard<'_> {
        let mut guard = self.guard();
        poll_fn(|cx| self.poll_begin(core, &mut guard.ticket, cx)).await;
        guard
    }

    /// Waits for exclusive use of this queue only.
    pub(crate) async fn acquire(&self) -> QueueGuard<'_> {
        let mut guard = self.guard();
        poll_fn(|cx| self.poll_acquire(&mut guard.ticket, cx)).await;
        guard
    }

    /// Acquires this queue if it is free.
    #[cfg(feature = "tls")]
    pub(crate) fn try_acquire(&self) -> Option<QueueGuard<'_>> {
        let mut guard = self.guard();
        (!self.has_flag(HELD)).then(|| {
            self.set_flag(HELD);
            guard.ticket = Ticket::HELD;
            guard
        })
    }

    fn guard(&self) -> QueueGuard<'_> {
        QueueGuard {
            queue: self,
            ticket: Ticket::NONE,
        }
    }

    /// Waits until the operation of an earlier call has completed, and keeps its bytes. The caller must hold the queue.
    pub(crate) async fn settle(&self, core: &LoopCore) {
        poll_fn(|cx| self.poll_orphan(core, cx)).await
    }

    /// The poll function of [`settle`](IoQueue::settle).
    fn poll_orphan(&self, core: &LoopCore, cx: &mut Context<'_>) -> Poll<()> {
        if core.is_forked() {
            // The operation is the parent's and never completes here. The next one fails.
            return Poll::Ready(());
        }
        if let Some(id) = self.op.get() {
            if core.register_waiter(id, cx) {
                return Poll::Pending;
            }
            self.absorb_orphan(core);
        }
        Poll::Ready(())
    }

    /// As `absorb_orphan`, unless a caller holds the queue: the operation is then its own.
    pub(crate) fn absorb_if_free(&self, core: &LoopCore) {
        if !self.has_flag(HELD) {
            self.absorb_orphan(core);
        }
    }

    /// Keeps the bytes that an earlier call's operation had received, if it has completed. The caller must hold the
    /// queue, or the queue must be free.
    fn absorb_orphan(&self, core: &LoopCore) {
        let Some(id) = self.op.get().filter(|&id| core.is_complete(id)) else {
            return;
        };
        self.op.set(None);
        self.forget_received();
        if let Some(slot) = core.ops.slot(id) {
            self.absorb(core.salvage(slot));
            core.discard(id);
        }
    }

    /// Appends what a completed read has received to the leftover. A bridge may have put bytes back while the read was
    /// in flight: these come first.
    pub(super) fn absorb(&self, mut salvaged: Leftover) {
        self.add_leftover(|leftover| {
            leftover.bytes.append(&mut salvaged.bytes);
            // Descriptors that arrived with later bytes are returned with the first.
            leftover.meta = leftover.meta.take().or(salvaged.meta);
            leftover.error = leftover.error.or(salvaged.error);
        });
    }

    /// Notes what a receive reports about the socket.
    #[inline]
    pub(crate) fn note_received(&self, result: OpResult) {
        self.drained.set(result.is_drained());
        self.has_more.set(result.has_more());
    }

    /// Something else may have received from the socket.
    pub(crate) fn forget_received(&self) {
        self.drained.set(false);
        self.has_more.set(false);
    }

    #[inline]
    fn has_flag(&self, flag: u8) -> bool {
        self.state.get() & flag != 0
    }

    #[inline]
    fn set_flag(&self, flag: u8) {
        self.state.set(self.state.get() | flag);
    }

    #[inline]
    fn clear_flag(&self, flag: u8) {
        self.state.set(self.state.get() & !flag);
    }

    /// Uses the leftover, if there is any. `call` runs no user code.
    fn with_leftover<R: Default>(&self, call: impl FnOnce(&mut Leftover) -> R) -> R {
        match self.has_flag(HAS_LEFTOVER) {
            true => self.add_leftover(call),
            false => R::default(),
        }
    }

    /// Uses the leftover, which may be empty, and updates the flag. `call` runs no user code.
    #[cold]
    fn add_leftover<R>(&self, call: impl FnOnce(&mut Leftover) -> R) -> R {
        let mut rare = self.rare.borrow_mut();
        let leftover = &mut rare.get_or_insert_default().leftover;
        let result = call(leftover);
        if leftover.bytes.is_empty() && leftover.meta.is_none() && leftover.error.is_none() {
            leftover.bytes = VecDeque::new();
            self.clear_flag(HAS_LEFTOVER);
        } else {
            self.set_flag(HAS_LEFTOVER);
        }
        result
    }

    /// Copies leftover bytes into `buf`; `None` if there is no leftover.
    #[inline]
    pub(crate) fn serve<B: IoBufMut>(&self, buf: &mut B) -> Option<Result<usize, i32>> {
        if !self.has_leftover() {
            return None;
        }
        // The buffer's methods are user code: none is called under the borrow, or between taking the pointer and
        // using it, since that would invalidate the pointer of a buffer that stores its bytes inline.
        let (ptr, capacity) = fill_target(buf);
        // SAFETY: the buffer guarantees `capacity` writable bytes that it owns.
        let served = unsafe { self.serve_to(ptr, capacity) };
        if let Some(Ok(count)) = served {
            // SAFETY: these bytes were just copied.
            unsafe { buf.set_filled(count) };
        }
        served
    }

    /// Copies up to `capacity` leftover bytes to `ptr`; `None` if there is no leftover.
    ///
    /// # Safety
    ///
    /// `ptr` is valid for writes of `capacity` bytes.
    pub(crate) unsafe fn serve_to(&self, ptr: *mut u8, capacity: usize) -> Option<Result<usize, i32>> {
        // Returning 0 bytes would mean the end of the stream.
        assert!(
            capacity > 0,
            "the capacity of a buffer became 0 while it waited: its implementation of IoBufMut is wrong"
        );
        self.with_leftover(|leftover| {
            let left = leftover.bytes.make_contiguous();
            let count = left.len().min(capacity);
            // SAFETY: the caller guarantees `capacity` writable bytes; `count` is no more than that.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), ptr, count) };
            leftover.bytes.drain(..count);
            if leftover.bytes.is_empty() {
                leftover.meta = None;
            }
            match count {
                0 => leftover.error.take().map(Err),
                count => Some(Ok(count)),
            }
        })
    }

    /// Takes all leftover bytes; `None` if there is no leftover.
    pub(crate) fn serve_all(&self) -> Option<Result<Vec<u8>, i32>> {
        self.with_leftover(|leftover| {
            leftover.meta = None;
            match leftover.bytes.is_empty() {
                true => leftover.error.take().map(Err),
                false => Some(Ok(std::mem::take(&mut leftover.bytes).into())),
            }
        })
    }

    /// Copies a leftover message into `buf`; `None` if there is none. Bytes that do not fit are truncated, or, on a
    /// stream, which has no message boundaries, left for the next read.
    pub(crate) fn serve_message<B: IoBufMut>(
        &self,
        buf: &mut B,
        is_stream: bool,
    ) -> Option<Result<(usize, MsgMeta), i32>> {
        let (meta, len) = self.take_meta();
        let served = self.serve(buf).or(meta.as_ref().map(|_| Ok(0)))?;
        Some(served.map(|count| {
            let mut meta = meta.unwrap_or_default();
            if !is_stream && count < len {
                meta.is_truncated = true;
                self.serve_all();
            }
            (count, meta)
        }))
    }

    /// Takes a leftover message whole.
    pub(crate) fn serve_whole_message(&self) -> Option<Result<(Vec<u8>, MsgMeta), i32>> {
        let (meta, _) = self.take_meta();
        let served = self.serve_all().or(meta.as_ref().map(|_| Ok(Vec::new())))?;
        Some(served.map(|bytes| (bytes, meta.unwrap_or_default())))
    }

    /// Takes the metadata of a leftover message. Returns also the number of leftover bytes.
    fn take_meta(&self) -> (Option<MsgMeta>, usize) {
        self.with_leftover(|leftover| (leftover.meta.take(), leftover.bytes.len()))
    }

    /// Takes the leftover error, once the bytes before it were returned.
    pub(crate) fn take_error(&self) -> Option<i32> {
        self.with_leftover(|leftover| match leftover.bytes.is_empty() {
            true => leftover.error.take(),
            false => None,
        })
    }

    /// Keeps an error for the next read, behind the leftover.
    pub(crate) fn put_error(&self, code: i32) {
        self.add_leftover(|leftover| leftover.error = leftover.error.or(Some(code)));
    }

    /// Puts received bytes back for the next read, behind the leftover.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.add_leftover(|leftover| leftover.bytes.extend(bytes));
    }

    /// Puts received bytes back in front of the leftover, and cancels a read in flight, so that it returns them.
    pub(crate) fn put_front(&self, core: &LoopCore, bytes: &[u8]) {
        self.add_leftover(|leftover| {
            let later = std::mem::replace(&mut leftover.bytes, bytes.iter().copied().collect());
            leftover.bytes.extend(later);
        });
        if let Some(id) = self.op.get() {
            core.request_cancel(id);
        }
    }

    /// Whether there is anything that the next read must return.
    #[inline]
    pub(crate) fn has_leftover(&self) -> bool {
        self.has_flag(HAS_LEFTOVER)
    }

    /// Whether the queue is not held and has no operation in flight.
    pub(crate) fn is_free(&self) -> bool {
        !self.has_flag(HELD) && self.op.get().is_none()
    }

    /// Whether the queue has an operation in flight or a leftover.
    pub(crate) fn is_busy(&self) -> bool {
        self.op.get().is_some() || self.has_leftover()
    }
}

/// Exclusive use of a queue until dropped.
pub(crate) struct QueueGuard<'a> {
    queue: &'a IoQueue,
    ticket: Ticket,
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.end(&mut self.ticket);
    }
}

/// The FIFO lock. Without contention, acquiring and releasing only set a flag.
impl IoQueue {
    /// Waits for exclusive use, unless the caller has it already. `ticket` identifies the caller while it waits.
    #[inline]
    pub(crate) fn poll_acquire(&self, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<()> {
        match *ticket {
            Ticket::HELD => return Poll::Ready(()),
            Ticket::NONE if !self.has_flag(HELD) => {
                self.set_flag(HELD);
                *ticket = Ticket::HELD;
                return Poll::Ready(());
            }
            _ => {}
        }
        self.poll_contended(ticket, cx)
    }

    #[cold]
    fn poll_contended(&self, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<()> {
        // Cloning is user code: the queue may be released inside it, or granted to this caller.
        let waker = cx.waker().clone();
        let unused = self.with_waiters(|waiters| match ticket.key() {
            None if self.has_flag(HELD) => {
                *ticket = Ticket(waiters.join(1, waker).0 + 2);
                None
            }
            Some(key) if !waiters.is_granted(&key) => waiters.set_waker(&key, waker),
            waited => {
                // The grant has taken this caller's waker.
                let left = waited.map(|key| waiters.leave(key));
                debug_assert!(left.is_none_or(|(_, waker)| waker.is_none()));
                self.set_flag(HELD);
                *ticket = Ticket::HELD;
                Some(waker)
            }
        });
        drop(unused);
        if *ticket == Ticket::HELD {
            return Poll::Ready(());
        }
        crate::task::set_wait_reason(WaitReason::Named(&"an earlier call"));
        Poll::Pending
    }

    /// Removes a waiter. If it had been granted the queue, passes the queue on.
    #[cold]
    fn stop_waiting(&self, key: WaiterKey) {
        let (stage, waker) = self.with_waiters(|waiters| waiters.leave(key));
        drop(waker);
        if let Stage::Granted(()) = stage {
            self.release();
        }
    }

    #[inline]
    fn release(&self) {
        match self.has_flag(HAS_WAITERS) {
            true => self.grant_next(),
            false => self.clear_flag(HELD),
        }
    }

    #[cold]
    fn grant_next(&self) {
        let waker = self.with_waiters(|waiters| {
            waiters.grant_first(());
            waiters.next_waker()
        });
        // This runs in a destructor, perhaps of a task that is already unwinding.
        wake_all(waker);
    }

    /// Uses the waiters, and updates the flag. `call` runs no user code.
    fn with_waiters<R>(&self, call: impl FnOnce(&mut WaitQueue<()>) -> R) -> R {
        let mut rare = self.rare.borrow_mut();
        let waiters = &mut rare.get_or_insert_default().waiters;
        let result = call(waiters);
        match waiters.is_empty() {
            true => self.clear_flag(HAS_WAITERS),
            false => self.set_flag(HAS_WAITERS),
        }
        result
    }
}
