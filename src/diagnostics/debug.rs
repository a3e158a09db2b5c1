//! Debug mode: reports tasks and callbacks that block the loop, and tasks still pending when it closes.
//!
//! Blocking is not reported on a virtual clock: the reports would differ from run to run with the machine's load.

use std::time::{Duration, Instant};

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::ready::Ready;

impl LoopCore {
    /// Runs one entry of the batch, and reports it if it took longer than `limit`.
    pub(crate) fn run_timed(&self, next: Ready, limit: Duration) {
        // Described before it runs, because the task or callback may be freed by then.
        let entry = match &next {
            Ready::Task(runnable) => runnable.task().describe(),
            Ready::Call(callback) => format!("a callback scheduled at {}", callback.location()),
            Ready::Remote(_) => "a callback from another thread".to_owned(),
        };
        #[cfg(feature = "sim")]
        if self.settings.watches_entries {
            return crate::sim::misuse::watch(entry, || self.run_one(next));
        }
        let begin = Instant::now();
        self.run_one(next);
        let took = begin.elapsed();
        if took >= limit {
            report(Exception::note(format!(
                "{entry} blocked the loop for {took:.1?}: yield with `yield_now`, or use `spawn_blocking`"
            )));
        }
    }

    /// Reports the tasks that closing the loop will cancel.
    pub(crate) fn report_pending_tasks(&self) {
        if !self.settings.debug {
            return;
        }
        let dump = self.dump();
        if !dump.tasks.is_empty() {
            report(Exception::note(format!(
                "the loop closes and cancels its pending tasks:\n{dump}"
            )));
        }
    }
}
