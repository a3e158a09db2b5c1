//! The slots of timers: a table of cells at fixed addresses, and lists of those without a timer.
//!
//! A timer's future keeps the address of its slot, so setting and cancelling a timer searches nothing. The slots are freed with
//! the table only, and their addresses are used only by code that has the table.
//!
//! Why a slot is sound without a borrow flag: it is not `Sync`. No method returns a reference into it, and while a method uses
//! its content it calls no other code: actions are moved in and out, and never dropped inside.

use std::cell::{Cell, UnsafeCell};
use std::mem;
use std::ptr::NonNull;
use std::task::Waker;

use super::{Action, SLOT_BITS, TimerId};
use crate::copy_vec::CopyVec;
use crate::event_loop::task_key::TaskKey;
use crate::time::Instant;

pub(crate) struct Slot {
    /// The timer's id. Without a timer: that of the last one, with the slot's index.
    pub(super) id: Cell<TimerId>,
    /// The deadline; not earlier than that of the slot's heap entry.
    pub(super) when: Cell<Instant>,
    state: UnsafeCell<State>,
}

enum State {
    Live(Action),
    /// The timer was cancelled, and its heap entry is still there.
    Parked {
        next: Link,
    },
    /// Neither a timer nor a heap entry. In the list of free slots, or left over in that of parked ones.
    Free {
        next: Link,
    },
}

type Link = Option<NonNull<Slot>>;

/// What a timer wakes, for dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    Task(TaskKey),
    /// The data pointer of a waker; only to be compared.
    Waker(*const ()),
    Nothing,
}

impl Slot {
    fn replace(&self, state: State) -> State {
        // SAFETY: see the module. The old state is moved out, not dropped.
        unsafe { mem::replace(&mut *self.state.get(), state) }
    }

    /// Reads or changes the state. `access` calls no other code.
    #[inline(always)]
    fn with<R>(&self, access: impl FnOnce(&mut State) -> R) -> R {
        // SAFETY: see the module.
        access(unsafe { &mut *self.state.get() })
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.with(|state| matches!(state, State::Live(_)))
    }

    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.with(|state| matches!(state, State::Parked { .. }))
    }

    /// Whether it has a timer that wakes a task by its key: the action has nothing to drop.
    #[inline]
    pub(super) fn wakes_task(&self) -> bool {
        self.with(|state| matches!(state, State::Live(Action::WakeTask(_))))
    }

    /// Sets the action of a slot without a timer.
    pub(super) fn set(&self, action: Action) {
        let old = self.replace(State::Live(action));
        debug_assert!(!matches!(old, State::Live(_)));
        // A slot without a timer has nothing to drop.
        mem::forget(old);
    }

    /// As [`set`](Slot::set). The action is not moved through memory.
    #[inline(always)]
    pub(super) fn set_wake_task(&self, key: TaskKey) {
        debug_assert!(!self.is_live());
        mem::forget(self.replace(State::Live(Action::WakeTask(key))));
    }

    /// Replaces the action of a timer.
    pub(super) fn replace_action(&self, action: Action) -> Action {
        self.with(|state| match state {
            State::Live(old) => mem::replace(old, action),
            State::Parked { .. } | State::Free { .. } => unreachable!("the slot has a timer"),
        })
    }

    /// Whether a timer wakes this task, or this waker if there is no task.
    pub(super) fn would_wake(&self, task: Option<TaskKey>, waker: &Waker) -> bool {
        self.with(|state| match (state, task) {
            (State::Live(Action::WakeTask(key)), Some(task)) => *key == task,
            (State::Live(Action::Wake(old)), None) => old.will_wake(waker),
            _ => false,
        })
    }

    pub(super) fn wakes(&self) -> Wakes {
        self.with(|state| match state {
            State::Live(Action::WakeTask(key)) => Wakes::Task(*key),
            State::Live(Action::Wake(waker)) => Wakes::Waker(waker.data()),
            _ => Wakes::Nothing,
        })
    }

    fn next(&self) -> Link {
        self.with(|state| match state {
            State::Parked { next } | State::Free { next } => *next,
            State::Live(_) => None,
        })
    }

    /// The heap entry of a parked slot was removed. The slot stays in its list until it comes first.
    pub(super) fn lose_entry(&self) {
        let next = self.next();
        debug_assert!(self.is_parked());
        mem::forget(self.replace(State::Free { next }));
    }
}

/// The slots whose timers were cancelled and whose entries are in one heap, the last one cancelled first. A slot whose entry was
/// removed meanwhile is free, but is left in the list until it comes first.
#[derive(Default)]
pub(super) struct ParkedList {
    first: Cell<Link>,
}

