//! The task's memory and the rules for touching it. The essay is in `mod.rs`.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use super::TaskId;
use super::child_set::Membership;
use super::join::{JoinError, JoinHandle};
use super::local::Locals;
use crate::diagnostics::dump::Waiting;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{Exception, guard, report};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::ready::Ready;
use crate::time::Instant;

/// What a task says that it waits for.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    Task(TaskId),
    Named(&'static str),
}

const QUEUED_REMOTE: usize = 1;
const DONE: usize = 2;
const REF: usize = 4;

/// What every task begins with, whatever its future.
pub(crate) struct Header {
    /// `QUEUED_REMOTE`, `DONE` and the reference count: see `mod.rs`. The only field that other threads change.
    state: AtomicUsize,
    vtable: &'static VTable,
    /// The way to the loop from any thread. Its address also tells whose task this is.
    inbox: Arc<Inbox<RemoteEvent>>,
    id: TaskId,
    /// Boxed twice: few have one, and for the others it is half as large.
    name: Option<Box<Box<str>>>,
    spawned_at: &'static Location<'static>,

    // From here on: touched on the loop's thread only.
    /// It is in the ready deque: see `mod.rs`.
    is_ready: Cell<bool>,
    /// Where the loop's list keeps this task; meaningful until `DONE`.
    place: Cell<u32>,
    cancel_requested: Cell<bool>,
    /// It ends because it failed, which its group knows, and not because it was cancelled.
    failed: Cell<bool>,
    /// It helps with cleaning up, which the end of the loop waits for: it was spawned by who does that.
    helps_to_clean_up: bool,
    /// Whether a join handle exists that has not had the output.
    joinable: Cell<bool>,
    /// Flights that this task left behind and that are still in the air.
    orphans: Cell<u32>,
    /// When it was last polled, about; for dumps. [`NEVER`](Instant::NEVER) if it was not.
    polled_at: Cell<Instant>,
    /// What it waits for that no flight and no timer tells of; for dumps.
    waits_for: Cell<Option<Reason>>,
    /// Who awaits the join handle. Empty once the task is done and its orphans have landed.
    join_waker: Cell<Option<Waker>>,
    /// Its place among those whom somebody waits for. Empty once the task is done and its orphans have landed, so that it is
    /// never dropped on another thread.
    membership: Cell<Option<Membership>>,
    /// Its task-locals. Empty once the task is done, for the same reason.
    locals: Cell<Locals>,
}

impl Header {
    /// Whether there is a seat or a task-local: most tasks have neither, and their end is to cost nothing more.
    #[inline]
    fn has_belongings(&self) -> bool {
        // SAFETY: this is the loop's thread, and nobody borrows what is in the cell: everybody takes it out.
        let has_membership = unsafe { (*self.membership.as_ptr()).is_some() };
        has_membership || !Locals::is_empty(&self.locals)
    }

    #[cold]
    fn take_belongings(&self, has_completed: bool) -> (Option<Membership>, Locals) {
        let membership = match has_completed {
            true => self.membership.take(),
            false => None,
        };
        (membership, self.locals.take())
    }
}

/// A task with its future. `repr(C)`, so that a pointer to it is a pointer to its header.
#[repr(C)]
struct Task<F: Future> {
    header: Header,
    /// Touched on the loop's thread only. The future is pinned: it is dropped where it lies.
    stage: UnsafeCell<Stage<F>>,
}

enum Stage<F: Future> {
    Running(F),
    Finished(Result<F::Output, JoinError>),
    Empty,
}

/// What depends on the future's type. Each takes a task of the type that the table was made for.
struct VTable {
    /// Polls; true when the future is gone and the stage is `Finished`. Loop's thread, not `DONE`, not reentrant.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    /// Drops the future and leaves "cancelled". Loop's thread, not `DONE`, not being polled.
    cancel: unsafe fn(NonNull<Header>),
    /// Moves the output into a `Option<Result<T, JoinError>>`. Loop's thread.
    take_output: unsafe fn(NonNull<Header>, *mut ()),
    /// Drops the output that nobody will take, and gives the panic, if that is what it was. Loop's thread.
    drop_output: unsafe fn(NonNull<Header>) -> Option<Box<dyn Any + Send>>,
    /// Frees the memory. Any thread; the stage is `Empty`.
    free: unsafe fn(NonNull<Header>),
}

