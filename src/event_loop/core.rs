//! `LoopCore`: the state of one loop, shared by everything that belongs to the loop.
//!
//! `EventLoop` owns it; streams, timers and tasks hold an `Rc`, and code that runs inside the loop finds it through a
//! thread-local. The thread-local is a raw pointer without a destructor, so that a loop stored in another thread-local
//! still works while the thread exits.
//!
//! Rule of this crate: no foreign code (wakers, destructors, callbacks) runs while one of these cells is borrowed.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::blocking::{Pool, Shutdown};
use crate::diagnostics::metrics::{LoopCounters, LoopTimes};
use crate::driver::op::{Direction, Op};
use crate::driver::{Closed, Completion, Control, Driver, FdSpace, OpId, OpResult, OsResult, Reply, Wait};
use crate::event_loop::builder::Settings;
use crate::event_loop::exception::{Exception, report};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::park::{BusyPoll, Found};
use crate::event_loop::ready::{Ready, ReadyQueue};
use crate::event_loop::timers::{Action, TimerId, Timers};
use crate::inflight::OpTable;
use crate::inflight::watch::Watcher;
use crate::sys::{self, Fd, SplicePipe, errno};
use crate::task::{Cleanups, Owner, RawTask, RemoteWake, TaskId};
use crate::time::Instant;

/// Results that a task may get synchronously within one poll before it has to yield, so that a task whose data is
/// always ready cannot starve the others. A task that `spawn` polls at once counts as one.
const BUDGET: i32 = 64;

/// After this many refusals through foreign wakers within one poll, the budget is refilled: see
/// [`LoopCore::try_refill_budget`].
const MAX_REFUSALS: i32 = 64;

/// How deep polls of newly spawned tasks may nest: each level takes stack space.
const MAX_NESTED_POLLS: usize = 16;

/// While busy-polling, the inbox is checked this often between two polls of the driver.
const INBOX_CHECKS_PER_POLL: u32 = 8;

/// The poll interval between an early wake-up and the deadline: the loop waits for the clock there, not for events.
const POLL_EVERY: Duration = Duration::from_micros(50);

/// A clock that shows the same time in this many reads is virtual and advances only while the driver sleeps.
const MAX_STALLED_READS: u32 = 1000;

/// The pause after a poll that failed for lack of memory. It doubles with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(64);

/// Such failures are reported once per episode, and at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Tracks polls of the driver that failed because the kernel was short of memory.
#[derive(Default)]
struct Shortage {
    /// Failures since the last poll that succeeded.
    failures: Cell<u32>,
    reported: Cell<Option<Instant>>,
}

/// An event sent to the loop from another thread.
pub(crate) enum RemoteEvent {
    Wake(RemoteWake),
    Call(Box<dyn FnOnce() + Send>),
    Stop,
    /// A pool thread has finished an operation.
    OpDone(OpId, OsResult),
    /// The pool has capacity for operations in `waiting_for_pool`.
    PoolHasCapacity,
    /// For the exception handler, also if it is collected only while the loop closes.
    Exception(Exception),
    /// A [`ClockHold`] has ended.
    ReleaseClock,
}

