//! Ending a call on which a thread waits: here none waits long, since everything that might is asked first whether it is ready.

use super::perform;
use crate::driver::Outcome;
use crate::op::Op;

/// What ends an operation that a thread carries: nothing does.
#[derive(Clone, Default)]
pub(crate) struct Brake {}

impl Brake {
    /// One for this operation.
    pub(crate) fn of(_op: &Op) -> Brake {
        Brake {}
    }

    /// Carries the operation out: [`perform`].
    ///
    /// # Safety
    ///
    /// As for `perform`.
    pub(crate) unsafe fn perform(&self, op: Op) -> Option<Outcome> {
        // SAFETY: the caller's promise.
        unsafe { perform(op) }
    }

    /// It lands when it is over.
    pub(crate) fn pull(&self) {}
}
