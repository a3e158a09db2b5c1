//! A condition variable for state in cells of one thread.

use crate::sync::Notify;

/// Waiters check their condition again after each notification.
#[derive(Default)]
pub(super) struct Condition(Notify);

impl Condition {
    pub(super) fn notify(&self) {
        self.0.notify_waiters();
    }

    /// Waits until `is_true`, which is checked first and after each notification.
    pub(super) async fn wait_until(&self, mut is_true: impl FnMut() -> bool) {
        // No change is missed: on one thread, nothing runs between the check and the wait.
        while !is_true() {
            self.0.notified().await;
        }
    }
}
