//! Tasks that somebody waits for together.
//!
//! A crew knows its members only as long as they are not finished: each has a seat, which lies in the task's header and is
//! dropped when the task is done and everything that it left in the kernel has landed. So "the crew is empty" means that
//! nothing of it is anywhere any more, and it costs nothing to wait for: nobody is polled for it.
//!
//! Whoever lets go of a crew *dismisses* it: the members are cancelled, and the task that did so inherits the wait. It
//! counts as unfinished until the crew is empty, just as it does for flights that it left behind, and by the same means.
//! Except if that would go in a circle, where a member dismisses the crew that it belongs to: then nobody waits.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::num::NonZeroU32;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::JoinHandle;
use super::raw::{Owner, RawTask, TaskRef, spawn_unchecked};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;

#[derive(Default)]
pub(crate) struct ChildSet {
    members: RefCell<Slab<TaskRef>>,
    /// Who waits until it is empty.
    waker: Cell<Option<Waker>>,
    /// Who dismissed it.
    owner: Cell<Option<Owner>>,
    /// Nobody may join any more.
    closed: Cell<bool>,
    /// It does the cleaning up, which the end of the loop waits for.
    cleans_up: bool,
}

impl ChildSet {
    pub(super) fn new() -> Rc<ChildSet> {
        Rc::default()
    }

    /// A crew that is handed over from the beginning: whichever task of this loop is running waits for it.
    pub(super) fn for_cleanup(core: &LoopCore) -> Rc<ChildSet> {
        let child_set = Rc::new(ChildSet {
            cleans_up: true,
            ..ChildSet::default()
        });
        let is_running = LoopCore::try_current().is_some_and(|current| std::ptr::eq(current, core));
        if is_running {
            child_set.be_inherited();
        }
        child_set
    }

    /// Starts a task that belongs to the crew. If that is closed, the task is over at once, without having been polled.
    pub(super) fn spawn<F: Future + 'static>(
        self: &Rc<ChildSet>,
        core: &Rc<LoopCore>,
        future: F,
        name: Option<Box<str>>,
        location: &'static Location<'static>,
    ) -> JoinHandle<F::Output> {
        // SAFETY: the future is `'static`: it borrows nothing that could end.
        let handle = unsafe { spawn_unchecked(core, future, name, location) };
        self.adopt(handle.raw());
        if self.closed.get() {
            // It was made this moment, so it is not being polled.
            handle.raw().cancel_now(core);
        }
        handle
    }

    /// Takes in a task that sits nowhere.
    pub(super) fn adopt(self: &Rc<ChildSet>, task: RawTask) {
        let place = self.members.borrow_mut().insert(TaskRef::new(task));
        task.take_membership(Membership {
            child_set: Some(self.clone()),
            // One more, so that none is zero and a task without a seat pays no more than two words.
            place: NonZeroU32::MIN
                .checked_add(place as u32)
                .expect("a crew has at most 2^32 - 1 members"),
        });
    }

    /// How many members are not finished.
    pub(super) fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// Asks every member to end at its next suspension point.
    pub(super) fn cancel_all(&self) {
        // This only puts them on the ready deque; no foreign code runs.
        for (_, member) in self.members.borrow().iter() {
            member.cancel();
        }
    }

    /// From now on who joins is cancelled at once.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    /// Waits until nobody is left.
    pub(super) fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.len() == 0 {
            return Poll::Ready(());
        }
        super::waits_for(super::Reason::Named("its children"));
        self.watch(cx);
        // The waker's clone is foreign code, inside of which the last one may have left.
        match self.len() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Has the crew wake this poll's waker when it is empty, or when [`ring`](Crew::ring) is called.
    pub(super) fn watch(&self, cx: &mut Context<'_>) {
        let old = self.waker.replace(Some(cx.waker().clone()));
        drop(old);
    }

    /// Wakes who waits.
    pub(super) fn ring(&self) {
        if let Some(waker) = self.waker.take() {
            guard("a waker", || waker.wake());
        }
    }

    /// Nobody is interested in it any more: its members are cancelled, and the current task inherits the wait for them.
    pub(super) fn fd_closed(&self) {
        self.close();
        drop(self.waker.take());
        self.cancel_all();
        if self.len() > 0 {
            self.be_inherited();
        }
    }

    /// As [`fd_closed`](Crew::dismiss), but the members may finish.
    pub(super) fn hand_over(&self) {
        self.close();
        if self.len() > 0 {
            self.be_inherited();
        }
    }

    fn be_inherited(&self) {
        let heir = LoopCore::try_current().and_then(LoopCore::current_task);
        if let Some(heir) = heir.filter(|&heir| !self.waits_for(heir)) {
            self.owner.set(Some(Owner::new(heir)));
        }
    }

    /// Whether the end of `task` is awaited by this crew, or by somebody whom it awaits. Whoever waits for a task is the
    /// crew in which it sits, and whoever waits for a crew is its owner, so there is one way up. It takes as long as groups
    /// are nested deep.
    fn waits_for(&self, task: RawTask) -> bool {
        let mut task = task;
        loop {
            let above = task.with_membership(|membership| match membership {
                Some(Membership {
                    child_set: Some(child_set),
                    ..
                }) if std::ptr::eq(&**child_set, self) => Above::Myself,
                Some(Membership {
                    child_set: Some(child_set),
                    ..
                }) => child_set.owner_task().map_or(Above::Nobody, Above::Task),
                Some(Membership { child_set: None, .. }) | None => Above::Nobody,
            });
            match above {
                Above::Myself => return true,
                Above::Nobody => return false,
                Above::Task(owner) => task = owner,
            }
        }
    }

    fn owner_task(&self) -> Option<RawTask> {
        let owner = self.owner.take();
        let task = owner.as_ref().map(Owner::task);
        self.owner.set(owner);
        task
    }

    /// A member is finished. Gives who waited for the crew, if it was the last.
    #[must_use]
    fn leave(&self, place: NonZeroU32) -> Option<Owner> {
        let member = self.members.borrow_mut().try_remove(place.get() as usize - 1);
        drop(member);
        if self.len() > 0 {
            return None;
        }
        let owner = self.owner.take();
        self.ring();
        owner
    }
}

enum Above {
    Myself,
    Task(RawTask),
    Nobody,
}

/// A member's place in its crew.
pub(crate) struct Membership {
    /// `None` once it is vacant.
    child_set: Option<Rc<ChildSet>>,
    /// Its number among the members, and one.
    place: NonZeroU32,
}

impl Membership {
    pub(super) fn cleans_up(&self) -> bool {
        self.child_set.as_ref().is_some_and(|child_set| child_set.cleans_up)
    }

    /// The member is finished. Gives who waited for its crew, if that is empty now.
    pub(super) fn vacate(mut self) -> Option<Owner> {
        self.child_set.take().and_then(|child_set| child_set.leave(self.place))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(child_set) = self.child_set.take() {
            drop(child_set.leave(self.place));
        }
    }
}
