//! Types of the header's fields that pack a value into fewer bytes, and the joiner.

use std::panic::Location;
use std::ptr::{self, NonNull};
use std::task::Waker;

use super::RawTask;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::wake_all;
use crate::event_loop::task_key::TaskKey;
use crate::task::TaskId;

/// What a pending task waits for, as shown in dumps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum WaitReason {
    Task(TaskId),
    Named(WaitName),
    /// A call to another shard.
    Call {
        shard: u32,
        hop: u8,
    },
}

/// A name in a [`WaitReason`]. A reference to a reference is one word: `&"a lock"`.
pub(crate) type WaitName = &'static &'static str;

/// An `Option<WaitReason>` in one word, which every poll clears: null, the address of a name, or a number with one of the tags
/// in its lowest bits, which are zero in addresses. On a 32-bit machine, the upper bits of a task's id are lost.
#[derive(Clone, Copy)]
pub(super) struct PackedReason(*const &'static str);

const TAG_BITS: u32 = 2;
const TASK: usize = 1;
const CALL: usize = 2;

impl PackedReason {
    pub(super) const NONE: PackedReason = PackedReason(ptr::null());

    #[inline]
    pub(super) fn new(reason: WaitReason) -> PackedReason {
        let number = |number: u64, tag| ptr::without_provenance((number as usize) << TAG_BITS | tag);
        PackedReason(match reason {
            WaitReason::Named(name) => name,
            WaitReason::Task(id) => number(id.0, TASK),
            WaitReason::Call { shard, hop } => number(u64::from(shard) << 8 | u64::from(hop), CALL),
        })
    }

    pub(super) fn get(self) -> Option<WaitReason> {
        let number = (self.0.addr() >> TAG_BITS) as u64;
        match self.0.addr() & ((1 << TAG_BITS) - 1) {
            TASK => Some(WaitReason::Task(TaskId(number))),
            CALL => Some(WaitReason::Call {
                shard: (number >> 8) as u32,
                hop: number as u8,
            }),
            // SAFETY: without a tag it is null, or was made from a reference to a name.
            _ => unsafe { self.0.as_ref() }.map(WaitReason::Named),
        }
    }
}

/// Where a task was spawned, and what few tasks have besides. One word: the address of the location or, with the lowest bit
/// set, of a [`Special`].
pub(super) struct Origin(NonNull<()>);

struct Special {
    spawned_at: &'static Location<'static>,
    name: Option<Box<str>>,
    is_cleanup_helper: bool,
}

const SPECIAL: usize = 1;

impl Origin {
    #[inline]
    pub(super) fn new(
        spawned_at: &'static Location<'static>,
        name: Option<Box<str>>,
        is_cleanup_helper: bool,
    ) -> Origin {
        match name.is_none() && !is_cleanup_helper {
            true => Origin(NonNull::from(spawned_at).cast()),
            false => Origin::special(Special {
                spawned_at,
                name,
                is_cleanup_helper,
            }),
        }
    }

    #[cold]
    fn special(special: Special) -> Origin {
        const { assert!(align_of::<Special>() > SPECIAL && align_of::<Location<'static>>() > SPECIAL) };
        let special = NonNull::from(Box::leak(Box::new(special)));
        Origin(special.cast().map_addr(|address| address | SPECIAL))
    }

    /// The address of the special part, if there is one.
    #[inline]
    fn to_special(&self) -> Option<NonNull<Special>> {
        let is_special = self.0.addr().get() & SPECIAL != 0;
        let address = self.0.as_ptr().map_addr(|address| address & !SPECIAL);
        is_special.then(|| NonNull::new(address.cast())).flatten()
    }

    #[inline]
    fn as_special(&self) -> Option<&Special> {
        // SAFETY: `special` made it from a box, which the drop frees.
        self.to_special().map(|special| unsafe { special.as_ref() })
    }

    pub(super) fn spawned_at(&self) -> &'static Location<'static> {
        match self.as_special() {
            Some(special) => special.spawned_at,
            // SAFETY: without the bit, it was made from such a reference.
            None => unsafe { self.0.cast().as_ref() },
        }
    }

    #[inline]
    pub(super) fn name(&self) -> Option<&str> {
        self.as_special()?.name.as_deref()
    }

    #[inline]
    pub(super) fn is_cleanup_helper(&self) -> bool {
        self.as_special().is_some_and(|special| special.is_cleanup_helper)
    }
}

impl Drop for Origin {
    #[inline]
    fn drop(&mut self) {
        if let Some(special) = self.to_special() {
            // SAFETY: `special` made it from a box, and this is its only owner.
            drop(unsafe { Box::from_raw(special.as_ptr()) });
        }
    }
}

/// The task or waker that is woken when a task is finished.
pub(super) enum Joiner {
    /// A task of the same loop, which costs no reference count; [`NONE`](TaskKey::NONE) if no task waits.
    Task(TaskKey),
    Waker(Waker),
}

impl Default for Joiner {
    fn default() -> Joiner {
        Joiner::Task(TaskKey::NONE)
    }
}

impl Joiner {
    /// Wakes the joiner of a task of this loop. Foreign code.
    #[inline]
    pub(super) fn wake(self, core: &LoopCore) {
        match self {
            Joiner::Task(TaskKey::NONE) => {}
            Joiner::Task(key) => core.wake_task(key),
            Joiner::Waker(waker) => wake_all(Some(waker)),
        }
    }

    /// As `wake`, for a caller that may be outside of the loop. The joiner's task is on the loop of `task`.
    pub(super) fn wake_from_outside(self, task: RawTask) {
        match (self, LoopCore::try_current()) {
            (Joiner::Task(TaskKey::NONE), _) => {}
            (joiner, Some(core)) if task.is_of(core) => joiner.wake(core),
            (Joiner::Waker(waker), _) => wake_all(Some(waker)),
            (joiner, _) => {
                if let Some(core) = LoopCore::with_inbox(task.inbox()) {
                    joiner.wake(&core);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    use super::*;
    use crate::{Builder, DriverChoice};

    #[test]
    fn a_packed_reason_is_the_reason() {
        assert!(PackedReason::NONE.get().is_none());
        let reasons = [
            WaitReason::Task(TaskId(1)),
            WaitReason::Task(TaskId(123_456)),
            WaitReason::Named(&"a lock"),
            WaitReason::Call { shard: 70_000, hop: 9 },
            WaitReason::Call { shard: 0, hop: 0 },
        ];
        for reason in reasons {
            assert_eq!(PackedReason::new(reason).get(), Some(reason));
        }
    }

    #[test]
    fn a_joiner_is_woken_from_outside_of_its_loop() {
        let event_loop = Builder::new().driver(DriverChoice::Null).build().unwrap();
        let polls = Rc::new(Cell::new(0));
        let counted = polls.clone();
        let task = event_loop.spawn(poll_fn(move |_| {
            counted.set(counted.get() + 1);
            Poll::<()>::Pending
        }));
        event_loop.run_until_complete(async {}).unwrap();
        assert_eq!(polls.get(), 1);
        Joiner::Task(task.raw().key()).wake_from_outside(task.raw());
        event_loop.run_until_complete(async {}).unwrap();
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn an_origin_has_a_name_only_if_it_was_given_one() {
        let here = Location::caller();
        let plain = Origin::new(here, None, false);
        assert_eq!(
            (plain.spawned_at(), plain.name(), plain.is_cleanup_helper()),
            (here, None, false)
        );
        let named = Origin::new(here, Some("worker".into()), false);
        assert_eq!(
            (named.spawned_at(), named.name(), named.is_cleanup_helper()),
            (here, Some("worker"), false)
        );
        let helper = Origin::new(here, None, true);
        assert_eq!(
            (helper.spawned_at(), helper.name(), helper.is_cleanup_helper()),
            (here, None, true)
        );
    }
}