impl ParkedList {
    /// Removes the first slot, if it is parked and its deadline is not later than `when`. The caller sets its action.
    #[inline(always)]
    pub(super) fn take_until<'a>(&self, when: Instant, _table: &'a SlotTable) -> Option<&'a Slot> {
        // SAFETY: slots live as long as their table, which the caller has.
        let slot = unsafe { self.first.get()?.as_ref() };
        let next = slot.with(|state| match state {
            State::Parked { next } => Some(*next),
            State::Live(_) | State::Free { .. } => None,
        })?;
        if slot.when.get() > when {
            return None;
        }
        self.first.set(next);
        Some(slot)
    }

    /// Adds a slot whose action has nothing to drop, or was moved out.
    #[inline(always)]
    pub(super) fn push(&self, slot: &Slot) {
        let next = self.first.replace(Some(NonNull::from(slot)));
        mem::forget(slot.replace(State::Parked { next }));
    }

    /// Moves slots to those that are free: all, or the first ones as far as they are free already.
    pub(super) fn free_first(&self, table: &SlotTable, all: bool) {
        while let Some(first) = self.first.get() {
            // SAFETY: as in `take_until`.
            let slot = unsafe { first.as_ref() };
            if slot.is_parked() && !all {
                break;
            }
            self.first.set(slot.next());
            table.free(slot);
        }
    }
}

/// All slots. They are recycled, and allocated in chunks.
#[derive(Default)]
pub(super) struct SlotTable {
    /// The first slot of each chunk.
    chunks: CopyVec<NonNull<Slot>>,
    /// The first free slot.
    free: Cell<Link>,
}

/// The slots of a chunk: 2,560 bytes.
const CHUNK: usize = 64;

const _: () = assert!(size_of::<Slot>() <= 40);

impl SlotTable {
    /// The slot with this index.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        let chunk = self.chunks.get(index / CHUNK)?;
        // SAFETY: a chunk has this many slots, and is freed with the table.
        Some(unsafe { chunk.add(index % CHUNK).as_ref() })
    }

    /// The slot of a heap entry.
    #[inline]
    pub(super) fn of(&self, id: TimerId) -> &Slot {
        self.get(id.slot()).expect("an entry has a slot")
    }

    /// Takes a free slot. The caller sets its fields.
    pub(super) fn take(&self) -> &Slot {
        let Some(slot) = self.free.get() else {
            return self.grow();
        };
        // SAFETY: as in `get`.
        let slot = unsafe { slot.as_ref() };
        self.free.set(slot.next());
        slot
    }

    #[cold]
    fn grow(&self) -> &Slot {
        let first = self.chunks.len() * CHUNK;
        assert!(first + CHUNK <= 1 << SLOT_BITS, "a loop holds at most 2^28 timers");
        let slot = |index| Slot {
            id: Cell::new(TimerId::new(0, 0, index)),
            when: Cell::new(Instant::NEVER),
            state: UnsafeCell::new(State::Free { next: None }),
        };
        let chunk: Box<[Slot]> = (first..first + CHUNK).map(slot).collect();
        // The pointers are made from that of the chunk, with which `drop` frees it.
        let chunk = NonNull::from(Box::leak(chunk)).cast::<Slot>();
        self.chunks.push(chunk);
        for index in (1..CHUNK).rev() {
            // SAFETY: the index is within the chunk.
            self.free(unsafe { chunk.add(index).as_ref() });
        }
        // SAFETY: as in `get`.
        unsafe { chunk.as_ref() }
    }

    /// Frees a slot whose action was moved out.
    pub(super) fn free(&self, slot: &Slot) {
        let next = self.free.replace(Some(NonNull::from(slot)));
        mem::forget(slot.replace(State::Free { next }));
    }

    /// Moves the action of a timer out and frees its slot.
    pub(super) fn take_action(&self, slot: &Slot) -> Action {
        let next = self.free.replace(Some(NonNull::from(slot)));
        match slot.replace(State::Free { next }) {
            State::Live(action) => action,
            State::Parked { .. } | State::Free { .. } => unreachable!("the slot has a timer"),
        }
    }

    /// Moves the action of a timer out and adds its slot to a list.
    pub(super) fn park(&self, slot: &Slot, list: &ParkedList) -> Action {
        match slot.replace(State::Free { next: None }) {
            State::Live(action) => {
                list.push(slot);
                action
            }
            State::Parked { .. } | State::Free { .. } => unreachable!("the slot has a timer"),
        }
    }

    /// Every slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        (0..self.chunks.len() * CHUNK).filter_map(|index| self.get(index))
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        while let Some(chunk) = self.chunks.pop() {
            // SAFETY: `grow` made this box. The table is gone, and no other code uses the addresses of its slots.
            drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(chunk, CHUNK).as_ptr()) });
        }
    }
}
