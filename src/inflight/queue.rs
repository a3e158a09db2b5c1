//! One queue per direction of a descriptor: at most one operation in flight, callers served in FIFO order.
//!
//! Why one: two sends in flight on a stream can interleave, and two receives can complete in either order. A listener's
//! accepts count as reads.
//!
//! Cancellation is loss-free:
//! - Dropping a read requests a cancel but leaves the operation in the queue, because the kernel may already have
//!   received data. The next read waits for that operation to complete and returns its bytes first.
//! - A dropped write may have sent any prefix of its buffer. The next write waits until that operation has completed.
//! - A dropped `compat` bridge puts back the bytes that it has not returned. A read that is already in flight is then
//!   cancelled, and returns these bytes before its own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use crate::driver::{OpId, OsResult};
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
    fifo_lock: FifoLock,
    /// Boxed, because most queues never have one.
    leftover: RefCell<Option<Box<Leftover>>>,
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
struct Leftover {
    bytes: Vec<u8>,
    at: usize,
    /// The metadata, if the bytes are a message: then they are returned as one.
    meta: Option<MsgMeta>,
    error: Option<i32>,
}

impl IoQueue {
    /// Waits for exclusive use of this queue, in FIFO order.
    pub(crate) fn acquire(&self) -> Acquire<'_> {
        Acquire {
            queue: self,
            ticket: None,
        }
    }

    /// Acquires this queue if it is free.
    #[cfg(feature = "tls")]
    pub(crate) fn try_acquire(&self) -> Option<QueueGuard<'_>> {
        match self.fifo_lock.held.replace(true) {
            true => None,
            false => Some(QueueGuard { queue: self }),
        }
    }

    /// Waits until the operation of an earlier call has completed, and keeps its bytes. The caller must hold the queue.
    #[inline]
    pub(crate) fn settle<'a>(&'a self, core: &'a LoopCore) -> impl Future<Output = ()> + 'a {
        std::future::poll_fn(|cx| match self.op.get() {
            None => Poll::Ready(()),
            Some(_) => self.poll_orphan(core, cx),
        })
    }

    /// Keeps the bytes that an earlier call's operation had received, if it has completed.
    pub(crate) fn absorb_orphan(&self, core: &LoopCore) {
        if let Some(id) = self.op.get()
            && core.is_complete(id)
        {
            self.op.set(None);
            let salvage = core.salvage(id);
            if salvage.is_empty() {
                return;
            }
            let mut leftover = self.leftover.borrow_mut();
            let leftover = leftover.get_or_insert_default();
            if leftover.is_empty() {
                **leftover = Leftover {
                    bytes: salvage.bytes,
                    at: 0,
                    meta: salvage.meta,
                    error: salvage.error,
                };
            } else {
                // A bridge put bytes back while the read was in flight.
                leftover.append(&salvage.bytes, salvage.meta, salvage.error);
            }
        }
    }

    /// Whether there is a leftover. If so, consumes one unit of the task's budget.
    #[inline]
    pub(crate) fn has_leftover<'a>(&'a self, core: &'a LoopCore) -> impl Future<Output = bool> + 'a {
        std::future::poll_fn(|cx| self.poll_leftover(core, cx))
    }

    /// The poll function of `has_leftover`.
    #[inline]
    pub(crate) fn poll_leftover(&self, core: &LoopCore, cx: &mut Context<'_>) -> Poll<bool> {
        let has_some = self.has_leftover_now();
        match has_some && !core.spend_budget(cx) {
            true => Poll::Pending,
            false => Poll::Ready(has_some),
        }
    }

    /// The poll function of [`settle`](IoQueue::settle).
    pub(crate) fn poll_orphan(&self, core: &LoopCore, cx: &mut Context<'_>) -> Poll<()> {
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
        let mut leftover = self.leftover.borrow_mut();
        let leftover = leftover.as_deref_mut()?;
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
    }

    /// Takes all leftover bytes; `None` if there is no leftover.
    pub(crate) fn serve_all(&self) -> Option<Result<Vec<u8>, i32>> {
        let mut leftover = self.leftover.borrow_mut();
        let leftover = leftover.as_deref_mut()?;
        leftover.meta = None;
        if leftover.at == leftover.bytes.len() {
            return leftover.error.take().map(Err);
        }
        let mut bytes = std::mem::take(&mut leftover.bytes);
        bytes.drain(..std::mem::take(&mut leftover.at));
        Some(Ok(bytes))
    }

    /// Copies a leftover message into `buf`; `None` if there is none. Bytes that do not fit are truncated, or, on a
    /// stream, which has no message boundaries, left for the next read.
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

    fn take_meta(&self) -> Option<MsgMeta> {
        self.leftover.borrow_mut().as_deref_mut()?.meta.take()
    }

    fn leftover_len(&self) -> usize {
        let leftover = self.leftover.borrow();
        leftover
            .as_deref()
            .map_or(0, |leftover| leftover.bytes.len() - leftover.at)
    }

    /// Whether there is anything that the next read must return.
    #[inline]
    fn has_leftover_now(&self) -> bool {
        self.leftover
            .borrow()
            .as_deref()
            .is_some_and(|leftover| !leftover.is_empty())
    }

    /// Takes the leftover error, once the bytes before it were returned.
    pub(crate) fn take_error(&self) -> Option<i32> {
        let mut leftover = self.leftover.borrow_mut();
        let leftover = leftover.as_deref_mut()?;
        match leftover.has_bytes() {
            true => None,
            false => leftover.error.take(),
        }
    }

    /// Puts received bytes back for the next read, behind the leftover.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.leftover
            .borrow_mut()
            .get_or_insert_default()
            .append(bytes, None, None);
    }

    /// Puts received bytes back in front of the leftover, and cancels a read in flight, so that it returns them.
    pub(crate) fn put_front(&self, core: &LoopCore, bytes: &[u8]) {
        {
            let mut leftover = self.leftover.borrow_mut();
            let leftover = leftover.get_or_insert_default();
            let at = std::mem::take(&mut leftover.at);
            leftover.bytes.splice(..at, bytes.iter().copied());
        }
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
        let mut leftover = self.leftover.borrow_mut();
        leftover
            .get_or_insert_default()
            .append(received, meta, lasting_error(res));
        true
    }

    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        self.leftover.borrow().as_deref().is_some_and(Leftover::has_bytes)
    }

    /// Whether the queue is not held and has no operation in flight.
    pub(crate) fn is_free(&self) -> bool {
        !self.fifo_lock.held.get() && self.op.get().is_none()
    }

    /// Whether the queue has an operation in flight or a leftover.
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
        // Descriptors that arrived with later bytes are returned with the first.
        self.meta = self.meta.take().or(meta);
        self.error = self.error.or(error);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len() && self.error.is_none() && self.meta.is_none()
    }
}

