//! A turn of a loop that a simulated world schedules.
//!
//! The world knows the time and the completed operations before the turn, and submits what the turn has started
//! afterwards. So this turn neither reads the clock nor calls the driver, and takes no time on the loop's own clock.

use std::io;

use crate::driver::{Completion, Wait};
use crate::event_loop::EventLoop;
use crate::time::Instant;

/// What the world has to know after a turn.
pub(crate) struct Turned {
    /// How many entries of the ready queue ran.
    pub(crate) entries: u64,
    /// How long the loop may wait for its next turn.
    pub(crate) wait: Wait,
}

impl EventLoop {
    /// Runs one turn at this time of the loop's clock, with these completions. The driver is not polled, and must have
    /// nothing else to report.
    pub(crate) fn turn_in_world(&self, now: Instant, completed: &mut Vec<Completion>) -> io::Result<Turned> {
        let core = &*self.core;
        let entries = core.run_as_current(|| {
            // Senders need not notify the world from here on.
            core.inbox.wake_up();
            core.times.set_recent(now);
            core.host.pause();
            core.counters.turns.set(core.counters.turns.get() + 1);
            core.complete(completed);
            core.collect_events();
            core.fire_due_timers();
            let batch = core.ready.len();
            core.run_batch(batch).map(|()| batch as u64)
        })??;
        // An event that was sent during the turn keeps the inbox awake, and `next_wait` returns `Wait::No`.
        let _ = core.inbox.fall_asleep();
        core.host.resume();
        let has_timers = !core.timers.is_empty();
        let wait = match has_timers || !core.ready.is_empty() || core.inbox.has_events() {
            true => core.next_wait(),
            false => Wait::Forever,
        };
        Ok(Turned { entries, wait })
    }
}
