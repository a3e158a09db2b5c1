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

mod cell;
mod ending;
mod header;
mod joining;
mod refs;

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::task::{Context, Waker};

use self::cell::VTable;
pub(crate) use self::cell::{create, spawn_on, spawn_unchecked};
use self::header::{Joiner, Origin, PackedReason};
pub(crate) use self::header::{WaitName, WaitReason};
pub(crate) use self::refs::{Owner, RemoteWake, Runnable, TaskRef};
use self::refs::{WAKER, raw_waker};
use super::TaskId;
use super::child_set::Membership;
use super::local::Locals;
use crate::diagnostics::dump::Waiting;
use crate::diagnostics::probe::TaskProbe;
use crate::diagnostics::task_span::{TaskSpan, WakerOp};
use crate::event_loop::core::{LoopCore, RemoteEvent};
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
}
