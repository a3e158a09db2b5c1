//! The types that keep a task alive or wake it: see the table in [`raw`](super).

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{RawWaker, RawWakerVTable};

use super::header::Joiner;
use super::{Header, QUEUED_REMOTE, RawTask};
use crate::diagnostics::task_span::WakerOp;
use crate::event_loop::core::LoopCore;
use crate::task::child_set::Membership;

/// An entry in the ready queue. Dropping it without running it removes the entry. Loop's thread.
pub(crate) struct Runnable(pub(super) RawTask);

impl Runnable {
    pub(crate) fn task(&self) -> RawTask {
        self.0
    }

    /// The task alone, which still counts as queued. The caller turns it back into a `Runnable`.
    #[inline]
    pub(crate) fn into_raw(self) -> RawTask {
        ManuallyDrop::new(self).0
    }

    /// The opposite of [`into_raw`](Runnable::into_raw).
    #[inline]
    pub(crate) fn from_raw(task: RawTask) -> Runnable {
        Runnable(task)
    }

    /// Removes the entry. True if the task is done, and perhaps freed.
    #[inline]
    fn dequeue(self) -> bool {
        let task = ManuallyDrop::new(self).0;
        task.header().is_ready.set(false);
        let is_done = task.is_done();
        if is_done {
            // The list's reference, which `become_done` left to this entry.
            task.drop_ref();
        }
        is_done
    }

    /// Polls the task, or cancels it if that was requested.
    #[inline]
    pub(crate) fn run(self, core: &LoopCore) {
        let task = self.0;
        if !self.dequeue() {
            core.refill_budget();
            task.poll(core);
        }
    }
}

impl Drop for Runnable {
    fn drop(&mut self) {
        Runnable(self.0).dequeue();
    }
}

/// A wake on its way through the inbox. The `QUEUED_REMOTE` bit is its reference.
pub(crate) struct RemoteWake(pub(super) RawTask);

// SAFETY: it only carries the task's address from the waker's thread to the loop's, which queues the task. Dropping it
// on another thread touches only the atomic state.
unsafe impl Send for RemoteWake {}

impl RemoteWake {
    /// Of the address from [`into_raw`](RemoteWake::into_raw).
    pub(crate) const ALIGNMENT: usize = align_of::<Header>();

    /// As an address, which owns the bit.
    #[inline]
    pub(crate) fn into_raw(self) -> *mut () {
        ManuallyDrop::new(self).0.0.as_ptr().cast()
    }

    /// # Safety
    ///
    /// The address is from [`into_raw`](RemoteWake::into_raw), and is used once.
    #[inline]
    pub(crate) unsafe fn from_raw(address: *mut ()) -> RemoteWake {
        // SAFETY: it was not null.
        RemoteWake(RawTask(unsafe { NonNull::new_unchecked(address.cast()) }))
    }

    /// Puts the task into the ready queue. Loop's thread.
    pub(crate) fn deliver(self, core: &LoopCore) {
        self.0.make_ready(core);
        // Clears the bit before the task is polled, so a wake during the poll is sent again.
        drop(self);
    }
}

impl Drop for RemoteWake {
    fn drop(&mut self) {
        // The bit is set, so subtracting it clears it.
        let old = self.0.header().state.fetch_sub(QUEUED_REMOTE, AcqRel);
        self.0.free_if_last(old - QUEUED_REMOTE);
    }
}

/// Keeps a task unfinished: held by each operation and child set that the task left behind. Loop's thread.
pub(crate) struct Owner(RawTask);

impl Owner {
    pub(crate) fn new(task: RawTask) -> Owner {
        task.clone_ref();
        let orphans = &task.header().orphans;
        orphans.set(orphans.get() + 1);
        Owner(task)
    }

    /// Releases the task. Must be called once. Returns the task's membership if this finished the task.
    fn release(&mut self) -> Option<Membership> {
        let header = self.0.header();
        header.orphans.set(header.orphans.get() - 1);
        let (joiner, membership) = match self.0.is_finished() {
            true => (header.joiner.take(), header.membership.take()),
            false => (Joiner::default(), None),
        };
        joiner.wake_from_outside(self.0);
        // The task may be freed by this.
        self.0.drop_ref();
        membership
    }

    pub(in crate::task) fn task(&self) -> RawTask {
        self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Iterative: groups may be nested as deep as memory allows, so recursion could overflow the stack.
        let mut membership = self.release();
        while let Some(left) = membership {
            membership = left.leave().and_then(|owner| ManuallyDrop::new(owner).release());
        }
    }
}

/// A counted reference that can cancel a task but not join it. Loop's thread.
pub(crate) struct TaskRef(RawTask);

impl TaskRef {
    pub(in crate::task) fn new(task: RawTask) -> TaskRef {
        task.clone_ref();
        TaskRef(task)
    }

    pub(in crate::task) fn cancel(&self) {
        self.0.cancel();
    }

    pub(in crate::task) fn task(&self) -> RawTask {
        self.0
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        self.0.drop_ref();
    }
}

pub(super) fn raw_waker(task: RawTask) -> RawWaker {
    RawWaker::new(task.0.as_ptr().cast_const().cast(), &WAKER)
}

pub(super) static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| {
        let task = from_waker(data);
        task.clone_ref();
        task.trace_waker(WakerOp::Clone);
        raw_waker(task)
    },
    |data| {
        let task = from_waker(data);
        task.trace_waker(WakerOp::Wake);
        task.schedule();
        task.drop_ref();
    },
    |data| {
        let task = from_waker(data);
        task.trace_waker(WakerOp::WakeByRef);
        task.schedule();
    },
    |data| {
        let task = from_waker(data);
        task.trace_waker(WakerOp::Drop);
        task.drop_ref();
    },
);

fn from_waker(data: *const ()) -> RawTask {
    // SAFETY: every waker with this vtable was made by `raw_waker`, from a non-null pointer.
    RawTask(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) })
}
