//! `LoopCore`: the state of one loop.
//!
//! `EventLoop` owns it; streams, timers and tasks hold an `Rc`, and code that runs inside the loop finds it through a
//! thread-local: see `current.rs`.
//!
//! Rule of this crate: no foreign code (wakers, destructors, callbacks) runs while one of these cells is borrowed.

use std::any::{Any, TypeId};
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ptr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::blocking::Pool;
use crate::diagnostics::metrics::{LoopCounters, LoopTimes};
use crate::diagnostics::probe::Probe;
use crate::driver::op::{Direction, Op};
use crate::driver::{
    BufferPool, Closed, Completion, Control, Driver, FdSpace, Job, MessageEntry, OpId, OsResult, Reply,
};
use crate::event_loop::builder::Settings;
use crate::event_loop::exception::Exception;
use crate::event_loop::host::Host;
use crate::event_loop::inbox::Inbox;
use crate::event_loop::loop_id::{LoopId, Registration};
use crate::event_loop::park::Parker;
use crate::event_loop::ready::ReadyQueue;
pub(crate) use crate::event_loop::remote_event::RemoteEvent;
use crate::event_loop::task_key::TaskKey;
use crate::event_loop::task_list::TaskList;
use crate::event_loop::timers::{Action, Timer, TimerId, Timers};
use crate::inflight::watch::Watcher;
use crate::inflight::{OpTable, ReadBatch};
use crate::peer::PeerLink;
use crate::sys::{self, Fd, SplicePipe};
use crate::task::{Cleanups, DropScope, Leftovers, RawTask, TaskId, TaskMemory, UnreadCounts};
use crate::time::Instant;

/// Results that a task may get synchronously within one poll before it has to yield, so that a task whose data is
/// always ready cannot starve the others. A newly spawned task that is polled at once counts as one.
const BUDGET: i32 = 64;

/// After this many refusals through foreign wakers in one poll, [`LoopCore::try_refill_budget`] refills the budget.
const MAX_REFUSALS: i32 = 64;

/// How deep polls of newly spawned tasks may nest: each level takes stack space.
const MAX_NESTED_POLLS: usize = 16;

