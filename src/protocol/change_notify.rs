//! Waiting for a change of plain cells.

use crate::sync::Notify;

/// Rung when something may have changed; those who wait look again.
#[derive(Default)]
pub(super) struct ChangeNotify(Notify);

impl ChangeNotify {
    pub(super) fn ring(&self) {
        self.0.notify_waiters();
    }

    /// Waits until `is_true`, which is asked at once and after each ring.
    pub(super) async fn until(&self, mut is_true: impl FnMut() -> bool) {
        // Nothing can change between the question and the wait: there is one thread, and no `await` in between.
        while !is_true() {
            self.0.notified().await;
        }
    }
}
