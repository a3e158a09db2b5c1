//! The future of an operation in flight.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::StartedOp;
use super::slot::{HAS_LISTENER, Listener, OnOrphan, OpSlot, State, take_payload};
use crate::driver::OpResult;
use crate::driver::op::Op;
use crate::event_loop::core::LoopCore;
use crate::inflight::queue::IoQueue;

/// An operation in flight and the type of its payload, without borrows of the loop and the queue: callers pass those.
/// It must be [abandoned](RawOp::abandon) if its result is not taken.
///
/// It holds the slot's address next to the id: finding the slot costs no lookup, and the id says whether the slot is
/// still this operation's. It is not if the stream was dropped meanwhile.
pub(crate) struct RawOp<T> {
    /// `None` once the result was taken or the operation abandoned.
    started: Option<StartedOp>,
    payload: PhantomData<fn() -> T>,
}

#[cold]
pub(super) fn polled_after_completion() -> ! {
    panic!("a future was polled after it had completed")
}

/// An operation that has completed and whose result was not taken.
pub(crate) struct DoneOp<'a>(&'a OpSlot);

impl DoneOp<'_> {
    #[inline]
    pub(crate) fn result(&self) -> OpResult {
        self.0.result.get()
    }
}

impl<T> RawOp<T> {
    /// No operation.
    pub(crate) const NONE: RawOp<T> = RawOp {
        started: None,
        payload: PhantomData,
    };

    pub(crate) fn is_started(&self) -> bool {
        self.started.is_some()
    }
}

impl<T: 'static> RawOp<T> {
    /// Starts an operation and stores its id in `queue`.
    #[inline]
    pub(crate) fn start_op(
        core: &LoopCore,
        queue: &IoQueue,
        on_orphan: OnOrphan,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> RawOp<T> {
        let (raw, started) = RawOp::start_op_untraced(core, queue, on_orphan, payload, prefix, plan);
        core.trace(started);
        raw
    }

    /// As `start_op`, for a caller that holds a borrow, after which it passes the [`StartedOp`] to [`LoopCore::trace`].
    #[inline]
    pub(crate) fn start_op_untraced(
        core: &LoopCore,
        queue: &IoQueue,
        on_orphan: OnOrphan,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> (RawOp<T>, StartedOp) {
        let started = core.start_op(queue, on_orphan, payload, prefix, plan);
        let raw = RawOp {
            started: Some(started),
            payload: PhantomData,
        };
        (raw, started)
    }

    /// Waits until the operation has completed. [`take`](RawOp::take) then takes the result and the payload.
    #[inline]
    pub(crate) fn poll_done<'a>(&self, core: &'a LoopCore, cx: &mut Context<'_>) -> Poll<DoneOp<'a>> {
        // The stream is borrowed, so nothing else takes the result.
        let Some(slot) = self.started.and_then(|started| started.slot(core)) else {
            polled_after_completion()
        };
        match core.register(slot, cx) || !core.spend_budget(cx) {
            true => Poll::Pending,
            false => Poll::Ready(DoneOp(slot)),
        }
    }

    #[inline]
    pub(crate) fn poll(&mut self, core: &LoopCore, queue: &IoQueue, cx: &mut Context<'_>) -> Poll<(OpResult, T)> {
        let done = ready!(self.poll_done(core, cx));
        Poll::Ready(self.take(core, queue, done))
    }

    /// Starts the next operation of the same call, after one has completed, with the payload where it is.
    pub(crate) fn restart(&mut self, core: &LoopCore, queue: &IoQueue, prefix: usize, plan: impl FnOnce(&mut T) -> Op) {
        let started = self.started.expect("an operation was started");
        let started = core.restart_op(queue, started, prefix, plan);
        self.started = Some(started);
        core.trace(started);
    }

    /// Takes the result and the payload, if the operation has completed.
    pub(crate) fn fetch(&mut self, core: &LoopCore, queue: &IoQueue) -> Option<(OpResult, T)> {
        let slot = self.started?.slot(core)?;
        (slot.state.get() == State::Done).then(|| self.take(core, queue, DoneOp(slot)))
    }

    /// Takes the result and the payload of an operation that has completed. `done` is this operation's.
    #[inline]
    pub(crate) fn take(&mut self, core: &LoopCore, queue: &IoQueue, DoneOp(slot): DoneOp<'_>) -> (OpResult, T) {
        debug_assert!(self.started.is_some_and(|started| started.id == slot.id.get()));
        let result = slot.result.get();
        // SAFETY: `poll_done` and `fetch` made `done` from the slot of the operation that `start_op::<T>` started. It has
        // completed, and its payload is taken once: the slot is released below.
        let payload = unsafe { take_payload::<T>(slot.payload()) };
        core.ops.release(slot);
        self.started = None;
        queue.op.set(None);
        (result, payload)
    }

    /// Calls `listener` when the operation completes. False if it has completed already.
    pub(crate) fn listen(&self, core: &LoopCore, listener: Rc<dyn Listener>) -> bool {
        let slot = self.started.and_then(|started| started.slot(core));
        let Some(slot) = slot.filter(|slot| slot.is_in_flight()) else {
            return false;
        };
        debug_assert!(!slot.has_flag(HAS_LISTENER), "an operation has one listener");
        slot.with_rare(|rare| rare.listener = Some(listener));
        slot.set_flag(HAS_LISTENER);
        true
    }
}

impl<T> RawOp<T> {
    /// Orphans the operation, unless its result was taken: it stays in its queue.
    pub(crate) fn abandon(&mut self, core: &LoopCore) {
        if let Some(started) = self.started.take()
            && let Some(slot) = started.slot(core)
        {
            core.orphan(started.id, slot.on_orphan.get());
        }
    }
}

/// The future of an operation: resolves to its result and its payload. Dropping it orphans the operation.
#[must_use = "an operation that is not awaited is cancelled at once"]
pub(crate) struct OpFuture<'a, T> {
    core: &'a LoopCore,
    queue: &'a IoQueue,
    raw: RawOp<T>,
}

impl<'a, T: 'static> OpFuture<'a, T> {
    /// Starts an operation and stores its id in `queue`.
    pub(crate) fn start_op(
        core: &'a LoopCore,
        queue: &'a IoQueue,
        on_orphan: OnOrphan,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> OpFuture<'a, T> {
        let raw = RawOp::start_op(core, queue, on_orphan, payload, prefix, plan);
        OpFuture { core, queue, raw }
    }
}

impl<T: 'static> Future for OpFuture<'_, T> {
    type Output = (OpResult, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(OpResult, T)> {
        let OpFuture { core, queue, raw } = &mut *self;
        raw.poll(core, queue, cx)
    }
}

impl<T> Drop for OpFuture<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.raw.started.is_some() {
            self.raw.abandon(self.core);
        }
    }
}
