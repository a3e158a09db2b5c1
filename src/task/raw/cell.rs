//! The memory of a task with the type of its future: polling, cancelling and the output, behind a table of functions; and the
//! creation of tasks.

use std::alloc::Layout;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::future::Future;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll};

use super::header::{Origin, PackedReason};
use super::{Ending, Header, REF, RawTask};
use crate::diagnostics::probe::TaskProbe;
use crate::diagnostics::task_span::TaskSpan;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::event_loop::task_key::TaskKey;
use crate::task::join::{JoinError, JoinHandle};
use crate::task::local::Locals;
use crate::task::memory::BlockSize;
use crate::task::unread::UnreadError;
use crate::time::Instant;

const FINISHED_DESTRUCTOR: &str = "a finished task's destructor";

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
pub(super) struct VTable {
    /// Polls the future; true if it is dropped and the stage `Finished`. Loop's thread, not `DONE`, not re-entrant.
    pub(super) poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    /// Drops the future and stores a cancelled or failed result. Loop's thread, not `DONE`, not being polled.
    pub(super) cancel: unsafe fn(NonNull<Header>),
    /// Moves the output into an `Option<Result<T, JoinError>>`. Loop's thread.
    pub(super) take_output: unsafe fn(NonNull<Header>, *mut ()),
    /// Drops an output that no handle will take; returns the failure, if it is one. Loop's thread.
    pub(super) drop_output: unsafe fn(NonNull<Header>) -> Option<Unread>,
    /// The size of the task's memory.
    pub(super) size: BlockSize,
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
pub(super) enum Unread {
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
