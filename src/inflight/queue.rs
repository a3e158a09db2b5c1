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
use std::task::{Context, Poll, Waker, ready};

use crate::driver::{OpId, OpResult, OsResult};
use crate::event_loop::core::LoopCore;
use crate::inflight::lasting_error;
use crate::io::{IoBufMut, fill_target};
use crate::sys::MsgMeta;
use crate::task::WaitReason;

/// The queue of one direction of a descriptor.
#[derive(Default)]
pub(crate) struct IoQueue {
    /// The operation in flight, whether its future still exists or not.
    pub(crate) op: OpIdCell,
    /// A combination of the constants below.
    state: Cell<u8>,
    /// The last receive took everything that the socket had.
    drained: Cell<bool>,
    /// Boxed, because most queues never have one.
    rare: RefCell<Option<Box<QueueRare>>>,
}

/// A caller has the queue, or was just granted it.
const HELD: u8 = 1;
/// `QueueRare::waiters` is not empty.
const HAS_WAITERS: u8 = 2;
/// `QueueRare::leftover` is not empty.
const HAS_LEFTOVER: u8 = 4;

const _: () = assert!(size_of::<IoQueue>() <= 32);

#[derive(Default)]
struct QueueRare {
    waiters: VecDeque<Waiter>,
    leftover: Leftover,
}

/// A caller's place in a queue: none, waiting with this number, or holding it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(u64);

impl Ticket {
    pub(crate) const NONE: Ticket = Ticket(u64::MAX);
    const HELD: Ticket = Ticket(u64::MAX - 1);
}

impl Default for Ticket {
    fn default() -> Ticket {
        Ticket::NONE
    }
}

/// What a caller finds when it has the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begin {
    /// Bytes, a message or an error of an earlier call, which a read must return first. One unit of the task's budget
    /// was spent on it.
    Leftover,
    /// Nothing: the caller starts its operation.
    Acquired,
}

/// An `Option<OpId>` in one word.
pub(crate) struct OpIdCell(Cell<u64>);

impl OpIdCell {
    /// Not a valid id: see [`OpId::to_u64`].
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

/// Data received for dropped reads, or put back, for the next read.
#[derive(Default)]
pub(super) struct Leftover {
    pub(super) bytes: Vec<u8>,
    at: usize,
    /// The metadata, if the bytes are a message: then they are returned as one.
    pub(super) meta: Option<MsgMeta>,
    pub(super) error: Option<i32>,
}

impl IoQueue {
    /// Waits for exclusive use of this queue, in FIFO order, then until the operation of an earlier, dropped call has
    /// completed. The caller calls [`end`](IoQueue::end) afterwards, also if it gives up.
    #[inline]
    pub(crate) fn poll_begin(&self, core: &LoopCore, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<Begin> {
        let is_idle = self.op.get().is_none() && self.state.get() & (HELD | HAS_LEFTOVER) == 0;
        if is_idle && *ticket == Ticket::NONE {
            self.set_flag(HELD);
            *ticket = Ticket::HELD;
            return Poll::Ready(Begin::Acquired);
        }
        self.poll_begin_slow(core, ticket, cx)
    }

    #[cold]
    fn poll_begin_slow(&self, core: &LoopCore, ticket: &mut Ticket, cx: &mut Context<'_>) -> Poll<Begin> {
        ready!(self.poll_acquire(ticket, cx));
        ready!(self.poll_orphan(core, cx));
        if !self.has_flag(HAS_LEFTOVER) {
            return Poll::Ready(Begin::Acquired);
        }
        match core.spend_budget(cx) {
            true => Poll::Ready(Begin::Leftover),
            false => Poll::Pending,
        }
    }

    /// Gives the queue to the next caller, or stops waiting for it.
    #[inline]
    pub(crate) fn end(&self, ticket: &mut Ticket) {
        match std::mem::take(ticket) {
            Ticket::NONE => {}
            Ticket::HELD => self.release(),
            waiting => self.stop_waiting(waiting),
        }
    }

    /// [`poll_begin`](IoQueue::poll_begin) for async functions.
    pub(crate) async fn begin(&self, core: &LoopCore) -> (QueueGuard<'_>, Begin) {
        let mut guard = self.guard();
        let begin = poll_fn(|cx| self.poll_begin(core, &mut guard.ticket, cx)).await;
        (guard, begin)
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
        if let Some(id) = self.op.get()
            && core.is_complete(id)
        {
            self.op.set(None);
            self.drained.set(false);
            let salvaged = core.salvage(id);
            if !salvaged.is_empty() {
                // A bridge may have put bytes back while the read was in flight: these come first.
                self.add_leftover(|leftover| leftover.append(&salvaged.bytes, salvaged.meta, salvaged.error));
            }
        }
    }

    /// Whether the last receive took everything that the socket had: an attempt would find nothing.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.get()
    }

