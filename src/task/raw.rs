//! The task cell: one block of memory with a header and the future or its output, and the types that point to it.
//!
//! The block is managed by hand because wakers may outlive the task and may be cloned, woken and dropped on any
//! thread, while the future and its output are usually not `Send`. The rule that makes this sound: **the loop's thread
//! owns everything in the cell except `state`; other threads own only reference counts.**
//!
//! # References
//!
//! | type | counted | held by |
//! |---|---|---|
//! | the task list | yes, until `DONE` | `LoopCore::tasks` |
//! | [`JoinHandle`] | yes | the spawner, or a `JoinSet`, which keeps it as a bare pointer; not `Send` |
//! | [`Waker`] | yes, each clone | anything, on any thread |
//! | [`RemoteWake`] | the `QUEUED_REMOTE` bit is its reference | the inbox |
//! | [`Owner`] | yes | each orphaned operation, and each child set that the task took over |
//! | [`TaskRef`] | yes | the child set that the task is a member of |
//! | [`Runnable`] | no: the list's reference keeps the task alive | the ready queue |
//! | [`RawTask`] | no: a plain pointer | code that knows which of the above keeps the task alive |
//!
//! A `Runnable` can still be queued when its task becomes `DONE`. The list then leaves its reference to the `Runnable`,
//! which drops it on leaving the queue. The waker passed to `poll` borrows the list's reference and is never dropped.
//!
//! # State bits
//!
//! `state` is the only field that several threads modify. Bit 0 is `QUEUED_REMOTE`, bit 1 is `DONE`, the rest is the
//! reference count in units of `REF`.
//!
//! - `QUEUED_REMOTE`: a [`RemoteWake`] for this task is in the inbox. A wake from another thread, or from this thread
//!   while the loop does not run, sets it and sends the `RemoteWake`; while it is set, such wakes do nothing. The loop
//!   clears it after it has queued the task and before it polls the task, so a wake during the poll sends a new
//!   `RemoteWake`. If the inbox is closed or the task is `DONE`, the waker that set the bit clears it again. It must
//!   not be cleared by anything but the drop of the `RemoteWake`, because it counts as a reference.
//! - `DONE`: the future is dropped and will not be polled again. Set once, on the loop's thread, by
//!   [`RawTask::become_done`], together with giving up the list's reference. It is never cleared, and never set while
//!   the future exists. Wakes of a `DONE` task do nothing.
//!
//! Wakes on the loop's thread do not modify `state`: `is_ready` is true while a `Runnable` is queued, so any number of
//! wakes before a poll cause one poll.
//!
//! `DONE` is not *finished*. A task is finished when it is `DONE` and its orphan count is zero: no operation that it
//! started is in flight, and every child set that it took over is empty. Join handles and child sets wait for finished.
//!
//! # Field access
//!
//! - `vtable`, `inbox`, `id_high`, `key`, `origin` and the id in `span`: written before the task is shared, then read only. Wakers
//!   read `inbox` and that id on any thread.
//! - The cells of the header: loop's thread only. The user's code (wakers, destructors) never runs while a cell's
//!   content is borrowed: contents are taken out first.
//! - `stage`: loop's thread only, through the vtable. `Running` while the future exists, then `Finished` until the join
//!   handle takes or drops the output, then `Empty`. `poll` and `cancel` hold `&mut Stage` while the user's code runs;
//!   `DONE` is set after they return, and the join handle checks it before it reaches the stage.
//!
//! # Freeing
//!
//! Whichever thread drops the last reference frees the task. At that point `stage` is `Empty` and `joiner`,
//! `membership`, `locals` and `span` are `None` or empty: the list's reference goes after the future is dropped, and the join
//! handle's after the output is. Nothing that is not `Send` is left for another thread to drop. On the loop's thread, the
//! block is kept for the next task of its size: see `memory.rs`.

mod header;
mod refs;

use std::alloc::Layout;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Context, Poll, Waker};