pub(crate) struct LoopCore {
    /// Use it through [`driver`](LoopCore::driver), except for calls that touch neither the kernel nor shared memory.
    pub(crate) driver: RefCell<Box<dyn Driver>>,
    /// Identifies the process that made the loop: see `sys::forks`.
    forks: u32,
    /// In a forked child: the driver was left to the parent process.
    is_abandoned: Cell<bool>,
    /// Whether the driver's descriptors are the kernel's.
    pub(crate) fd_space: FdSpace,
    pub(crate) has_virtual_clock: bool,
    /// The number of [`ClockHold`]s: virtual time stands still while there is one.
    clock_holds: Cell<usize>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) ready: RefCell<ReadyQueue>,
    pub(crate) timers: RefCell<Timers>,
    /// Tasks that are suspended inside their poll because they polled a newly spawned task; the innermost is the last.
    polling_stack: RefCell<Vec<RawTask>>,
    /// Every task that has not finished.
    pub(crate) tasks: RefCell<Slab<RawTask>>,
    pub(crate) inbox: Arc<Inbox<RemoteEvent>>,
    /// Threads for the user's blocking work.
    pub(crate) blocking: Pool,
    /// Threads for name look-ups, and for file operations that the driver cannot perform.
    pub(crate) files: Pool,
    /// Operations that found the queue of `files` full.
    pub(crate) waiting_for_pool: RefCell<VecDeque<OpId>>,
    blocking_shutdown: Shutdown,
    /// How long closing waits for operations in flight.
    close_within: Duration,
    /// The callbacks of `add_reader` and `add_writer`.
    pub(crate) watchers: RefCell<HashMap<(Fd, Direction), Watcher>>,
    /// The standard streams that were used so far.
    pub(crate) stdio: crate::io::stdio::Streams,
    pub(crate) signals: RefCell<Weak<crate::signal::SignalHub>>,
    /// Empty pipes, kept for the next splice.
    pub(crate) splice_pipes: RefCell<Vec<SplicePipe>>,
    pub(crate) exception_handler: RefCell<Option<ExceptionHandler>>,
    pub(crate) counters: LoopCounters,
    pub(crate) times: LoopTimes,
    busy_poll: BusyPoll,
    shortage: Shortage,
    /// The loop's time when timers last fired.
    fired_until: Cell<Instant>,
    /// Debug mode: callbacks and polls that take longer than this are reported.
    pub(crate) slow: Option<Duration>,
    pub(crate) cleanups: Cleanups,
    /// Set by `stop`; the loop ends after the current turn.
    pub(crate) stopping: Cell<bool>,
    closed: Cell<bool>,
    current_task: Cell<Option<RawTask>>,
    next_task_id: Cell<u64>,
    /// The budget left in the current poll; below zero, minus the number of refusals through foreign wakers.
    budget: Cell<i32>,
    /// The data pointer of the first foreign waker refused in the current poll; only compared, never dereferenced.
    /// Valid while the budget is below zero.
    refused_waker: Cell<*const ()>,
    /// These two are kept between turns to reuse their memory.
    completed: Cell<Vec<Completion>>,
    events: Cell<Vec<RemoteEvent>>,
    this: Weak<LoopCore>,
}

pub(crate) type ExceptionHandler = Rc<dyn Fn(&Exception)>;

thread_local! {
    /// The loop that this thread is running, or null. `Entered` keeps the loop alive while the pointer is set.
    static CURRENT: Cell<*const LoopCore> = const { Cell::new(ptr::null()) };
}

impl LoopCore {
    pub(crate) fn new(driver: Box<dyn Driver>, settings: &Settings) -> Rc<LoopCore> {
        let inbox = Arc::new(Inbox::new(driver.notifier()));
        let times = LoopTimes::new(settings.measures_time, driver.now());
        let (fd_space, has_virtual_clock) = (driver.fd_space(), driver.has_virtual_clock());
        let busy_poll = match has_virtual_clock {
            true => BusyPoll::none(),
            false => BusyPoll::new(settings.busy_poll, settings.precise_timers),
        };
        Rc::new_cyclic(|this| LoopCore {
            driver: RefCell::new(driver),
            forks: sys::count_forks(),
            is_abandoned: Cell::new(false),
            fd_space,
            has_virtual_clock,
            clock_holds: Cell::new(0),
            ops: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            polling_stack: RefCell::default(),
            tasks: RefCell::default(),
            inbox,
            blocking: Pool::with_settings("blocking", settings.blocking),
            files: Pool::with_settings("files", settings.files),
            waiting_for_pool: RefCell::default(),
            blocking_shutdown: settings.blocking_shutdown,
            close_within: settings.close_within,
            watchers: RefCell::default(),
            stdio: Default::default(),
            signals: RefCell::default(),
            splice_pipes: RefCell::default(),
            exception_handler: RefCell::default(),
            counters: LoopCounters::default(),
            times,
            busy_poll,
            shortage: Shortage::default(),
            fired_until: Cell::new(Instant::from_origin(Duration::ZERO)),
            slow: settings.debug.then_some(settings.slow_callback),
            cleanups: Cleanups::default(),
            stopping: Cell::new(false),
            closed: Cell::new(false),
            current_task: Cell::new(None),
            next_task_id: Cell::new(1),
            budget: Cell::new(BUDGET),
            refused_waker: Cell::new(ptr::null()),
            completed: Cell::default(),
            events: Cell::default(),
            this: this.clone(),
        })
    }

    // The current loop.