impl<F: Future> Task<F> {
    const VTABLE: VTable = VTable {
        poll: Self::poll,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        free: Self::free,
    };

    /// # Safety
    ///
    /// `task` is a live `Task<F>`, this is its loop's thread, and no other reference to the stage exists.
    unsafe fn stage<'a>(task: NonNull<Header>) -> &'a mut Stage<F> {
        // SAFETY: the caller's promise; `repr(C)` puts the header at the task's own address.
        unsafe { &mut *task.cast::<Task<F>>().as_ref().stage.get() }
    }

    unsafe fn poll(task: NonNull<Header>, cx: &mut Context<'_>) -> bool {
        // SAFETY: the vtable's contract: the loop's thread, and polls are not reentrant.
        let stage = unsafe { Self::stage(task) };
        let Stage::Running(future) = stage else {
            unreachable!("a task that is not done has a future")
        };
        // SAFETY: the future lies in the task's box until it is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(JoinError::panicked(RawTask(task).id(), payload)),
        };
        guard("a finished task's destructor", || *stage = Stage::Empty);
        *stage = Stage::Finished(result);
        true
    }

    unsafe fn cancel(task: NonNull<Header>) {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        guard("a cancelled task's destructor", || *stage = Stage::Empty);
        let raw = RawTask(task);
        let error = match raw.header().failed.get() {
            true => JoinError::failed(raw.id()),
            false => JoinError::cancelled(raw.id()),
        };
        *stage = Stage::Finished(Err(error));
    }

    unsafe fn take_output(task: NonNull<Header>, out: *mut ()) {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        if let Stage::Finished(result) = std::mem::replace(stage, Stage::Empty) {
            // SAFETY: the caller passes a pointer to an `Option<Result<F::Output, JoinError>>`.
            unsafe { *out.cast::<Option<Result<F::Output, JoinError>>>() = Some(result) };
        }
    }

    unsafe fn drop_output(task: NonNull<Header>) -> Option<Box<dyn Any + Send>> {
        // SAFETY: the vtable's contract.
        let stage = unsafe { Self::stage(task) };
        match std::mem::replace(stage, Stage::Empty) {
            Stage::Finished(Err(error)) => error.try_into_panic().ok(),
            Stage::Finished(Ok(output)) => {
                guard("a result's destructor", || drop(output));
                None
            }
            Stage::Running(_) | Stage::Empty => None,
        }
    }

    unsafe fn free(task: NonNull<Header>) {
        // SAFETY: `create` made this box, and the caller cleared the last reference.
        drop(unsafe { Box::from_raw(task.cast::<Task<F>>().as_ptr()) });
    }
}

/// Makes a task, puts it into the loop's list and schedules its first poll.
///
/// # Safety
///
/// If the future or its output borrow anything, the caller sees to it that the task is done, and its output taken,
/// before the borrow ends.
pub(crate) unsafe fn spawn_unchecked<F: Future>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    // SAFETY: the caller's promise.
    let (handle, task) = unsafe { create(core, future, name, spawned_at) };
    match core.is_closed() {
        true => task.cancel_now(core),
        false => task.make_ready(core),
    }
    handle
}

/// The same, but its first poll is here and now, as part of the task that spawns it, if [`LoopCore::run_inside`] allows it.
pub(crate) fn spawn_eagerly<F: Future + 'static>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> JoinHandle<F::Output> {
    // SAFETY: the future is `'static`: it borrows nothing that could end.
    let (handle, task) = unsafe { create(core, future, name, spawned_at) };
    match core.is_closed() {
        true => task.cancel_now(core),
        // A subscriber that was called for the spawn may have ended it.
        false if task.is_done() => {}
        false if core.run_inside(|| task.poll(core)) => {}
        false => task.make_ready(core),
    }
    handle
}