pub(crate) struct LoopCore {
    /// Use it through [`driver`](LoopCore::driver), except for calls that touch neither the kernel nor shared memory.
    pub(crate) driver: RefCell<Box<dyn Driver>>,
    /// Identifies the process that made the loop: see `sys::forks`.
    forks: u32,
    /// In a forked child: the driver was left to the parent process.
    is_abandoned: Cell<bool>,
    /// Whether the driver's descriptors are kernel descriptors.
    pub(crate) fd_space: FdSpace,
    pub(crate) has_virtual_clock: bool,
    has_system_clock: bool,
    tries_first: bool,
    pub(crate) submits_in_batches: bool,
    pub(crate) read_batch: ReadBatch,
    /// Whether the driver runs blocking jobs itself; `None` before the first job.
    takes_jobs: Cell<Option<bool>>,
    /// The number of [`ClockHold`]s: virtual time stands still while there is one.
    pub(super) clock_holds: Cell<usize>,
    pub(crate) ops: OpTable,
    pub(crate) settings: Settings,
    /// The buffers for managed receives, once a managed receive was started: see [`pool`](LoopCore::pool).
    pub(crate) pool: OnceCell<Option<Rc<BufferPool>>>,
    /// The buffers for large receives, once there was one.
    pub(crate) large_pool: OnceCell<Option<Rc<BufferPool>>>,
    pub(crate) ready: ReadyQueue,
    pub(crate) timers: Timers,
    /// Tasks whose poll is interrupted by the nested poll of a newly spawned task; the innermost is the last.
    polling_stack: RefCell<Vec<RawTask>>,
    /// Every task that has not finished.
    pub(crate) tasks: TaskList,
    pub(crate) task_memory: TaskMemory,
    pub(crate) inbox: Arc<Inbox<RemoteEvent>>,
    /// Threads for the user's blocking work.
    pub(crate) blocking: Pool,
    /// Threads for name look-ups, and for file operations that the driver cannot perform.
    pub(crate) files: Pool,
    /// Operations that found the queue of `files` full.
    pub(crate) waiting_for_pool: RefCell<VecDeque<OpId>>,
    /// The callbacks of `add_reader` and `add_writer`.
    pub(crate) watchers: RefCell<HashMap<(Fd, Direction), Watcher>>,
    pub(crate) stdio: crate::io::stdio::Streams,
    pub(crate) signals: RefCell<Weak<crate::signal::SignalHub>>,
    /// Empty pipes, kept for the next splice.
    pub(crate) splice_pipes: RefCell<Vec<SplicePipe>>,
    pub(crate) exception_handler: RefCell<Option<ExceptionHandler>>,
    /// The outer loop that this one is embedded in, if it wants to be woken.
    pub(crate) host: Host,
    /// Whether the last flush armed the next deadline in the kernel.
    pub(super) arms_deadlines: Cell<bool>,
    /// Whether `EventLoop::enter` was called.
    pub(super) was_entered: Cell<bool>,
    pub(crate) counters: LoopCounters,
    pub(crate) times: LoopTimes,
    /// What the console measures.
    pub(crate) probe: Probe,
    pub(super) parker: Parker,
    /// The loop's time when timers last fired.
    pub(super) fired_until: Cell<Instant>,
    /// Debug mode on a real clock: callbacks and polls that take longer than this are reported.
    pub(crate) slow: Option<Duration>,
    pub(crate) cleanups: Cleanups,
    /// Set by `stop`; the loop ends after the current turn.
    pub(crate) stopping: Cell<bool>,
    pub(super) closed: Cell<bool>,
    /// The loop was closed by `EventLoop::abandon`.
    pub(crate) crashed: Cell<bool>,
    current_task: Cell<Option<RawTask>>,
    /// The values of [`LoopLocal`](crate::LoopLocal).
    pub(crate) local_values: RefCell<HashMap<TypeId, Rc<dyn Any>>>,
    /// The loop's place in a pool of loops, if it has one.
    pub(crate) peers: OnceCell<Rc<dyn PeerLink>>,
    /// Decides which branch a `select!` polls first.
    pub(crate) branch_seed: Cell<u32>,
    pub(crate) unread_errors: RefCell<UnreadCounts>,
    /// Set while a combinator drops a future: see [`Leftovers`](crate::task::Leftovers).
    pub(crate) drop_scope: Cell<Option<DropScope>>,
    /// What expired timeouts wait for.
    pub(crate) leftovers: RefCell<Slab<Leftovers>>,
    next_task_id: Cell<u64>,
    /// The budget left in the current poll; below zero, minus the number of refusals through foreign wakers.
    budget: Cell<i32>,
    /// The data pointer of the first foreign waker refused in the current poll; only compared, never dereferenced.
    /// Valid while the budget is below zero.
    refused_waker: Cell<*const ()>,
    /// These two are kept between turns to reuse their memory.
    pub(super) completed: Cell<Vec<Completion>>,
    pub(super) events: Cell<Vec<RemoteEvent>>,
    registration: Registration,
    this: Weak<LoopCore>,
}

pub(crate) type ExceptionHandler = Rc<dyn Fn(&Exception)>;