use self::header::{Joiner, Origin, PackedReason};
pub(crate) use self::header::{WaitName, WaitReason};
pub(crate) use self::refs::{Owner, RemoteWake, Runnable, TaskRef};
use self::refs::{WAKER, raw_waker};
use super::TaskId;
use super::child_set::Membership;
use super::join::{JoinError, JoinHandle};
use super::local::Locals;
use super::memory::{self, BlockSize};
use super::unread::UnreadError;
use crate::diagnostics::dump::Waiting;
use crate::diagnostics::probe::TaskProbe;
use crate::diagnostics::task_span::{TaskSpan, WakerOp};
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, guard, report};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::task_key::TaskKey;
use crate::time::Instant;

/// Why a task that was ended by a cancel has no output.
#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Cancelled,
    /// It is a child of a group, which has its error.
    Failed,
    /// It was spawned in a group that had failed or ended.
    Refused,
}

const FINISHED_DESTRUCTOR: &str = "a finished task's destructor";

const QUEUED_REMOTE: u32 = 1;
const DONE: u32 = 2;
const REF: u32 = 4;

/// The part of a task that does not depend on the future's type. What a poll touches is in the first 64 bytes.
#[repr(C)]
pub(crate) struct Header {
    /// `QUEUED_REMOTE`, `DONE` and the reference count. The only field that other threads modify.
    state: AtomicU32,
    /// The upper half of the id; the lower one is in `key`.
    id_high: u32,
    /// This and the other cells: loop's thread only. Operations and child sets that this task left behind and that have not ended. Not finished while above zero.
    orphans: Cell<u32>,
    /// Whether a [`Runnable`] of this task is in the ready queue.
    is_ready: Cell<bool>,
    cancel_requested: Cell<bool>,
    /// Why the task has no output, if it ends by a cancel.
    ending: Cell<Ending>,
    /// Whether a join handle exists that has not taken the output.
    joinable: Cell<bool>,
    vtable: &'static VTable,
    /// Where wakes from other threads go. Its address also identifies the loop that the task belongs to.
    inbox: Arc<Inbox<RemoteEvent>>,
    /// The index in the loop's task list, valid until `DONE`, and the lower half of the id. One word, because every operation
    /// and every timer stores it.
    key: Cell<TaskKey>,
    /// The approximate time of the last poll, for dumps; [`NEVER`](Instant::NEVER) before the first.
    polled_at: Cell<Instant>,
    /// For dumps: what the task waits for, where no operation or timer shows it.
    wait_reason: Cell<PackedReason>,
    /// Where the task was spawned, its name, and whether a cleanup task spawned it: the loop's shutdown waits for it then.
    origin: Origin,

    /// Woken when the task is finished. Empty from then on.
    joiner: Cell<Joiner>,
    /// Membership in a child set. Empty once the task is finished, so that another thread never drops it.
    membership: Cell<Option<Membership>>,
    /// Task-locals. Empty once the task is `DONE`, for the same reason.
    locals: Cell<Locals>,
    /// For `tracing`. Except for its id: accessed on the loop's thread only.
    span: TaskSpan,
    /// What the console measures.
    probe: TaskProbe,
}

/// The allocation. `repr(C)`, so that a pointer to the task is a pointer to its header.
#[repr(C)]
struct Task<F: Future> {
    header: Header,
    /// Loop's thread only. The future is pinned: it is dropped in place.
    stage: UnsafeCell<Stage<F>>,
}

enum Stage<F: Future> {
    Running(F),
    Finished(Result<F::Output, JoinError>),
    Empty,
}

/// The functions that depend on the future's type. Each requires a task of the type that the table was made for.
struct VTable {
    /// Polls the future; true if it is dropped and the stage `Finished`. Loop's thread, not `DONE`, not re-entrant.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    /// Drops the future and stores a cancelled or failed result. Loop's thread, not `DONE`, not being polled.
    cancel: unsafe fn(NonNull<Header>),
    /// Moves the output into an `Option<Result<T, JoinError>>`. Loop's thread.
    take_output: unsafe fn(NonNull<Header>, *mut ()),
    /// Drops an output that no handle will take; returns the failure, if it is one. Loop's thread.
    drop_output: unsafe fn(NonNull<Header>) -> Option<Unread>,
    /// The size of the task's memory.
    size: BlockSize,
}

impl<F: Future> Task<F> {
    const VTABLE: VTable = VTable {
        poll: Self::poll,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        size: Self::SIZE,
    };

    const SIZE: BlockSize = BlockSize::of(Layout::new::<Task<F>>());