/// Makes a task and puts it into the loop's list.
///
/// # Safety
///
/// As for [`spawn_unchecked`].
#[inline]
unsafe fn create<F: Future>(
    core: &LoopCore,
    future: F,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
) -> (JoinHandle<F::Output>, RawTask) {
    // Written where it stays: a future may be large, and would be built on the stack and copied.
    let task = Box::write(
        Box::new_uninit(),
        Task {
            header: Header {
                // The list's reference and the join handle's.
                state: AtomicUsize::new(2 * REF),
                vtable: &Task::<F>::VTABLE,
                inbox: core.inbox.clone(),
                id: core.next_task_id(),
                name: name.map(Box::new),
                spawned_at,
                is_ready: Cell::new(false),
                place: Cell::new(0),
                cancel_requested: Cell::new(false),
                failed: Cell::new(false),
                helps_to_clean_up: core.current_task().is_some_and(RawTask::cleans_up),
                joinable: Cell::new(true),
                orphans: Cell::new(0),
                polled_at: Cell::new(Instant::NEVER),
                waits_for: Cell::new(None),
                join_waker: Cell::new(None),
                membership: Cell::new(None),
                locals: Cell::new(Locals::current()),
            },
            stage: UnsafeCell::new(Stage::Running(future)),
        },
    );
    // SAFETY: a box is never null.
    let header = unsafe { NonNull::new_unchecked(Box::into_raw(task)) }.cast::<Header>();
    let raw = RawTask(header);
    let place = core.tasks.borrow_mut().insert(raw);
    raw.header()
        .place
        .set(u32::try_from(place).expect("a loop holds at most 2^32 tasks"));
    crate::diagnostics::trace::task_spawned(raw.id(), raw.name(), spawned_at);
    (JoinHandle::new(raw), raw)
}

/// A task by its address. Copying it counts no reference: whoever keeps one knows what keeps the task alive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawTask(NonNull<Header>);

impl RawTask {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: whoever holds a `RawTask` holds a reference to the task, or the list does.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn id(self) -> TaskId {
        self.header().id
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.header().name.as_deref().map(|name| &**name)
    }

    pub(crate) fn spawned_at(self) -> &'static Location<'static> {
        self.header().spawned_at
    }

    /// Number, name and place, for reports.
    pub(crate) fn describe(self) -> String {
        let name = self.name().map(|name| format!(" '{name}'")).unwrap_or_default();
        format!("task {}{name}, spawned at {},", self.id(), self.spawned_at())
    }

    /// Whether a waker is one of this task's.
    pub(crate) fn owns(self, waker: &Waker) -> bool {
        waker.data() == self.address() && std::ptr::eq(waker.vtable(), &WAKER)
    }

    /// What its wakers carry.
    pub(crate) fn address(self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }

    /// Whether it will be polled without anybody's doing. Loop's thread.
    pub(crate) fn is_scheduled(self) -> bool {
        self.header().is_ready.get() || self.header().state.load(Acquire) & QUEUED_REMOTE != 0
    }

    pub(crate) fn polled_at(self) -> Option<Instant> {
        Some(self.header().polled_at.get()).filter(|&at| at != Instant::NEVER)
    }

    pub(crate) fn waits_for(self) -> Option<Waiting> {
        match self.header().waits_for.get()? {
            Reason::Task(id) => Some(Waiting::Task(id)),
            Reason::Named(name) => Some(Waiting::Other(name)),
        }
    }

    /// Says what it waits for, until it is polled again. Loop's thread.
    pub(crate) fn set_waits_for(self, reason: Reason) {
        self.header().waits_for.set(Some(reason));
    }

    /// Whether the task is done and everything it left in the air has landed.
    #[inline]
    pub(crate) fn is_finished(self) -> bool {
        self.is_done() && self.header().orphans.get() == 0
    }

    /// Has the task polled, unless that is on its way or it is done. The caller holds a reference. Any thread.
    #[inline]
    fn schedule(self) {
        match LoopCore::try_current() {
            Some(core) if Arc::ptr_eq(&core.inbox, &self.header().inbox) => self.make_ready(core),
            _ => self.events(),
        }
    }

    /// Puts the task on the ready deque unless it is there or done. Loop's thread.
    #[inline]
    fn make_ready(self, core: &LoopCore) {
        let header = self.header();
        if header.is_ready.get() || self.is_done() {
            return;
        }
        header.is_ready.set(true);
        core.ready.borrow_mut().push(Ready::Task(Runnable(self)));
    }

