//! What a loop counts and measures, always on.
//!
//! Counting is free beside a turn. Reading a clock is not, so time is measured where it is cheap: around each wait,
//! asleep or looking out, and around one in 64 of the polls that may not wait.

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

/// Of the polls that may not sleep, one in so many is timed.
const SAMPLED: u64 = 64;

/// What the loop counts, in cells.
#[derive(Default)]
pub(crate) struct LoopCounters {
    pub(crate) turns: Cell<u64>,
    pub(crate) ran: Cell<u64>,
    pub(crate) stale_completions: Cell<u64>,
}

/// What the loop measures, in cells.
pub(crate) struct LoopTimes {
    is_on: bool,
    asleep: Cell<Duration>,
    driving: Cell<Duration>,
    /// In runs of the loop that have ended.
    total: Cell<Duration>,
    /// When the run began that is under way.
    began: Cell<Option<Instant>>,
    /// A moment that was read not long ago: before whatever has run since the loop last slept.
    recent: Cell<Instant>,
}

impl LoopTimes {
    pub(crate) fn new(is_on: bool, now: Instant) -> LoopTimes {
        LoopTimes {
            is_on,
            asleep: Cell::default(),
            driving: Cell::default(),
            total: Cell::default(),
            began: Cell::new(None),
            recent: Cell::new(now),
        }
    }

    /// When the loop last slept, or a little later.
    #[inline]
    pub(crate) fn recent(&self) -> Instant {
        self.recent.get()
    }
}

impl LoopCore {
    /// Whether the poll that begins now is timed; if so, when it began.
    #[inline]
    pub(crate) fn begin_poll(&self) -> Option<Instant> {
        let is_timed = self.counters.turns.get().is_multiple_of(SAMPLED);
        (self.times.is_on && is_timed).then(|| self.now())
    }

    #[inline]
    pub(crate) fn end_poll(&self, began: Instant) {
        let now = self.now();
        let times = &self.times;
        times.recent.set(now);
        times.driving.set(times.driving.get() + (now - began) * SAMPLED as u32);
    }

    /// The loop has waited for news, asleep or looking out.
    #[inline]
    pub(crate) fn waited(&self, began: Instant, now: Instant) {
        let times = &self.times;
        if times.is_on {
            times.recent.set(now);
            times.asleep.set(times.asleep.get() + (now - began));
        }
    }

    pub(crate) fn begin_run(&self) {
        let now = self.now();
        self.times.began.set(Some(now));
        self.times.recent.set(now);
    }

    pub(crate) fn end_run(&self) {
        if let Some(began) = self.times.began.take() {
            self.times.total.set(self.times.total.get() + (self.now() - began));
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let times = &self.times;
        let now = self.now();
        let under_way = times.began.get().map_or(Duration::ZERO, |began| now - began);
        let (asleep, total) = (times.asleep.get(), times.total.get() + under_way);
        let busy = total.saturating_sub(asleep);
        let driving = times.driving.get().min(busy);
        Metrics {
            at: now,
            counters: self.counters(),
            times: Times {
                asleep,
                driving,
                running: busy - driving,
            },
            ops: self.ops.borrow().ops_in_flight(),
            accepted_waiting: self.ops.borrow().accepted_waiting(),
        }
    }
}

/// Everything that a loop counts and measures, at one moment: see [`EventLoop::metrics`].
///
/// ```
/// windlass::run(async {
///     let before = windlass::metrics::metrics();
///     windlass::time::sleep(std::time::Duration::from_millis(20)).await;
///     let metrics = windlass::metrics::metrics().since(&before);
///     assert!(metrics.times.asleep >= std::time::Duration::from_millis(15));
///     println!("{metrics}");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// When, on the loop's clock.
    pub at: Instant,
    /// What is counted.
    pub counters: Counters,
    /// Where the time goes.
    pub times: Times,
    /// The operations that the driver or a thread has now, by kind.
    pub ops: Vec<(&'static str, usize)>,
    /// Connections that were accepted and that no `accept` call has returned yet: see
    /// [`TcpListener::set_accept_ahead`](crate::net::TcpListener::set_accept_ahead).
    pub accepted_waiting: usize,
}

/// Where a loop's time goes, while it is run.
///
/// ```
/// let metrics = windlass::EventLoop::new()?.metrics();
/// assert_eq!(metrics.times.busy(), std::time::Duration::ZERO);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// In the driver while there was nothing to run: asleep, looking out ([`Builder::busy_poll`](crate::Builder::busy_poll)), or,
    /// when the kernel had something at once, in its work.
    pub asleep: Duration,
    /// In the driver while there was something to run. Measured in one turn of 64.
    pub driving: Duration,
    /// In tasks and callbacks, and in the loop itself.
    pub running: Duration,
}

impl Times {
    /// All but asleep.
    pub fn busy(&self) -> Duration {
        self.driving + self.running
    }
}

impl Metrics {
    /// What was counted and measured since `earlier`; what is a state and not a count stays as it is now.
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
                asleep: self.times.asleep.saturating_sub(earlier.times.asleep),
                driving: self.times.driving.saturating_sub(earlier.times.driving),
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
    /// One line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (counters, times) = (&self.counters, &self.times);
        write!(
            f,
            "turns {} ran {} enters {} spins {} | asleep {:.1?} driving {:.1?} running {:.1?} | tasks {} ready {} timers {}",
            counters.turns,
            counters.ran,
            counters.driver.enters,
            counters.driver.spins,
            times.asleep,
            times.driving,
            times.running,
            counters.tasks,
            counters.ready,
            counters.timers,
        )?;
        for (index, (name, count)) in self.ops.iter().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { " | in the air:" } else { "," })?;
        }
        Ok(())
    }
}

impl EventLoop {
    /// Everything that is counted and measured.
    pub fn metrics(&self) -> Metrics {
        self.core().metrics()
    }
}

/// The current loop's metrics.
///
/// # Panics
///
/// Outside of a loop; [`EventLoop::metrics`] needs no current one.
#[track_caller]
pub fn metrics() -> Metrics {
    LoopCore::current("metrics").metrics()
}

/// A loop's counters at one moment.
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
    /// Completions that came for a flight that had ended; never delivered.
    pub stale_completions: u64,
    /// Flights that the driver has now.
    pub in_flight: usize,
    /// Places of the flight table that are taken now: in the air, or landed and not fetched.
    pub ops: usize,
    /// Tasks that are not done now.
    pub tasks: usize,
    /// Entries of the ready deque now.
    pub ready: usize,
    /// Timers that will still fire.
    pub timers: usize,
    /// Entries of the timer heap now, cancelled ones among them.
    pub timer_heap: usize,
    /// Entries of the timer heap now that were cancelled and not cleared away yet.
    pub timers_cancelled: usize,
    /// The threads of `spawn_blocking`.
    pub blocking: PoolCounters,
    /// The threads for the loop's own blocking work: files where the driver cannot do them, and name look-ups.
    pub files: PoolCounters,
    /// What the driver counts.
    pub driver: DriverCounters,
}
