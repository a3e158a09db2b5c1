//! Operations that a pool thread performs, because the driver cannot perform them without blocking.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::slot::{Executor, OFF_DRIVER};
use super::table::orphan_cleanup;
use crate::driver::op::{FileOp, Op};
use crate::driver::perform::waits_for_peer;
use crate::driver::{self, FdSpace, OpId, OpResult};
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;
use crate::sys::{PoolCall, errno};

impl LoopCore {
    /// Submits an operation to the loop's own pool, whose jobs the driver may run itself. If the pool's queue is full, the operation waits in
    /// `waiting_for_pool`. Returns a result if the operation cannot be performed.
    pub(super) fn submit_to_pool(&self, id: OpId, op: &Op) -> Option<OpResult> {
        // A thread makes system calls, which would take the driver's descriptors for the kernel's.
        let is_on_descriptor = op.fd().is_some() || matches!(op, Op::File(FileOp::Open { .. }));
        if self.fd_space == FdSpace::Own && is_on_descriptor {
            return Some(OpResult::new(Err(errno::NOT_SUPPORTED)));
        }
        if !self.waiting_for_pool.borrow().is_empty() {
            self.ops.set_executor(id, Executor::Unassigned);
            self.waiting_for_pool.borrow_mut().push_back(id);
            return None;
        }
        self.try_submit(id, op).err().flatten()
    }

    /// Fails with `None` if the queue is full, or with a result if no thread can be started. Runs no user code.
    fn try_submit(&self, id: OpId, op: &Op) -> Result<(), Option<OpResult>> {
        let (inbox, op) = (self.inbox.clone(), *op);
        let call = PoolCall::new(self.pool_call_key(id), waits_for_peer(&op));
        let perform = move || {
            // SAFETY: the slot owns the memory that `op` points to, at a fixed address, until the operation has
            // completed, and nothing else uses it meanwhile. The completion is sent after this call.
            let res = call.run(|| unsafe { driver::perform(&op) });
            // File operations never report EAGAIN, except on a descriptor that the program made non-blocking.
            let res = res.unwrap_or(Err(errno::AGAIN));
            // A closed loop has leaked the operation, but the descriptor that it opened can be closed.
            if inbox.send(RemoteEvent::OpDone(id, res)).is_err()
                && let Some(cleanup) = orphan_cleanup(&op, res)
            {
                drop(driver::control(cleanup));
            }
        };
        match self.files.submit(Box::new(perform), Some(self)) {
            Ok(job) => self.ops.set_executor(id, Executor::Pool(job)),
            Err((_, None)) => {
                self.ops.set_executor(id, Executor::Unassigned);
                self.waiting_for_pool.borrow_mut().push_front(id);
                let waker = Waker::from(Arc::new(PoolCapacityWaker(self.inbox.clone())));
                if !self.files.wait_for_capacity(&waker) {
                    // There is capacity by now.
                    waker.wake();
                }
                return Err(None);
            }
            Err((_, Some(error))) => {
                let code = crate::sys::os_code(&error).unwrap_or(errno::AGAIN);
                return Err(Some(OpResult::new(Err(code))));
            }
        }
        Ok(())
    }

    /// Submits waiting operations while the pool's queue has capacity.
    pub(crate) fn submit_waiting(&self) {
        loop {
            let next = self.waiting_for_pool.borrow_mut().pop_front();
            let Some(id) = next else { return };
            let Some(slot) = self.ops.slot(id) else { continue };
            match self.try_submit(id, slot.op()) {
                Ok(()) => {}
                Err(Some(op_result)) => self.complete_one(id, op_result),
                Err(None) => return,
            }
        }
    }

    /// Requests the cancellation of an operation from the driver or the pool.
    pub(crate) fn cancel_op(&self, id: OpId) {
        // In a forked child the operation belongs to the parent: nothing performs it for this process.
        if self.is_forked() {
            return;
        }
        let Some(slot) = self.ops.slot(id) else { return };
        let executor = match slot.has_flag(OFF_DRIVER) {
            true => slot.with_rare(|rare| rare.executor),
            false => Executor::Driver,
        };
        let taken_back = match executor {
            Executor::Driver => {
                self.driver().cancel(id, slot.op());
                return self.queued();
            }
            Executor::Pool(job) => {
                let taken_back = self.files.take_back(job);
                if !taken_back {
                    PoolCall::cancel(self.pool_call_key(id));
                }
                taken_back
            }
            Executor::Unassigned => {
                self.waiting_for_pool.borrow_mut().retain(|&waiting| waiting != id);
                true
            }
        };
        if taken_back {
            self.complete_one(id, OpResult::new(Err(errno::CANCELED)));
        }
    }

    /// Identifies an operation among those of all loops: its job keeps this loop's inbox, and so the address, alive.
    fn pool_call_key(&self, id: OpId) -> (usize, u64) {
        (Arc::as_ptr(&self.inbox) as usize, id.to_u64())
    }
}

/// Notifies the loop that the pool's queue has capacity.
struct PoolCapacityWaker(Arc<Inbox<RemoteEvent>>);

impl Wake for PoolCapacityWaker {
    fn wake(self: Arc<Self>) {
        drop(self.0.send(RemoteEvent::PoolHasCapacity));
    }
}
