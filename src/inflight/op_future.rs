//! The future of an operation in flight.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::StartedOp;
use super::storage::{payload_ptr, take_payload};
use super::table::{Listener, OnOrphan};
use crate::driver::op::Op;
use crate::driver::{OpId, OpResult};
use crate::event_loop::core::LoopCore;
use crate::inflight::queue::IoQueue;

/// An operation in flight and the type of its payload, without borrows of the loop and the queue: callers pass those.
/// It must be [abandoned](RawOp::abandon) if its result is not taken.
pub(crate) struct RawOp<T> {
    id: OpId,
    on_orphan: OnOrphan,
    is_taken: bool,
    payload: PhantomData<fn() -> T>,
}

impl<T: 'static> RawOp<T> {
    /// Starts an operation and stores its id in `queue`.
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
    pub(crate) fn start_op_untraced(
        core: &LoopCore,
        queue: &IoQueue,
        on_orphan: OnOrphan,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> (RawOp<T>, StartedOp) {
        let started = core.start_op(queue, payload, prefix, plan);
        let raw = RawOp {
            id: started.id,
            on_orphan,
            is_taken: false,
            payload: PhantomData,
        };
        (raw, started)
    }

    pub(crate) fn poll(&mut self, core: &LoopCore, queue: &IoQueue, cx: &mut Context<'_>) -> Poll<(OpResult, T)> {
        assert!(!self.is_taken, "polled after completion");
        if core.register_waiter(self.id, cx.waker()) || !core.spend_budget(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.fetch(core, queue).expect("the operation is complete"))
    }

    /// Takes the result and the payload, if the operation has completed.
    pub(crate) fn fetch(&mut self, core: &LoopCore, queue: &IoQueue) -> Option<(OpResult, T)> {
        if self.is_taken {
            return None;
        }
        let (op_result, storage) = core.fetch(self.id)?;
        // SAFETY: `start_op::<T>` stored this payload, the operation has completed, and `is_taken` makes this happen
        // once.
        let payload = unsafe { take_payload::<T>(payload_ptr(storage)) };
        core.ops.borrow_mut().release(self.id);
        self.is_taken = true;
        queue.op.set(None);
        Some((op_result, payload))
    }

    /// Calls `listener` when the operation completes. False if it has completed already.
    pub(crate) fn listen(&self, core: &LoopCore, listener: Rc<dyn Listener>) -> bool {
        core.listen(self.id, listener)
    }
}

impl<T> RawOp<T> {
    /// Orphans the operation, unless its result was taken: it stays in its queue.
    pub(crate) fn abandon(&mut self, core: &LoopCore) {
        if !std::mem::replace(&mut self.is_taken, true) {
            core.orphan(self.id, self.on_orphan);
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
    fn drop(&mut self) {
        self.raw.abandon(self.core);
    }
}
