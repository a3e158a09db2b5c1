//! Closing a loop: cleanups run, tasks are cancelled, operations complete, the driver is dropped.

use std::io;
use std::time::Duration;

use crate::blocking::Shutdown;
use crate::driver::{Closed, OpResult, Wait};
use crate::event_loop::EventLoop;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, guard, report};
use crate::task::RawTask;

impl EventLoop {
    /// Cancels every task and runs the loop until their `on_cancel` cleanups have finished.
    fn clean_up(&self) {
        // Inside another loop this one cannot run. `close` then drops the cleanups, which reports each of them.
        let Ok(_entered) = self.core.enter_to_run() else { return };
        self.core.report_pending_tasks();
        self.core.cancel_each(|task| !task.is_cleanup());
        while self.core.cleanups.running.get() > 0 {
            if let Err(error) = self.turn_once(LoopCore::next_wait) {
                let context = "the loop failed before every cleanup had finished";
                return report(Exception::error(context, error));
            }
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let cleanups = &self.core.cleanups;
        if cleanups.armed.get() + cleanups.running.get() > 0 {
            self.clean_up();
        }
        self.core.close();
    }
}

impl LoopCore {
    /// Cancels every task, waits until every operation has completed, and drops the driver.
    ///
    /// In a forked child this only drops the user's tasks, callbacks and streams. Operations and their memory are
    /// leaked, since they belong to the parent; so are the pools, whose threads do not exist here.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        let _entered = self.enter();
        match self.is_forked() {
            true => {
                self.abandon_driver();
                self.drop_user_code();
            }
            false => {
                self.report_pending_tasks();
                self.drop_user_code();
                self.reap_all();
                self.close_driver();
                // Name look-ups may take long, and no task waits for them any more.
                self.files.shutdown(Shutdown::Detach);
                self.blocking.shutdown(self.settings.blocking_shutdown);
                crate::diagnostics::trace::loop_closed();
            }
        }
        self.splice_pipes.take();
        // The handler may hold streams, which hold this loop.
        let handler = self.exception_handler.take();
        guard("the exception handler's destructor", || drop(handler));
    }

    /// Drops tasks, callbacks and streams. Destructors of tasks may end other tasks but cannot add one: a closed loop
    /// cancels new tasks immediately.
    fn drop_user_code(&self) {
        self.cancel_each(|_| true);
        // If a task's destructor closes the loop, that task ends when the destructor returns.
        debug_assert!(self.tasks.iter().all(|task| self.is_running(task)));
        self.drop_watchers();
        self.drop_stdio();
        self.drop_scheduled();
    }

    /// Closes the inbox and the driver. Memory of operations that did not complete in time is leaked: the kernel may
    /// still write to it.
    fn close_driver(&self) {
        for item in self.inbox.close() {
            match item {
                RemoteEvent::Exception(exception) => report(exception),
                // A pool thread finished after `reap_all` gave up: a descriptor or buffer in its result must not leak.
                RemoteEvent::OpDone(id, res) => self.complete_one(id, OpResult::new(res)),
                item => guard("a callback's destructor", || drop(item)),
            }
        }
        let closed = Closed::after(&**self.driver.borrow(), false);
        let driver = self.driver.replace(Box::new(closed));
        let mut closed = Closed::after(&*driver, false);
        // Destructors can start operations until the driver is replaced.
        let has_in_flight = self.ops.in_flight() > 0;
        // With nothing borrowed: the destructor of a driver may be foreign code.
        closed.keep(driver, has_in_flight);
        self.driver.replace(Box::new(closed));
        if has_in_flight {
            let (count, limit) = (self.ops.in_flight(), self.settings.close_within);
            let context = format!("{count} operations did not complete within {limit:?}");
            let error = io::Error::new(io::ErrorKind::TimedOut, "their memory is leaked");
            report(Exception::error(context, error));
        }
    }

    /// Waits until every operation has completed, for `close_within` at most.
    fn reap_all(&self) {
        self.cancel_all_ops();
        // A limit beyond the range of the clock is none.
        let deadline = std::time::Instant::now().checked_add(self.settings.close_within);
        while self.ops.in_flight() > 0 {
            if deadline.is_some_and(|deadline| std::time::Instant::now() > deadline) {
                return;
            }
            let wait = match self.clock_stands_still() {
                true => {
                    std::thread::sleep(Duration::from_millis(1));
                    Wait::Poll
                }
                false => Wait::Until(self.now() + Duration::from_millis(100)),
            };
            let Ok(completed) = self.drive(wait) else { return };
            // A cancel request can miss an operation that is changing state, and a destructor can start a new one.
            if completed.is_empty() && !self.inbox.has_events() {
                self.cancel_all_ops();
            }
            self.complete_and_collect(completed);
            // Drop the calls and wakes that arrive meanwhile: the loop no longer runs them.
            self.drop_scheduled();
        }
    }

    fn cancel_all_ops(&self) {
        for id in self.ops.ids_in_flight() {
            self.cancel_op(id);
        }
    }

    fn cancel_each(&self, is_included: impl Fn(&RawTask) -> bool) {
        for task in self.tasks.iter().filter(is_included) {
            task.cancel_now(self);
        }
    }

    /// Drops the ready queue and all timers, one by one and with nothing borrowed.
    fn drop_scheduled(&self) {
        while let Some(next) = self.ready.pop() {
            guard("a callback's destructor", || drop(next));
        }
        while let Some(action) = { self.timers.borrow_mut().pop_any() } {
            guard("a callback's destructor", || drop(action));
        }
    }
}
