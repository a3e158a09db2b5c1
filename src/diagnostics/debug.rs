//! Debug mode: what runs for too long, and what is left at the end.
//!
//! The clock is the machine's, also where the loop's is virtual: it is real time that somebody else has to wait.

use std::time::Instant;

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::ready::Ready;

impl LoopCore {
    /// Runs one entry of the batch, and tells if it took long.
    pub(crate) fn run_watched(&self, next: Ready) {
        let Some(limit) = self.slow else {
            return self.run_one(next);
        };
        // Its place and name must be had before it runs: it may be gone afterwards.
        let who = match &next {
            Ready::Task(runnable) => runnable.task().describe(),
            Ready::Call(callback) => format!("a callback scheduled at {}", callback.location()),
            Ready::Remote(_) => "a callback from another thread".to_owned(),
        };
        let begin = Instant::now();
        self.run_one(next);
        let took = begin.elapsed();
        if took >= limit {
            report(Exception::note(format!(
                "{who} ran for {took:.1?} without a pause, while nothing else could: pause with `yield_now`, or use \
                 `spawn_blocking`"
            )));
        }
    }

    /// Lists the tasks that the closing loop will cancel.
    pub(crate) fn report_pending_tasks(&self) {
        if self.slow.is_none() {
            return;
        }
        let dump = self.dump();
        if !dump.tasks.is_empty() {
            report(Exception::note(format!(
                "the loop closes and cancels what is left of it:\n{dump}"
            )));
        }
    }
}
