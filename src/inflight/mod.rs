//! In-flight operations: started, and not yet completed or not yet collected by their future.
//!
//! | state | entered by | meaning |
//! |---|---|---|
//! | free | `release` | nothing uses the slot |
//! | in flight | `start_op`, `RawOp::restart` | the driver or a pool thread works on it and owns the payload and the scratch |
//! | done | `complete_one`, or at once when it is started | the result is stored; the future, the next read or `discard` takes the payload |
//!
//! Only a completion ends "in flight". If the future is dropped before, the operation is orphaned: it is cancelled, and
//! its result is kept for the next read, or discarded.
//!
//! If the driver cannot perform an operation without blocking, a thread of the loop's pool does (`pool_ops`). The
//! thread gets a copy of the plain `Op`, never the slot.
//!
//! User code (wakers, destructors) may call back into this module: slots consist of cells, and an id is checked again
//! after any call that can run user code.

pub(crate) mod descriptor;
mod large_receive;
mod op_future;
mod pool_ops;
pub(crate) mod queue;
mod read_batch;
mod slot;
pub(crate) mod stream;
mod table;
pub(crate) mod transfer;
pub(crate) mod watch;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub(crate) use self::op_future::{OpFuture, RawOp};
pub(crate) use self::read_batch::ReadBatch;
use self::slot::{
    HAS_DESCRIPTOR, HAS_LISTENER, HAS_OWNER, HAS_WAKER, OFF_DRIVER, ORPHANED, OpRare, OpSlot, State, drop_payload,
    store_payload,
};
pub(crate) use self::slot::{Listener, OnOrphan};
pub(crate) use self::table::OpTable;
use self::table::orphan_cleanup;
use crate::driver::op::{FileOp, Op};
use crate::driver::pool::BufferPool;
use crate::driver::{Completion, OpId, OpResult, OsResult, Start};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;
use crate::event_loop::task_key::TaskKey;
use crate::inflight::descriptor::Descriptor;
use crate::inflight::queue::{IoQueue, Leftover};
use crate::io::ManagedBuf;
use crate::on_drop::OnDrop;
use crate::sys::{IoVec, errno};
use crate::task::{Owner, RawTask};

impl LoopCore {
    /// Starts an operation: moves the payload to its final address, calls `plan` to build the op from pointers to it,
    /// and passes the op to the driver. `queue.op` is set before the driver sees the op.
    ///
    /// `payload` is called when the slot is reserved: nothing can panic while the payload is between its old place and
    /// the slot, and the compiler moves it directly.
    ///
    /// Calls no tracing subscriber, which is user code: the caller calls [`trace`](LoopCore::trace) once the operation
    /// is reachable and no borrow is held.
    #[inline]
    pub(crate) fn start_op<T: 'static>(
        &self,
        queue: &IoQueue,
        on_orphan: OnOrphan,
        payload: impl FnOnce() -> T,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> RawOp<T> {
        self.start_op_for(TaskKey::NONE, queue, on_orphan, payload, plan).0
    }