/// A FIFO mutex. Without contention, locking and unlocking only set a flag.
#[derive(Default)]
struct FifoLock {
    held: Cell<bool>,
    #[allow(clippy::box_collection, reason = "one word until the first contention")]
    waiters: RefCell<Option<Box<VecDeque<Waiter>>>>,
}

struct Waiter {
    ticket: u64,
    /// Taken when the lock is granted.
    waker: Option<Waker>,
    /// The lock was handed to this waiter, which stays at the front until its next poll.
    is_granted: bool,
}

/// Resolves to a guard once the queue is acquired.
#[must_use = "a queue is acquired only when this is awaited"]
pub(crate) struct Acquire<'a> {
    queue: &'a IoQueue,
    ticket: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = QueueGuard<'a>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<QueueGuard<'a>> {
        let queue = self.queue;
        ready!(queue.fifo_lock.poll_lock(&mut self.ticket, cx));
        Poll::Ready(QueueGuard { queue })
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue.fifo_lock.stop_waiting(ticket);
        }
    }
}

/// Exclusive use of a queue until dropped.
pub(crate) struct QueueGuard<'a> {
    queue: &'a IoQueue,
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.queue.fifo_lock.unlock();
    }
}

/// A guard for poll functions, which cannot borrow: it holds an `Rc` to the owner of the queue.
pub(crate) struct OwnedQueueGuard<T> {
    owner: Rc<T>,
    queue: fn(&T) -> &IoQueue,
    ticket: Option<u64>,
    is_held: bool,
}

