//! Diagnostics: metrics, task dumps, debug mode and `tracing` events.

pub(crate) mod debug;
pub(crate) mod dump;
pub mod metrics;
pub(crate) mod trace;

use crate::task::JoinHandle;

/// A task that is cancelled when this is dropped. Unlike with `cancel_on_drop`, the dropping task does not wait for it.
#[derive(Debug)]
pub(crate) struct BackgroundTask(pub(crate) JoinHandle<()>);

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
