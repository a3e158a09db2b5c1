//! A flight as the future that waits for it.

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

/// A flight and the type of its load: what is needed to fetch it, for who knows the loop and the lane. To be
/// [left](Airborne::leave) if it is not fetched.
pub(crate) struct RawOp<T> {
    id: OpId,
    on_orphan: OnOrphan,
    down: bool,
    payload: PhantomData<fn() -> T>,
}

impl<T: 'static> RawOp<T> {
    /// Launches and remembers the flight in its lane.
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

    /// The same for a caller that holds a borrow: it passes the second part to [`LoopCore::trace`] when the borrow has ended.
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
            down: false,
            payload: PhantomData,
        };
        (raw, started)
    }

    pub(crate) fn poll(&mut self, core: &LoopCore, queue: &IoQueue, cx: &mut Context<'_>) -> Poll<(OpResult, T)> {
        assert!(!self.down, "polled again after it had landed");
        if core.register_waiter(self.id, cx.waker()) || !core.spend_budget(cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.fetch(core, queue).expect("a flight stays until it is fetched"))
    }

    /// What landed, if it has.
    pub(crate) fn fetch(&mut self, core: &LoopCore, queue: &IoQueue) -> Option<(OpResult, T)> {
        if self.down {
            return None;
        }
        let (op_result, storage) = core.fetch(self.id)?;
        // SAFETY: `launch::<T>` loaded this flight, it has landed, and `down` makes sure that this happens once.
        let payload = unsafe { take_payload::<T>(payload_ptr(storage)) };
        core.ops.borrow_mut().release(self.id);
        self.down = true;
        queue.op.set(None);
        Some((op_result, payload))
    }

    /// Has the loop call `listener` when it lands. False if it has landed already.
    pub(crate) fn listen(&self, core: &LoopCore, listener: Rc<dyn Listener>) -> bool {
        core.listen(self.id, listener)
    }
}

impl<T> RawOp<T> {
    /// Nobody will fetch it: if it was not, it stays in its lane as an orphan.
    pub(crate) fn leave(&mut self, core: &LoopCore) {
        if !std::mem::replace(&mut self.down, true) {
            core.orphan(self.id, self.on_orphan);
        }
    }
}

/// A flight's future: resolves to what landed and the load. Dropping it leaves the flight in its lane as an orphan.
#[must_use = "a flight that is not awaited is cancelled at once"]
pub(crate) struct OpFuture<'a, T> {
    core: &'a LoopCore,
    queue: &'a IoQueue,
    raw: RawOp<T>,
}

impl<'a, T: 'static> OpFuture<'a, T> {
    /// Launches and remembers the flight in its lane.
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
        self.raw.leave(self.core);
    }
}
