//! The future of an operation in flight.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::slot::{HAS_LISTENER, Listener, OnOrphan, OpSlot, State, payload_ptr, take_payload};
use crate::driver::op::Op;
use crate::driver::{OpId, OpResult};
use crate::event_loop::core::LoopCore;
use crate::event_loop::task_key::TaskKey;
use crate::inflight::queue::IoQueue;

/// An operation in flight and the type of its payload, without borrows of the loop and the queue: callers pass those.
/// It must be [abandoned](RawOp::abandon) if its result is not taken.
///
/// It holds the slot's address next to the id: finding the slot costs no lookup, and the id says whether the slot is
/// still this operation's. It is not if the stream was dropped meanwhile.
pub(crate) struct RawOp<T> {
    pub(crate) id: OpId,
    /// `None` before the start, and once the result was taken or the operation abandoned.
    pub(super) slot: Option<NonNull<OpSlot>>,
    pub(super) payload: PhantomData<fn() -> T>,
}

#[cold]
pub(super) fn polled_after_completion() -> ! {
    panic!("a future was polled after it had completed")
}

/// An operation that has completed and whose result was not taken, with a copy of the result: the compiler drops repeated
/// tests of a local value, but not of the slot's cell.
pub(crate) struct DoneOp<'a>(&'a OpSlot, OpResult);

impl<'a> DoneOp<'a> {
    #[inline]
    fn new(slot: &'a OpSlot) -> DoneOp<'a> {
        DoneOp(slot, slot.result.get())
    }

    #[inline]
    pub(crate) fn result(&self) -> OpResult {
        self.1
    }
}

impl<T> RawOp<T> {
    /// No operation.
    pub(crate) const NONE: RawOp<T> = RawOp {
        id: OpId::new(0, 0),
        slot: None,
        payload: PhantomData,
    };

    pub(crate) fn is_started(&self) -> bool {
        self.slot.is_some()
    }

    /// The operation's slot, unless its result was taken. `core` is the loop that it was started on.
    #[inline]
    fn slot<'a>(&self, _core: &'a LoopCore) -> Option<&'a OpSlot> {
        // SAFETY: slots live as long as their loop.
        let slot = unsafe { self.slot?.as_ref() };
        (slot.id.get() == self.id).then_some(slot)
    }

    /// Says how many bytes in front of the op's buffer earlier operations of this call have received.
    pub(crate) fn set_prefix(&self, core: &LoopCore, prefix: usize) {
        if let Some(slot) = self.slot(core) {
            slot.prefix.set(prefix);
        }
    }

    /// Orphans the operation, unless its result was taken: it stays in its queue.
    pub(crate) fn abandon(&mut self, core: &LoopCore) {
        if let Some(slot) = self.slot(core) {
            core.orphan(self.id, slot.on_orphan.get());
        }
        self.slot = None;
    }
}

impl<T: 'static> RawOp<T> {
    /// Waits until the operation has completed. [`take`](RawOp::take) then takes the result and the payload.
    #[inline]
    pub(crate) fn poll_done<'a>(&self, core: &'a LoopCore, cx: &mut Context<'_>) -> Poll<DoneOp<'a>> {
        // The stream is borrowed, so nothing else takes the result.
        let Some(slot) = self.slot(core) else {
            polled_after_completion()
        };
        match core.register(slot, cx) || !core.spend_budget(cx) {
            true => Poll::Pending,
            false => Poll::Ready(DoneOp::new(slot)),
        }
    }

    /// [`poll_done`](RawOp::poll_done) in the most frequent case: it has completed with a result that `is_wanted`, and the task has
    /// budget left. `None` in other cases: nothing was spent or registered.
    #[inline]
    pub(super) fn try_done<'a>(
        &self,
        core: &'a LoopCore,
        is_wanted: impl FnOnce(OpResult) -> bool,
    ) -> Option<DoneOp<'a>> {
        let slot = self.slot(core).filter(|slot| slot.state.get() == State::Done)?;
        let done = DoneOp::new(slot);
        (is_wanted(done.result()) && core.try_spend_budget()).then_some(done)
    }

    #[inline]
    pub(crate) fn poll(&mut self, core: &LoopCore, queue: &IoQueue, cx: &mut Context<'_>) -> Poll<(OpResult, T)> {
        let done = ready!(self.poll_done(core, cx));
        Poll::Ready(self.finish(core, queue, done))
    }

    /// Starts the next operation of the same call, after one has completed, with the payload where it is. It has an id
    /// of its own.
    pub(crate) fn restart(&mut self, core: &LoopCore, queue: &IoQueue, plan: impl FnOnce(&mut T) -> Op) {
        let slot = self.slot(core).filter(|slot| slot.state.get() == State::Done);
        let slot = slot.expect("a call continues when its operation has completed");
        // SAFETY: the operation has completed, and was started with a payload of the type `T`. If `plan` panics, the
        // operation is still done, and its future takes or drops the payload.
        slot.set_op(plan(unsafe { &mut *payload_ptr::<T>(slot.payload()) }));
        slot.id.set(slot.id.get().next());
        slot.cancel_requested.set(false);
        self.id = slot.id.get();
        core.submit(queue, slot, TaskKey::NONE);
        core.trace(self.id);
    }

    /// Takes the result and the payload, if the operation has completed.
    pub(crate) fn fetch(&mut self, core: &LoopCore, queue: &IoQueue) -> Option<(OpResult, T)> {
        let slot = self.slot(core).filter(|slot| slot.state.get() == State::Done)?;
        Some(self.finish(core, queue, DoneOp::new(slot)))
    }

    /// Removes the operation from its queue, and takes the result and the payload. If bytes were put in front of a read
    /// meanwhile, what it has received joins them, and the read returns the leftover instead of its result.
    #[inline]
    pub(crate) fn finish(&mut self, core: &LoopCore, queue: &IoQueue, mut done: DoneOp<'_>) -> (OpResult, T) {
        queue.op.set(None);
        queue.note_received(done.result());
        if queue.has_leftover() {
            queue.absorb(core.salvage(done.0));
            // What was salvaged is no longer in the slot's result.
            done = DoneOp::new(done.0);
        }
        self.take(core, done)
    }

    /// Takes the result and the payload of an operation that has completed and is in no queue any more. `done` is this
    /// operation's.
    #[inline]
    pub(crate) fn take(&mut self, core: &LoopCore, DoneOp(slot, result): DoneOp<'_>) -> (OpResult, T) {
        debug_assert!(self.id == slot.id.get());
        // SAFETY: `poll_done` and `fetch` made `done` from the slot of the operation that `start_op::<T>` started. It has
        // completed, and its payload is taken once: the slot is released below.
        let payload = unsafe { take_payload::<T>(slot.payload()) };
        core.ops.release(slot);
        self.slot = None;
        (result, payload)
    }

    /// Calls `listener` when the operation completes. False if it has completed already.
    pub(crate) fn listen(&self, core: &LoopCore, listener: Rc<dyn Listener>) -> bool {
        let Some(slot) = self.slot(core).filter(|slot| slot.is_in_flight()) else {
            return false;
        };
        debug_assert!(!slot.has_flag(HAS_LISTENER), "an operation has one listener");
        slot.with_rare(|rare| rare.listener = Some(listener));
        slot.set_flag(HAS_LISTENER);
        true
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
        plan: impl FnOnce(&mut T) -> Op,
    ) -> OpFuture<'a, T> {
        let raw = core.start_op(queue, on_orphan, || payload, plan);
        core.trace(raw.id);
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
        if self.raw.is_started() {
            self.raw.abandon(self.core);
        }
    }
}
