//! `StallMeter`: measures how long tasks block the loop.
//!
//! Nothing preempts a running task: one that computes for 150 ms delays all others. Average latencies hide this, since
//! most requests come at other times. The lateness of a 10 ms tick shows it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::diagnostics::BackgroundTask;
use crate::task::Builder;
use crate::time::{Instant, sleep_until};

/// Measures how long tasks block the loop: the lateness of a periodic tick. Dropping the meter stops it.
///
/// ```
/// use std::time::Duration;
/// use windlass::metrics::StallMeter;
/// windlass::run(async {
///     let meter = StallMeter::start(Duration::from_millis(10));
///     windlass::time::sleep(Duration::from_millis(15)).await;
///     std::thread::sleep(Duration::from_millis(50)); // blocks the loop
///     windlass::time::sleep(Duration::from_millis(15)).await;
///     assert!(meter.report().worst >= Duration::from_millis(40));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping the meter stops it"]
pub struct StallMeter {
    histogram: Rc<RefCell<Histogram>>,
    _task: BackgroundTask,
}

/// The lateness of the ticks of a [`StallMeter`]. Quantiles are rounded up, by at most a sixteenth.
///
/// ```
/// use windlass::metrics::StallMeter;
/// windlass::run(async {
///     let report = StallMeter::start(std::time::Duration::from_millis(10)).report();
///     assert_eq!(report.ticks, 0);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallReport {
    /// The number of ticks.
    pub ticks: u64,
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The maximum.
    pub worst: Duration,
}

impl StallMeter {
    /// Starts measuring on the current loop, with a tick at this interval, for example 10 ms.
    ///
    /// # Panics
    ///
    /// Outside of a loop, or if the tick is zero.
    #[track_caller]
    pub fn start(tick: Duration) -> StallMeter {
        assert!(tick > Duration::ZERO, "the tick of a stall meter must not be zero");
        let histogram = Rc::new(RefCell::new(Histogram::new()));
        let task = Builder::new().name("stall meter").spawn({
            let histogram = histogram.clone();
            async move {
                let mut due = Instant::now() + tick;
                loop {
                    sleep_until(due).await;
                    let now = Instant::now();
                    histogram.borrow_mut().add(now - due);
                    // Ticks missed during a stall count as one late tick, not many.
                    due = now + tick;
                }
            }
        });
        StallMeter {
            histogram,
            _task: BackgroundTask(task),
        }
    }

    /// The measurements so far.
    pub fn report(&self) -> StallReport {
        self.histogram.borrow().report()
    }

    /// Discards the measurements so far.
    pub fn reset(&self) {
        *self.histogram.borrow_mut() = Histogram::new();
    }
}

impl fmt::Debug for StallMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallMeter").field("report", &self.report()).finish()
    }
}

/// Buckets of nanoseconds, 16 per power of two: constant memory for any value.
struct Histogram {
    buckets: Box<[u64]>,
    ticks: u64,
    worst: Duration,
}

const STEPS: usize = 16;
const BUCKETS: usize = (64 - 4 + 1) * STEPS;

impl Histogram {
    fn new() -> Histogram {
        Histogram {
            buckets: vec![0; BUCKETS].into_boxed_slice(),
            ticks: 0,
            worst: Duration::ZERO,
        }
    }

    fn add(&mut self, late: Duration) {
        let ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.ticks += 1;
        self.worst = self.worst.max(late);
    }

    /// The upper end of the bucket that contains this quantile.
    fn quantile(&self, part: f64) -> Duration {
        let wanted = (self.ticks as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Duration::from_nanos(upper_end(index)).min(self.worst);
            }
        }
        Duration::ZERO
    }

    fn report(&self) -> StallReport {
        StallReport {
            ticks: self.ticks,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            worst: self.worst,
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() as usize - 4;
    (shift + 1) * STEPS + ((ns >> shift) as usize - STEPS)
}

fn upper_end(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let (shift, step) = (bucket / STEPS - 1, bucket % STEPS);
    let end = ((STEPS + step + 1) as u128) << shift;
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_contain_their_values() {
        for ns in (0..2_000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX - 1, u64::MAX]) {
            let index = bucket(ns);
            assert!(index < BUCKETS, "{ns}");
            assert!(upper_end(index) >= ns, "{ns}: {}", upper_end(index));
            assert!(index == 0 || upper_end(index - 1) < ns, "{ns}");
        }
    }

    #[test]
    fn quantiles_are_close_and_never_too_small() {
        let mut histogram = Histogram::new();
        for ms in 1..=100 {
            histogram.add(Duration::from_millis(ms));
        }
        let report = histogram.report();
        assert_eq!((report.ticks, report.worst), (100, Duration::from_millis(100)));
        for (found, exact) in [(report.p50, 50), (report.p99, 99)] {
            let exact = Duration::from_millis(exact);
            assert!(found >= exact && found <= exact + exact / 16, "{found:?} for {exact:?}");
        }
        assert_eq!(Histogram::new().report().p99, Duration::ZERO);
    }
}