impl LoopCore {
    pub(crate) fn new(driver: Box<dyn Driver>, settings: Settings) -> Rc<LoopCore> {
        let has_virtual_clock = driver.has_virtual_clock();
        let inbox = Arc::new(Inbox::new(driver.notifier()));
        let blocking = Pool::with_settings("blocking", settings.blocking);
        let files = Pool::with_settings("files", settings.files);
        let slack = match has_virtual_clock || settings.precise_timers {
            true => Duration::ZERO,
            false => settings.timer_slack,
        };
        Rc::new_cyclic(|this| LoopCore {
            forks: sys::count_forks(),
            is_abandoned: Cell::new(false),
            fd_space: driver.fd_space(),
            has_virtual_clock,
            has_system_clock: driver.has_system_clock(),
            tries_first: driver.tries_first(),
            submits_in_batches: driver.submits_in_batches(),
            read_batch: ReadBatch::default(),
            takes_jobs: Cell::new(None),
            clock_holds: Cell::new(0),
            ops: OpTable::default(),
            pool: OnceCell::new(),
            large_pool: OnceCell::new(),
            ready: ReadyQueue::default(),
            timers: Timers::new(slack, has_virtual_clock),
            polling_stack: RefCell::default(),
            tasks: TaskList::default(),
            task_memory: TaskMemory::default(),
            registration: Registration::new(this, &inbox),
            probe: Probe::new(&*driver, &inbox, [&blocking, &files]),
            inbox,
            blocking,
            files,
            waiting_for_pool: RefCell::default(),
            watchers: RefCell::default(),
            stdio: Default::default(),
            signals: RefCell::default(),
            splice_pipes: RefCell::default(),
            exception_handler: RefCell::default(),
            host: Host::default(),
            arms_deadlines: Cell::new(false),
            was_entered: Cell::new(false),
            counters: LoopCounters::default(),
            times: LoopTimes::new(driver.now()),
            parker: Parker::new(&settings, has_virtual_clock),
            fired_until: Cell::new(Instant::from_origin(Duration::ZERO)),
            slow: (settings.debug && !has_virtual_clock || settings.watches_entries).then_some(settings.slow_callback),
            settings,
            cleanups: Cleanups::default(),
            stopping: Cell::new(false),
            closed: Cell::new(false),
            crashed: Cell::new(false),
            current_task: Cell::new(None),
            local_values: RefCell::default(),
            peers: OnceCell::new(),
            branch_seed: Cell::new(0x9E37_79B9),
            unread_errors: RefCell::default(),
            drop_scope: Cell::default(),
            leftovers: RefCell::default(),
            next_task_id: Cell::new(1),
            budget: Cell::new(BUDGET),
            refused_waker: Cell::new(ptr::null()),
            completed: Cell::default(),
            events: Cell::default(),
            this: this.clone(),
            driver: RefCell::new(driver),
        })
    }

    #[inline]
    pub(crate) fn id(&self) -> LoopId {
        self.registration.id
    }

    pub(crate) fn rc(&self) -> Rc<LoopCore> {
        self.this.upgrade().expect("a borrowed loop is alive")
    }

    /// Stops a virtual clock until the hold is dropped, on any thread. `None` if the clock is real.
    pub(crate) fn hold_clock(&self) -> Option<ClockHold> {
        if !self.has_virtual_clock || self.is_closed() {
            return None;
        }
        self.clock_holds.set(self.clock_holds.get() + 1);
        Some(ClockHold(self.inbox.clone()))
    }

    // Blocking jobs.

    /// Passes a job to the driver: see [`Driver::offload`].
    pub(crate) fn offload(&self, job: Job) -> Result<(), Job> {
        let result = self.driver().offload(job);
        self.takes_jobs.set(Some(result.is_ok()));
        result
    }

    /// Whether the driver has not refused a job yet.
    pub(crate) fn may_take_jobs(&self) -> bool {
        self.takes_jobs.get() != Some(false)
    }

    /// Whether the driver runs jobs itself.
    pub(crate) fn takes_jobs(&self) -> bool {
        self.takes_jobs.get() == Some(true)
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
    pub(super) fn abandon_driver(&self) {
        if self.is_abandoned.replace(true) {
            return;
        }
        let closed = Closed::after(&**self.driver.borrow(), true);
        // Its destructor would use resources of the parent.
        std::mem::forget(self.driver.replace(Box::new(closed)));
    }

    // For tasks and futures.

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        let now = match self.has_system_clock {
            true => sys::monotonic(),
            false => self.driver.borrow().now(),
        };
        self.times.set_recent(now);
        now
    }

