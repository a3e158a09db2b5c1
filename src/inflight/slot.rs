//! The slot of an operation: its state and all memory that the driver and the kernel use, at one fixed address.
//!
//! The kernel writes to an operation's memory asynchronously, so that memory must neither move nor be freed before the
//! completion, even if the future is dropped, leaked or unwound. A slot never moves and is freed with its table. It
//! holds:
//!
//! - the op, built in place and lent to the driver as `&Op`;
//! - the payload: all data that must live as long as the kernel works, such as the buffer and a reference to the
//!   descriptor. Up to 64 bytes are stored inline, larger payloads are boxed;
//! - the driver's scratch.
//!
//! The rest are cells, so a `&OpSlot` may exist at any time. While the operation is in flight, only the driver uses the
//! payload and the scratch, through raw pointers, and nothing writes the op.

use std::cell::{Cell, UnsafeCell};
use std::mem::{MaybeUninit, align_of, size_of};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;

use crate::blocking::JobId;
use crate::driver::op::Op;
use crate::driver::{OpId, OpResult, SCRATCH_LEN, Scratch};
use crate::event_loop::task_key::TaskKey;
use crate::inflight::descriptor::Descriptor;
use crate::task::Owner;

#[repr(C, align(64))]
pub(crate) struct OpSlot {
    /// The id of the operation in this slot, or of the next one if it is free.
    pub(super) id: Cell<OpId>,
    /// Valid in the state `Done`.
    pub(super) result: Cell<OpResult>,
    pub(super) state: Cell<State>,
    /// What a completion has to do besides waking `task`: 0, or a combination of the constants below.
    pub(super) flags: Cell<u8>,
    pub(super) on_orphan: Cell<OnOrphan>,
    pub(super) cancel_requested: Cell<bool>,
    /// The task to wake. A task of another executor is in `OpRare::waker`.
    pub(super) task: Cell<TaskKey>,
    op: UnsafeCell<Op>,
    pub(super) drop_payload: Cell<Option<unsafe fn(*mut u8)>>,
    /// Bytes in front of the op's buffer that earlier operations received for the same call.
    pub(super) prefix: Cell<usize>,
    /// The next slot of the list of free ones.
    pub(super) next_free: Cell<Option<NonNull<OpSlot>>>,
    /// Allocated on first need, then kept for later operations.
    pub(super) rare: Cell<Option<Box<OpRare>>>,
    payload: UnsafeCell<MaybeUninit<[u64; PAYLOAD_LEN / 8]>>,
    scratch: UnsafeCell<Scratch>,
}

/// The future was dropped.
pub(super) const ORPHANED: u8 = 1;
/// `OpRare::listener` is set.
pub(super) const HAS_LISTENER: u8 = 2;
/// `OpRare::owner` is set.
pub(super) const HAS_OWNER: u8 = 4;
/// `OpRare::executor` is set: the driver does not perform the operation.
pub(super) const OFF_DRIVER: u8 = 8;
/// `OpRare::descriptor` is set.
pub(super) const HAS_DESCRIPTOR: u8 = 16;
/// `OpRare::waker` is set.
pub(super) const HAS_WAKER: u8 = 32;

const _: () = assert!(size_of::<OpSlot>() <= if cfg!(windows) { 384 } else { 256 });

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Passed to the driver or the pool; not completed.
    InFlight,
    /// Completed; the payload has not been taken.
    Done,
}

/// What happens to an operation when its future is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOrphan {
    /// It stays in its queue: the next read returns its result.
    Keep,
    /// Its payload is dropped as soon as it completes.
    Discard,
}

/// The parts of a slot that few operations need.
#[derive(Default)]
pub(super) struct OpRare {
    /// What to wake, if it is no task of this loop or is polled with a waker of its own.
    pub(super) waker: Option<Waker>,
    pub(super) listener: Option<Rc<dyn Listener>>,
    /// The task whose join waits until this orphan has completed.
    pub(super) owner: Option<Owner>,
    pub(super) executor: Executor,
    /// Kept open until the operation has completed.
    pub(super) descriptor: Option<Rc<Descriptor>>,
}

/// Called when an operation completes, instead of waking a task: once, with nothing borrowed.
pub(crate) trait Listener {
    fn completed(self: Rc<Self>);
}

/// What performs an operation in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Executor {
    #[default]
    Driver,
    /// A pool thread, as this job.
    Pool(JobId),
    /// Nothing yet: the pool's queue was full.
    Unassigned,
}

/// Payloads of up to this many bytes are stored inline.
const PAYLOAD_LEN: usize = 64;

