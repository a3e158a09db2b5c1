//! Ending a call on which a thread waits: here none waits long, since everything that might is asked first whether it is ready.

use super::perform;
use crate::driver::op::Op;
use crate::sys::OsResult;

/// What ends an operation that a thread carries: nothing does.
#[derive(Clone, Default)]
pub(crate) struct SyncCancel {}

impl SyncCancel {
    /// One for this operation.
    pub(crate) fn of(_op: &Op) -> SyncCancel {
        SyncCancel {}
    }

    /// Carries the operation out: [`perform`].
    ///
    /// # Safety
    ///
    /// As for `perform`.
    pub(crate) unsafe fn perform(&self, op: Op) -> Option<OsResult> {
        // SAFETY: the caller's promise.
        unsafe { perform(op) }
    }

    /// It lands when it is over.
    pub(crate) fn pull(&self) {}
}
