//! The state of one loop, shared by everything that belongs to it.
//!
//! `EventLoop` owns it; streams, timers and tasks hold a share, and code that runs inside the loop finds it through a
//! thread-local. That thread-local is a bare pointer: it has no destructor, so a loop that somebody keeps in a
//! thread-local of their own can still find it while the thread ends.
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
use crate::event_loop::park::{BusyPoll, Seen};
use crate::event_loop::ready::{Ready, ReadyQueue};
use crate::event_loop::timers::{Action, TimerId, Timers};
use crate::inflight::OpTable;
use crate::inflight::watch::Watcher;
use crate::sys::{self, Fd, SplicePipe, errno};
use crate::task::{Cleanups, Owner, RawTask, RemoteWake, TaskId};
use crate::time::Instant;

/// Operations that may complete synchronously within one poll of a task before results go through the ready deque, so
/// that a task which always finds its data ready cannot starve the others. Tasks that are started at once count too.
const BUDGET: i32 = 64;

/// Refusals through foreign wakers within one poll of a task after which the budget is refilled: see [`LoopCore::is_refilled`].
const REFUSALS: i32 = 64;

/// So many tasks may be started inside of each other: each takes room on the stack.
const MOST_NESTED: usize = 16;

/// How often a loop that looks out looks for mail between two looks at the driver.
const INBOX_CHECKS_PER_POLL: u32 = 8;

/// A loop that has woken too early looks at the driver so often: it waits for its clock, and not for news.
const POLL_EVERY: Duration = Duration::from_micros(50);

/// A clock that has not moved in so many looks does not move while somebody looks.
const POLLS_PER_TICK: u32 = 1000;

/// The pause after a poll that failed for want of memory; it doubles with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(64);

/// Such failures are reported once per episode, and not more often than this.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Polls of the driver that failed for want of memory.
#[derive(Default)]
struct Shortage {
    /// Failures since the last poll that succeeded.
    failures: Cell<u32>,
    reported: Cell<Option<Instant>>,
}

/// What other threads send.
pub(crate) enum RemoteEvent {
    Wake(RemoteWake),
    Call(Box<dyn FnOnce() + Send>),
    Stop,
    /// A thread has carried a flight.
    OpDone(OpId, OsResult),
    /// The pool has room for flights that nobody carries yet.
    PoolHasCapacity,
    /// What the exception handler is to be told, also if this is collected while the loop closes.
    Exception(Exception),
    /// A [`ClockHold`] has ended.
    ReleaseClock,
}

pub(crate) struct LoopCore {
    /// Used through [`driver`](LoopCore::driver), except for what neither uses the kernel nor shared memory.
    pub(crate) driver: RefCell<Box<dyn Driver>>,
    /// The process that made the loop: see `sys::forks`.
    forks: u32,
    /// The driver was left to the parent process.
    is_abandoned: Cell<bool>,
    /// Which numbers the driver uses.
    pub(crate) fd_space: FdSpace,
    pub(crate) has_virtual_clock: bool,
    /// While there are some, virtual time stands still.
    clock_holds: Cell<usize>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) ready: RefCell<ReadyQueue>,
    pub(crate) timers: RefCell<Timers>,
    /// Those that are being polled and have started another one, which runs inside of them: the innermost is the last.
    polling_stack: RefCell<Vec<RawTask>>,
    /// Every task that is not done.
    pub(crate) tasks: RefCell<Slab<RawTask>>,
    pub(crate) inbox: Arc<Inbox<RemoteEvent>>,
    /// Threads for the users' blocking work.
    pub(crate) blocking: Pool,
    /// Threads for files, where the driver cannot do them, and for name look-ups.
    pub(crate) files: Pool,
    /// Flights that found the queue of that pool full.
    pub(crate) waiting_for_pool: RefCell<VecDeque<OpId>>,
    blocking_shutdown: Shutdown,
    /// How long closing waits for operations in flight.
    close_within: Duration,
    /// Foreign descriptors, and whom to call.
    pub(crate) watchers: RefCell<HashMap<(Fd, Direction), Watcher>>,
    /// The standard streams, as far as they were used.
    pub(crate) stdio: crate::io::stdio::Streams,
    /// Who listens to signals on this loop.
    pub(crate) signals: RefCell<Weak<crate::signal::SignalHub>>,
    /// Empty ducts for copies, kept for the next.
    pub(crate) splice_pipes: RefCell<Vec<SplicePipe>>,
    pub(crate) exception_handler: RefCell<Option<ExceptionHandler>>,
    pub(crate) counters: LoopCounters,
    pub(crate) times: LoopTimes,
    busy_poll: BusyPoll,
    shortage: Shortage,
    /// The time by which timers have last fired.
    fired_until: Cell<Instant>,
    /// Debug mode: what runs longer than this is told.
    pub(crate) slow: Option<Duration>,
    pub(crate) cleanups: Cleanups,
    /// Set by `stop`; the loop ends after the current turn.
    pub(crate) stopping: Cell<bool>,
    closed: Cell<bool>,
    current_task: Cell<Option<RawTask>>,
    next_task_id: Cell<u64>,
    /// What is left of the current poll's budget; below zero, the number of refusals through foreign wakers.
    budget: Cell<i32>,
    /// The first foreign waker that was refused in the current poll: its data, which is only compared. Valid while the budget is
    /// below zero.
    refused: Cell<*const ()>,
    /// Kept between turns for their memory.
    completed: Cell<Vec<Completion>>,
    events: Cell<Vec<RemoteEvent>>,
    this: Weak<LoopCore>,
}

