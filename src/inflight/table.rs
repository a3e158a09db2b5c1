//! The table of operations in flight, and of completed ones whose result has not been taken.

use std::cell::Cell;
use std::ptr::NonNull;
use std::task::Waker;

use super::slot::{Executor, HAS_WAKER, OFF_DRIVER, OpSlot, State};
use crate::copy_vec::CopyVec;
use crate::driver::op::{FileOp, Op};
use crate::driver::{Control, OpId, OsResult};
use crate::event_loop::exception::guard;
use crate::event_loop::task_key::TaskKey;
use crate::sys::Fd;

/// Slots are recycled, so after warm-up an operation allocates nothing. They are allocated in chunks, which saves the
/// allocator's padding of each. A chunk with a slot still in flight when the table is dropped is leaked: closing a ring
/// does not wait for its operations, and a leak is harmless where a write to freed memory is not.
#[derive(Default)]
pub(crate) struct OpTable {
    /// The slots of all chunks, one chunk after the other.
    slots: CopyVec<NonNull<OpSlot>>,
    /// The first free slot. The others follow by `OpSlot::next_free`.
    free: Cell<Option<NonNull<OpSlot>>>,
    pub(super) in_flight: Cell<usize>,
    /// The operations in flight that the driver does not perform.
    pub(super) off_driver: Cell<usize>,
}

impl OpTable {
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Whether pool threads perform some of the operations in flight, or will.
    pub(crate) fn uses_threads(&self) -> bool {
        self.off_driver.get() > 0
    }

    /// Sets what performs an operation that the driver could not start without blocking.
    pub(super) fn set_executor(&self, id: OpId, executor: Executor) {
        let Some(slot) = self.slot(id) else { return };
        slot.with_rare(|rare| rare.executor = executor);
        if !slot.has_flag(OFF_DRIVER) {
            slot.set_flag(OFF_DRIVER);
            self.off_driver.set(self.off_driver.get() + 1);
        }
    }

    /// How many slots are in use: in flight, or completed and not taken.
    pub(crate) fn taken(&self) -> usize {
        self.slots().filter(|slot| slot.state.get() != State::Free).count()
    }

    /// The slot of an operation that is in flight or whose result has not been taken.
    #[inline]
    pub(super) fn slot(&self, id: OpId) -> Option<&OpSlot> {
        // SAFETY: slots are freed with the table, which is borrowed.
        let slot = unsafe { self.slots.get(id.index())?.as_ref() };
        (slot.id.get() == id && slot.state.get() != State::Free).then_some(slot)
    }

    /// Takes a free slot.
    #[inline]
    pub(super) fn reserve(&self) -> &OpSlot {
        let Some(slot) = self.free.get() else {
            return self.grow();
        };
        // SAFETY: as in `slot`.
        let slot = unsafe { slot.as_ref() };
        self.free.set(slot.next_free.get());
        slot
    }

    #[cold]
    fn grow(&self) -> &OpSlot {
        let len = self.slots.len() as u32;
        assert!(
            len <= OpId::MAX_INDEX - CHUNK,
            "more than 16 million operations at once"
        );
        let chunk: Box<[OpSlot]> = (len..len + CHUNK).map(OpSlot::new).collect();
        // The pointers are made from that of the chunk, with which `drop` frees it.
        let chunk = NonNull::from(Box::leak(chunk)).cast::<OpSlot>();
        for index in 0..CHUNK as usize {
            // SAFETY: the index is within the chunk.
            self.slots.push(unsafe { chunk.add(index) });
        }
        for index in (1..CHUNK as usize).rev() {
            // SAFETY: as above, and as in `slot`.
            self.unreserve(unsafe { chunk.add(index).as_ref() });
        }
        // SAFETY: as in `slot`.
        unsafe { chunk.as_ref() }
    }

    /// Gives back a slot whose operation was not started. Its payload must be gone already.
    #[inline]
    pub(super) fn unreserve(&self, slot: &OpSlot) {
        slot.next_free.set(self.free.get());
        self.free.set(Some(NonNull::from(slot)));
    }

    /// Frees the slot of an operation that has completed. Its payload must be gone already.
    #[inline]
    pub(super) fn release(&self, slot: &OpSlot) {
        // Released twice, a slot would be its own successor in the free list, and two operations would share it.
        assert!(slot.state.get() == State::Done);
        slot.state.set(State::Free);
        slot.id.set(slot.id.get().next());
        slot.flags.set(0);
        slot.cancel_requested.set(false);
        self.unreserve(slot);
    }

    fn slots(&self) -> impl Iterator<Item = &OpSlot> {
        // SAFETY: as in `slot`.
        (0..self.slots.len()).filter_map(|index| Some(unsafe { self.slots.get(index)?.as_ref() }))
    }

    fn slots_in_flight(&self) -> impl Iterator<Item = &OpSlot> {
        self.slots().filter(|slot| slot.is_in_flight())
    }

    /// How many connections were accepted and not yet returned to the program.
    pub(crate) fn accepted_waiting(&self) -> usize {
        let is_connection = |slot: &&OpSlot| {
            slot.state.get() == State::Done && slot.result.get().res().is_ok() && matches!(slot.op(), Op::Accept { .. })
        };
        self.slots().filter(is_connection).count()
    }

    pub(crate) fn ops_in_flight(&self) -> Vec<(&'static str, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for slot in self.slots_in_flight() {
            *counts.entry(slot.op().name()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// Calls `each` with the operations in flight and what they wake. `each` runs no user code.
    pub(crate) fn for_each_waiter(&self, mut each: impl FnMut(&Op, TaskKey, Option<&Waker>)) {
        for slot in self.slots_in_flight() {
            match slot.has_flag(HAS_WAKER) {
                true => slot.with_rare(|rare| each(slot.op(), TaskKey::NONE, rare.waker.as_ref())),
                false => each(slot.op(), slot.task.get(), None),
            }
        }
    }

    pub(crate) fn ids_in_flight(&self) -> Vec<OpId> {
        self.slots_in_flight().map(|slot| slot.id.get()).collect()
    }
}

/// The slots of a chunk: 4 KiB on Unix.
const CHUNK: u32 = 16;

/// How to close the connection or file that an operation has opened after its future was dropped.
pub(super) fn orphan_cleanup(op: &Op, res: OsResult) -> Option<Control<'static>> {
    let fd = res.ok()? as Fd;
    match op {
        Op::Accept { .. } => Some(Control::Reset { fd }),
        Op::File(FileOp::Open { .. }) => Some(Control::Close { fd }),
        _ => None,
    }
}

impl Drop for OpTable {
    fn drop(&mut self) {
        for first in (0..self.slots.len()).step_by(CHUNK as usize) {
            let chunk = self.slots.get(first).expect("the index is below the length");
            let chunk = NonNull::slice_from_raw_parts(chunk, CHUNK as usize);
            // SAFETY: slots are freed only here, below.
            for slot in unsafe { chunk.as_ref() } {
                if slot.state.get() == State::Done
                    && let Some(drop_payload) = slot.drop_payload.take()
                {
                    // SAFETY: the operation has completed, so the kernel is done with the payload, and it was not taken.
                    guard("a buffer's destructor", || unsafe { drop_payload(slot.payload()) });
                }
                if !slot.is_in_flight() {
                    drop(slot.rare.take());
                }
            }
            // SAFETY: as above.
            if unsafe { chunk.as_ref() }.iter().any(OpSlot::is_in_flight) {
                continue;
            }
            // SAFETY: `grow` made this box. Nothing uses its slots: neither a driver, since their operations have
            // completed, nor a future, which would keep the loop and its table alive.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}
