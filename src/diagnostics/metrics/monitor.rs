//! Metrics, told regularly.

use std::fmt;
use std::time::Duration;

use super::{Metrics, metrics};
use crate::task::{Builder, JoinHandle};
use crate::time::sleep;

/// Tells a loop's metrics regularly for as long as it is kept: see [`monitor`].
///
/// ```
/// use std::time::Duration;
/// windlass::run(async {
///     let monitor = windlass::metrics::monitor(Duration::from_secs(10), |since| println!("{since}"));
///     // ... serve ...
///     drop(monitor);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a monitor that is dropped tells nothing"]
pub struct Monitor {
    task: JoinHandle<()>,
}

/// Calls `tell` every `period` with what was counted and measured since the last time, on the current loop, until the
/// monitor is dropped.
///
/// # Panics
///
/// Outside of a loop, or if the period is zero.
#[track_caller]
pub fn monitor(period: Duration, mut tell: impl FnMut(&Metrics) + 'static) -> Monitor {
    assert!(period > Duration::ZERO, "a monitor needs a period");
    let task = Builder::new().name("monitor").spawn(async move {
        let mut before = metrics();
        loop {
            sleep(period).await;
            let now = metrics();
            tell(&now.since(&before));
            before = now;
        }
    });
    Monitor { task }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.cancel();
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("task", &self.task.id()).finish()
    }
}