impl OpSlot {
    pub(super) fn new(index: u32) -> OpSlot {
        OpSlot {
            id: Cell::new(OpId::new(index, 0)),
            result: Cell::new(OpResult::new(Ok(0))),
            state: Cell::new(State::Free),
            flags: Cell::new(0),
            on_orphan: Cell::new(OnOrphan::Discard),
            cancel_requested: Cell::new(false),
            task: Cell::new(TaskKey::NONE),
            next_free: Cell::new(None),
            op: UnsafeCell::new(Op::Accept { fd: -1 }),
            drop_payload: Cell::new(None),
            prefix: Cell::new(0),
            rare: Cell::new(None),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
            scratch: UnsafeCell::new(Scratch([MaybeUninit::uninit(); SCRATCH_LEN])),
        }
    }

    #[inline]
    pub(super) fn is_in_flight(&self) -> bool {
        self.state.get() == State::InFlight
    }

    /// The operation.
    #[inline]
    pub(super) fn op(&self) -> &Op {
        // SAFETY: `set_op` writes only when no operation is in flight. No borrow lasts that long: the driver's ends with
        // the completion, and other callers copy the op or use it at once.
        unsafe { &*self.op.get() }
    }

    /// Stores the op of a slot whose operation is not in flight.
    #[inline]
    pub(super) fn set_op(&self, op: Op) {
        debug_assert!(!self.is_in_flight());
        // SAFETY: only a driver keeps a pointer to the op, while the operation is in flight.
        unsafe { self.op.get().write(op) };
    }

    pub(super) fn scratch(&self) -> *mut Scratch {
        self.scratch.get()
    }

    pub(super) fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    /// Reads or changes the rare parts. `access` runs no user code.
    pub(super) fn with_rare<R>(&self, access: impl FnOnce(&mut OpRare) -> R) -> R {
        let mut rare = self.rare.take().unwrap_or_default();
        let result = access(&mut rare);
        self.rare.set(Some(rare));
        result
    }

    /// Forgets what waits for the operation, and returns the waker, whose destructor is user code.
    pub(super) fn take_waiter(&self) -> Option<Waker> {
        self.task.set(TaskKey::NONE);
        if !self.has_flag(HAS_WAKER) {
            return None;
        }
        self.clear_flag(HAS_WAKER);
        self.with_rare(|rare| rare.waker.take())
    }

    pub(super) fn clear_flag(&self, flag: u8) {
        self.flags.set(self.flags.get() & !flag);
    }

    pub(super) fn set_flag(&self, flag: u8) {
        self.flags.set(self.flags.get() | flag);
    }

    pub(super) fn has_flag(&self, flag: u8) -> bool {
        self.flags.get() & flag != 0
    }
}

const fn fits<T>() -> bool {
    size_of::<T>() <= PAYLOAD_LEN && align_of::<T>() <= align_of::<u64>()
}

/// Moves a payload to its final address and returns that address.
///
/// # Safety
///
/// `slot` is the payload pointer of a free slot.
#[inline]
pub(super) unsafe fn store_payload<T>(slot: *mut u8, payload: T) -> *mut T {
    if fits::<T>() {
        let slot = slot.cast::<T>();
        // SAFETY: it fits, and the slot is empty.
        unsafe { slot.write(payload) };
        slot
    } else {
        let boxed = Box::into_raw(Box::new(payload));
        // SAFETY: a pointer fits, and the slot is empty.
        unsafe { slot.cast::<*mut T>().write(boxed) };
        boxed
    }
}

/// The address of a payload that `store_payload::<T>` stored in this slot.
///
/// # Safety
///
/// The payload was not taken since.
#[inline]
pub(super) unsafe fn payload_ptr<T>(slot: *mut u8) -> *mut T {
    match fits::<T>() {
        true => slot.cast(),
        // SAFETY: the caller's promise; `store_payload` put a box's pointer here.
        false => unsafe { slot.cast::<*mut T>().read() },
    }
}

/// Moves a payload out of its slot.
///
/// # Safety
///
/// `store_payload::<T>` filled this slot, the payload was not taken since, and the kernel is done with it.
#[inline]
pub(super) unsafe fn take_payload<T>(slot: *mut u8) -> T {
    if fits::<T>() {
        // SAFETY: the caller's promise.
        unsafe { slot.cast::<T>().read() }
    } else {
        // SAFETY: the caller's promise; `store_payload` put a box's pointer here.
        unsafe { *Box::from_raw(slot.cast::<*mut T>().read()) }
    }
}

/// [`take_payload`] as a function pointer for the table, which does not know the type; the same safety rules apply.
pub(super) unsafe fn drop_payload<T>(slot: *mut u8) {
    // SAFETY: the caller's promise, which is that of `take_payload`.
    drop(unsafe { take_payload::<T>(slot) });
}