    pub(crate) fn control(&self, call: Control<'_>) -> io::Result<Reply> {
        self.driver().control(call)
    }

    pub(crate) fn add_timer(&self, when: Instant, action: Action) -> Timer {
        if self.has_unaware_host() {
            return self.add_timer_hosted(when, action);
        }
        self.timers.add(self.times.recent(), when, action)
    }

    /// As `add_timer`, between turns: wakes the outer loop if the timer is due before all others.
    #[cold]
    fn add_timer_hosted(&self, when: Instant, action: Action) -> Timer {
        // The loop's recent time may be that of a turn long ago.
        let now = self.now();
        self.change_timers_hosted(|timers| timers.add(now, when, action))
    }

    /// Wakes the outer loop if the change makes a timer due before all others.
    #[cold]
    fn change_timers_hosted<R>(&self, change: impl FnOnce(&Timers) -> R) -> R {
        let before = self.timers.exact_wake();
        let result = change(&self.timers);
        let first = self.timers.exact_wake();
        if first.is_some() && first != before {
            self.queued();
        }
        result
    }

    /// [`add_timer`](LoopCore::add_timer) in the most frequent case: see [`Timers::try_add_wake_task`].
    #[inline(always)]
    pub(crate) fn try_add_wake_timer<const LONG: bool>(&self, when: Instant, key: TaskKey) -> Option<Timer> {
        match self.has_unaware_host() {
            false => self.timers.try_add_wake_task::<LONG>(self.times.recent(), when, key),
            true => None,
        }
    }

    /// Changes the deadline of a timer, and its id: see [`Timers::reset`].
    pub(crate) fn reset_timer(&self, id: TimerId, when: Instant) -> Option<Timer> {
        let now = self.now();
        match self.has_unaware_host() {
            false => self.timers.reset(now, id, when),
            true => self.change_timers_hosted(|timers| timers.reset(now, id, when)),
        }
    }

    /// Cancels a timer. Nothing is called and no register saved if it wakes a task.
    ///
    /// # Safety
    ///
    /// This loop's timers made it.
    #[inline(never)]
    pub(crate) unsafe fn cancel_timer_fast(&self, timer: Timer) {
        // SAFETY: the caller's promise.
        if !unsafe { self.timers.cancel_wake_task(timer) } {
            self.cancel_timer(timer.id);
        }
    }

    #[cold]
    pub(crate) fn cancel_timer(&self, id: TimerId) {
        drop(self.timers.cancel(id));
    }

    pub(crate) fn next_task_id(&self) -> TaskId {
        let id = self.next_task_id.get();
        self.next_task_id.set(id + 1);
        TaskId(id)
    }

    pub(crate) fn current_task(&self) -> Option<RawTask> {
        self.current_task.get()
    }

    /// The current task, if it is polled with a waker of its own, and not by a combinator with another.
    #[inline]
    pub(crate) fn task_polled_with(&self, cx: &Context<'_>) -> Option<RawTask> {
        self.current_task().filter(|task| task.owns(cx.waker()))
    }

    /// The task that this thread is polling.
    #[inline]
    pub(crate) fn running_task() -> Option<RawTask> {
        LoopCore::try_current()?.current_task()
    }

    #[inline]
    pub(crate) fn set_current_task(&self, task: Option<RawTask>) -> Option<RawTask> {
        self.current_task.replace(task)
    }

    #[inline]
    pub(crate) fn refill_budget(&self) {
        self.budget.set(BUDGET);
    }

    /// Takes one from the current poll's budget. When it is used up, wakes the task and returns false: the caller must
    /// return `Pending`. Outside of tasks there is no limit, since nothing would refill the budget.
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

