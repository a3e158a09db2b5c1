//! `monitor`: reports the metrics of a loop periodically.

use std::time::Duration;

use super::{Metrics, metrics};
use crate::diagnostics::BackgroundTask;
use crate::task::Builder;
use crate::time::sleep;

/// Reports a loop's metrics periodically until it is dropped: see [`monitor`].
///
/// ```
/// use std::time::Duration;
/// windlass::run(async {
///     let monitor = windlass::metrics::monitor(Duration::from_secs(10), |since| println!("{since}"));
///     // ... run the server ...
///     drop(monitor);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the monitor stops it"]
pub struct Monitor {
    _task: BackgroundTask,
}

/// Calls `callback` every `period` with the metrics [since](Metrics::since) the last call, until the monitor is
/// dropped.
///
/// # Panics
///
/// Outside of a loop, or if the period is zero.
#[track_caller]
pub fn monitor(period: Duration, mut callback: impl FnMut(&Metrics) + 'static) -> Monitor {
    assert!(period > Duration::ZERO, "the period of a monitor must not be zero");
    let task = Builder::new().name("monitor").spawn(async move {
        let mut before = metrics();
        loop {
            sleep(period).await;
            let now = metrics();
            callback(&now.since(&before));
            before = now;
        }
    });
    Monitor {
        _task: BackgroundTask(task),
    }
}
