//! Flights: operations between their start and their last completion.
//!
//! The kernel writes to a flight's memory while nobody looks, so that memory must not move and must not be freed, come
//! what may: the future that wanted the result can be dropped, forgotten or unwound, the whole loop can go. Hence the
//! split:
//!
//! - The **cargo** is one heap box per place in the table: the driver's scratch and the load, which is whatever has to
//!   live as long as the kernel works (the buffer and a share of the descriptor). A load of up to 64 bytes lies
//!   inline, a larger one is boxed. While the flight is in the air nobody makes a reference into the cargo; there are only
//!   raw pointers.
//! - The **entry** in the table is the header: who waits, what landed, who inherited it. It may move; nothing points to
//!   it. Completions find it by index and generation.
//!
//! Places are recycled, so after warm-up an operation allocates nothing. A place that is still in the air when the table
//! is dropped is leaked: closing a ring is no barrier, and a leak is harmless where a write to freed memory is not.
//!
//! A flight is carried by the driver, or, if that has no way to do it without blocking, by a thread of the loop's own pool
//! (`pooled`). The thread gets a copy of the plain op, never the flight.
//!
//! Nothing in this file runs foreign code (wakers, destructors) while the table is borrowed: what is to be woken or
//! dropped is handed out, and the caller does it afterwards.

pub(crate) mod descriptor;
pub(crate) mod lazy_box;
mod op_future;
mod pool_ops;
pub(crate) mod queue;
mod storage;
pub(crate) mod stream;
mod table;
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
use crate::sys::{MsgMeta, errno};

