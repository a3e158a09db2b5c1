//! Metrics of a loop: counters and times, on by default.
//!
//! ```
//! windlass::run(async {
//!     println!("{}", windlass::metrics::metrics());
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Counters have no measurable cost. Reading a clock does, so times are measured only around each wait of the loop, and
//! around the non-blocking poll of the driver in one turn in 64.

mod monitor;
mod stall;

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use crate::blocking::PoolCounters;
use crate::driver::DriverCounters;
use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;
use crate::time::Instant;

pub use self::monitor::{Monitor, monitor};
pub use self::stall::{StallMeter, StallReport};

/// The non-blocking poll of the driver is timed in one turn in this many.
const SAMPLE_EVERY: u64 = 64;

/// The counters of a loop.
#[derive(Default)]
pub(crate) struct LoopCounters {
    pub(crate) turns: Cell<u64>,
    pub(crate) ran: Cell<u64>,
    pub(crate) stale_completions: Cell<u64>,
}

/// The times of a loop.
pub(crate) struct LoopTimes {
    idle: Cell<Duration>,
    driver: Cell<Duration>,
    /// The total of all runs of the loop that have ended.
    total: Cell<Duration>,
    /// When the current run began.
    began: Cell<Option<Instant>>,
    /// The time of the last clock read.
    recent: Cell<Instant>,
}

impl LoopTimes {
    pub(crate) fn new(now: Instant) -> LoopTimes {
        LoopTimes {
            idle: Cell::default(),
            driver: Cell::default(),
            total: Cell::default(),
            began: Cell::new(None),
            recent: Cell::new(now),
        }
    }

    /// The time of the last clock read: the end of the last wait, or later.
    #[inline]
    pub(crate) fn recent(&self) -> Instant {
        self.recent.get()
    }

    #[inline]
    pub(crate) fn set_recent(&self, now: Instant) {
        self.recent.set(now);
    }
}

impl LoopCore {
    /// The start time of a non-blocking poll; `None` if it is not timed.
    #[inline]
    pub(crate) fn begin_poll(&self) -> Option<Instant> {
        (self.settings.measures_time && self.is_timed_turn()).then(|| self.now())
    }

    /// Whether a non-blocking poll in this turn is timed, if times are measured.
    #[inline]
    pub(crate) fn is_timed_turn(&self) -> bool {
        self.counters.turns.get().is_multiple_of(SAMPLE_EVERY)
    }

    #[inline]
    pub(crate) fn end_poll(&self, began: Option<Instant>) {
        let Some(began) = began else { return };
        let (times, now) = (&self.times, self.now());
        let took = (now - began) * SAMPLE_EVERY as u32;
        times.driver.set(times.driver.get() + took);
    }

    /// Records a wait that [`begin_poll`](LoopCore::begin_poll) may have sampled.
    #[inline]
    pub(crate) fn end_spin(&self, began: Option<Instant>) {
        let Some(began) = began else { return };
        let (times, took) = (&self.times, self.now() - began);
        times.idle.set(times.idle.get() + took * SAMPLE_EVERY as u32);
    }

    /// Records a wait, asleep or busy-polling.
    #[inline]
    pub(crate) fn waited(&self, began: Instant, now: Instant) {
        let times = &self.times;
        if self.settings.measures_time {
            times.idle.set(times.idle.get() + (now - began));
        }
    }

    pub(crate) fn begin_run(&self) {
        let now = self.now();
        self.times.began.set(Some(now));
    }

    pub(crate) fn end_run(&self) {
        if let Some(began) = self.times.began.take() {
            self.times.total.set(self.times.total.get() + (self.now() - began));
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let times = &self.times;
        let now = self.now();
        let current_run = times.began.get().map_or(Duration::ZERO, |began| now - began);
        let (idle, total) = (times.idle.get(), times.total.get() + current_run);
        let busy = total.saturating_sub(idle);
        let driver = times.driver.get().min(busy);
        Metrics {
            at: now,
            counters: self.counters(),
            times: Times {
                idle,
                driver,
                running: busy - driver,
            },
            ops: self.ops.ops_in_flight(),
            accepted_waiting: self.ops.accepted_waiting(),
        }
    }
}

/// A snapshot of a loop's counters and times: see [`EventLoop::metrics`].
///
/// ```
/// windlass::run(async {
///     let before = windlass::metrics::metrics();
///     windlass::time::sleep(std::time::Duration::from_millis(20)).await;
///     let metrics = windlass::metrics::metrics().since(&before);
///     assert!(metrics.times.idle >= std::time::Duration::from_millis(15));
///     println!("{metrics}");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// When the snapshot was taken, on the loop's clock.
    pub at: Instant,
    /// The counters.
    pub counters: Counters,
    /// How the loop has spent its time.
    pub times: Times,
    /// The operations now in flight, by kind.
    pub ops: Vec<(&'static str, usize)>,
    /// Connections that were accepted and not yet returned by an `accept` call: see
    /// [`TcpListener::set_accept_ahead`](crate::net::TcpListener::set_accept_ahead).
    pub accepted_waiting: usize,
}

/// How a loop has spent its time while it was running.
///
/// ```
/// let metrics = windlass::EventLoop::new()?.metrics();
/// assert_eq!(metrics.times.busy(), std::time::Duration::ZERO);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Waiting for events: asleep, or busy-polling ([`Builder::busy_poll`](crate::Builder::busy_poll)). Includes the
    /// system call of a wait that found events immediately.
    pub idle: Duration,
    /// Polling the driver while something was ready to run. Estimated from one turn in 64.
    pub driver: Duration,
    /// Running tasks and callbacks, and the loop's own code.
    pub running: Duration,
}