impl<T> OwnedQueueGuard<T> {
    pub(crate) fn new(owner: Rc<T>, queue: fn(&T) -> &IoQueue) -> OwnedQueueGuard<T> {
        OwnedQueueGuard {
            owner,
            queue,
            ticket: None,
            is_held: false,
        }
    }

    pub(crate) fn owner(&self) -> &Rc<T> {
        &self.owner
    }

    pub(crate) fn queue(&self) -> &IoQueue {
        (self.queue)(&self.owner)
    }

    /// Waits until the queue is acquired, unless it is held already. It stays held until `release`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_held {
            ready!((self.queue)(&self.owner).fifo_lock.poll_lock(&mut self.ticket, cx));
            self.is_held = true;
        }
        Poll::Ready(())
    }

    /// Releases the queue, or stops waiting for it.
    pub(crate) fn release(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue().fifo_lock.stop_waiting(ticket);
        }
        if std::mem::replace(&mut self.is_held, false) {
            self.queue().fifo_lock.unlock();
        }
    }
}

impl<T> Drop for OwnedQueueGuard<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl FifoLock {
    /// Waits for the lock. `ticket` identifies the caller while it waits.
    #[inline]
    fn poll_lock(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        if ticket.is_none() && !self.held.replace(true) {
            return Poll::Ready(());
        }
        self.poll_contended(ticket, cx)
    }

    #[cold]
    fn poll_contended(&self, ticket: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(number) = *ticket else {
            crate::task::set_wait_reason(WaitReason::Named("an earlier call"));
            // Cloning is user code: the holder may unlock inside it, and nothing would wake this caller then.
            let waker = Some(cx.waker().clone());
            if !self.held.replace(true) {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            let waiters = waiters.get_or_insert_default();
            let number = waiters.back().map_or(0, |last| last.ticket + 1);
            waiters.push_back(Waiter {
                ticket: number,
                waker,
                is_granted: false,
            });
            *ticket = Some(number);
            return Poll::Pending;
        };
        if self.is_granted(number) {
            drop(self.remove_waiter(number));
            *ticket = None;
            return Poll::Ready(());
        }
        crate::task::set_wait_reason(WaitReason::Named("an earlier call"));
        let mut waker = Some(cx.waker().clone());
        // The lock may have been granted inside the clone, through the previous waker.
        if self.is_granted(number) {
            return self.poll_contended(ticket, cx);
        }
        // Declared after the waker, which is therefore dropped without the borrow.
        let mut waiters = self.waiters.borrow_mut();
        if let Some(waiter) = waiters
            .iter_mut()
            .flat_map(|w| w.iter_mut())
            .find(|w| w.ticket == number)
        {
            std::mem::swap(&mut waiter.waker, &mut waker);
        }
        Poll::Pending
    }

    /// Removes a waiter. If it had been granted the lock, passes the lock on.
    fn stop_waiting(&self, ticket: u64) {
        let was_granted = self.is_granted(ticket);
        drop(self.remove_waiter(ticket));
        if was_granted {
            self.unlock();
        }
    }

    #[inline]
    fn unlock(&self) {
        let has_no_waiters = self.waiters.borrow().as_deref().is_none_or(VecDeque::is_empty);
        if has_no_waiters {
            self.held.set(false);
        } else {
            self.grant_next();
        }
    }

    #[cold]
    fn grant_next(&self) {
        let waker = self
            .waiters
            .borrow_mut()
            .get_or_insert_default()
            .front_mut()
            .and_then(|next| {
                next.is_granted = true;
                next.waker.take()
            });
        if let Some(waker) = waker {
            // This runs in a destructor, perhaps of a task that is already unwinding.
            crate::event_loop::exception::guard("a waker", || waker.wake());
        }
    }

    fn is_granted(&self, ticket: u64) -> bool {
        let waiters = self.waiters.borrow();
        let first = waiters.as_deref().and_then(VecDeque::front);
        first.is_some_and(|first| first.is_granted && first.ticket == ticket)
    }

    fn remove_waiter(&self, ticket: u64) -> Option<Waiter> {
        let mut waiters = self.waiters.borrow_mut();
        let waiters = waiters.as_deref_mut()?;
        let at = waiters.iter().position(|waiter| waiter.ticket == ticket)?;
        waiters.remove(at)
    }
}