    /// Notes what a receive says about the bytes that are left.
    #[inline]
    pub(crate) fn set_drained(&self, result: OpResult) {
        self.drained.set(result.is_drained());
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
        match leftover.is_empty() {
            true => self.clear_flag(HAS_LEFTOVER),
            false => self.set_flag(HAS_LEFTOVER),
        }
        result
    }

    /// Copies leftover bytes into `buf`; `None` if there is no leftover.
    pub(crate) fn serve<B: IoBufMut>(&self, buf: &mut B) -> Option<Result<usize, i32>> {
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
            let left = &leftover.bytes[leftover.at..];
            if left.is_empty() {
                leftover.meta = None;
                return leftover.error.take().map(Err);
            }
            let count = left.len().min(capacity);
            // SAFETY: the caller guarantees `capacity` writable bytes; `count` is no more than that.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), ptr, count) };
            leftover.at += count;
            if leftover.at == leftover.bytes.len() {
                leftover.bytes = Vec::new();
                leftover.at = 0;
                leftover.meta = None;
            }
            Some(Ok(count))
        })
    }

    /// Takes all leftover bytes; `None` if there is no leftover.
    pub(crate) fn serve_all(&self) -> Option<Result<Vec<u8>, i32>> {
        self.with_leftover(|leftover| {
            leftover.meta = None;
            if leftover.at == leftover.bytes.len() {
                return leftover.error.take().map(Err);
            }
            let mut bytes = std::mem::take(&mut leftover.bytes);
            bytes.drain(..std::mem::take(&mut leftover.at));
            Some(Ok(bytes))
        })
    }

    /// Copies a leftover message into `buf`; `None` if there is none. Bytes that do not fit are truncated, or, on a
    /// stream, which has no message boundaries, left for the next read.
    pub(crate) fn serve_message<B: IoBufMut>(
        &self,
        buf: &mut B,
        is_stream: bool,
    ) -> Option<Result<(usize, MsgMeta), i32>> {
        let meta = self.take_meta();
        let len = self.with_leftover(|leftover| leftover.bytes.len() - leftover.at);
        let is_message = meta.is_some();
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

    /// Takes a leftover message whole.
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

    /// Takes the metadata of a leftover message.
    fn take_meta(&self) -> Option<MsgMeta> {
        self.with_leftover(|leftover| leftover.meta.take())
    }

    /// Takes the leftover error, once the bytes before it were returned.
    pub(crate) fn take_error(&self) -> Option<i32> {
        self.with_leftover(|leftover| match leftover.has_bytes() {
            true => None,
            false => leftover.error.take(),
        })
    }

    /// Keeps an error for the next read, behind the leftover.
    pub(crate) fn put_error(&self, code: i32) {
        self.add_leftover(|leftover| leftover.append(&[], None, Some(code)));
    }

    /// Puts received bytes back for the next read, behind the leftover.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.add_leftover(|leftover| leftover.append(bytes, None, None));
    }

    /// Puts received bytes back in front of the leftover, and cancels a read in flight, so that it returns them.
    pub(crate) fn put_front(&self, core: &LoopCore, bytes: &[u8]) {
        self.add_leftover(|leftover| {
            let at = std::mem::take(&mut leftover.at);
            leftover.bytes.splice(..at, bytes.iter().copied());
        });
        if let Some(id) = self.op.get() {
            core.request_cancel(id);
        }
    }

    /// Called when a read completes. If bytes were put in front of it meanwhile, appends its result to the leftover and
    /// returns true: the read must return the leftover instead. The caller must hold the queue.
    #[inline]
    pub(crate) fn append_if_overtaken(&self, received: &[u8], meta: Option<MsgMeta>, res: OsResult) -> bool {
        if !self.has_bytes() {
            return false;
        }
        self.with_leftover(|leftover| leftover.append(received, meta, lasting_error(res)));
        true
    }

    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        self.with_leftover(|leftover| leftover.has_bytes())
    }

    /// Whether there is anything that the next read must return.
    pub(crate) fn has_leftover(&self) -> bool {
        self.has_flag(HAS_LEFTOVER)
    }

    /// Whether the queue is not held and has no operation in flight.
    pub(crate) fn is_free(&self) -> bool {
        !self.has_flag(HELD) && self.op.get().is_none()
    }

    /// Whether the queue has an operation in flight or a leftover.
    pub(crate) fn is_busy(&self) -> bool {
        self.op.get().is_some() || self.has_flag(HAS_LEFTOVER)
    }
}