    /// Sends the task to its loop unless it is on its way or done. The caller holds a reference. Any thread.
    #[inline(never)]
    fn events(self) {
        let header = self.header();
        // Only the one bit is looked at, which the processor can set and tell in one instruction.
        if header.state.fetch_or(QUEUED_REMOTE, AcqRel) & QUEUED_REMOTE != 0 {
            return;
        }
        let remote_wake = RemoteWake(self);
        if !self.is_done() {
            // A loop that is gone gives the item back; dropping it here takes the bit away again.
            drop(header.inbox.send(RemoteEvent::Wake(remote_wake)));
        }
    }

    #[inline]
    pub(crate) fn is_done(self) -> bool {
        self.header().state.load(Acquire) & DONE != 0
    }

    /// Asks the task to end at its next suspension point. Loop's thread.
    pub(crate) fn cancel(self) {
        self.header().cancel_requested.set(true);
        self.schedule();
    }

    /// Asks the task that is being polled to end as a failed one once it suspends. Loop's thread.
    pub(crate) fn fail(self) {
        let header = self.header();
        header.failed.set(true);
        header.cancel_requested.set(true);
    }

    /// The task-locals of a task that is not done. Loop's thread.
    #[inline]
    pub(crate) fn locals(&self) -> &Cell<Locals> {
        &self.header().locals
    }

    /// Gives a task that has none its seat, which is dropped when the task is finished. Loop's thread.
    pub(super) fn take_membership(self, membership: Membership) {
        debug_assert!(!self.has_membership());
        match self.is_finished() {
            true => drop(membership),
            false => self.header().membership.set(Some(membership)),
        }
    }

    pub(super) fn has_membership(self) -> bool {
        self.with_membership(|membership| membership.is_some())
    }

    /// Whether it runs what was to be done after a cancel. Loop's thread.
    pub(crate) fn cleans_up(self) -> bool {
        self.header().helps_to_clean_up
            || self.with_membership(|membership| membership.is_some_and(Membership::cleans_up))
    }

    /// Shows the seat, if it has one. What looks at it runs no foreign code. Loop's thread.
    pub(super) fn with_membership<R>(self, look: impl FnOnce(Option<&Membership>) -> R) -> R {
        let cell = &self.header().membership;
        let membership = cell.take();
        let result = look(membership.as_ref());
        cell.set(membership);
        result
    }

    /// Polls a task that is not done, or ends it if its cancel was asked for. Loop's thread, not from inside of its own poll.
    #[inline]
    fn poll(self, core: &LoopCore) {
        let header = self.header();
        // The list's reference keeps the task alive until `finish`.
        if header.cancel_requested.get() {
            self.cancel_now(core);
            return;
        }
        header.polled_at.set(core.times.recent());
        header.waits_for.set(None);
        let outer = core.set_current_task(Some(self));
        debug_assert!(
            outer.is_none_or(|outer| core.is_running(outer)),
            "the outer one is on the list of hosts"
        );
        // SAFETY: the vtable keeps the waker's contract; this one borrows the list's reference and is never dropped.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw_waker(self)) });
        // SAFETY: not done, loop's thread. Turns are not reentrant, and a task that is started inside of another is a new one.
        let finished = unsafe { (header.vtable.poll)(self.0, &mut Context::from_waker(&waker)) };
        core.set_current_task(outer);
        if finished {
            self.finish(core);
        } else if header.cancel_requested.get() {
            // It was asked for while the task ran: this is the suspension point.
            self.cancel_now(core);
        }
    }

    /// Ends a task here and now. If this is called from inside of the task's own poll, or of its destructor, the future is
    /// borrowed: then the task ends when that poll is over, as after [`cancel`](RawTask::cancel). Loop's thread.
    pub(crate) fn cancel_now(self, core: &LoopCore) {
        if self.is_done() {
            return;
        }
        if core.is_running(self) {
            return self.cancel();
        }
        core.run_as(self, || {
            // SAFETY: not done, not being polled, loop's thread. `run_as` keeps others from reaching the stage meanwhile.
            unsafe { (self.header().vtable.cancel)(self.0) }
        });
        self.finish(core);
    }