    /// The loop that this thread is running.
    #[inline]
    pub(crate) fn try_current<'a>() -> Option<&'a LoopCore> {
        // SAFETY: `Entered` keeps the loop alive while the pointer is set, and resets the pointer before it drops its
        // `Rc`. The reference does not outlive the call into user code during which the loop is entered: every caller
        // in this crate uses it at once, or within that call.
        unsafe { CURRENT.get().as_ref() }
    }

    /// As `try_current`, for functions that need a loop: panics with the name of the `call` if there is none.
    #[track_caller]
    pub(crate) fn current<'a>(call: &str) -> &'a LoopCore {
        match LoopCore::try_current() {
            Some(core) => core,
            None => panic!(
                "windlass: `{call}` was called outside of an event loop: call it inside `windlass::run`, or from another thread through a `LoopHandle`"
            ),
        }
    }

    pub(crate) fn rc(&self) -> Rc<LoopCore> {
        self.this.upgrade().expect("a borrowed loop is alive")
    }

    /// Makes this the thread's current loop until the guard is dropped.
    pub(crate) fn enter(&self) -> Entered {
        let core = self.rc();
        let outer = CURRENT.replace(&raw const *core);
        Entered {
            core,
            outer,
            is_run: false,
        }
    }

    /// Enters the loop in order to run it. An error if a loop is running on this thread already.
    pub(crate) fn enter_to_run(&self) -> io::Result<Entered> {
        if self.is_forked() {
            return Err(crate::event_loop::inbox::forked_error());
        }
        // In a forked child, the current loop may be the parent's, which does not run here.
        if LoopCore::try_current().is_some_and(|current| !current.is_forked()) {
            return Err(io::Error::other(
                "an event loop is already running on this thread: spawn a task instead, or use another thread",
            ));
        }
        if self.is_closed() {
            return Err(crate::event_loop::inbox::LoopClosed.into());
        }
        // An embedding loop may have put this one to sleep with `flush`. From here on, senders need not notify.
        self.inbox.wake_up();
        self.begin_run();
        let mut entered = self.enter();
        entered.is_run = true;
        Ok(entered)
    }

    // The steps of a turn.

    /// Step 1: how long the driver may block.
    #[inline]
    pub(crate) fn next_wait(&self) -> Wait {
        if !self.ready.borrow().is_empty() || self.inbox.has_events() {
            return Wait::No;
        }
        match self.timers.borrow_mut().next_deadline() {
            Some(deadline) if deadline < Instant::NEVER && !self.clock_stands_still() => Wait::Until(deadline),
            _ => Wait::Forever,
        }
    }

    /// Whether a virtual clock must not advance. Threads work in real time, so the clock does not jump while one works
    /// for the loop; the end of that work wakes the loop.
    fn clock_stands_still(&self) -> bool {
        self.has_virtual_clock && (self.clock_holds.get() > 0 || self.ops.borrow().uses_threads())
    }

    /// Stops a virtual clock until the hold is dropped, on any thread. `None` if the clock is real.
    pub(crate) fn hold_clock(&self) -> Option<ClockHold> {
        if !self.has_virtual_clock || self.is_closed() {
            return None;
        }
        self.clock_holds.set(self.clock_holds.get() + 1);
        Some(ClockHold(self.inbox.clone()))
    }

    // Forks.

