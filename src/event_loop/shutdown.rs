//! Closing a loop: cleanups run, tasks are cancelled, operations complete, the driver is dropped.

use std::io;
use std::time::Duration;

use crate::blocking::Shutdown;
use crate::driver::{Closed, OpResult, Wait};
use crate::event_loop::EventLoop;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::current::Kind;
use crate::event_loop::exception::{Exception, guard, report};
use crate::task::{RawTask, report_totals};

/// After this many polls without a completion, a driver with a virtual clock is not waited for any longer. Its time passes
/// as fast as it is polled, so every cancelled operation has had its chance.
const EMPTY_POLLS: usize = 100;

impl EventLoop {
    /// Closes the loop as a crash of its process would: tasks are dropped and operations completed, but no cleanup of
    /// `on_cancel` runs, none is reported, and no thread is waited for.
    #[cfg(any(feature = "sim", test))]
    pub(crate) fn abandon(self) {
        self.core.crashed.set(true);
        self.core.close();
    }

    /// Cancels every task and runs the loop until their `on_cancel` cleanups have finished.
    fn clean_up(&self) {
        // Inside another loop this one cannot run. `close` then drops the cleanups, which reports each of them.
        let Ok(_entered) = self.core.enter_to_run(Kind::Run) else {
            return;
        };
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
        if cleanups.armed.get() + cleanups.running.get() > 0 && !self.core.crashed.get() {
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
        self.probe.loop_closed();
        let _current = self.make_current();
        match self.is_forked() {
            true => {
                self.abandon_driver();
                self.drop_user_code();
            }
            false => {
                let has_crashed = self.crashed.get();
                if !has_crashed {
                    self.report_pending_tasks();
                }
                self.drop_user_code();
                let waited = self.reap_all();
                if !has_crashed {
                    report_totals(self);
                }
                if let Some(peers) = self.peers.get() {
                    peers.loop_closing();
                }
                self.close_driver(waited);
                // Name look-ups may take long, and no task waits for them any more.
                self.files.shutdown(Shutdown::Detach);
                self.blocking.shutdown(match has_crashed {
                    true => Shutdown::Detach,
                    false => self.settings.blocking_shutdown,
                });
                crate::diagnostics::trace::loop_closed();
            }
        }
        if let Some(peers) = self.peers.get() {
            peers.loop_closed();
        }
        self.splice_pipes.take();
        self.task_memory.clear();
        // The handler may hold streams, which hold this loop.
        let handler = self.exception_handler.take();
        guard("the exception handler's destructor", || drop(handler));
        let host = self.host.replace(None);
        guard("the destructor of the outer loop's waker", || drop(host));
    }

    /// Drops tasks, callbacks and streams. Destructors of tasks may end other tasks but cannot add one: a closed loop
    /// cancels new tasks immediately.
    fn drop_user_code(&self) {
        self.cancel_each(|_| true);
        // If a task's destructor closes the loop, that task ends when the destructor returns.
        debug_assert!(self.tasks.iter().all(|task| self.is_running(task)));
        self.drop_watchers();
        self.end_signals();
        self.drop_stdio();
        self.drop_local_values();
        self.drop_scheduled();
    }

    /// Closes the inbox and the driver. Memory of operations that did not complete in time is leaked: the kernel may
    /// still write to it. `waited` says how long the loop waited for them.
    fn close_driver(&self, waited: String) {
        // A destructor that ran meanwhile may have forked: then this is the child, and the driver is the parent's.
        if self.is_forked() {
            self.abandon_driver();
        }
        for item in self.inbox.close() {
            match item {
                RemoteEvent::Unclaimed(unclaimed) => unclaimed.report(),
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
            let count = self.ops.in_flight();
            let names = self.ops.ops_in_flight().into_iter();
            let names: Vec<_> = names.map(|(name, count)| format!("{count} {name}")).collect();
            let context = format!("{count} operations did not complete{waited} ({})", names.join(", "));
            let error = io::Error::new(io::ErrorKind::TimedOut, "their memory is leaked");
            report(Exception::error(context, error));
        }
    }

    /// Waits until every operation has completed, for `close_within` at most. On a virtual clock, while no thread works
    /// for the loop, the limit is a number of polls instead. If that was not enough, returns how long it waited.
    fn reap_all(&self) -> String {
        self.cancel_all_ops();
        let mut empty_polls = 0;
        // A limit beyond the range of the clock is none.
        let deadline = std::time::Instant::now().checked_add(self.settings.close_within);
        while self.ops.in_flight() > 0 {
            if deadline.is_some_and(|deadline| std::time::Instant::now() > deadline) {
                return format!(" within {:?}", self.settings.close_within);
            }
            let stands_still = self.clock_stands_still();
            let wait = match stands_still {
                true => {
                    std::thread::sleep(Duration::from_millis(1));
                    Wait::Poll
                }
                false => Wait::Until(self.now() + Duration::from_millis(100)),
            };
            let Ok(completed) = self.drive(wait) else { break };
            let is_empty = completed == 0 && !self.inbox.has_events();
            empty_polls = if is_empty { empty_polls + 1 } else { 0 };
            if self.has_virtual_clock && !stands_still && empty_polls >= EMPTY_POLLS {
                return format!(" within {EMPTY_POLLS} polls after their cancel, which is a bug of the driver");
            }
            // A cancel request can miss an operation that is changing state, and a destructor can start a new one.
            if is_empty {
                self.cancel_all_ops();
            }
            self.collect_events();
            // Drop the calls and wakes that arrive meanwhile: the loop no longer runs them.
            self.drop_scheduled();
        }
        String::new()
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
        while let Some(action) = self.timers.pop_any() {
            guard("a callback's destructor", || drop(action));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use crate::on_drop::OnDrop;
    use crate::task::on_cancel;
    use crate::{Builder, DriverChoice};

    #[test]
    fn a_crash_runs_no_cleanups_but_drops_tasks_and_completes_operations() {
        let event_loop = Builder::new().driver(DriverChoice::Null).build().expect("a loop");
        let events = Rc::new(RefCell::new(Vec::new()));
        let note = |event: &'static str| {
            let events = events.clone();
            move || events.borrow_mut().push(event)
        };
        let handler = events.clone();
        event_loop.set_exception_handler(move |_| handler.borrow_mut().push("reported"));
        let (cleaned, dropped) = (note("cleaned"), note("dropped"));
        let task = event_loop.spawn(async move {
            let _dropped = OnDrop(dropped);
            let listener = crate::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
            let cleanup = on_cancel(Duration::from_secs(1), async move { cleaned() });
            cleanup.during(listener.accept()).await.map(drop)
        });
        for _ in 0..3 {
            event_loop.turn_nowait().expect("a turn");
        }
        let core = event_loop.core.clone();
        assert_eq!(core.ops.in_flight(), 1);
        event_loop.abandon();
        assert_eq!(core.ops.in_flight(), 0);
        assert_eq!(*events.borrow(), ["dropped"]);
        drop(task);
    }
}