    /// [`spend_budget`](LoopCore::spend_budget) in the most frequent case: in a task with budget left. False in other cases.
    #[inline]
    pub(crate) fn try_spend_budget(&self) -> bool {
        let left = self.budget.get();
        let may_spend = left > 0 && self.current_task.get().is_some();
        if may_spend {
            self.budget.set(left - 1);
        }
        may_spend
    }

    /// Refills a spent budget if an executor nested inside the task's poll would otherwise livelock. A foreign
    /// `block_on`, for instance, polls again as soon as its waker is woken, and would do so forever: the budget is
    /// refilled only between polls of the task, and that poll never ends.
    ///
    /// Such an executor is recognized by a foreign waker that is refused twice in one poll of the task. Combinators
    /// that let that poll end (`FuturesUnordered`, `join_all`) use each waker at most once. If the first refused waker
    /// is not seen again because its future was dropped, the number of refusals decides.
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

    /// Performs an operation synchronously, without a slot, if the driver can: see [`Driver::attempt`].
    /// Takes one from the current poll's budget; `None` if that is used up.
    /// Safety: as for [`Driver::attempt`].
    #[inline]
    pub(crate) unsafe fn attempt(&self, op: &Op) -> Option<OsResult> {
        if self.is_spent() {
            return None;
        }
        // SAFETY: the caller's promise.
        let res = unsafe { self.attempt_unbudgeted(op) }?;
        self.charge_budget();
        Some(res)
    }

    /// As `attempt`, for a caller that has already spent from the budget.
    /// Safety: as for [`Driver::attempt`].
    #[inline]
    pub(crate) unsafe fn attempt_unbudgeted(&self, op: &Op) -> Option<OsResult> {
        // SAFETY: the caller's promise.
        let res = unsafe { self.driver().attempt(op, self.is_nearly_idle()) }?;
        crate::diagnostics::trace::op_done_at_once(op, res);
        Some(res)
    }

    /// Receives or sends a batch of datagrams synchronously: see [`Driver::recv_batch`] and [`Driver::send_batch`]. Takes
    /// one from the current poll's budget; 0 if that is used up.
    ///
    /// # Safety
    ///
    /// As for the driver's method.
    pub(crate) unsafe fn batch(&self, fd: Fd, direction: Direction, entries: &mut [MessageEntry]) -> usize {
        if self.is_spent() {
            return 0;
        }
        let (name, count) = match direction {
            // SAFETY: the caller's promise.
            Direction::Read => ("recv_batch", unsafe { self.driver().recv_batch(fd, entries) }),
            // SAFETY: the caller's promise.
            Direction::Write => ("send_batch", unsafe { self.driver().send_batch(fd, entries) }),
        };
        if count > 0 {
            self.charge_budget();
            crate::diagnostics::trace::batch_done(name, fd, count);
        }
        count
    }

    /// Takes one from the budget. Outside of tasks the budget may be zero.
    #[inline]
    fn charge_budget(&self) {
        if self.budget.get() > 0 {
            self.budget.set(self.budget.get() - 1);
        }
    }

    /// Whether an attempt at a send may succeed.
    #[inline]
    pub(crate) fn may_attempt(&self) -> bool {
        self.tries_first || self.is_nearly_idle()
    }

    /// Whether fewer than two tasks are ready, so that batching submissions would not save a system call.
    #[inline]
    fn is_nearly_idle(&self) -> bool {
        self.ready.len() < 2
    }

    /// Polls a new task through `poll`, nested in the poll of the current task and on its budget. False if the budget
    /// is spent, if polls are nested too deep, or outside of tasks.
    #[inline]
    pub(crate) fn run_inside(&self, poll: impl FnOnce()) -> bool {
        let Some(host) = self.current_task.get() else {
            return false;
        };
        let (left, nested) = (self.budget.get(), self.polling_stack.borrow().len());
        if left <= 0 || nested >= MAX_NESTED_POLLS {
            return false;
        }
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

    /// Whether the loop has closed. In a forked child, the parent's loop counts as closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get() || self.is_forked()
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