    /// Whether this process is a fork of the one that made the loop.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    /// The driver. In a forked child it is replaced by one that refuses everything: the real driver's rings are not
    /// mapped there, and its epoll instance is shared with the parent.
    #[inline]
    pub(crate) fn driver(&self) -> RefMut<'_, Box<dyn Driver>> {
        if self.is_forked() {
            self.abandon_driver();
        }
        self.driver.borrow_mut()
    }

    #[cold]
    fn abandon_driver(&self) {
        if self.is_abandoned.replace(true) {
            return;
        }
        let closed = Closed::after(&**self.driver.borrow(), true);
        // Its destructor would use resources of the parent.
        std::mem::forget(self.driver.replace(Box::new(closed)));
    }

    /// Step 2: submits the started operations, blocks as long as `wait` says, and reaps completions.
    #[inline]
    pub(crate) fn drive(&self, wait: Wait) -> io::Result<Vec<Completion>> {
        let mut completed = self.completed.take();
        let result = match wait {
            Wait::No | Wait::Look => self.poll_driver(&mut completed, wait),
            Wait::Until(deadline) => self.wait_for_events(&mut completed, Some(deadline)),
            Wait::Forever => self.wait_for_events(&mut completed, None),
        };
        // Deliver completions that were reaped before the error.
        result.inspect_err(|_| self.complete(&mut completed))?;
        Ok(completed)
    }

    #[inline(always)]
    fn poll_driver(&self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let began = self.begin_poll();
        let result = self.driver().poll(completed, wait);
        if let Some(began) = began {
            self.end_poll(began);
        }
        self.check_poll(result, completed, wait)
    }

    /// Turns a failure for lack of memory into a poll that found nothing, so that it does not end the loop. If the poll
    /// would have blocked, pauses first, since the next poll may fail at once too.
    #[inline]
    fn check_poll(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        match result {
            Ok(()) if self.shortage.failures.get() == 0 => Ok(()),
            result => self.check_poll_in_shortage(result, completed, wait),
        }
    }

    #[cold]
    fn check_poll_in_shortage(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        let blocks = matches!(wait, Wait::Until(_) | Wait::Forever);
        let failures = self.shortage.failures.get();
        let error = match result {
            Err(error) if is_shortage(&error) => error,
            // Without anything to submit, a non-blocking poll makes no system call: its success proves nothing.
            Ok(()) if !blocks && completed.is_empty() => return Ok(()),
            result => {
                self.shortage.failures.set(0);
                return result;
            }
        };
        self.shortage.failures.set(failures.saturating_add(1));
        let now = self.now();
        let is_recent = |at: Instant| now < at + REPORT_EVERY;
        if failures == 0 && !self.shortage.reported.get().is_some_and(is_recent) {
            self.shortage.reported.set(Some(now));
            report(Exception::error(
                "the kernel is short of memory; the loop retries",
                error,
            ));
        }
        if blocks && !self.has_events(completed) {
            let pause = (FIRST_RETRY * (1 << failures.min(16))).min(LONGEST_RETRY);
            let left = match wait {
                Wait::Until(deadline) => deadline - now,
                Wait::No | Wait::Look | Wait::Forever => LONGEST_RETRY,
            };
            std::thread::sleep(pause.min(left));
        }
        Ok(())
    }

    /// Submits the started operations, because an embedding loop is about to wait for the driver's descriptor. If the
    /// kernel is short of memory, makes the descriptor readable, so that the embedding loop retries.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let result = self.driver().flush();
        match result {
            Err(error) if is_shortage(&error) => {
                let notifier = self.driver.borrow().notifier();
                notifier.notify();
                Ok(())
            }
            result => result,
        }
    }

    /// Whether the driver submits operations that are started together with one system call.
    pub(crate) fn submits_in_batches(&self) -> bool {
        self.driver.borrow().submits_in_batches()
    }

    /// Busy-polls or sleeps until an operation completes, another thread sends something, or the deadline passes.
    fn wait_for_events(&self, completed: &mut Vec<Completion>, deadline: Option<Instant>) -> io::Result<()> {
        let began = self.now();
        let ended = match self.busy_poll.ends_at(began) {
            None => self.sleep_until(completed, deadline, began)?,
            Some(end) => {
                let due = deadline.filter(|&deadline| deadline <= end);
                let (found, now) = self.poll_until(due.unwrap_or(end), Duration::ZERO, completed, began)?;
                self.busy_poll.record_window(found, completed);
                match found {
                    Found::Nothing if due.is_none_or(|due| now < due) => self.sleep_until(completed, deadline, now)?,
                    _ => now,
                }
            }
        };
        self.waited(began, ended);
        Ok(())
    }

    /// Sleeps until shortly before the deadline, then polls until the deadline. Returns the time.
    fn sleep_until(
        &self,
        completed: &mut Vec<Completion>,
        deadline: Option<Instant>,
        began: Instant,
    ) -> io::Result<Instant> {
        let wake_at = deadline.map(|deadline| self.busy_poll.wake_at(deadline, began));
        let mut now = began;
        // With precise timers, a near deadline leaves no time to sleep.
        if wake_at.is_none_or(|wake_at| wake_at > began) {
            self.sleep(completed, wake_at.map_or(Wait::Forever, Wait::Until))?;
            now = self.now();
            let found_events = self.has_events(completed);
            self.busy_poll.record_sleep(now - began, found_events, completed);
            match wake_at {
                Some(wake_at) if !found_events && now >= wake_at => self.busy_poll.record_lateness(now - wake_at),
                // Events arrived, or a signal interrupted the sleep and the loop turns again.
                _ => return Ok(now),
            }
        }
        let Some(deadline) = deadline.filter(|&deadline| now < deadline) else {
            return Ok(now);
        };
        let (found, now) = self.poll_until(deadline, POLL_EVERY, completed, now)?;
        if matches!(found, Found::Nothing) && now < deadline {
            // A virtual clock advances only while the driver sleeps.
            self.sleep(completed, Wait::Until(deadline))?;
        }
        Ok(now)
    }

    /// The only place where the loop blocks its thread.
    fn sleep(&self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let asleep = self.inbox.fall_asleep();
        let wait = if asleep { wait } else { Wait::Look };
        let result = self.driver().poll(completed, wait);
        if asleep {
            self.inbox.wake_up();
        }
        self.check_poll(result, completed, wait)
    }

    /// Polls the inbox, and the driver at intervals of `every`, until events arrive or `end`. Returns the approximate
    /// time.
    fn poll_until(
        &self,
        end: Instant,
        every: Duration,
        completed: &mut Vec<Completion>,
        mut now: Instant,
    ) -> io::Result<(Found, Instant)> {
        let mut found = Found::Immediately;
        let mut stalled_reads = 0;
        let mut next_poll = now + every;
        loop {
            if now >= next_poll {
                let result = self.driver().poll(completed, Wait::Look);
                self.check_poll(result, completed, Wait::Look)?;
                next_poll = now + every;
            }
            if self.has_events(completed) {
                return Ok((found, now));
            }
            if now >= end || stalled_reads > MAX_STALLED_READS {
                return Ok((Found::Nothing, now));
            }
            found = Found::Later;
            // Checking the inbox is one load; polling the driver may be a system call.
            for _ in 0..INBOX_CHECKS_PER_POLL {
                if self.inbox.has_events() {
                    return Ok((found, now));
                }
                std::hint::spin_loop();
            }
            let later = self.now();
            stalled_reads = if later > now { 0 } else { stalled_reads + 1 };
            now = later;
        }
    }

    fn has_events(&self, completed: &[Completion]) -> bool {
        !completed.is_empty() || self.inbox.has_events()
    }

    /// Step 3: completions wake their tasks; calls and wakes from other threads join the ready queue.
    #[inline]
    pub(crate) fn complete_and_collect(&self, mut completed: Vec<Completion>) {
        if !completed.is_empty() {
            self.complete(&mut completed);
        }
        self.completed.set(completed);
        if !self.inbox.has_events() {
            return;
        }
        let mut events = self.events.take();
        self.inbox.collect(&mut events);
        for item in events.drain(..) {
            match item {
                RemoteEvent::Wake(remote_wake) => remote_wake.deliver(self),
                RemoteEvent::Call(call) => self.ready.borrow_mut().push(Ready::Remote(call)),
                RemoteEvent::Stop => self.stopping.set(true),
                RemoteEvent::OpDone(id, res) => self.complete_one(id, OpResult::last(res)),
                RemoteEvent::PoolHasCapacity => self.submit_waiting(),
                RemoteEvent::Exception(exception) => report(exception),
                RemoteEvent::ReleaseClock => self.clock_holds.set(self.clock_holds.get() - 1),
            }
        }
        self.events.set(events);
    }

    /// Step 4: the actions of due timers run, or join the ready queue.
    #[inline]
    pub(crate) fn fire_due_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.now();
        self.fired_until.set(now);
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(Action::Wake(waker)) => crate::event_loop::exception::guard("a waker", || waker.wake()),
                Some(Action::Call(callback)) => self.ready.borrow_mut().push(Ready::Call(callback)),
                None => return,
            }
        }
    }

    /// Whether every timer with this deadline that was set before the timers of this turn fired has fired too.
    #[inline]
    pub(crate) fn have_fired_until(&self, deadline: Instant) -> bool {
        deadline < self.fired_until.get()
    }

    /// Step 6: runs one entry of the batch.
    #[inline]
    pub(crate) fn run_next(&self) {
        let Some(next) = self.ready.borrow_mut().pop() else {
            return;
        };
        if self.slow.is_some() {
            return self.run_timed(next);
        }
        self.run_one(next);
    }

    #[inline]
    pub(crate) fn run_one(&self, next: Ready) {
        match next {
            Ready::Task(runnable) => runnable.run(self),
            Ready::Call(callback) => {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback.run())) {
                    report(Exception::callback_panic(callback.location(), payload));
                }
            }
            Ready::Remote(call) => crate::event_loop::exception::guard("a callback from another thread", || {
                crate::task::Locals::current().run(call);
            }),
        }
    }

    // What tasks and futures use.

    pub(crate) fn now(&self) -> Instant {
        self.driver.borrow().now()
    }

    pub(crate) fn control(&self, call: Control<'_>) -> io::Result<Reply> {
        self.driver().control(call)
    }

    pub(crate) fn add_timer(&self, when: Instant, action: Action) -> TimerId {
        self.timers.borrow_mut().add(when, action)
    }

    pub(crate) fn cancel_timer(&self, id: TimerId) {
        let action = self.timers.borrow_mut().cancel(id);
        drop(action);
    }

    pub(crate) fn next_task_id(&self) -> TaskId {
        let id = self.next_task_id.get();
        self.next_task_id.set(id + 1);
        TaskId(id)
    }

    pub(crate) fn current_task(&self) -> Option<RawTask> {
        self.current_task.get()
    }

    #[inline]
    pub(crate) fn set_current_task(&self, task: Option<RawTask>) -> Option<RawTask> {
        self.current_task.replace(task)
    }

    /// A reference to the current task, which cannot be joined before the orphaned operation that holds it completes.
    pub(crate) fn current_owner(&self) -> Option<Owner> {
        self.current_task.get().map(Owner::new)
    }

    #[inline]
    pub(crate) fn refill_budget(&self) {
        self.budget.set(BUDGET);
    }

    /// Takes one from the current poll's budget. When it is used up, wakes the task and returns false: the caller
    /// returns `Pending`. Code that is not polled by a task of this loop has no budget, since nothing would refill it.
    #[inline]
    pub(crate) fn spend_budget(&self, cx: &mut Context<'_>) -> bool {
        let Some(task) = self.current_task.get() else {
            return true;
        };
        if self.budget.get() <= 0 && !self.try_refill_budget(task, cx.waker()) {
            cx.waker().wake_by_ref();
            return false;
        }
        self.budget.set(self.budget.get() - 1);
        true
    }

    /// Refills a spent budget if an executor nested inside the task's poll would otherwise livelock. A foreign
    /// `block_on`, for instance, polls again as soon as its waker is woken, and would do so forever: the budget is
    /// refilled only between polls of the task, and that poll never ends.
    ///
    /// Such an executor has its own waker and asks repeatedly with the same one: this is the test. Combinators that let
    /// the task's poll end (`FuturesUnordered`, `join_all`) ask at most once with each waker. If the first refused
    /// waker never returns because its future is gone, the number of refusals decides.
    #[cold]
    fn try_refill_budget(&self, task: RawTask, waker: &Waker) -> bool {
        if task.owns(waker) {
            return false;
        }
        let refusals = -self.budget.get();
        if refusals == 0 {
            self.refused_waker.set(waker.data());
        } else if self.refused_waker.get() == waker.data() || refusals >= MAX_REFUSALS {
            self.refill_budget();
            return true;
        }
        self.budget.set(-(refusals + 1));
        false
    }

    /// Performs an operation synchronously, without an entry in the table, if the driver can: see [`Driver::attempt`].
    /// Takes one from the current poll's budget; `None` if that is used up.
    ///
    /// # Safety
    ///
    /// As for [`Driver::attempt`].
    #[inline]
    pub(crate) unsafe fn attempt(&self, op: Op) -> Option<OsResult> {
        if self.is_spent() {
            return None;
        }
        // SAFETY: the caller's promise.
        let res = unsafe { self.attempt_unbudgeted(op) }?;
        // Outside of tasks the budget may be zero.
        if self.budget.get() > 0 {
            self.budget.set(self.budget.get() - 1);
        }
        Some(res)
    }

    /// As `attempt`, for a caller that has already paid from the budget.
    ///
    /// # Safety
    ///
    /// As for [`Driver::attempt`].
    #[inline]
    pub(crate) unsafe fn attempt_unbudgeted(&self, op: Op) -> Option<OsResult> {
        // SAFETY: the caller's promise.
        let res = unsafe { self.driver().attempt(op, self.is_nearly_idle()) }?;
        crate::diagnostics::trace::op_done_at_once(&op, res);
        Some(res)
    }

    /// Whether fewer than two tasks are ready, so that batching submissions would not save a system call.
    #[inline]
    fn is_nearly_idle(&self) -> bool {
        self.ready.borrow().len() < 2
    }

    /// Polls a new task through `poll`, nested in the poll of the current task and on its budget. False if the budget
    /// is spent, if polls are nested too deep, or outside of tasks.
    #[inline]
    pub(crate) fn run_inside(&self, poll: impl FnOnce()) -> bool {
        let (left, nested) = (self.budget.get(), self.polling_stack.borrow().len());
        let Some(host) = self
            .current_task
            .get()
            .filter(|_| left > 0 && nested < MAX_NESTED_POLLS)
        else {
            return false;
        };
        self.budget.set(left - 1);
        self.polling_stack.borrow_mut().push(host);
        poll();
        self.polling_stack.borrow_mut().pop();
        true
    }

    /// Runs `call` with `task` as the current task. The outer task, if any, still counts as running.
    pub(crate) fn run_as(&self, task: RawTask, call: impl FnOnce()) {
        let outer = self.set_current_task(Some(task));
        self.polling_stack.borrow_mut().extend(outer);
        call();
        if outer.is_some() {
            self.polling_stack.borrow_mut().pop();
        }
        self.set_current_task(outer);
    }

    /// Whether a task is being polled, perhaps with another task's poll nested in it.
    pub(crate) fn is_running(&self, task: RawTask) -> bool {
        self.current_task.get() == Some(task) || self.polling_stack.borrow().contains(&task)
    }

    /// Yields once if the current poll's budget is used up.
    #[inline]
    pub(crate) fn yield_if_exhausted(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|cx| match self.current_task.get() {
            Some(task) if self.is_spent() && !self.try_refill_budget(task, cx.waker()) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
    }

    /// Whether the current poll's budget is used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget.get() <= 0 && self.current_task.get().is_some()
    }

    // Closing.

    /// Whether the loop has closed. In a forked child, the parent's loop counts as closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get() || self.is_forked()
    }

    /// Cancels every task, waits until every operation has completed, and drops the driver. Memory of operations that
    /// do not complete in time is leaked: the kernel may still write to it.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if self.is_forked() {
            return self.abandon();
        }
        let _entered = self.enter();
        self.report_pending_tasks();
        self.cancel_tasks();
        self.drop_watchers();
        self.drop_stdio();
        self.drop_scheduled();
        let reaped_all = self.reap_all();
        for item in self.inbox.close() {
            match item {
                RemoteEvent::Exception(exception) => report(exception),
                item => crate::event_loop::exception::guard("a callback's destructor", || drop(item)),
            }
        }
        let closed = Closed::after(&**self.driver.borrow(), false);
        let driver = self.driver.replace(Box::new(closed));
        let mut closed = Closed::after(&*driver, false);
        // With nothing borrowed: the destructor of a driver may be foreign code.
        closed.keep(driver, !reaped_all);
        self.driver.replace(Box::new(closed));
        if !reaped_all {
            report(Exception::error(
                format!(
                    "{} operations did not complete within {:?}",
                    self.ops.borrow().in_flight(),
                    self.close_within
                ),
                io::Error::new(io::ErrorKind::TimedOut, "their memory is leaked"),
            ));
        }
        self.splice_pipes.take();
        // Name look-ups may take long, and no task waits for them any more.
        self.files.shutdown(Shutdown::Detach);
        self.blocking.shutdown(self.blocking_shutdown);
        crate::diagnostics::trace::loop_closed();
        // The handler may hold streams, which hold this loop.
        let handler = self.exception_handler.take();
        crate::event_loop::exception::guard("the exception handler's destructor", || drop(handler));
    }

    /// Closes the parent's loop in a forked child: drops the objects of the program and does nothing else. Operations
    /// and their memory are leaked, since they are the parent's; so are the pools, whose threads do not exist here.
    fn abandon(&self) {
        self.abandon_driver();
        let _entered = self.enter();
        self.cancel_tasks();
        self.drop_watchers();
        self.drop_stdio();
        self.drop_scheduled();
        self.splice_pipes.take();
        let handler = self.exception_handler.take();
        crate::event_loop::exception::guard("the exception handler's destructor", || drop(handler));
    }

    /// Cancels every task except cleanups, which makes the cleanups start.
    pub(crate) fn cancel_for_cleanup(&self) {
        let mut index = 0;
        while index < self.tasks.borrow().capacity() {
            let task = self.tasks.borrow().get(index).copied();
            if let Some(task) = task.filter(|task| !task.is_cleanup()) {
                task.cancel_now(self);
            }
            index += 1;
        }
    }

    /// Cancels every task. A task's destructor may end other tasks but cannot add one: on a closed loop, `spawn`
    /// cancels at once.
    pub(crate) fn cancel_tasks(&self) {
        let mut index = 0;
        while index < self.tasks.borrow().capacity() {
            let task = self.tasks.borrow().get(index).copied();
            if let Some(task) = task {
                task.cancel_now(self);
            }
            index += 1;
        }
        // If a task's destructor closes the loop, that task ends when the destructor returns.
        debug_assert!(self.tasks.borrow().iter().all(|(_, &task)| self.is_running(task)));
    }

    /// Drops the ready queue and all timers, one by one and with nothing borrowed.
    fn drop_scheduled(&self) {
        while let Some(next) = { self.ready.borrow_mut().pop() } {
            crate::event_loop::exception::guard("a callback's destructor", || drop(next));
        }
        while let Some(action) = { self.timers.borrow_mut().pop_any() } {
            crate::event_loop::exception::guard("a callback's destructor", || drop(action));
        }
    }

    /// Waits until every operation has completed. False if `close_within` passes first.
    fn reap_all(&self) -> bool {
        self.cancel_all_ops();
        let deadline = std::time::Instant::now() + self.close_within;
        while self.ops.borrow().in_flight() > 0 {
            if std::time::Instant::now() > deadline {
                return false;
            }
            let wait = Wait::Until(self.now() + Duration::from_millis(100));
            let Ok(completed) = self.drive(wait) else {
                return self.ops.borrow().in_flight() == 0;
            };
            // A cancel can miss an operation between two states, and a destructor can start a new operation: cancel
            // again.
            if completed.is_empty() && !self.inbox.has_events() {
                self.cancel_all_ops();
            }
            self.complete_and_collect(completed);
            // Drop the calls and wakes that arrive meanwhile: the loop no longer runs them.
            self.drop_scheduled();
        }
        true
    }

    fn cancel_all_ops(&self) {
        let ids = self.ops.borrow().ids_in_flight();
        for id in ids {
            self.cancel_op(id);
        }
    }

    /// Delivers completions while the loop is not running, so that a stream dropped outside of it closes at once.
    pub(crate) fn pump(&self) {
        let is_running = LoopCore::try_current().is_some_and(|current| ptr::eq(current, self));
        if is_running || self.is_closed() {
            return;
        }
        let _entered = self.enter();
        // A persistent error occurs again, and is returned, when the loop runs.
        if let Ok(completed) = self.drive(Wait::No) {
            self.complete_and_collect(completed);
        }
    }
}

