//! Cancelling a thread's blocking call. Nothing does on Unix: no call of the pool's threads blocks for long, because
//! pipes and terminals are waited for first.

use crate::sys::OsResult;

/// Cancels an operation that a thread carries out; does nothing here.
#[derive(Clone, Default)]
pub(crate) struct SyncCancel {}

impl SyncCancel {
    pub(crate) fn new(_waits_for_peer: bool) -> SyncCancel {
        SyncCancel {}
    }

    /// Makes the call.
    pub(crate) fn run(&self, call: impl FnOnce() -> Option<OsResult>) -> Option<OsResult> {
        call()
    }

    /// The operation completes when it is done.
    pub(crate) fn pull(&self) {}
}