    /// The future is gone and the output is here: leaves the list, tells who waits.
    ///
    /// No foreign code runs before `DONE` is set: it would find a task that is neither running nor done, and could end it a
    /// second time.
    fn finish(self, core: &LoopCore) {
        let header = self.header();
        let id = header.id;
        let listed = core.tasks.borrow_mut().try_remove(header.place.get() as usize);
        debug_assert!(listed == Some(self));
        let has_completed = header.orphans.get() == 0;
        let waker = match has_completed {
            true => header.join_waker.take(),
            false => None,
        };
        let belongings = header.has_belongings().then(|| header.take_belongings(has_completed));
        match header.joinable.get() {
            true => self.free_if_last(self.become_done()),
            false => self.become_done_alone(),
        }
        // The task may be gone from here on.
        crate::diagnostics::trace::task_ended(id);
        if let Some(waker) = waker {
            guard("a waker", || waker.wake());
        }
        if let Some((membership, locals)) = belongings {
            drop(membership);
            locals.drop_guarded();
        }
    }

    /// Sets `DONE` and gives up the list's reference in one step; or leaves it to the deque, if the task is there. Gives the state
    /// after that.
    fn become_done(self) -> usize {
        let header = self.header();
        let given_up = if header.is_ready.get() { 0 } else { REF };
        let done = |state: usize| state.wrapping_add(DONE).wrapping_sub(given_up);
        let ours = 2 * REF;
        if header.state.load(Acquire) == ours {
            // The list's and the handle's, both on this thread: there is no waker, so nobody else changes the state.
            header.state.store(done(ours), Release);
            return done(ours);
        }
        done(header.state.fetch_add(done(0), AcqRel))
    }

    /// Sets `DONE` for a task without a join handle, and drops its output, which is foreign code: only after `DONE`, and while a
    /// reference is still held, so that the memory is not freed under it or on another thread. Then gives that up.
    fn become_done_alone(self) {
        let header = self.header();
        match (header.state.load(Acquire), header.is_ready.get()) {
            // Only the list's, which is kept until the output is gone. There is no waker, so no other thread changes the state.
            (REF, false) => header.state.store(REF | DONE, Release),
            (_, false) => drop(header.state.fetch_add(DONE, AcqRel)),
            // The deque inherits the list's, and drops it when it likes.
            (_, true) => drop(header.state.fetch_add(DONE + REF, AcqRel)),
        }
        self.drop_output();
        self.drop_ref();
    }

    fn drop_output(self) {
        // SAFETY: the task is done or finishing, and this is the loop's thread.
        let panic = unsafe { (self.header().vtable.drop_output)(self.0) };
        if let Some(payload) = panic {
            report(Exception::task_panic(
                self.id(),
                self.name(),
                self.spawned_at(),
                payload,
            ));
        }
    }

    fn clone_ref(self) {
        let old = self.header().state.fetch_add(REF, Relaxed);
        assert!(old < usize::MAX / 2, "too many wakers of one task");
    }

    /// Gives up one reference. The task may be gone afterwards. Any thread.
    #[inline]
    fn drop_ref(self) {
        let state = &self.header().state;
        // The last one has nobody who would change it meanwhile.
        let left = match state.load(Acquire) {
            last if last & !DONE == REF => last - REF,
            _ => state.fetch_sub(REF, AcqRel) - REF,
        };
        self.free_if_last(left);
    }

    /// Frees the task if `state`, which the caller has just set, holds no reference any more.
    fn free_if_last(self, state: usize) {
        if state & !DONE == 0 {
            // SAFETY: no reference is left, so nobody else can reach the task; its stage is empty, because the list's and
            // the join handle's references went only after the future and the output.
            unsafe { (self.header().vtable.free)(self.0) }
        }
    }

    // What a join handle does; all on the loop's thread.

    #[inline]
    pub(crate) fn poll_join<T>(self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        if !self.is_finished() {
            super::waits_for(Reason::Task(self.id()));
            // Foreign code, inside of which the task may finish: then there is nothing to wait for any more.
            let waker = cx.waker().clone();
            if !self.is_finished() {
                let old = self.header().join_waker.replace(Some(waker));
                drop(old);
                return Poll::Pending;
            }
        }
        let mut out: Option<Result<T, JoinError>> = None;
        // SAFETY: the handle's `T` is the future's output, and the task is done.
        unsafe { (self.header().vtable.take_output)(self.0, (&raw mut out).cast()) };
        self.header().joinable.set(false);
        Poll::Ready(out.expect("a JoinHandle was polled after it had given its result"))
    }

