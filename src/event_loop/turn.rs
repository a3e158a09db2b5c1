//! One turn of the loop: asyncio's `_run_once`. Nothing else runs tasks or callbacks.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::{OpResult, Wait};
use crate::error::forked_error;
use crate::event_loop::EventLoop;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, guard, report};
use crate::event_loop::ready::Ready;
use crate::event_loop::timers::Action;
use crate::time::Instant;

impl EventLoop {
    #[inline]
    pub(crate) fn turn_once(&self, next_wait: impl FnOnce(&LoopCore) -> Wait) -> io::Result<()> {
        let core = &*self.core;
        core.counters.turns.set(core.counters.turns.get() + 1);
        // 1. The wait: none if something is ready, else until the first deadline, else until an event.
        let wait = next_wait(core);
        // 2. The driver submits, blocks and reaps. With nothing to submit, reap or wait for, it is not polled.
        // 3. Completions, and events from other threads, put their tasks on the ready queue.
        if wait != Wait::No || core.must_poll() {
            core.drive(wait)?;
        }
        core.collect_events();
        // 4. Due timers follow, ordered by deadline.
        core.fire_due_timers();
        // 5. The batch is fixed: later entries wait for the next turn, so that they cannot starve the driver.
        let batch = core.ready.len();
        // 6. The batch runs in FIFO order.
        core.run_batch(batch)
    }
}

impl LoopCore {
    /// Step 1: how long the driver may block.
    #[inline]
    pub(crate) fn next_wait(&self) -> Wait {
        if !self.ready.is_empty() || self.inbox.has_events() {
            return Wait::No;
        }
        self.wait_for_timers()
    }

    #[inline(never)]
    fn wait_for_timers(&self) -> Wait {
        match self.timers.next_wake(self.times.recent()) {
            Some(deadline) if deadline < Instant::NEVER && !self.clock_stands_still() => Wait::Until(deadline),
            _ => Wait::Forever,
        }
    }

    /// Whether a virtual clock must not advance. Threads work in real time, so the clock does not jump while one works
    /// for the loop; the end of that work wakes the loop. A driver that runs the work itself does so in virtual time.
    pub(super) fn clock_stands_still(&self) -> bool {
        self.has_virtual_clock && (self.clock_holds.get() > 0 || self.ops.uses_threads() && !self.takes_jobs())
    }

    /// Whether the driver has something to do in a turn that does not wait. Always in a turn whose poll is timed.
    #[inline]
    fn must_poll(&self) -> bool {
        self.is_timed_turn() || self.driver().must_poll()
    }

    /// Steps 2 and 3: submits the started operations, blocks as long as `wait` says, and reaps completions, which wake their
    /// tasks. Returns their number. Not inlined into the turn, which usually skips it while tasks are ready.
    #[inline(never)]
    pub(crate) fn drive(&self, wait: Wait) -> io::Result<usize> {
        let mut completed = self.completed.take();
        let result = match wait {
            Wait::No | Wait::Poll => {
                let began = self.begin_poll();
                let result = self.driver().poll(&mut completed, wait);
                self.end_poll(began);
                self.check_poll(result, &completed, wait)
            }
            Wait::Until(deadline) | Wait::Between(_, deadline) => self.park(&mut completed, Some(deadline)),
            Wait::Forever => self.park(&mut completed, None),
        };
        let count = completed.len();
        // Also after an error: these were reaped before it.
        if count > 0 {
            self.complete(&mut completed);
        }
        self.completed.set(completed);
        result.map(|()| count)
    }

    /// Step 3: calls and wakes from other threads join the ready queue.
    #[inline]
    pub(crate) fn collect_events(&self) {
        if self.inbox.has_events() {
            self.deliver_events();
        }
    }

