//! A blocking call of a pool thread. On Unix it cannot be cancelled and need not be: no call of a pool thread blocks
//! for long, because pipes and terminals are read and written only when they are ready.

use crate::sys::OsResult;

/// A call that a pool thread will make.
pub(crate) struct PoolCall;

impl PoolCall {
    pub(crate) fn new(_key: (usize, u64), _waits_for_peer: bool) -> PoolCall {
        PoolCall
    }

    /// Makes the call.
    pub(crate) fn run(self, call: impl FnOnce() -> Option<OsResult>) -> Option<OsResult> {
        call()
    }

    /// Does nothing: the call completes when it is done.
    pub(crate) fn cancel(_key: (usize, u64)) {}
}
