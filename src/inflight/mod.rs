//! In-flight operations: started, and not yet completed or not yet collected by their future.
//!
//! The kernel writes to an operation's memory asynchronously, so that memory must neither move nor be freed before the
//! last completion, even if the future is dropped, leaked or unwound, or the whole loop is dropped. Hence two parts:
//!
//! - [`OpStorage`] is one heap box per table entry. It holds the driver's scratch space and the payload: all data that
//!   must live as long as the kernel works, such as the buffer and a reference to the descriptor. Payloads of up to 64
//!   bytes are stored inline, larger ones are boxed. While the operation is in flight, only raw pointers into it exist.
//! - The table entry is the bookkeeping: the waker, the result, what to do if the future is dropped. It may move;
//!   nothing points to it. Completions find it by index and generation.
//!
//! Entries are recycled, so after warm-up an operation allocates nothing. An entry still in flight when the table is
//! dropped is leaked: closing a ring does not wait for its operations, and a leak is harmless where a write to freed
//! memory is not.
//!
//! If the driver cannot perform an operation without blocking, a thread of the loop's pool does (`pool_ops`). The
//! thread gets a copy of the plain `Op`, never the table entry.
//!
//! No user code (wakers, destructors) runs while the table is borrowed: methods of the table return the wakers and
//! payloads, and the caller wakes or drops them afterwards.

pub(crate) mod descriptor;
mod op_future;
mod pool_ops;
pub(crate) mod queue;
mod storage;
pub(crate) mod stream;
mod table;
pub(crate) mod transfer;
pub(crate) mod watch;

use std::rc::Rc;
use std::task::{Poll, Waker};

pub(crate) use self::op_future::{OpFuture, RawOp};
use self::storage::{OpStorage, drop_payload, payload_ptr, store_payload};
use self::table::Phase;
pub(crate) use self::table::{Listener, OnOrphan, OpTable};
use crate::driver::op::{FileOp, Op};
use crate::driver::{Completion, OpId, OpResult, OsResult, Start};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::inflight::queue::IoQueue;
use crate::on_drop::OnDrop;
use crate::sys::{MsgMeta, errno};

impl LoopCore {
    /// Starts an operation: moves the payload to its final address, calls `plan` to build the op from pointers to it,
    /// and passes the op to the driver. `queue.op` is set before the driver sees the op.
    ///
    /// Calls no tracing subscriber, which is user code: the caller calls [`trace`](LoopCore::trace) once the operation
    /// is reachable and no borrow is held.
    pub(crate) fn start_op<T: 'static>(
        &self,
        queue: &IoQueue,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> StartedOp {
        let (id, storage) = self.ops.borrow_mut().reserve();
        // SAFETY: the slot is reserved and empty.
        let payload = unsafe { store_payload(payload_ptr(storage), payload) };
        // `plan` calls a user's buffer type, which may panic: the operation is then not started.
        let undo = OnDrop(|| {
            // SAFETY: `store_payload::<T>` filled this slot, and nothing has taken the payload or started the operation.
            guard("a buffer's destructor", || unsafe {
                drop_payload::<T>(payload_ptr(storage));
            });
            self.ops.borrow_mut().unreserve(id);
        });
        // SAFETY: the payload was just written and has no other pointer to it. This is the last reference made into it
        // before the operation completes.
        let op = plan(unsafe { &mut *payload });
        std::mem::forget(undo);
        self.ops.borrow_mut().mark_in_flight(id, op, prefix, drop_payload::<T>);
        queue.op.set(Some(id));
        // SAFETY: `storage` is allocated until the operation has completed; this only computes an address.
        let scratch = unsafe { &raw mut (*storage).scratch };
        // SAFETY: the entry `id` owns the scratch and the payload that `op` points into. Both stay in place, and
        // nothing touches them, until the last completion: `OpFuture::poll` and `drop_payload` check the phase.
        let start = unsafe { self.driver().start(id, op, scratch) };
        let op_result = match start {
            Start::Done(op_result) => Some(op_result),
            Start::Pending => None,
            Start::Blocking => self.submit_to_pool(id, op),
        };
        let res = op_result.as_ref().map(|op_result| op_result.res);
        if let Some(op_result) = op_result {
            let effects = self.ops.borrow_mut().complete(Completion { id, result: op_result });
            debug_assert!(effects.waker.is_none() && !effects.stale);
        }
        StartedOp { id, op, res }
    }