impl std::fmt::Debug for LoopCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop")
            .field("driver", &self.driver.borrow().describe().name)
            .field("tasks", &self.tasks.borrow().len())
            .field("ready", &self.ready.borrow().len())
            .field("timers", &self.timers.borrow().live())
            .field("in_flight", &self.ops.borrow().in_flight())
            .field("closed", &self.closed.get())
            .finish()
    }
}

/// Stops the loop's virtual clock while it exists. A thread that works for the loop holds one and drops it after it has
/// sent its result, so that the loop sees the result before time advances.
pub(crate) struct ClockHold(Arc<Inbox<RemoteEvent>>);

impl ClockHold {
    pub(crate) fn belongs_to(&self, core: &LoopCore) -> bool {
        Arc::ptr_eq(&self.0, &core.inbox)
    }
}

impl Drop for ClockHold {
    fn drop(&mut self) {
        drop(self.0.send(RemoteEvent::ReleaseClock));
    }
}

/// Whether an error means that the kernel is short of memory, which is usually temporary.
fn is_shortage(error: &io::Error) -> bool {
    let code = crate::error::os_code(error);
    matches!(code, Some(errno::NO_MEMORY | errno::NO_BUFFERS | errno::AGAIN))
}

/// While this guard lives, its loop is the thread's current loop.
pub(crate) struct Entered {
    core: Rc<LoopCore>,
    outer: *const LoopCore,
    /// Entered in order to run the loop.
    is_run: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        debug_assert!(ptr::eq(CURRENT.get(), &raw const *self.core));
        CURRENT.set(self.outer);
        if self.is_run {
            self.core.end_run();
        }
    }
}
