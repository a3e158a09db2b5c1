//! Counters that are always on.

use std::cell::Cell;

use crate::blocking::PoolCounters;
use crate::driver::DriverCounters;

/// What the loop counts, in cells.
#[derive(Default)]
pub(crate) struct LoopCounters {
    pub(crate) turns: Cell<u64>,
    pub(crate) ran: Cell<u64>,
    pub(crate) stale_completions: Cell<u64>,
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
    pub in_air: usize,
    /// Places of the flight table that are taken now: in the air, or landed and not fetched.
    pub flights: usize,
    /// Tasks that are not done now.
    pub tasks: usize,
    /// Entries of the ready deque now.
    pub ready: usize,
    /// Timers that will still fire.
    pub timers: usize,
    /// Entries of the timer heap now, cancelled ones among them.
    pub timer_heap: usize,
    /// The threads of `spawn_blocking`.
    pub blocking: PoolCounters,
    /// The threads for the loop's own blocking work: files where the driver cannot do them, and name look-ups.
    pub files: PoolCounters,
    /// What the driver counts.
    pub driver: DriverCounters,
}