    /// [`start_op`](LoopCore::start_op), and registers a task: see [`waiter`](LoopCore::waiter). True if the task has to wait;
    /// otherwise the caller polls the operation.
    #[inline(always)]
    pub(crate) fn start_op_for<T: 'static>(
        &self,
        waiter: TaskKey,
        queue: &IoQueue,
        on_orphan: OnOrphan,
        payload: impl FnOnce() -> T,
        plan: impl FnOnce(&mut T) -> Op,
    ) -> (RawOp<T>, bool) {
        let slot = self.ops.reserve();
        // SAFETY: the slot is reserved and free.
        let payload = unsafe { store_payload(slot.payload(), payload()) };
        // `plan` calls a user's buffer type, which may panic: the operation is then not started.
        let undo = OnDrop(|| {
            // SAFETY: `store_payload::<T>` filled this slot, and nothing has taken the payload or started the operation.
            guard("a buffer's destructor", || unsafe { drop_payload::<T>(slot.payload()) });
            self.ops.unreserve(slot);
        });
        // SAFETY: the payload was just written and has no other pointer to it. This is the last reference made into it
        // before the operation completes.
        slot.set_op(plan(unsafe { &mut *payload }));
        std::mem::forget(undo);
        slot.on_orphan.set(on_orphan);
        slot.drop_payload.set(Some(drop_payload::<T>));
        let is_waiting = self.submit(queue, slot, waiter);
        let op = RawOp {
            id: slot.id.get(),
            slot: Some(NonNull::from(slot)),
            payload: PhantomData,
        };
        (op, is_waiting)
    }

    /// Passes the op of a slot to the driver. Returns whether it is in flight, with `waiter` registered.
    #[inline(always)]
    fn submit(&self, queue: &IoQueue, slot: &OpSlot, waiter: TaskKey) -> bool {
        let id = slot.id.get();
        slot.prefix.set(0);
        slot.task.set(waiter);
        slot.state.set(State::InFlight);
        self.ops.in_flight.set(self.ops.in_flight.get() + 1);
        queue.op.set(Some(id));
        // SAFETY: the slot owns the op, the scratch and the payload that the op points into. All stay in place, and
        // nothing touches them, until the completion: `RawOp::fetch`, `salvage` and `discard` check the state.
        let start = unsafe { self.driver().start(id, slot.op(), slot.scratch()) };
        match start {
            Start::Pending => waiter != TaskKey::NONE,
            start => {
                self.not_pending(slot, start);
                false
            }
        }
    }

    /// The driver has completed an operation at once, or leaves it to the pool.
    #[cold]
    fn not_pending(&self, slot: &OpSlot, start: Start) {
        let result = match start {
            Start::Done(result) => Some(result),
            Start::Pending => None,
            Start::Blocking => self.submit_to_pool(slot.id.get(), slot.op()),
        };
        if let Some(result) = result {
            self.set_done(slot, result);
        }
    }

    #[inline]
    pub(crate) fn trace(&self, id: OpId) {
        if cfg!(feature = "tracing")
            && let Some(slot) = self.ops.slot(id)
        {
            // Copied, because the subscriber may cause the slot to be used again.
            let (op, state, result) = (*slot.op(), slot.state.get(), slot.result.get());
            crate::diagnostics::trace::op_started(id, &op);
            if state == State::Done {
                crate::diagnostics::trace::op_completed(id, result.res());
            }
        }
    }

    /// The key of the current task, if it is polled with a waker of its own. With `tracing` there is none: a subscriber may close
    /// the loop, and the operation completes while it is traced.
    #[inline]
    pub(crate) fn waiter(&self, cx: &Context<'_>) -> TaskKey {
        match self.task_polled_with(cx) {
            Some(task) if !cfg!(feature = "tracing") => task.key(),
            _ => TaskKey::NONE,
        }
    }

    /// Registers the task with an operation. False if there is nothing to wait for: it has completed or is gone.
    #[inline]
    pub(crate) fn register_waiter(&self, id: OpId, cx: &Context<'_>) -> bool {
        self.ops.slot(id).is_some_and(|slot| self.register(slot, cx))
    }

    #[inline]
    fn register(&self, slot: &OpSlot, cx: &Context<'_>) -> bool {
        if !slot.is_in_flight() {
            return false;
        }
        match self.task_polled_with(cx) {
            Some(task) if !slot.has_flag(HAS_WAKER) => slot.task.set(task.key()),
            task => return self.register_slowly(slot, task, cx),
        }
        true
    }

    /// Registers a foreign waker, or a task in place of one.
    #[cold]
    fn register_slowly(&self, slot: &OpSlot, task: Option<RawTask>, cx: &Context<'_>) -> bool {
        let id = slot.id.get();
        let is_in_flight = || slot.id.get() == id && slot.is_in_flight();
        let is_same = |old: &Waker| task.is_none() && old.will_wake(cx.waker());
        if slot.with_rare(|rare| rare.waker.as_ref().is_some_and(is_same)) {
            return true;
        }
        // A waker's clone and drop are user code. The operation may complete or be taken inside them.
        let waker = task.is_none().then(|| cx.waker().clone());
        if is_in_flight() {
            let old = slot.take_waiter();
            if let Some(task) = task {
                slot.task.set(task.key());
            } else {
                slot.with_rare(|rare| rare.waker = waker);
                slot.set_flag(HAS_WAKER);
            }
            drop(old);
            // Between turns the poller is not a task of the loop, so its wait for a new operation begins here.
            self.queued();
        }
        is_in_flight()
    }

    /// Requests the cancellation of an operation whose result is still wanted.
    pub(crate) fn request_cancel(&self, id: OpId) {
        let is_first = |slot: &OpSlot| slot.is_in_flight() && !slot.cancel_requested.replace(true);
        if self.ops.slot(id).is_some_and(is_first) {
            self.cancel_op(id);
        }
    }

    /// Requests the cancellation of an operation whose listener handles its completion. Joining the current task waits
    /// for that completion. False if the operation has no listener.
    pub(crate) fn request_cancel_listened(&self, id: OpId) -> bool {
        let Some(slot) = self.ops.slot(id).filter(|slot| slot.has_flag(HAS_LISTENER)) else {
            return false;
        };
        self.set_owner(slot);
        self.request_cancel(id);
        true
    }

    /// Makes joining the current task wait for the operation, unless another task's join does already.
    fn set_owner(&self, slot: &OpSlot) {
        if !slot.has_flag(HAS_OWNER)
            && let Some(task) = self.current_task()
        {
            slot.with_rare(|rare| rare.owner = Some(Owner::new(task)));
            slot.set_flag(HAS_OWNER);
        }
    }

    /// Keeps a descriptor open until an operation on it has completed.
    pub(crate) fn keep_open(&self, id: OpId, descriptor: &Rc<Descriptor>) {
        if let Some(slot) = self.ops.slot(id).filter(|slot| slot.is_in_flight()) {
            slot.with_rare(|rare| rare.descriptor = Some(descriptor.clone()));
            slot.set_flag(HAS_DESCRIPTOR);
        }
    }

    /// The result of an operation that has completed, without taking it.
    pub(crate) fn result_of(&self, id: OpId) -> Option<OsResult> {
        let slot = self.ops.slot(id).filter(|slot| slot.state.get() == State::Done)?;
        Some(slot.result.get().res())
    }

    /// Takes the result of an operation that has completed, and frees its slot.
    pub(crate) fn take_result(&self, id: OpId) -> Option<OsResult> {
        let res = self.result_of(id)?;
        self.discard(id);
        Some(res)
    }

    /// Drops the waiter of an operation, which stays in flight.
    pub(crate) fn forget_waker(&self, id: OpId) {
        drop(self.ops.slot(id).and_then(OpSlot::take_waiter));
    }

    pub(crate) async fn completed(&self, id: OpId) {
        std::future::poll_fn(|cx| match self.register_waiter(id, cx) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await
    }

    /// Whether an operation has completed or is gone.
    pub(crate) fn is_complete(&self, id: OpId) -> bool {
        self.ops.slot(id).is_none_or(|slot| !slot.is_in_flight())
    }

    /// Drops the payload and the result of a completed operation, and frees its slot.
    fn discard(&self, id: OpId) {
        let Some(slot) = self.ops.slot(id).filter(|slot| slot.state.get() == State::Done) else {
            return;
        };
        drop(self.take_buffer(slot.result.replace(OpResult::new(Err(errno::CANCELED)))));
        if let Some(drop_payload) = slot.drop_payload.take() {
            // SAFETY: the operation has completed, its payload was not taken, and taking `drop_payload` out of the slot
            // makes this the only place that will drop it.
            guard("a buffer's destructor", || unsafe { drop_payload(slot.payload()) });
        }
        // The destructor may have dropped the stream, which discards the operation too.
        if slot.id.get() == id {
            self.ops.release(slot);
        }
    }

    /// The pool for managed receives, allocated and given to the driver by the first of them. `None` if the driver has
    /// no use for it or there is no memory.
    #[inline]
    pub(crate) fn pool(&self) -> Option<&Rc<BufferPool>> {
        let make = || {
            let (count, len) = (self.settings.driver.managed_count, self.settings.driver.managed_len);
            let pool = BufferPool::new(count.next_power_of_two(), len)?;
            self.driver().provide_buffers(&pool).then_some(pool)
        };
        self.pool.get_or_init(make).as_ref()
    }

    /// Whether there is a pool already.
    #[inline]
    pub(crate) fn has_pool(&self) -> bool {
        matches!(self.pool.get(), Some(Some(_)))
    }

    /// The buffer that a managed receive filled, if it received anything. The result must not be used again.
    #[inline]
    pub(crate) fn take_buffer(&self, result: OpResult) -> Option<ManagedBuf> {
        let pool = self.pool.get()?.as_ref()?;
        if let Some((index, count)) = result.received_in_pool() {
            // SAFETY: the driver took the buffer from this pool, has received `count` bytes into it, and named it in one
            // result, which is used here once.
            return Some(unsafe { ManagedBuf::from_pool(pool, index, count) });
        }
        // SAFETY: as above, and the buffer is not used.
        unsafe { pool.give_back(result.buffer()?) };
        None
    }

    /// What a completed read has received: its bytes in order, its message's metadata, or its error. Uses its result up.
    fn salvage(&self, slot: &OpSlot) -> Leftover {
        let result = slot.result.replace(OpResult::new(Err(errno::CANCELED)));
        let (prefix, res) = (slot.prefix.get(), result.res());
        let mut left = prefix + res.unwrap_or(0) as usize;
        let mut salvaged = Leftover {
            error: lasting_error(res),
            ..Leftover::default()
        };
        if let Some(buffer) = self.take_buffer(result) {
            salvaged.bytes = buffer.into_vec().into();
        }
        let one;
        // SAFETY, for all pointers: the payload owns the slices, the message and the memory that they point to, and in
        // front of `ptr` the bytes that earlier operations of this call received. The operation has completed.
        let slices: &[IoVec] = match *slot.op() {
            Op::Recv { ptr, .. } | Op::File(FileOp::ReadAt { ptr, .. }) => {
                // SAFETY: see above.
                let base = unsafe { ptr.sub(prefix) };
                one = [IoVec { base, len: left }];
                &one
            }
            Op::RecvVectored { slices, count, .. } | Op::File(FileOp::ReadVectoredAt { slices, count, .. }) => {
                // SAFETY: see above.
                unsafe { std::slice::from_raw_parts(slices, count) }
            }
            Op::RecvMessage { message, .. } | Op::RecvMessageManaged { message, .. } => {
                // SAFETY: see above.
                let message = unsafe { &mut *message };
                // SAFETY: see above.
                one = [unsafe { message.bytes() }];
                // SAFETY: see above.
                salvaged.meta = res.is_ok().then(|| unsafe { message.open() });
                &one
            }
            Op::RecvManaged { .. } => &[],
            // The next call does not return the error of a dropped one that was no read.
            Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Send { .. }
            | Op::SendMessage { .. }
            | Op::SendVectored { .. }
            | Op::Readiness { .. }
            | Op::LookUp { .. }
            | Op::File(_) => {
                salvaged.error = None;
                &[]
            }
        };
        for slice in slices.iter().filter(|slice| slice.len > 0) {
            let part = left.min(slice.len);
            // SAFETY: see above; the kernel filled the slices in order, so these bytes are initialised.
            salvaged
                .bytes
                .extend(unsafe { std::slice::from_raw_parts(slice.base, part) });
            left -= part;
        }
        salvaged
    }

    /// Orphans an operation because its future was dropped: requests its cancellation, makes a join of the current task
    /// wait for its completion, and sets what happens then.
    pub(crate) fn orphan(&self, id: OpId, on_orphan: OnOrphan) {
        let Some(slot) = self.ops.slot(id) else { return };
        let waker = slot.take_waiter();
        let listener = match slot.has_flag(HAS_LISTENER) {
            true => slot.with_rare(|rare| rare.listener.take()),
            false => None,
        };
        slot.flags.set(slot.flags.get() & !HAS_LISTENER | ORPHANED);
        slot.on_orphan.set(on_orphan);
        let is_in_flight = slot.is_in_flight();
        if is_in_flight {
            self.set_owner(slot);
        }
        guard("a waker's destructor", || drop((waker, listener)));
        if is_in_flight {
            self.request_cancel(id);
        } else if on_orphan == OnOrphan::Discard {
            self.clean_up_and_discard(slot, id);
        }
    }

    /// Closes what a completed operation has opened, and discards it.
    fn clean_up_and_discard(&self, slot: &OpSlot, id: OpId) {
        if slot.id.get() == id
            && let Some(cleanup) = orphan_cleanup(slot.op(), slot.result.get().res())
        {
            let _ = self.control(cleanup);
        }
        self.discard(id);
    }

    /// Delivers completions: wakes their waiters, and drops the payloads of discarded orphans.
    pub(crate) fn complete(&self, completed: &mut Vec<Completion>) {
        for &Completion { id, result } in completed.iter() {
            self.complete_one(id, result);
        }
        completed.clear();
    }

    /// Delivers one completion.
    #[inline(always)]
    pub(crate) fn complete_one(&self, id: OpId, result: OpResult) {
        crate::diagnostics::trace::op_completed(id, result.res());
        let Some(slot) = self.ops.slot(id).filter(|slot| slot.is_in_flight()) else {
            self.counters.stale_completions.update(|count| count + 1);
            return;
        };
        self.set_done(slot, result);
        match slot.flags.get() {
            0 => self.wake_task(slot.task.get()),
            _ => self.complete_special(slot),
        }
    }

    #[inline]
    fn set_done(&self, slot: &OpSlot, result: OpResult) {
        slot.result.set(result);
        slot.state.set(State::Done);
        self.ops.in_flight.set(self.ops.in_flight.get() - 1);
    }

    /// Delivers the completion of an operation that has more to do than to wake a task of this loop.
    #[cold]
    fn complete_special(&self, slot: &OpSlot) {
        let (id, task, flags) = (slot.id.get(), slot.task.get(), slot.flags.replace(0));
        let OpRare {
            waker,
            listener,
            owner,
            executor: _,
            descriptor,
        } = slot.with_rare(std::mem::take);
        self.ops
            .off_driver
            .update(|count| count - usize::from(flags & OFF_DRIVER != 0));
        self.wake_task(task);
        if let Some(waker) = waker {
            guard("a waker", || waker.wake());
        }
        if let Some(listener) = listener {
            guard("a completion listener", || listener.completed());
        }
        if flags & ORPHANED != 0 && slot.id.get() == id && slot.on_orphan.get() == OnOrphan::Discard {
            self.clean_up_and_discard(slot, id);
        }
        drop(descriptor);
        drop(owner);
    }
}

/// The error of a dropped read that the next read must return, because the kernel reports it only once. A successful
/// cancel or an empty buffer pool took nothing from the stream and is not passed on.
fn lasting_error(res: OsResult) -> Option<i32> {
    res.err()
        .filter(|&code| code != errno::CANCELED && code != errno::NO_BUFFERS && code != errno::INTERRUPTED)
}