impl Times {
    /// The time not spent idle.
    pub fn busy(&self) -> Duration {
        self.driver + self.running
    }
}

impl Metrics {
    /// The change since an `earlier` snapshot. Gauges, such as the number of tasks, keep their current value.
    pub fn since(&self, earlier: &Metrics) -> Metrics {
        let (now, then) = (&self.counters, &earlier.counters);
        let driver = DriverCounters {
            enters: now.driver.enters - then.driver.enters,
            spins: now.driver.spins - then.driver.spins,
            submissions: now.driver.submissions - then.driver.submissions,
            completions: now.driver.completions - then.driver.completions,
            sq_full: now.driver.sq_full - then.driver.sq_full,
            overflows: now.driver.overflows - then.driver.overflows,
            late_cancels: now.driver.late_cancels - then.driver.late_cancels,
            pool_empty: now.driver.pool_empty - then.driver.pool_empty,
            stale_events: now.driver.stale_events - then.driver.stale_events,
        };
        Metrics {
            at: self.at,
            counters: Counters {
                turns: now.turns - then.turns,
                ran: now.ran - then.ran,
                stale_completions: now.stale_completions - then.stale_completions,
                blocking: pool_since(now.blocking, then.blocking),
                files: pool_since(now.files, then.files),
                driver,
                ..*now
            },
            times: Times {
                idle: self.times.idle.saturating_sub(earlier.times.idle),
                driver: self.times.driver.saturating_sub(earlier.times.driver),
                running: self.times.running.saturating_sub(earlier.times.running),
            },
            ops: self.ops.clone(),
            accepted_waiting: self.accepted_waiting,
        }
    }
}

fn pool_since(now: PoolCounters, then: PoolCounters) -> PoolCounters {
    PoolCounters {
        started: now.started - then.started,
        done: now.done - then.done,
        ..now
    }
}

impl fmt::Display for Metrics {
    /// Writes one line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (counters, times) = (&self.counters, &self.times);
        write!(
            f,
            "turns {} ran {} enters {} spins {} | idle {:.1?} driver {:.1?} running {:.1?} | tasks {} ready {} timers {}",
            counters.turns,
            counters.ran,
            counters.driver.enters,
            counters.driver.spins,
            times.idle,
            times.driver,
            times.running,
            counters.tasks,
            counters.ready,
            counters.timers,
        )?;
        for (index, (name, count)) in self.ops.iter().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { " | in flight:" } else { "," })?;
        }
        Ok(())
    }
}

impl EventLoop {
    /// A snapshot of the loop's counters and times.
    pub fn metrics(&self) -> Metrics {
        self.core().metrics()
    }
}

/// A snapshot of the current loop's metrics.
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::metrics`] works anywhere.
#[track_caller]
pub fn metrics() -> Metrics {
    LoopCore::current("metrics").metrics()
}

/// A snapshot of a loop's counters.
///
/// ```
/// let event_loop = windlass::EventLoop::new()?;
/// event_loop.run_until_complete(async { windlass::task::yield_now().await })?;
/// let counters = event_loop.counters();
/// assert!(counters.turns >= 2);
/// assert!(counters.driver.enters <= counters.turns);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Turns of the loop.
    pub turns: u64,
    /// Tasks polled and callbacks run.
    pub ran: u64,
    /// Completions for an operation that had already ended. They are ignored.
    pub stale_completions: u64,
    /// Operations in flight now.
    pub in_flight: usize,
    /// Operations in flight now, or completed and not yet collected by their future.
    pub ops: usize,
    /// Tasks that have not finished.
    pub tasks: usize,
    /// Entries in the ready queue now.
    pub ready: usize,
    /// Timers that have neither fired nor been cancelled.
    pub timers: usize,
    /// Entries in the timer heap now, including cancelled ones.
    pub timer_heap: usize,
    /// Cancelled entries that are still in the timer heap.
    pub timers_cancelled: usize,
    /// The thread pool of `spawn_blocking`.
    pub blocking: PoolCounters,
    /// The loop's own thread pool: for name look-ups, and file operations that the driver cannot perform.
    pub files: PoolCounters,
    /// The counters of the driver.
    pub driver: DriverCounters,
}