pub(crate) type ExceptionHandler = Rc<dyn Fn(&Exception)>;

thread_local! {
    /// The loop that this thread is running, or null. Whoever sets it keeps the loop alive meanwhile.
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
            refused: Cell::new(ptr::null()),
            completed: Cell::default(),
            events: Cell::default(),
            this: this.clone(),
        })
    }

    // The current loop.

    /// The loop that this thread is running.
    #[inline]
    pub(crate) fn try_current<'a>() -> Option<&'a LoopCore> {
        // SAFETY: `Entered` keeps the loop alive while the pointer is set, and takes the pointer back before it lets go.
        // The reference does not outlive the call into user code during which the loop is entered: every caller in
        // this crate uses it at once, or within that call.
        unsafe { CURRENT.get().as_ref() }
    }

    /// The same, for calls that make no sense elsewhere.
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
        self.this.upgrade().expect("a loop that is borrowed is alive")
    }

    /// Makes this the thread's current loop until the guard is dropped.
    pub(crate) fn enter(&self) -> Entered {
        let core = self.rc();
        let outer = CURRENT.replace(&raw const *core);
        Entered {
            core,
            outer,
            runs: false,
        }
    }

    /// The same, to run it: refused while any loop is running here.
    pub(crate) fn enter_to_run(&self) -> io::Result<Entered> {
        if self.is_forked() {
            return Err(crate::error::forked_error());
        }
        // In a forked child, the loop that was running is the parent's.
        if LoopCore::try_current().is_some_and(|current| !current.is_forked()) {
            return Err(io::Error::other(
                "an event loop is already running on this thread: spawn a task instead, or use another thread",
            ));
        }
        if self.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        // An outer loop may have waited for us: from here on nobody need wake it.
        self.inbox.wake_up();
        self.begin_run();
        let mut entered = self.enter();
        entered.runs = true;
        Ok(entered)
    }

    // The steps of a turn.

    /// Step 1: how long the driver may sleep.
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

    /// Threads work in real time: a virtual clock does not jump while one works for the loop. The end of its work wakes the
    /// loop.
    fn clock_stands_still(&self) -> bool {
        self.has_virtual_clock && (self.clock_holds.get() > 0 || self.ops.borrow().uses_threads())
    }

    /// Stops a virtual clock until the hold is dropped, on whichever thread. `None` if the clock is real.
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

    /// The driver. In a forked child that is one that refuses everything: the real one's rings are not even mapped there, and
    /// its epoll instance is the parent's too.
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
        // Its destructor would use what is the parent's.
        std::mem::forget(self.driver.replace(Box::new(closed)));
    }

    /// Step 2: hands over what was started, waits as told, and reaps.
    #[inline]
    pub(crate) fn drive(&self, wait: Wait) -> io::Result<Vec<Completion>> {
        let mut completed = self.completed.take();
        let result = match wait {
            Wait::No | Wait::Look => self.ask(&mut completed, wait),
            Wait::Until(deadline) => self.wait_for_events(&mut completed, Some(deadline)),
            Wait::Forever => self.wait_for_events(&mut completed, None),
        };
        // What landed before an error still landed.
        result.inspect_err(|_| self.complete(&mut completed))?;
        Ok(completed)
    }

    #[inline(always)]
    fn ask(&self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let began = self.begin_poll();
        let result = self.driver().poll(completed, wait);
        if let Some(began) = began {
            self.end_poll(began);
        }
        self.polled(result, completed, wait)
    }

    /// Looks at the result of a poll. A kernel that is short of memory must not end the loop: the poll counts as one that found
    /// nothing, and the loop comes again. If it would have slept, it pauses first, since the next poll may fail as soon.
    #[inline]
    fn polled(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        match result {
            Ok(()) if self.shortage.failures.get() == 0 => Ok(()),
            result => self.polled_in_shortage(result, completed, wait),
        }
    }

    #[cold]
    fn polled_in_shortage(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        let sleeps = matches!(wait, Wait::Until(_) | Wait::Forever);
        let failures = self.shortage.failures.get();
        let error = match result {
            Err(error) if is_shortage(&error) => error,
            // A poll that may not sleep makes no system call where there is nothing to submit: that it succeeds says nothing.
            Ok(()) if !sleeps && completed.is_empty() => return Ok(()),
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
                "the kernel is short of memory; the loop tries again",
                error,
            ));
        }
        if sleeps && !self.has_events(completed) {
            let pause = (FIRST_RETRY * (1 << failures.min(16))).min(LONGEST_RETRY);
            let left = match wait {
                Wait::Until(deadline) => deadline - now,
                Wait::No | Wait::Look | Wait::Forever => LONGEST_RETRY,
            };
            std::thread::sleep(pause.min(left));
        }
        Ok(())
    }

    /// Hands what was started to the kernel, because an outer loop is about to wait for the driver's descriptor. If the kernel
    /// is short of memory, the descriptor becomes readable, so that the outer loop comes again.
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

    /// Whether the driver hands operations that are started together to the kernel with one system call.
    pub(crate) fn submits_in_batches(&self) -> bool {
        self.driver.borrow().submits_in_batches()
    }

    /// Waits until something lands, another thread sends something, or the time is up.
    fn wait_for_events(&self, completed: &mut Vec<Completion>, deadline: Option<Instant>) -> io::Result<()> {
        let began = self.now();
        let ended = match self.busy_poll.ends_at(began) {
            None => self.sleep_until(completed, deadline, began)?,
            Some(end) => {
                let due = deadline.filter(|&deadline| deadline <= end);
                let (seen, now) = self.poll_until(due.unwrap_or(end), Duration::ZERO, completed, began)?;
                self.busy_poll.looked(seen, completed);
                match seen {
                    Seen::Nothing if due.is_none_or(|due| now < due) => self.sleep_until(completed, deadline, now)?,
                    _ => now,
                }
            }
        };
        self.waited(began, ended);
        Ok(())
    }

    /// Sleeps until shortly before the deadline, and looks out for the rest. Gives the time then.
    fn sleep_until(
        &self,
        completed: &mut Vec<Completion>,
        deadline: Option<Instant>,
        began: Instant,
    ) -> io::Result<Instant> {
        let wake_at = deadline.map(|deadline| self.busy_poll.wake_at(deadline, began));
        let mut now = began;
        // Not if it is too near for that.
        if wake_at.is_none_or(|wake_at| wake_at > began) {
            self.sleep(completed, wake_at.map_or(Wait::Forever, Wait::Until))?;
            now = self.now();
            let has_come = self.has_events(completed);
            self.busy_poll.slept(now - began, has_come, completed);
            match wake_at {
                Some(wake_at) if !has_come && now >= wake_at => self.busy_poll.overslept(now - wake_at),
                // Something has come; or a signal, and the loop comes again.
                _ => return Ok(now),
            }
        }
        let Some(deadline) = deadline.filter(|&deadline| now < deadline) else {
            return Ok(now);
        };
        let (seen, now) = self.poll_until(deadline, POLL_EVERY, completed, now)?;
        if matches!(seen, Seen::Nothing) && now < deadline {
            // A driver's own clock, which moves only in sleeps.
            self.sleep(completed, Wait::Until(deadline))?;
        }
        Ok(now)
    }

    /// The only place where the thread sleeps.
    fn sleep(&self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let asleep = self.inbox.fall_asleep();
        let wait = if asleep { wait } else { Wait::Look };
        let result = self.driver().poll(completed, wait);
        if asleep {
            self.inbox.wake_up();
        }
        self.polled(result, completed, wait)
    }

    /// Looks until then whether something was sent, and, every so often, whether something has landed. Gives the time then,
    /// about.
    fn poll_until(
        &self,
        end: Instant,
        every: Duration,
        completed: &mut Vec<Completion>,
        mut now: Instant,
    ) -> io::Result<(Seen, Instant)> {
        let mut seen = Seen::AtOnce;
        let mut standing_still = 0;
        let mut next_look = now + every;
        loop {
            if now >= next_look {
                let result = self.driver().poll(completed, Wait::Look);
                self.polled(result, completed, Wait::Look)?;
                next_look = now + every;
            }
            if self.has_events(completed) {
                return Ok((seen, now));
            }
            if now >= end || standing_still > POLLS_PER_TICK {
                return Ok((Seen::Nothing, now));
            }
            seen = Seen::Later;
            // Mail shows by one word of memory; a look may be a system call.
            for _ in 0..INBOX_CHECKS_PER_POLL {
                if self.inbox.has_events() {
                    return Ok((seen, now));
                }
                std::hint::spin_loop();
            }
            let later = self.now();
            standing_still = if later > now { 0 } else { standing_still + 1 };
            now = later;
        }
    }

    fn has_events(&self, completed: &[Completion]) -> bool {
        !completed.is_empty() || self.inbox.has_events()
    }

    /// Step 3: completions wake their tasks; what other threads sent joins the ready deque.
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

    /// Step 4: timers that are due join the ready deque.
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

    /// Whether every timer with this deadline that was set before this turn's have fired has done so too.
    #[inline]
    pub(crate) fn have_fired_until(&self, deadline: Instant) -> bool {
        deadline < self.fired_until.get()
    }

    /// Step 6, once per entry of the batch.
    #[inline]
    pub(crate) fn run_next(&self) {
        let Some(next) = self.ready.borrow_mut().pop() else {
            return;
        };
        if self.slow.is_some() {
            return self.run_watched(next);
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

    /// A hold on the current task for an orphan that it leaves behind.
    pub(crate) fn current_owner(&self) -> Option<Owner> {
        self.current_task.get().map(Owner::new)
    }

    #[inline]
    pub(crate) fn refill_budget(&self) {
        self.budget.set(BUDGET);
    }

    /// Takes one from the current poll's budget of results that were there at once. When it is used up, the caller's
    /// task is scheduled again, and the caller returns `Pending`. Whoever polls without being a task of this loop has no
    /// budget, since nobody would refill it.
    #[inline]
    pub(crate) fn spend_budget(&self, cx: &mut Context<'_>) -> bool {
        let Some(task) = self.current_task.get() else {
            return true;
        };
        if self.budget.get() <= 0 && !self.is_refilled(task, cx.waker()) {
            cx.waker().wake_by_ref();
            return false;
        }
        self.budget.set(self.budget.get() - 1);
        true
    }

    /// The budget is used up. Refills it if the task's poll goes on nevertheless, driven by an executor inside of it: a foreign
    /// `block_on`, for instance, polls again as soon as its waker is woken, and would do so for ever, because the budget is
    /// refilled only between polls of the task.
    ///
    /// Such an executor has wakers of its own and comes back with the same one: that is what is looked for. One that ends the
    /// task's poll instead (`FuturesUnordered`, `join_all`) asks at most once with each waker. If the first waker that was
    /// refused never comes back, because its future is gone, the number of refusals decides.
    #[cold]
    fn is_refilled(&self, task: RawTask, waker: &Waker) -> bool {
        if task.owns(waker) {
            return false;
        }
        let refusals = -self.budget.get();
        if refusals == 0 {
            self.refused.set(waker.data());
        } else if self.refused.get() == waker.data() || refusals >= REFUSALS {
            self.refill_budget();
            return true;
        }
        self.budget.set(-(refusals + 1));
        false
    }

    /// Carries an operation out here and now, without a flight, if the driver can: see [`Driver::attempt`]. It takes one from
    /// the current poll's budget; `None` if that is used up.
    ///
    /// # Safety
    ///
    /// As for the driver's.
    #[inline]
    pub(crate) unsafe fn attempt(&self, op: Op) -> Option<OsResult> {
        if self.is_spent() {
            return None;
        }
        // SAFETY: the caller's promise.
        let res = unsafe { self.attempt_unpaid(op) }?;
        // Outside of tasks there may be nothing left.
        if self.budget.get() > 0 {
            self.budget.set(self.budget.get() - 1);
        }
        Some(res)
    }

    /// The same for who has already taken one from the budget.
    ///
    /// # Safety
    ///
    /// As for the driver's.
    #[inline]
    pub(crate) unsafe fn attempt_unpaid(&self, op: Op) -> Option<OsResult> {
        // SAFETY: the caller's promise.
        let res = unsafe { self.driver().attempt(op, self.has_little_to_do()) }?;
        crate::diagnostics::trace::op_done_at_once(&op, res);
        Some(res)
    }

    /// Whether hardly anybody else runs in this turn, who might start something to be handed over together with what is done
    /// now.
    #[inline]
    fn has_little_to_do(&self) -> bool {
        self.ready.borrow().len() < 2
    }

    /// Polls a new task through `poll`, inside of the current one, which shares its budget and pays one of it. False if nothing
    /// is left, so that nobody is starved; if too many are inside of each other already; or outside of tasks.
    #[inline]
    pub(crate) fn run_inside(&self, poll: impl FnOnce()) -> bool {
        let (left, nested) = (self.budget.get(), self.polling_stack.borrow().len());
        let Some(host) = self.current_task.get().filter(|_| left > 0 && nested < MOST_NESTED) else {
            return false;
        };
        self.budget.set(left - 1);
        self.polling_stack.borrow_mut().push(host);
        poll();
        self.polling_stack.borrow_mut().pop();
        true
    }

    /// Runs `call` as a part of `task`. A task inside of which this happens goes on counting as running.
    pub(crate) fn run_as(&self, task: RawTask, call: impl FnOnce()) {
        let outer = self.set_current_task(Some(task));
        self.polling_stack.borrow_mut().extend(outer);
        call();
        if outer.is_some() {
            self.polling_stack.borrow_mut().pop();
        }
        self.set_current_task(outer);
    }

    /// Whether a task is being polled, perhaps with another one inside of it.
    pub(crate) fn is_running(&self, task: RawTask) -> bool {
        self.current_task.get() == Some(task) || self.polling_stack.borrow().contains(&task)
    }

    /// Lets others run first if the current poll's budget is used up.
    #[inline]
    pub(crate) fn yield_if_exhausted(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|cx| match self.current_task.get() {
            Some(task) if self.is_spent() && !self.is_refilled(task, cx.waker()) => {
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

    // The end.

    /// Whether the loop has closed. One of a parent process counts as closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get() || self.is_forked()
    }

    /// Cancels every task, lands every flight, and lets the driver go. What does not land in time is leaked: the kernel
    /// may still write there.
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
        // With nothing borrowed: a driver's destructor may be foreign code.
        closed.keep(driver, !reaped_all);
        self.driver.replace(Box::new(closed));
        if !reaped_all {
            report(Exception::error(
                format!(
                    "{} operations did not end within {:?}",
                    self.ops.borrow().in_flight(),
                    self.close_within
                ),
                io::Error::new(io::ErrorKind::TimedOut, "their memory is leaked"),
            ));
        }
        self.splice_pipes.take();
        // Look-ups may take long, and nobody waits for them any more.
        self.files.shutdown(Shutdown::Detach);
        self.blocking.shutdown(self.blocking_shutdown);
        crate::diagnostics::trace::loop_closed();
        // It may hold streams, and those hold this loop.
        let handler = self.exception_handler.take();
        crate::event_loop::exception::guard("the exception handler's destructor", || drop(handler));
    }

    /// Closes a parent's loop in a forked child: what the program made is dropped, and nothing else happens. Operations and
    /// their memory are leaked, since they are the parent's; so are the pools, whose threads do not exist here.
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

    /// Cancels every task that does no cleaning up, so that what is to be cleaned up starts.
    pub(crate) fn cancel_for_cleanup(&self) {
        let mut place = 0;
        while place < self.tasks.borrow().capacity() {
            let task = self.tasks.borrow().get(place).copied();
            if let Some(task) = task.filter(|task| !task.is_cleanup()) {
                task.cancel_now(self);
            }
            place += 1;
        }
    }

    /// A task's destructor may end other tasks but cannot add one: a closed loop cancels at once what is spawned on it.
    pub(crate) fn cancel_tasks(&self) {
        let mut place = 0;
        while place < self.tasks.borrow().capacity() {
            let task = self.tasks.borrow().get(place).copied();
            if let Some(task) = task {
                task.cancel_now(self);
            }
            place += 1;
        }
        // One inside of whose destructor the loop is closed ends when that returns.
        debug_assert!(self.tasks.borrow().iter().all(|(_, &task)| self.is_running(task)));
    }

    /// Drops, one by one and with nothing borrowed, everything that would have run.
    fn drop_scheduled(&self) {
        while let Some(next) = { self.ready.borrow_mut().pop() } {
            crate::event_loop::exception::guard("a callback's destructor", || drop(next));
        }
        while let Some(action) = { self.timers.borrow_mut().pop_any() } {
            crate::event_loop::exception::guard("a callback's destructor", || drop(action));
        }
    }

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
            // A cancel that found its operation between two states, or a flight that a destructor has launched: ask again.
            if completed.is_empty() && !self.inbox.has_events() {
                self.cancel_all_ops();
            }
            self.complete_and_collect(completed);
            // What other threads still send, and what landings wake, nobody will run.
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

    /// Lands what can land although the loop is not running, so that a stream dropped outside of it closes at once.
    pub(crate) fn pump(&self) {
        let is_running = LoopCore::try_current().is_some_and(|current| ptr::eq(current, self));
        if is_running || self.is_closed() {
            return;
        }
        let _entered = self.enter();
        // An error shows again, and is told, when the loop runs.
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
            .field("in_air", &self.ops.borrow().in_flight())
            .field("closed", &self.closed.get())
            .finish()
    }
}

/// Stops its loop's virtual clock for as long as it exists. Work that a thread does for the loop holds one, and drops it after
/// it has woken the loop: so the loop learns of the result before it learns that time goes on.
pub(crate) struct ClockHold(Arc<Inbox<RemoteEvent>>);

impl ClockHold {
    pub(crate) fn is_of(&self, core: &LoopCore) -> bool {
        Arc::ptr_eq(&self.0, &core.inbox)
    }
}

impl Drop for ClockHold {
    fn drop(&mut self) {
        drop(self.0.send(RemoteEvent::ReleaseClock));
    }
}

/// Whether the kernel could not do something for want of memory, which may pass.
fn is_shortage(error: &io::Error) -> bool {
    let code = crate::sys::os_code(error);
    matches!(code, Some(errno::NO_MEMORY | errno::NO_BUFFERS | errno::AGAIN))
}

/// While it lives, its loop is the thread's current one.
pub(crate) struct Entered {
    core: Rc<LoopCore>,
    outer: *const LoopCore,
    /// To run it.
    runs: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        debug_assert!(ptr::eq(CURRENT.get(), &raw const *self.core));
        CURRENT.set(self.outer);
        if self.runs {
            self.core.end_run();
        }
    }
}
