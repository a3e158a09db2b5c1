//! `ChildSet`: tasks that are awaited and cancelled together, for groups, `gather`, cleanups and `cancel_on_drop`.
//!
//! The set holds its members only until they are finished. Each member's header has a [`Membership`], which is dropped
//! when the task is done and its orphaned operations have completed. So an empty set has nothing left in the kernel,
//! and waiting for it polls no member.
//!
//! Dropping the owner of a set does not end the wait for it. The members are cancelled and the current task takes the
//! set over: the task stays unfinished until the set is empty, by the same count ([`Owner`]) that keeps it unfinished
//! for orphaned operations. The exception is a cycle, where a member takes over the set it belongs to, directly or
//! through other sets: then no task waits.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::JoinHandle;
use super::raw::{Owner, RawTask, TaskRef, spawn_unchecked};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::wake_all;

#[derive(Default)]
pub(crate) struct ChildSet {
    members: RefCell<Slab<TaskRef>>,
    /// Woken when the set becomes empty.
    waker: Cell<Option<Waker>>,
    /// The task that took the set over, which stays unfinished while the set has members.
    owner: Cell<Option<Owner>>,
    /// New members are cancelled immediately.
    closed: Cell<bool>,
    /// The members are `on_cancel` cleanups, which the loop's shutdown waits for.
    is_cleanup: bool,
}

impl ChildSet {
    pub(super) fn new() -> Rc<ChildSet> {
        Rc::default()
    }

    /// Creates a set that the current task takes over from the start, if a task of this loop is running.
    pub(super) fn for_cleanup(core: &LoopCore) -> Rc<ChildSet> {
        let child_set = Rc::new(ChildSet {
            is_cleanup: true,
            ..ChildSet::default()
        });
        if core.is_current() {
            child_set.hand_to_current_task();
        }
        child_set
    }

    /// Spawns a task as a member. If the set is closed, the task is cancelled without being polled.
    pub(super) fn spawn<F: Future + 'static>(
        self: &Rc<ChildSet>,
        core: &Rc<LoopCore>,
        future: F,
        name: Option<Box<str>>,
        location: &'static Location<'static>,
    ) -> JoinHandle<F::Output> {
        // SAFETY: the future is `'static`.
        let handle = unsafe { spawn_unchecked(core, future, name, location) };
        self.adopt(handle.raw());
        if self.closed.get() {
            // The task is new, so it is not being polled.
            handle.raw().cancel_now(core);
        }
        handle
    }

    /// Adds a task that is not a member of any set.
    pub(super) fn adopt(self: &Rc<ChildSet>, task: RawTask) {
        let index = self.members.borrow_mut().insert(TaskRef::new(task));
        task.set_membership(Membership {
            child_set: self.clone(),
            index,
        });
    }

    /// The number of members that are not finished.
    pub(super) fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// Closes the set, and requests that every member end at its next suspension point.
    pub(super) fn cancel_all(&self) {
        self.close();
        // This only queues the members; no user code runs.
        for (_, member) in self.members.borrow().iter() {
            member.cancel();
        }
    }

    /// Closes the set: new members are cancelled immediately.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    /// Completes when the set is empty.
    pub(super) fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.len() == 0 {
            return Poll::Ready(());
        }
        super::set_wait_reason(super::WaitReason::Named("its children"));
        self.set_waker(cx);
        // Cloning the waker is foreign code: the last member may leave inside it.
        match self.len() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Registers the waker for when the set becomes empty, or [`wake`](ChildSet::wake) is called.
    pub(super) fn set_waker(&self, cx: &mut Context<'_>) {
        let old = self.waker.replace(Some(cx.waker().clone()));
        drop(old);
    }

    /// Wakes the registered waker.
    pub(super) fn wake(&self) {
        wake_all(self.waker.take());
    }

    /// Cancels the members and makes the current task wait for them.
    pub(super) fn cancel_and_hand_over(&self) {
        self.cancel_all();
        drop(self.waker.take());
        self.hand_over();
    }

    /// Makes the current task wait for the members without cancelling them.
    pub(super) fn hand_over(&self) {
        self.close();
        if self.len() > 0 {
            self.hand_to_current_task();
        }
    }

    fn hand_to_current_task(&self) {
        if let Some(task) = LoopCore::running_task().filter(|&task| !self.would_cycle(task)) {
            self.owner.set(Some(Owner::new(task)));
        }
    }

    /// Whether this set already waits for `task`, directly or through other sets. A task is in at most one set, and a
    /// set has at most one owner, so there is a single path to follow. Linear in the nesting depth.
    fn would_cycle(&self, task: RawTask) -> bool {
        let mut next = Some(task);
        while let Some(task) = next {
            let Some(child_set) = task.with_membership(|membership| Some(membership?.child_set.clone())) else {
                return false;
            };
            if std::ptr::eq(&*child_set, self) {
                return true;
            }
            next = child_set.owner_task();
        }
        false
    }

    fn owner_task(&self) -> Option<RawTask> {
        let owner = self.owner.take();
        let task = owner.as_ref().map(Owner::task);
        self.owner.set(owner);
        task
    }
}

/// A task's entry in its child set. It is not dropped: the end of the task calls [`leave`](Membership::leave).
pub(crate) struct Membership {
    child_set: Rc<ChildSet>,
    /// The key in `members`.
    index: usize,
}

impl Membership {
    pub(super) fn is_cleanup(&self) -> bool {
        self.child_set.is_cleanup
    }

    /// Removes the finished member. Returns the set's owner if the set is empty now.
    #[must_use]
    pub(super) fn leave(self) -> Option<Owner> {
        let member = self.child_set.members.borrow_mut().try_remove(self.index);
        drop(member);
        if self.child_set.len() > 0 {
            return None;
        }
        let owner = self.child_set.owner.take();
        self.child_set.wake();
        owner
    }
}