impl Leftover {
    #[inline]
    fn has_bytes(&self) -> bool {
        self.at < self.bytes.len()
    }

    fn append(&mut self, bytes: &[u8], meta: Option<MsgMeta>, error: Option<i32>) {
        self.bytes.extend_from_slice(bytes);
        // Descriptors that arrived with later bytes are returned with the first.
        self.meta = self.meta.take().or(meta);
        self.error = self.error.or(error);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len() && self.error.is_none() && self.meta.is_none()
    }
}

struct Waiter {
    ticket: Ticket,
    /// Taken when the queue is granted.
    waker: Option<Waker>,
    /// The queue was handed to this waiter, which stays at the front until its next poll.
    is_granted: bool,
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
        if *ticket == Ticket::NONE {
            crate::task::set_wait_reason(WaitReason::Named("an earlier call"));
            // Cloning is user code: the holder may release the queue inside it, and nothing would wake this caller then.
            let waker = Some(cx.waker().clone());
            if !self.has_flag(HELD) {
                self.set_flag(HELD);
                *ticket = Ticket::HELD;
                return Poll::Ready(());
            }
            self.with_waiters(|waiters| {
                *ticket = Ticket(waiters.back().map_or(0, |last| last.ticket.0 + 1));
                waiters.push_back(Waiter {
                    ticket: *ticket,
                    waker,
                    is_granted: false,
                });
            });
            return Poll::Pending;
        }
        if self.is_granted(*ticket) {
            drop(self.remove_waiter(*ticket));
            *ticket = Ticket::HELD;
            return Poll::Ready(());
        }
        crate::task::set_wait_reason(WaitReason::Named("an earlier call"));
        let mut waker = Some(cx.waker().clone());
        // The queue may have been granted inside the clone, through the previous waker.
        if self.is_granted(*ticket) {
            return self.poll_contended(ticket, cx);
        }
        self.with_waiters(|waiters| {
            if let Some(waiter) = waiters.iter_mut().find(|waiter| waiter.ticket == *ticket) {
                std::mem::swap(&mut waiter.waker, &mut waker);
            }
        });
        Poll::Pending
    }

    /// Removes a waiter. If it had been granted the queue, passes the queue on.
    #[cold]
    fn stop_waiting(&self, ticket: Ticket) {
        let was_granted = self.is_granted(ticket);
        drop(self.remove_waiter(ticket));
        if was_granted {
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
            let next = waiters.front_mut()?;
            next.is_granted = true;
            next.waker.take()
        });
        if let Some(waker) = waker {
            // This runs in a destructor, perhaps of a task that is already unwinding.
            crate::event_loop::exception::guard("a waker", || waker.wake());
        }
    }

    fn is_granted(&self, ticket: Ticket) -> bool {
        self.with_waiters(|waiters| {
            waiters
                .front()
                .is_some_and(|first| first.is_granted && first.ticket == ticket)
        })
    }

    fn remove_waiter(&self, ticket: Ticket) -> Option<Waiter> {
        self.with_waiters(|waiters| {
            let at = waiters.iter().position(|waiter| waiter.ticket == ticket)?;
            waiters.remove(at)
        })
    }

    /// Uses the waiters, and updates the flag. `call` runs no user code.
    fn with_waiters<R>(&self, call: impl FnOnce(&mut VecDeque<Waiter>) -> R) -> R {
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