impl LoopCore {
    /// Starts an operation: moves its load to the final address, lets `plan` take the pointers there, and hands the
    /// plain op to the driver. Its id is in `lane` from the moment on when the driver has it.
    ///
    /// It calls no tracing subscriber, which is foreign code: the caller calls [`trace`](LoopCore::trace) once the operation can be
    /// found and no borrow is held.
    pub(crate) fn start_op<T: 'static>(
        &self,
        queue: &IoQueue,
        payload: T,
        prefix: usize,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> StartedOp {
        let (id, storage) = self.ops.borrow_mut().reserve();
        // SAFETY: the place is reserved and empty.
        let payload = unsafe { store_payload(payload_ptr(storage), payload) };
        // SAFETY: the load was just written and nobody else has a pointer to it. This is the last reference made into
        // it before it lands. If `plan` panics (a foreign buffer type), the load and its place are leaked.
        let op = plan(unsafe { &mut *payload });
        {
            let mut ops = self.ops.borrow_mut();
            ops.mark_in_flight(id, op, prefix, drop_payload::<T>);
        }
        queue.op.set(Some(id));
        // SAFETY: `cargo` is allocated until the flight has landed; this only computes an address.
        let scratch = unsafe { &raw mut (*storage).scratch };
        // SAFETY: the flight `id` owns the load that `op` points into and the scratch. Both stay in place, and nobody
        // touches them, until the flight's last completion has landed: `OpFuture::poll` and `discard` ask the phase.
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

    /// Emits the events of an operation that was started, and perhaps completed at once.
    #[inline]
    pub(crate) fn trace(&self, started: StartedOp) {
        crate::diagnostics::trace::op_started(started.id, &started.op);
        if let Some(res) = started.res {
            crate::diagnostics::trace::op_completed(started.id, res);
        }
    }

    /// Registers `waker` with a flight. False if there is nothing to wait for: it has landed, or it is gone.
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
        // Cloning and dropping wakers is foreign code, so neither happens under the borrow. The flight may land or be fetched
        // inside of the clone, so its phase is asked for again.
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

    /// Has `listener` called when a flight lands. False if there is nothing to wait for: it has landed, or it is gone.
    fn listen(&self, id: OpId, listener: Rc<dyn Listener>) -> bool {
        let mut ops = self.ops.borrow_mut();
        let in_flight = ops.entry(id).filter(|entry| matches!(entry.phase, Phase::InFlight));
        let Some(entry) = in_flight else {
            drop(ops);
            return false;
        };
        debug_assert!(entry.listener.is_none(), "a flight has one listener");
        entry.listener = Some(listener);
        true
    }

    /// Asks for the end of a flight that is still wanted until then.
    pub(crate) fn request_cancel(&self, id: OpId) {
        let cancel = match self.ops.borrow_mut().entry(id) {
            Some(entry) => matches!(entry.phase, Phase::InFlight) && !std::mem::replace(&mut entry.cancelling, true),
            None => false,
        };
        if cancel {
            self.cancel_op(id);
        }
    }

    /// Asks for the end of a flight that has a listener, which sees to the rest; the current task waits for it before it counts
    /// as finished. False if it has none.
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

    /// The outcome of a flight that has landed and was not taken.
    pub(crate) fn outcome_of(&self, id: OpId) -> Option<OsResult> {
        match &self.ops.borrow_mut().entry(id)?.phase {
            Phase::Done(op_result) => Some(op_result.res),
            Phase::InFlight | Phase::Free => None,
        }
    }

    /// Takes the outcome of a flight that has landed, and frees its place.
    pub(crate) fn take_outcome(&self, id: OpId) -> Option<OsResult> {
        let (op_result, storage) = self.fetch(id)?;
        self.drop_payload(id, storage);
        Some(op_result.res)
    }

    /// Nobody waits for this flight any more, though it goes on.
    pub(crate) fn forget_waker(&self, id: OpId) {
        let waker = match self.ops.borrow_mut().entry(id) {
            Some(entry) => entry.waker.take(),
            None => None,
        };
        drop(waker);
    }

    /// Waits until an orphan in a lane is down.
    pub(crate) async fn completed(&self, id: OpId) {
        std::future::poll_fn(|cx| match self.register_waiter(id, cx.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await
    }

    /// Whether a flight has landed, or is gone.
    pub(crate) fn is_down(&self, id: OpId) -> bool {
        let mut ops = self.ops.borrow_mut();
        ops.entry(id)
            .is_none_or(|entry| !matches!(entry.phase, Phase::InFlight))
    }

    /// Takes what landed; the load stays until it is unloaded or dropped, and the flight released.
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

    /// Drops a landed flight's load, with the table not borrowed, and frees its place.
    fn drop_payload(&self, id: OpId, storage: *mut OpStorage) {
        let drop_payload = self
            .ops
            .borrow_mut()
            .entry(id)
            .and_then(|entry| entry.drop_payload.take());
        if let Some(drop_payload) = drop_payload {
            // SAFETY: the flight has landed, its load was not fetched, and taking `drop_payload` out of the entry makes this
            // the only place that will drop it.
            guard("a buffer's destructor", || unsafe {
                drop_payload(payload_ptr(storage))
            });
        }
        self.ops.borrow_mut().release(id);
    }

    /// Whether the future of the flight in a lane is gone and what it received is to be read: the bytes of a landed
    /// orphan, in order, or its error. Frees the flight.
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
        match op {
            Op::Recv { ptr, .. } | Op::File(FileOp::ReadAt { ptr, .. }) => {
                // SAFETY: the load owns `prefix` bytes in front of `ptr`, all received by earlier flights of this call,
                // and `received` bytes from it on. The flight has landed, so nobody writes there any more.
                salvage.bytes = unsafe { std::slice::from_raw_parts(ptr.sub(prefix), prefix + received) }.to_vec();
            }
            Op::RecvVectored { slices, count, .. } | Op::File(FileOp::ReadVectoredAt { slices, count, .. }) => {
                // SAFETY: the load owns the slices and what they point to; the flight has landed.
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
            Op::RecvManaged { .. } => {
                if let Some(buffer) = &op_result.buffer {
                    salvage.bytes = buffer.filled().to_vec();
                }
            }
            Op::RecvMessage { message, .. } => {
                // SAFETY: the load owns the message and what it points to; the flight has landed.
                let message = unsafe { &mut *message };
                if op_result.res.is_ok() {
                    // SAFETY: as above; the kernel has filled this many bytes.
                    let bytes = unsafe { message.bytes() };
                    // SAFETY: as above.
                    salvage.bytes = unsafe { std::slice::from_raw_parts(bytes.base, received) }.to_vec();
                    // SAFETY: as above.
                    salvage.meta = Some(unsafe { message.open() });
                }
            }
            Op::RecvMessageManaged { message, .. } => {
                if op_result.res.is_ok() {
                    salvage.bytes = op_result
                        .buffer
                        .as_ref()
                        .map_or_else(Vec::new, |buffer| buffer.filled().to_vec());
                    // SAFETY: the load owns the message and what it points to; the flight has landed.
                    salvage.meta = Some(unsafe { (*message).open() });
                }
            }
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Send { .. }
            | Op::SendMessage { .. }
            | Op::SendVectored { .. }
            | Op::Readiness { .. }
            | Op::File(_) => {}
        }
        salvage.error = lasting_error(op_result.res);
        drop(op_result);
        self.drop_payload(id, storage);
        salvage
    }

    /// The future of this flight is gone. Asks for its cancel, makes the current task wait for it before it counts as
    /// finished, and decides what happens when it lands.
    pub(crate) fn orphan(&self, id: OpId, on_orphan: OnOrphan) {
        let (waker, listener);
        let cancel;
        let mut unwanted = None;
        let mut completed = None;
        {
            let mut ops = self.ops.borrow_mut();
            let Some(entry) = ops.entry(id) else { return };
            waker = entry.waker.take();
            listener = entry.listener.take();
            entry.orphan = Some(on_orphan);
            match &entry.phase {
                Phase::InFlight => {
                    cancel = !std::mem::replace(&mut entry.cancelling, true);
                    // Its first owner, if it had one, keeps it.
                    if entry.owner.is_none() {
                        entry.owner = self.current_owner();
                    }
                }
                Phase::Done(op_result) => {
                    cancel = false;
                    if on_orphan == OnOrphan::Discard {
                        unwanted = table::unwanted(&entry.op, op_result.res);
                        completed = Some(entry.storage);
                    }
                }
                Phase::Free => return,
            }
        }
        drop((waker, listener));
        if let Some(ending) = unwanted {
            let _ = self.control(ending);
        }
        if cancel {
            self.cancel_op(id);
        }
        if let Some(storage) = completed {
            self.drop_payload(id, storage);
        }
    }

    /// Delivers completions: wakes who waits, drops what nobody will fetch.
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
                self.counters
                    .stale_completions
                    .set(self.counters.stale_completions.get() + 1);
                continue;
            }
            if let Some(waker) = effects.waker {
                guard("a waker", || waker.wake());
            }
            if let Some(listener) = effects.listener {
                guard("a landing's listener", || listener.completed());
            }
            if let Some(ending) = effects.unwanted {
                let _ = self.control(ending);
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

/// The error of a read, if the next reader has to be told: a cancel that worked, or an empty pool, took nothing from the stream.
/// Any other error is told only once by the kernel.
pub(crate) fn lasting_error(res: OsResult) -> Option<i32> {
    res.err()
        .filter(|&code| code != errno::CANCELED && code != errno::NO_BUFFERS && code != errno::INTERRUPTED)
}

/// An operation that was handed to the driver, for [`LoopCore::trace`].
#[derive(Clone, Copy)]
pub(crate) struct StartedOp {
    pub(crate) id: OpId,
    op: Op,
    /// How it went, if it is over already.
    res: Option<OsResult>,
}

/// What a dropped read had received.
#[derive(Default)]
pub(crate) struct SalvagedRead {
    pub(crate) bytes: Vec<u8>,
    /// What came with them, if they are a message.
    pub(crate) meta: Option<MsgMeta>,
    pub(crate) error: Option<i32>,
}

impl SalvagedRead {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.meta.is_none() && self.error.is_none()
    }
}
