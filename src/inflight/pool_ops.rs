//! Flights that a thread carries, because the driver cannot do their operation without blocking.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::table::{Executor, unwanted};
use crate::driver::op::{FileOp, Op};
use crate::driver::perform::waits_for_peer;
use crate::driver::{self, Completion, FdSpace, OpId, OpResult};
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;
use crate::sys::{SyncCancel, errno};

impl LoopCore {
    /// Has a thread of the loop's own pool carry a flight. If its queue is full, the flight waits here. Gives the landing of one
    /// that no thread can be had for.
    pub(super) fn submit_to_pool(&self, id: OpId, op: Op) -> Option<OpResult> {
        // A thread makes system calls, which would take the driver's numbers for the kernel's.
        let is_on_descriptor = op.fd().is_some() || matches!(op, Op::File(FileOp::Open { .. }));
        if self.fd_space == FdSpace::Own && is_on_descriptor {
            return Some(OpResult::last(Err(errno::NOT_SUPPORTED)));
        }
        if !self.waiting_for_pool.borrow().is_empty() {
            self.set_executor(id, Executor::Nobody);
            self.waiting_for_pool.borrow_mut().push_back(id);
            return None;
        }
        self.try_submit(id, op).err().flatten()
    }

    /// An error if the queue is full, or, with its landing, if no thread can be had. Runs no foreign code.
    fn try_submit(&self, id: OpId, op: Op) -> Result<(), Option<OpResult>> {
        let inbox = self.inbox.clone();
        let sync_cancel = SyncCancel::new(waits_for_peer(&op));
        let pulled = sync_cancel.clone();
        let carry = move || {
            // SAFETY: the flight owns what `op` points to, in one place, until it has landed, and nobody else uses that
            // meanwhile. Its landing is sent when this call is over.
            let res = sync_cancel.run(|| unsafe { driver::perform(op) });
            // No file work says that it would have to wait, except on a descriptor that somebody made non-blocking.
            let res = res.unwrap_or(Err(errno::AGAIN));
            // A loop that does not take it any more has leaked the flight, but what that opened need not stay open.
            if inbox.send(RemoteEvent::OpDone(id, res)).is_err()
                && let Some(ending) = unwanted(&op, res)
            {
                drop(driver::control(ending));
            }
        };
        match self.files.submit(Box::new(carry)) {
            Ok(job) => {
                self.set_executor(id, Executor::Pool(job));
                if let Some(entry) = self.ops.borrow_mut().entry(id) {
                    entry.sync_cancel = pulled;
                }
            }
            Err((_, None)) => {
                self.set_executor(id, Executor::Nobody);
                self.waiting_for_pool.borrow_mut().push_front(id);
                let waker = Waker::from(Arc::new(PoolRoomWaker(self.inbox.clone())));
                if !self.files.wait_for_capacity(&waker) {
                    // It was made in the meantime.
                    waker.wake();
                }
                return Err(None);
            }
            Err((_, Some(error))) => {
                let code = crate::sys::os_code(&error).unwrap_or(errno::AGAIN);
                return Err(Some(OpResult::last(Err(code))));
            }
        }
        Ok(())
    }

    /// There is room in the pool's queue.
    pub(crate) fn submit_waiting(&self) {
        loop {
            let next = self.waiting_for_pool.borrow_mut().pop_front();
            let Some(id) = next else { return };
            let op = self.ops.borrow_mut().entry(id).map(|entry| entry.op);
            let Some(op) = op else { continue };
            match self.try_submit(id, op) {
                Ok(()) => {}
                Err(Some(op_result)) => self.complete_one(id, op_result),
                Err(None) => return,
            }
        }
    }

    /// Asks whoever carries a flight to end it early.
    pub(crate) fn cancel_op(&self, id: OpId) {
        // In a forked child it is the parent's: neither the kernel nor a thread works for this process.
        if self.is_forked() {
            return;
        }
        let (executor, sync_cancel) = match self.ops.borrow_mut().entry(id) {
            Some(entry) => (entry.executor, entry.sync_cancel.clone()),
            None => return,
        };
        let taken_back = match executor {
            Executor::Driver => return self.driver().cancel(id),
            Executor::Pool(job) => {
                let taken_back = self.files.take_back(job);
                if !taken_back {
                    sync_cancel.pull();
                }
                taken_back
            }
            Executor::Nobody => {
                self.waiting_for_pool
                    .borrow_mut()
                    .retain(|&waiting_for_pool| waiting_for_pool != id);
                true
            }
        };
        if taken_back {
            self.complete_one(id, OpResult::last(Err(errno::CANCELED)));
        }
    }

    pub(crate) fn complete_one(&self, id: OpId, op_result: OpResult) {
        self.complete(&mut vec![Completion { id, result: op_result }]);
    }

    fn set_executor(&self, id: OpId, executor: Executor) {
        self.ops.borrow_mut().set_executor(id, executor);
    }
}

/// Tells the loop that the pool has room.
struct PoolRoomWaker(Arc<Inbox<RemoteEvent>>);

impl Wake for PoolRoomWaker {
    fn wake(self: Arc<Self>) {
        drop(self.0.send(RemoteEvent::PoolHasCapacity));
    }
}
