//! Diagnostics: metrics, task dumps, debug mode and `tracing` events and spans.

pub(crate) mod debug;
pub(crate) mod dump;
pub mod metrics;
#[cfg_attr(not(feature = "console"), path = "no_probe.rs")]
pub(crate) mod probe;
#[cfg_attr(not(feature = "tracing"), path = "no_task_span.rs")]
pub(crate) mod task_span;
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