    /// # Safety
    ///
    /// `task` is a live `Task<F>`, this is its loop's thread, and no other reference to the stage exists.
    unsafe fn stage<'a>(task: NonNull<Header>) -> &'a mut Stage<F> {
        // SAFETY: the caller's promise; `repr(C)` puts the header at the task's address.
        unsafe { &mut *task.cast::<Task<F>>().as_ref().stage.get() }
    }

    unsafe fn poll(task: NonNull<Header>, cx: &mut Context<'_>) -> bool {
        // SAFETY: the vtable's contract: the loop's thread, and polls are not re-entrant.
        let stage = unsafe { Self::stage(task) };
        let Stage::Running(future) = stage else {
            unreachable!("a task without DONE has a future")
        };
        let future = &raw mut *future;
        let (mut output, mut is_ready) = (MaybeUninit::uninit(), false);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the future stays in the task's memory until it is dropped in place.
            if let Poll::Ready(value) = unsafe { Pin::new_unchecked(&mut *future) }.poll(cx) {
                output.write(value);
                is_ready = true;
                // SAFETY: whether this panics or not, nothing uses the future again: the stage is overwritten below.
                unsafe { ptr::drop_in_place(future) };
            }
        }));
        let result = match polled {
            Ok(()) if !is_ready => return false,
            // SAFETY: it was written before `is_ready` was set.
            Ok(()) => Ok(unsafe { output.assume_init() }),
            Err(payload) if is_ready => {
                report(Exception::panic(FINISHED_DESTRUCTOR, payload));
                // SAFETY: as above.
                Ok(unsafe { output.assume_init() })
            }
            Err(payload) => {
                // SAFETY: it was not dropped, and is overwritten below.
                guard(FINISHED_DESTRUCTOR, || unsafe { ptr::drop_in_place(future) });
                Err(JoinError::panicked(RawTask(task).id(), payload))
            }
        };
        // SAFETY: the future is dropped, so nothing that has to be dropped is overwritten.
        unsafe { ptr::write(stage, Stage::Finished(result)) };
        true
    }

    unsafe fn cancel(task: NonNull<Header>) {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        guard("a cancelled task's destructor", || *stage = Stage::Empty);
        let raw = RawTask(task);
        let error = match raw.header().ending.get() {
            Ending::Cancelled => JoinError::cancelled(raw.id()),
            Ending::Failed => JoinError::failed(raw.id()),
            Ending::Refused => JoinError::refused(raw.id()),
        };
        *stage = Stage::Finished(Err(error));
    }

    unsafe fn take_output(task: NonNull<Header>, out: *mut ()) {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        if let Some(result) = Self::take_result(stage) {
            // SAFETY: the caller passes a pointer to an `Option<Result<F::Output, JoinError>>`, which is `None`.
            unsafe { out.cast::<Option<Result<F::Output, JoinError>>>().write(Some(result)) };
        }
    }

    /// The result, unless it was taken. Does not move the rest of the stage, which is as large as the future.
    #[inline]
    fn take_result(stage: &mut Stage<F>) -> Option<Result<F::Output, JoinError>> {
        let Stage::Finished(result) = stage else {
            return None;
        };
        // SAFETY: the result is moved out, and overwritten without being dropped.
        unsafe {
            let result = ptr::read(result);
            ptr::write(stage, Stage::Empty);
            Some(result)
        }
    }

    unsafe fn drop_output(task: NonNull<Header>) -> Option<Unread> {
        // SAFETY: the vtable's contract.
        unsafe { Self::drop_output_with(task, drop) }
    }

    /// As `drop_output`; `drop_value` gets the output of a task that did not panic.
    unsafe fn drop_output_with(task: NonNull<Header>, drop_value: impl FnOnce(F::Output)) -> Option<Unread> {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        match Self::take_result(stage)? {
            Err(error) => error.try_into_panic().ok().map(Unread::Panic),
            Ok(output) => {
                guard("a result's destructor", || drop_value(output));
                None
            }
        }
    }
}