    #[inline(never)]
    fn deliver_events(&self) {
        let mut events = self.events.take();
        self.inbox.collect(&mut events);
        for item in events.drain(..) {
            match item {
                RemoteEvent::Wake(remote_wake) => remote_wake.deliver(self),
                RemoteEvent::Call(call) => self.ready.push_remote(call),
                RemoteEvent::Stop => self.stopping.set(true),
                RemoteEvent::OpDone(id, res) => self.complete_one(id, OpResult::new(res)),
                RemoteEvent::PoolHasCapacity => self.submit_waiting(),
                RemoteEvent::Unclaimed(unclaimed) => unclaimed.report(),
                RemoteEvent::ReleaseClock => self.clock_holds.set(self.clock_holds.get() - 1),
                RemoteEvent::Peer(event) => event.deliver(self),
                RemoteEvent::CancelTimer(id) => guard("a waker's destructor", || self.cancel_timer(id)),
            }
        }
        self.events.set(events);
    }

    /// Step 4: due timers wake their tasks, and their callbacks join the ready queue.
    #[inline]
    pub(crate) fn fire_due_timers(&self) {
        if !self.timers.is_empty() {
            self.fire_timers();
        }
    }

    #[inline(never)]
    fn fire_timers(&self) {
        let now = self.now();
        self.fired_until.set(now);
        loop {
            let due = self.timers.pop_due(now);
            match due {
                Some(Action::WakeTask(key)) => self.wake_task(key),
                Some(Action::Wake(waker)) => guard("a waker", || waker.wake()),
                Some(Action::Call(callback)) => self.ready.push_callback(callback),
                None => return,
            }
        }
    }

    /// Whether a timer with this deadline has fired, if it was set before the last `fire_due_timers`.
    #[inline]
    pub(crate) fn have_fired_until(&self, deadline: Instant) -> bool {
        deadline < self.fired_until.get()
    }

    /// Step 6: runs this many entries of the ready queue. Not inlined into the turn, whose other values would take the
    /// registers.
    #[inline(never)]
    pub(super) fn run_batch(&self, batch: usize) -> io::Result<()> {
        // Decided once per turn.
        if self.probe.is_on() {
            return self.run_batch_probed(batch);
        }
        if let Some(limit) = self.slow {
            return self.run_each(batch, |next| self.run_timed(next, limit));
        }
        self.run_each(batch, |next| self.run_one(next))
    }

    #[inline(always)]
    fn run_each(&self, batch: usize, run: impl Fn(Ready)) -> io::Result<()> {
        for _ in 0..batch {
            // The queue is shorter if an entry has closed the loop.
            let Some(next) = self.ready.pop() else { break };
            run(next);
            // If a task forked, the remaining tasks belong to the parent.
            if self.is_forked() {
                return Err(forked_error());
            }
        }
        self.end_batch(batch);
        Ok(())
    }

    /// The end of step 6, after the last entry.
    #[inline(always)]
    pub(crate) fn end_batch(&self, batch: usize) {
        self.counters.ran.set(self.counters.ran.get() + batch as u64);
        // Messages to other loops of a pool leave together: one lock and at most one wake-up for each target.
        if let Some(peers) = self.peers.get() {
            peers.end_turn(self);
        }
    }

    #[inline(always)]
    pub(crate) fn run_one(&self, next: Ready) {
        match next {
            Ready::Task(runnable) => runnable.run(self),
            Ready::Call(callback) => {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback.run())) {
                    report(Exception::callback_panic(callback.location(), payload));
                }
            }
            Ready::Remote(call) => guard("a callback from another thread", || {
                crate::task::Locals::current().run(call);
            }),
        }
    }

    /// Delivers completions while the loop is not running, so that a stream dropped outside of it closes at once.
    pub(crate) fn pump(&self) {
        if self.is_running_here() || self.is_closed() {
            return;
        }
        {
            let _current = self.make_current();
            // A persistent error occurs again, and is returned, when the loop runs.
            if self.drive(Wait::No).is_ok() {
                self.collect_events();
            }
        }
        if !self.ready.is_empty() {
            self.queued();
        }
    }
}