    #[inline]
    pub(crate) fn trace(&self, started: StartedOp) {
        crate::diagnostics::trace::op_started(started.id, &started.op);
        if let Some(res) = started.res {
            crate::diagnostics::trace::op_completed(started.id, res);
        }
    }

    /// Registers `waker` with an operation. False if there is nothing to wait for: it has completed or is gone.
    #[inline]
    pub(crate) fn register_waiter(&self, id: OpId, waker: &Waker) -> bool {
        {
            let mut ops = self.ops.borrow_mut();
            let Some(entry) = ops.entry(id) else { return false };
            if !matches!(entry.phase, Phase::InFlight) {
                return false;
            }
            if entry.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
                return true;
            }
        }
        self.register(id, waker)
    }

    fn register(&self, id: OpId, waker: &Waker) -> bool {
        // A waker's clone and drop are user code, so neither runs under the borrow. The operation may complete or be
        // taken inside the clone, so its phase is checked again.
        let mut waker = Some(waker.clone());
        let in_flight = match self.ops.borrow_mut().entry(id) {
            Some(entry) if matches!(entry.phase, Phase::InFlight) => {
                std::mem::swap(&mut entry.waker, &mut waker);
                true
            }
            _ => false,
        };
        drop(waker);
        in_flight
    }

    /// Calls `listener` when an operation completes. False if it has completed or is gone.
    fn listen(&self, id: OpId, listener: Rc<dyn Listener>) -> bool {
        let mut ops = self.ops.borrow_mut();
        let in_flight = ops.entry(id).filter(|entry| matches!(entry.phase, Phase::InFlight));
        let Some(entry) = in_flight else { return false };
        debug_assert!(entry.listener.is_none(), "an operation has one listener");
        entry.listener = Some(listener);
        true
    }

    /// Requests the cancellation of an operation whose result is still wanted.
    pub(crate) fn request_cancel(&self, id: OpId) {
        let is_first = self.ops.borrow_mut().entry(id).is_some_and(|entry| {
            matches!(entry.phase, Phase::InFlight) && !std::mem::replace(&mut entry.cancel_requested, true)
        });
        if is_first {
            self.cancel_op(id);
        }
    }

    /// Requests the cancellation of an operation whose listener handles its completion. Joining the current task waits
    /// for that completion. False if the operation has no listener.
    pub(crate) fn request_cancel_listened(&self, id: OpId) -> bool {
        {
            let mut ops = self.ops.borrow_mut();
            let Some(entry) = ops.entry(id) else { return false };
            if entry.listener.is_none() {
                return false;
            }
            if entry.owner.is_none() {
                entry.owner = self.current_owner();
            }
        }
        self.request_cancel(id);
        true
    }

    /// The result of an operation that has completed, without taking it.
    pub(crate) fn result_of(&self, id: OpId) -> Option<OsResult> {
        match &self.ops.borrow_mut().entry(id)?.phase {
            Phase::Done(op_result) => Some(op_result.res),
            Phase::InFlight | Phase::Free => None,
        }
    }

    /// Takes the result of an operation that has completed, and frees its slot.
    pub(crate) fn take_result(&self, id: OpId) -> Option<OsResult> {
        let (op_result, storage) = self.fetch(id)?;
        self.drop_payload(id, storage);
        Some(op_result.res)
    }

    /// Drops the waker of an operation, which stays in flight.
    pub(crate) fn forget_waker(&self, id: OpId) {
        let waker = self.ops.borrow_mut().entry(id).and_then(|entry| entry.waker.take());
        drop(waker);
    }

    pub(crate) async fn completed(&self, id: OpId) {
        std::future::poll_fn(|cx| match self.register_waiter(id, cx.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await
    }

    /// Whether an operation has completed or is gone.
    pub(crate) fn is_complete(&self, id: OpId) -> bool {
        let mut ops = self.ops.borrow_mut();
        ops.entry(id)
            .is_none_or(|entry| !matches!(entry.phase, Phase::InFlight))
    }

    /// Takes the result; the payload stays until it is taken or dropped and the slot released.
    #[inline]
    fn fetch(&self, id: OpId) -> Option<(OpResult, *mut OpStorage)> {
        let mut ops = self.ops.borrow_mut();
        let entry = ops.entry(id)?;
        let Phase::Done(op_result) = &mut entry.phase else {
            return None;
        };
        let op_result = std::mem::replace(op_result, OpResult::last(Err(errno::CANCELED)));
        Some((op_result, entry.storage))
    }

    /// Drops the payload of a completed operation, with the table not borrowed, and frees its slot.
    fn drop_payload(&self, id: OpId, storage: *mut OpStorage) {
        let drop_payload = self
            .ops
            .borrow_mut()
            .entry(id)
            .and_then(|entry| entry.drop_payload.take());
        if let Some(drop_payload) = drop_payload {
            // SAFETY: the operation has completed, its payload was not taken, and taking `drop_payload` out of the
            // entry makes this the only place that will drop it.
            guard("a buffer's destructor", || unsafe {
                drop_payload(payload_ptr(storage))
            });
        }
        self.ops.borrow_mut().release(id);
    }

    /// Takes the result of a completed read whose future was dropped: the received bytes, in order, or its error. Frees
    /// the slot. Empty if the operation is gone.
    pub(crate) fn salvage(&self, id: OpId) -> SalvagedRead {
        let mut salvage = SalvagedRead::default();
        let Some((op_result, storage)) = self.fetch(id) else {
            return salvage;
        };
        let (op, prefix) = match self.ops.borrow_mut().entry(id) {
            Some(entry) => (entry.op, entry.prefix),
            None => return salvage,
        };
        let received = op_result.res.unwrap_or(0) as usize;
        if let Some(buffer) = &op_result.buffer {
            salvage.bytes = buffer.filled().to_vec();
        }
        match op {
            Op::Recv { ptr, .. } | Op::File(FileOp::ReadAt { ptr, .. }) => {
                // SAFETY: the payload owns `prefix` bytes in front of `ptr`, all received by earlier operations of this
                // call, and `received` bytes from it on. The operation has completed: the kernel is done.
                salvage.bytes = unsafe { std::slice::from_raw_parts(ptr.sub(prefix), prefix + received) }.to_vec();
            }
            Op::RecvVectored { slices, count, .. } | Op::File(FileOp::ReadVectoredAt { slices, count, .. }) => {
                // SAFETY: the payload owns the slices and the memory they point to; the operation has completed.
                let slices = unsafe { std::slice::from_raw_parts(slices, count) };
                let mut left = received;
                for slice in slices {
                    let part = left.min(slice.len);
                    // SAFETY: as above; the kernel filled the slices in order, so these bytes are initialised.
                    let bytes = unsafe { std::slice::from_raw_parts(slice.base, part) };
                    salvage.bytes.extend_from_slice(bytes);
                    left -= part;
                }
            }
            Op::RecvMessage { message, .. } => {
                // SAFETY: the payload owns the message and the memory it points to; the operation has completed.
                let message = unsafe { &mut *message };
                if op_result.res.is_ok() {
                    // SAFETY: as above; the kernel has filled this many bytes.
                    salvage.bytes = unsafe { std::slice::from_raw_parts(message.bytes().base, received) }.to_vec();
                    // SAFETY: as above.
                    salvage.meta = Some(unsafe { message.open() });
                }
            }
            Op::RecvMessageManaged { message, .. } => {
                if op_result.res.is_ok() {
                    // SAFETY: the payload owns the message and the memory it points to; the operation has completed.
                    salvage.meta = Some(unsafe { (*message).open() });
                }
            }
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Send { .. }
            | Op::SendMessage { .. }
            | Op::SendVectored { .. }
            | Op::Readiness { .. }
            | Op::RecvManaged { .. }
            | Op::File(_) => {}
        }
        salvage.error = lasting_error(op_result.res);
        drop(op_result);
        self.drop_payload(id, storage);
        salvage
    }

    /// Orphans an operation because its future was dropped: requests its cancellation, makes a join of the current task
    /// wait for its completion, and sets what happens then.
    pub(crate) fn orphan(&self, id: OpId, on_orphan: OnOrphan) {
        let (waker, listener);
        let cancel;
        let mut cleanup = None;
        let mut completed = None;
        {
            let mut ops = self.ops.borrow_mut();
            let Some(entry) = ops.entry(id) else { return };
            waker = entry.waker.take();
            listener = entry.listener.take();
            entry.orphan = Some(on_orphan);
            match &entry.phase {
                Phase::InFlight => {
                    cancel = !std::mem::replace(&mut entry.cancel_requested, true);
                    // The first owner, if there is one, stays.
                    if entry.owner.is_none() {
                        entry.owner = self.current_owner();
                    }
                }
                Phase::Done(op_result) => {
                    cancel = false;
                    if on_orphan == OnOrphan::Discard {
                        cleanup = table::orphan_cleanup(&entry.op, op_result.res);
                        completed = Some(entry.storage);
                    }
                }
                Phase::Free => return,
            }
        }
        drop((waker, listener));
        if let Some(cleanup) = cleanup {
            let _ = self.control(cleanup);
        }
        if cancel {
            self.cancel_op(id);
        }
        if let Some(storage) = completed {
            self.drop_payload(id, storage);
        }
    }

    /// Delivers completions: wakes their waiters, and drops the payloads of discarded orphans.
    pub(crate) fn complete(&self, completed: &mut Vec<Completion>) {
        for completion in completed.drain(..) {
            crate::diagnostics::trace::op_completed(completion.id, completion.result.res);
            let completed = self.ops.borrow_mut().complete_plain(completion);
            let completion = match completed {
                Ok(waker) => {
                    if let Some(waker) = waker {
                        guard("a waker", || waker.wake());
                    }
                    continue;
                }
                Err(completion) => completion,
            };
            let effects = self.ops.borrow_mut().complete(completion);
            if effects.stale {
                self.counters.stale_completions.update(|count| count + 1);
                continue;
            }
            if let Some(waker) = effects.waker {
                guard("a waker", || waker.wake());
            }
            if let Some(listener) = effects.listener {
                guard("a completion listener", || listener.completed());
            }
            if let Some(cleanup) = effects.cleanup {
                let _ = self.control(cleanup);
            }
            if let Some(id) = effects.discard
                && let Some((_, storage)) = self.fetch(id)
            {
                self.drop_payload(id, storage);
            }
            drop(effects.owner);
        }
    }
}

/// The error of a dropped read that the next read must return, because the kernel reports it only once. A successful
/// cancel or an empty buffer pool took nothing from the stream and is not passed on.
pub(crate) fn lasting_error(res: OsResult) -> Option<i32> {
    res.err()
        .filter(|&code| code != errno::CANCELED && code != errno::NO_BUFFERS && code != errno::INTERRUPTED)
}

/// An operation that was passed to the driver, for [`LoopCore::trace`].
#[derive(Clone, Copy)]
pub(crate) struct StartedOp {
    pub(crate) id: OpId,
    op: Op,
    /// The result, if it completed at once.
    res: Option<OsResult>,
}

/// The result of a read whose future was dropped.
#[derive(Default)]
pub(crate) struct SalvagedRead {
    pub(crate) bytes: Vec<u8>,
    /// The metadata, if the bytes are a message.
    pub(crate) meta: Option<MsgMeta>,
    pub(crate) error: Option<i32>,
}

impl SalvagedRead {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.meta.is_none() && self.error.is_none()
    }
}