    /// The join handle is gone: its reference is given up, and an output that nobody took is dropped.
    pub(crate) fn detach(self) {
        let header = self.header();
        let is_output_here = header.joinable.replace(false) && self.is_done();
        drop(header.join_waker.take());
        if is_output_here {
            self.drop_output();
        }
        self.drop_ref();
    }
}

/// A task's place in the ready deque. Dropping it unrun gives the place up. Loop's thread.
pub(crate) struct Runnable(RawTask);

impl Runnable {
    pub(crate) fn task(&self) -> RawTask {
        self.0
    }

    /// Gives the place up. True if the task is done, and perhaps gone.
    #[inline]
    fn leave(self) -> bool {
        let task = ManuallyDrop::new(self).0;
        task.header().is_ready.set(false);
        let is_done = task.is_done();
        if is_done {
            // The list's, which `become_done` has left to us.
            task.drop_ref();
        }
        is_done
    }

    /// Polls the task, or ends it if its cancel was asked for.
    #[inline]
    pub(crate) fn run(self, core: &LoopCore) {
        let task = self.0;
        if !self.leave() {
            core.refill_budget();
            task.poll(core);
        }
    }
}

impl Drop for Runnable {
    fn drop(&mut self) {
        Runnable(self.0).leave();
    }
}

/// A task on its way through the letterbox, whose `QUEUED_REMOTE` bit is this one's reference.
pub(crate) struct RemoteWake(RawTask);

// SAFETY: it only carries the task's address from the waker's thread to the loop's, where the task is made ready. Dropping it
// elsewhere touches only the atomic state.
unsafe impl Send for RemoteWake {}

impl RemoteWake {
    /// Puts the task on the ready deque. Loop's thread.
    pub(crate) fn arrive(self, core: &LoopCore) {
        self.0.make_ready(core);
        // The bit goes before the task is polled, so a wake during the poll is mailed again.
        drop(self);
    }
}

impl Drop for RemoteWake {
    fn drop(&mut self) {
        // The bit is set, so taking its value away clears it.
        let old = self.0.header().state.fetch_sub(QUEUED_REMOTE, AcqRel);
        self.0.free_if_last(old - QUEUED_REMOTE);
    }
}

/// An orphan's hold on the task that left it behind: the task is not finished before this is dropped. Loop's thread.
pub(crate) struct Owner(RawTask);

impl Owner {
    pub(crate) fn new(task: RawTask) -> Owner {
        task.clone_ref();
        let orphans = &task.header().orphans;
        orphans.set(orphans.get() + 1);
        Owner(task)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // One after the other, and not each inside of the one before: groups may be nested as deep as memory lasts.
        let mut membership = self.let_go();
        while let Some(left) = membership {
            membership = left.vacate().and_then(|owner| ManuallyDrop::new(owner).let_go());
        }
    }
}

impl Owner {
    /// Gives up the hold, once; gives the seat of a task that is finished by this.
    fn let_go(&mut self) -> Option<Membership> {
        let header = self.0.header();
        header.orphans.set(header.orphans.get() - 1);
        let (waker, membership) = match self.0.is_finished() {
            true => (header.join_waker.take(), header.membership.take()),
            false => (None, None),
        };
        // The task may be gone after this.
        self.0.drop_ref();
        if let Some(waker) = waker {
            guard("a waker", || waker.wake());
        }
        membership
    }

    pub(super) fn task(&self) -> RawTask {
        self.0
    }
}

/// A counted reference to a task, for whoever may cancel it but not join it. Loop's thread.
pub(crate) struct TaskRef(RawTask);

impl TaskRef {
    pub(super) fn new(task: RawTask) -> TaskRef {
        task.clone_ref();
        TaskRef(task)
    }

    pub(super) fn cancel(&self) {
        self.0.cancel();
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        self.0.drop_ref();
    }
}

fn raw_waker(task: RawTask) -> RawWaker {
    RawWaker::new(task.0.as_ptr().cast_const().cast(), &WAKER)
}

static WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| {
        let task = from_waker(data);
        task.clone_ref();
        raw_waker(task)
    },
    |data| {
        let task = from_waker(data);
        task.schedule();
        task.drop_ref();
    },
    |data| from_waker(data).schedule(),
    |data| from_waker(data).drop_ref(),
);

fn from_waker(data: *const ()) -> RawTask {
    // SAFETY: every waker with this vtable was made by `raw_waker`, from a pointer that is not null.
    RawTask(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) })
}