impl<F: Future + 'static> Task<F> {
    /// For futures that borrow nothing: an `Err` that is dropped unread is reported.
    const REPORTING: VTable = VTable {
        drop_output: Self::drop_output_reporting,
        ..Self::VTABLE
    };

    unsafe fn drop_output_reporting(task: NonNull<Header>) -> Option<Unread> {
        let mut unread = None;
        // SAFETY: the vtable's contract.
        let panic = unsafe { Self::drop_output_with(task, |output| unread = UnreadError::of(output)) };
        panic.or(unread.map(Unread::Error))
    }
}

/// A failure that no join handle has taken.
enum Unread {
    Panic(Box<dyn Any + Send>),
    Error(UnreadError),
}

/// Creates a task, lists it and schedules its first poll. On a closed loop the task is cancelled unpolled.
pub(crate) fn spawn_on<F: Future + 'static>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    let handle = create(core, future, name, spawned_at);
    handle.raw().start(core);
    handle
}

/// Creates a task and adds it to the loop's list. The caller starts it.
#[inline]
pub(crate) fn create<F: Future + 'static>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    // SAFETY: the future is `'static`, so neither it nor its output borrows anything.
    unsafe { create_unchecked(core, future, &Task::<F>::REPORTING, name, spawned_at) }
}

/// As [`spawn_on`], for a future that may borrow. An `Err` output that is not taken is dropped.
///
/// # Safety
///
/// If the future or its output borrows anything, the task must be done and its output taken before the borrow ends.
pub(crate) unsafe fn spawn_unchecked<F: Future>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    // SAFETY: the caller's promise.
    let handle = unsafe { create_unchecked(core, future, &Task::<F>::VTABLE, name, spawned_at) };
    handle.raw().start(core);
    handle
}

/// # Safety
///
/// As for [`spawn_unchecked`]. `vtable` is one of the tables of `Task<F>`.
#[inline]
unsafe fn create_unchecked<F: Future>(
    core: &LoopCore,
    future: F,
    vtable: &'static VTable,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    let id = core.next_task_id();
    // Here, because a subscriber is foreign code, and no task exists yet that it could find half made.
    let span = TaskSpan::new(id, name.as_deref(), spawned_at, size_of::<F>());
    let is_cleanup_helper = core.current_task().is_some_and(RawTask::is_cleanup);
    let origin = Origin::new(spawned_at, name, is_cleanup_helper);
    let locals = Cell::new(Locals::current());
    let probe = TaskProbe::new(core);
    let (block, inbox) = core.task_memory.take(Task::<F>::SIZE, &core.inbox);
    let raw = RawTask(block.cast());
    // SAFETY: the block has the size and alignment of a `Task<F>`. Written in place: a large future would otherwise be built
    // on the stack and copied.
    unsafe {
        block.cast::<Task<F>>().write(Task {
            header: Header {
                // The list's reference and the join handle's.
                state: AtomicU32::new(2 * REF),
                id_high: (id.0 >> 32) as u32,
                orphans: Cell::new(0),
                is_ready: Cell::new(false),
                cancel_requested: Cell::new(false),
                ending: Cell::new(Ending::Cancelled),
                joinable: Cell::new(true),
                vtable,
                inbox,
                key: Cell::new(TaskKey::NONE),
                polled_at: Cell::new(Instant::NEVER),
                wait_reason: Cell::new(PackedReason::NONE),
                origin,
                joiner: Cell::default(),
                membership: Cell::new(None),
                locals,
                span,
                probe,
            },
            stage: UnsafeCell::new(Stage::Running(future)),
        });
    }
    raw.header().key.set(TaskKey::new(core.tasks.insert(raw), id.0));
    crate::diagnostics::trace::task_spawned(raw.id(), raw.name(), spawned_at);
    JoinHandle::new(raw)
}

/// A pointer to a task. Copies are not counted: the holder knows which reference keeps the task alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawTask(NonNull<Header>);

impl RawTask {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: a counted reference, or the list's, keeps the task alive while a `RawTask` to it is used.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn id(self) -> TaskId {
        let header = self.header();
        TaskId(u64::from(header.id_high) << 32 | header.key.get().low_id())
    }

    #[inline]
    pub(crate) fn name(&self) -> Option<&str> {
        self.header().origin.name()
    }

    pub(crate) fn spawned_at(self) -> &'static Location<'static> {
        self.header().origin.spawned_at()
    }

    /// Id, name and spawn location, for reports.
    pub(crate) fn describe(self) -> String {
        format!("{}, spawned at {},", self.title(), self.spawned_at())
    }

    /// Id and name, for reports.
    pub(crate) fn title(self) -> String {
        let name = self.name().map(|name| format!(" '{name}'")).unwrap_or_default();
        format!("task {}{name}", self.id())
    }

    /// Whether the task belongs to this loop.
    pub(crate) fn is_of(self, core: &LoopCore) -> bool {
        Arc::ptr_eq(&core.inbox, &self.header().inbox)
    }

    /// The inbox of the task's loop.
    pub(crate) fn inbox(&self) -> &Arc<Inbox<RemoteEvent>> {
        &self.header().inbox
    }

    /// Whether `waker` is one of this task's.
    pub(crate) fn owns(self, waker: &Waker) -> bool {
        waker.data() == self.address() && std::ptr::eq(waker.vtable(), &WAKER)
    }

    /// For waiters of this loop. Valid until the task is done.
    #[inline]
    pub(crate) fn key(self) -> TaskKey {
        self.header().key.get()
    }

    /// The data pointer of the task's wakers.
    pub(crate) fn address(self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }

    /// Whether a poll is already scheduled. Loop's thread.
    pub(crate) fn is_scheduled(self) -> bool {
        self.header().is_ready.get() || self.header().state.load(Acquire) & QUEUED_REMOTE != 0
    }

    pub(crate) fn polled_at(self) -> Option<Instant> {
        Some(self.header().polled_at.get()).filter(|&at| at != Instant::NEVER)
    }

    pub(crate) fn wait_reason(self) -> Option<Waiting> {
        match self.header().wait_reason.get().get()? {
            WaitReason::Task(id) => Some(Waiting::Task(id)),
            WaitReason::Named(name) => Some(Waiting::Other(name)),
            WaitReason::Call { shard, hop } => Some(Waiting::Call {
                shard: shard as usize,
                hop,
            }),
        }
    }

    /// Sets the wait reason, which the next poll clears. Loop's thread.
    pub(crate) fn set_wait_reason(self, reason: WaitReason) {
        self.header().wait_reason.set(PackedReason::new(reason));
    }

    /// Whether the task is done and everything it left behind has ended.
    #[inline]
    pub(crate) fn is_finished(self) -> bool {
        self.is_done() && self.header().orphans.get() == 0
    }

    /// Schedules a poll, unless one is scheduled or the task is done. The caller holds a reference. Any thread.
    #[inline]
    fn schedule(self) {
        match LoopCore::try_running() {
            Some(core) if self.is_of(core) => self.make_ready(core),
            _ => self.schedule_from_outside(),
        }
    }

    /// Schedules a poll from another thread, or between turns of the loop.
    #[inline(never)]
    fn schedule_from_outside(self) {
        match LoopCore::try_entered() {
            Some(core) if self.is_of(core) => {
                self.make_ready(core);
                core.queued();
            }
            // If the loop is not running, this also notifies an outer event loop that drives it.
            _ => self.send_remote_wake(),
        }
    }

    /// Reports an operation on a waker of this task to `tracing`. The caller holds a reference. Any thread.
    #[inline]
    fn trace_waker(self, op: WakerOp) {
        self.header().span.waker(op, || self.is_done());
    }

    /// As `schedule`, for a caller that has the task's loop and no waker. The task may have ended on return: a `tracing`
    /// subscriber is called last. Loop's thread.
    #[inline]
    pub(crate) fn schedule_on(self, core: &LoopCore) {
        let span = self.header().span.id();
        match core.is_running_here() {
            true => self.make_ready(core),
            false => self.schedule_from_outside(),
        }
        span.woken();
    }

    /// Schedules the first poll. On a closed loop the task is cancelled unpolled.
    #[inline]
    fn start(self, core: &LoopCore) {
        match core.is_closed() {
            true => self.cancel_now(core),
            false => {
                self.make_ready(core);
                core.queued();
            }
        }
    }

    /// As `start`, but polls the task before returning, inside the caller, if [`LoopCore::run_inside`] allows it.
    pub(super) fn start_eagerly(self, core: &LoopCore) {
        // A `tracing` subscriber called for the spawn may have ended the task.
        let may_poll = !core.is_closed() && !self.is_done();
        let poll = || {
            self.header().probe.count_nested_poll(core);
            self.poll(core);
        };
        if !may_poll || !core.run_inside(poll) {
            self.start(core);
        }
    }

    /// Starts a new task from a callback: polls it now, as if it had been in the ready queue. Inside of a task, as `start`.
    pub(crate) fn start_now(self, core: &LoopCore) {
        if core.is_closed() || self.is_done() || core.current_task().is_some() {
            return self.start(core);
        }
        core.refill_budget();
        self.header().probe.count_nested_poll(core);
        self.poll(core);
    }

    /// What the console measures. Loop's thread.
    #[cfg(feature = "console")]
    #[inline]
    pub(crate) fn probe(&self) -> &TaskProbe {
        &self.header().probe
    }

    /// The task that made the child set that this task is a member of. Loop's thread.
    #[cfg(feature = "console")]
    pub(crate) fn group_creator(self) -> Option<TaskId> {
        self.with_membership(|membership| membership?.creator())
    }

    /// Puts the task into the ready queue unless it is there or done. Loop's thread.
    #[inline]
    fn make_ready(self, core: &LoopCore) {
        let header = self.header();
        if header.is_ready.get() || self.is_done() {
            return;
        }
        header.is_ready.set(true);
        core.ready.push_task(Runnable(self));
    }

    /// Sends a wake to the loop unless one is queued or the task is done. The caller holds a reference. Any thread.
    #[inline(never)]
    fn send_remote_wake(self) {
        let header = self.header();
        // Tests one bit only, so that x86 needs a single `lock bts` and no compare-exchange loop.
        if header.state.fetch_or(QUEUED_REMOTE, AcqRel) & QUEUED_REMOTE != 0 {
            return;
        }
        let remote_wake = RemoteWake(self);
        if !self.is_done() {
            // A closed inbox returns the item; dropping it clears the bit.
            drop(header.inbox.send(RemoteEvent::Wake(remote_wake)));
        }
    }

    #[inline]
    pub(crate) fn is_done(self) -> bool {
        self.header().state.load(Acquire) & DONE != 0
    }

    /// Requests that the task end at its next suspension point. Loop's thread.
    pub(crate) fn cancel(self) {
        self.header().cancel_requested.set(true);
        self.schedule();
    }

    /// Makes the task that is being polled end as failed once it suspends. Loop's thread.
    pub(crate) fn fail(self) {
        let header = self.header();
        header.ending.set(Ending::Failed);
        header.cancel_requested.set(true);
    }

    /// Sets why the task has no output, for a caller that cancels it next. Loop's thread.
    pub(super) fn set_ending(self, ending: Ending) {
        self.header().ending.set(ending);
    }

    /// The task-locals of a task that is not done. Loop's thread.
    #[inline]
    pub(crate) fn locals(&self) -> &Cell<Locals> {
        &self.header().locals
    }

    /// Stores the membership of a task that has none, until the task is finished. Loop's thread.
    pub(super) fn set_membership(self, membership: Membership) {
        debug_assert!(!self.has_membership());
        match self.is_finished() {
            true => drop(membership.leave()),
            false => self.header().membership.set(Some(membership)),
        }
    }

    /// Removes the membership of a task that leaves its set before it is finished. Loop's thread.
    pub(super) fn clear_membership(self) {
        drop(self.header().membership.take());
    }

    pub(super) fn has_membership(self) -> bool {
        self.with_membership(|membership| membership.is_some())
    }

    /// Whether this task runs an `on_cancel` cleanup, or was spawned by a task that does. Loop's thread.
    #[inline]
    pub(crate) fn is_cleanup(self) -> bool {
        self.header().origin.is_cleanup_helper()
            || self.with_membership(|membership| membership.is_some_and(Membership::is_cleanup))
    }

    /// Reads the membership, if there is one. `read` must not run the user's code. Loop's thread.
    #[inline]
    pub(super) fn with_membership<R>(self, read: impl FnOnce(Option<&Membership>) -> R) -> R {
        let cell = &self.header().membership;
        let membership = cell.take();
        let result = read(membership.as_ref());
        cell.set(membership);
        result
    }

    /// Polls a task that is not done, or cancels it if that was requested. Loop's thread, not from inside its own poll.
    #[inline]
    fn poll(self, core: &LoopCore) {
        let header = self.header();
        // The list's reference keeps the task alive until `finish`.
        if header.cancel_requested.get() {
            self.cancel_now(core);
            return;
        }
        header.polled_at.set(core.times.recent());
        header.wait_reason.set(PackedReason::NONE);
        let outer = core.set_current_task(Some(self));
        debug_assert!(
            outer.is_none_or(|outer| core.is_running(outer)),
            "the outer task is on the polling stack"
        );
        // SAFETY: `WAKER` upholds the waker contract; this waker borrows the list's reference and is never dropped.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw_waker(self)) });
        // SAFETY: not done, loop's thread. Turns are not re-entrant, and a task polled inside another one is new.
        let poll = || unsafe { (header.vtable.poll)(self.0, &mut Context::from_waker(&waker)) };
        let finished = header.span.in_scope(poll);
        core.set_current_task(outer);
        if finished {
            self.finish(core);
        } else if header.cancel_requested.get() {
            // Cancel was requested during the poll: this is the suspension point.
            self.cancel_now(core);
        }
    }

    /// Cancels a task immediately. Inside the task's own poll or destructor the future is borrowed: the task then ends
    /// when that returns, as after [`cancel`](RawTask::cancel). Loop's thread.
    pub(crate) fn cancel_now(self, core: &LoopCore) {
        if self.is_done() {
            return;
        }
        if core.is_running(self) {
            return self.cancel();
        }
        core.run_as(self, || {
            // SAFETY: not done, not being polled, loop's thread. `run_as` keeps other code away from the stage.
            unsafe { (self.header().vtable.cancel)(self.0) }
        });
        self.finish(core);
    }

    /// Called when the future is dropped and the output stored: delists the task, sets `DONE` and wakes the joiner.
    ///
    /// No foreign code runs before `DONE` is set: it would find a task that is neither running nor done, and could end
    /// it a second time.
    fn finish(self, core: &LoopCore) {
        let header = self.header();
        let id = self.id();
        let listed = core.tasks.remove(header.key.get().index());
        debug_assert!(listed == Some(self));
        // With orphans, the last `Owner` takes these.
        let (joiner, membership) = match header.orphans.get() {
            0 => (header.joiner.take(), header.membership.take()),
            _ => (Joiner::default(), None),
        };
        let (locals, span) = (header.locals.take(), header.span.take());
        match header.joinable.get() {
            true => self.free_if_last(self.become_done()),
            false => self.become_done_alone(),
        }
        // The task may be freed from here on.
        crate::diagnostics::trace::task_ended(id);
        span.close();
        joiner.wake(core);
        drop(membership.and_then(Membership::leave));
        locals.drop_guarded();
    }

    /// Sets `DONE` and gives up the list's reference in one step, or leaves that reference to the `Runnable` if one is
    /// queued. Returns the new state.
    #[inline]
    fn become_done(self) -> u32 {
        let header = self.header();
        let given_up = if header.is_ready.get() { 0 } else { REF };
        let done = |state: u32| state.wrapping_add(DONE).wrapping_sub(given_up);
        let ours = 2 * REF;
        if header.state.load(Acquire) == ours {
            // The only references are the list's and the handle's, both of this thread: no other can modify `state`.
            header.state.store(done(ours), Release);
            return done(ours);
        }
        done(header.state.fetch_add(done(0), AcqRel))
    }

    /// Sets `DONE` for a task without a join handle, then drops its output, then its reference. The output's
    /// destructor is foreign code: it runs after `DONE`, and while that reference keeps the memory alive.
    fn become_done_alone(self) {
        let header = self.header();
        match (header.state.load(Acquire), header.is_ready.get()) {
            // The list's is the only reference. There is no waker, so no other thread can modify `state`.
            (REF, false) => header.state.store(REF | DONE, Release),
            (_, false) => drop(header.state.fetch_add(DONE, AcqRel)),
            // The queued `Runnable` inherits the list's reference, so this function takes one of its own.
            (_, true) => drop(header.state.fetch_add(DONE + REF, AcqRel)),
        }
        self.drop_output();
        self.drop_ref();
    }

    fn drop_output(self) {
        // SAFETY: the task is done or finishing, and this is the loop's thread.
        let unread = unsafe { (self.header().vtable.drop_output)(self.0) };
        match unread {
            None => {}
            Some(Unread::Panic(payload)) => report(Exception::task_panic(self, payload)),
            Some(Unread::Error(error)) => error.report_of_task(self),
        }
    }

    fn clone_ref(self) {
        let old = self.header().state.fetch_add(REF, Relaxed);
        assert!(old < u32::MAX / 2, "too many wakers of one task");
    }

    /// Drops one reference. The task may be freed by this. Any thread.
    #[inline]
    fn drop_ref(self) {
        let state = &self.header().state;
        // The holder of the last reference is alone: no other thread can modify `state`.
        let left = match state.load(Acquire) {
            last if last & !DONE == REF => last - REF,
            _ => state.fetch_sub(REF, AcqRel) - REF,
        };
        self.free_if_last(left);
    }

    /// Frees the task if `state`, the caller's new value, counts no reference.
    #[inline]
    fn free_if_last(self, state: u32) {
        if state & !DONE == 0 {
            // SAFETY: no reference is left, so nothing else can reach the task. The stage is empty: the list's
            // reference went after the future was dropped, the join handle's after the output was.
            unsafe { self.free() }
        }
    }

    /// Frees the task. Any thread.
    ///
    /// # Safety
    ///
    /// No reference is left, and the stage is empty.
    unsafe fn free(self) {
        let header = self.0.as_ptr();
        // SAFETY: the caller's promise. Of the other fields that have a destructor, those of the loop's thread are empty: see
        // "Freeing" above.
        let (size, inbox) = unsafe {
            debug_assert!(matches!((*header).joiner.take(), Joiner::Task(TaskKey::NONE)));
            debug_assert!((*header).membership.take().is_none() && (*header).locals.take().is_empty());
            ptr::drop_in_place(&raw mut (*header).origin);
            ptr::drop_in_place(&raw mut (*header).span);
            ((*header).vtable.size, ptr::read(&raw const (*header).inbox))
        };
        let block = self.0.cast();
        match LoopCore::try_running() {
            // SAFETY: `create` took the block from this loop's memory with this size, and nothing uses it any more.
            Some(core) if Arc::ptr_eq(&core.inbox, &inbox) => unsafe { core.task_memory.keep(size, block, inbox) },
            // SAFETY: as above.
            _ => unsafe { memory::free(size, block, inbox) },
        }
    }

    // The join handle's operations; all on the loop's thread.

    #[inline]
    pub(crate) fn poll_join<T>(self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        if !self.is_finished() && self.register_joiner(cx) {
            return Poll::Pending;
        }
        let mut out: Option<Result<T, JoinError>> = None;
        // SAFETY: the handle's `T` is the future's output type, and the task is done.
        unsafe { (self.header().vtable.take_output)(self.0, (&raw mut out).cast()) };
        self.header().joinable.set(false);
        Poll::Ready(out.expect("JoinHandle polled after it returned its result"))
    }

    /// Makes the current task, or the waker, wait for this task. False if this task is finished.
    fn register_joiner(self, cx: &mut Context<'_>) -> bool {
        let core = LoopCore::try_current();
        let joiner = core
            .filter(|core| self.is_of(core))
            .and_then(|core| core.task_polled_with(cx));
        let joiner = match joiner {
            Some(joiner) => {
                joiner.set_wait_reason(WaitReason::Task(self.id()));
                Joiner::Task(joiner.key())
            }
            None => {
                super::set_wait_reason(WaitReason::Task(self.id()));
                // Foreign code: the task may finish inside it, and then there is nothing to wait for.
                let waker = cx.waker().clone();
                if self.is_finished() {
                    return false;
                }
                Joiner::Waker(waker)
            }
        };
        // A waker's destructor, if there was one, is foreign code: the task may finish inside it, and wakes the new joiner.
        drop(self.header().joiner.replace(joiner));
        true
    }

    /// Drops the join handle's reference, and the output if it was not taken.
    pub(crate) fn detach(self) {
        let header = self.header();
        let is_output_here = header.joinable.replace(false) && self.is_done();
        drop(header.joiner.take());
        if is_output_here {
            self.drop_output();
        }
        self.drop_ref();
    }
}
