//! `ChildSet`: tasks that are awaited and cancelled together, for groups, `JoinSet`, `gather`, cleanups and
//! `cancel_on_drop`.
//!
//! The set holds its members only until they are finished. Each member's header has a [`Membership`], which is dropped
//! when the task is done and its orphaned operations have completed. So an empty set has nothing left in the kernel,
//! and waiting for it polls no member.
//!
//! Dropping the owner of a set does not end the wait for it. The members are cancelled and the current task takes the
//! set over: the task stays unfinished until the set is empty, by the same count ([`Owner`]) that keeps it unfinished
//! for orphaned operations. The exception is a cycle, where a member takes over the set it belongs to, directly or
//! through other sets: then no task waits.
//!
//! A combinator that drops a future before it returns, such as `select` or `timeout`, waits for the sets that the
//! current task takes over during that drop: see [`Leftovers`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::JoinHandle;
use super::raw::{Ending, Owner, RawTask, TaskRef, spawn_on};
use crate::diagnostics::probe::Creator;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::wake_all;
use crate::event_loop::loop_id::LoopId;
use crate::on_drop::OnDrop;

#[derive(Default)]
pub(crate) struct ChildSet {
    members: RefCell<Slab<TaskRef>>,
    /// Members that are finished, in that order, for a [`JoinSet`](super::JoinSet).
    finished: RefCell<VecDeque<TaskRef>>,
    /// Whether finished members go to `finished`.
    keeps_finished: Cell<bool>,
    /// Woken when the set becomes empty, and when a member goes to `finished`.
    waker: Cell<Option<Waker>>,
    /// The task that took the set over, which stays unfinished while the set has members.
    owner: Cell<Option<Owner>>,
    /// New members are cancelled immediately.
    closed: Cell<bool>,
    /// The members are `on_cancel` cleanups, which the loop's shutdown waits for.
    is_cleanup: bool,
    #[cfg_attr(not(feature = "console"), allow(dead_code, reason = "empty without the console"))]
    creator: Creator,
}

impl ChildSet {
    pub(super) fn new() -> Rc<ChildSet> {
        Rc::default()
    }

    /// Creates a set that keeps its finished members.
    pub(super) fn keeping_finished() -> Rc<ChildSet> {
        let child_set = ChildSet::new();
        child_set.keeps_finished.set(true);
        child_set
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
        let handle = spawn_on(core, future, name, location);
        self.adopt(handle.raw());
        if self.closed.get() {
            handle.raw().set_ending(Ending::Refused);
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
        self.cancel_members();
    }

    /// Requests that every member end at its next suspension point.
    pub(super) fn cancel_members(&self) {
        // This only queues the members; no user code runs.
        for (_, member) in self.members.borrow().iter() {
            member.cancel();
        }
    }

    /// The member that finished first among those kept.
    pub(super) fn pop_finished(&self) -> Option<TaskRef> {
        self.finished.borrow_mut().pop_front()
    }

    /// The number of finished members that are kept.
    pub(super) fn finished_len(&self) -> usize {
        self.finished.borrow().len()
    }

    /// References to the members that are not finished.
    pub(super) fn running(&self) -> Vec<TaskRef> {
        let members = self.members.borrow();
        members.iter().map(|(_, member)| TaskRef::new(member.task())).collect()
    }

    /// Members that finish from now on are not kept.
    pub(super) fn stop_keeping(&self) {
        self.keeps_finished.set(false);
    }

    /// Removes the members; they continue outside of the set.
    pub(super) fn release_all(&self) -> Slab<TaskRef> {
        let members = self.members.take();
        for (_, member) in &members {
            member.task().clear_membership();
        }
        members
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
        super::set_wait_reason(super::WaitReason::Named(&"its children"));
        self.set_waker(cx);
        // Cloning the waker is foreign code: the last member may leave inside it.
        match self.len() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Registers the waker for when the set becomes empty, a finished member is kept, or [`wake`](ChildSet::wake) is called.
    pub(super) fn set_waker(&self, cx: &mut Context<'_>) {
        let old = self.waker.replace(Some(cx.waker().clone()));
        drop(old);
    }

    /// Wakes the registered waker.
    pub(super) fn wake(&self) {
        wake_all(self.waker.take());
    }

    /// Cancels the members and makes the current task wait for them.
    pub(super) fn cancel_and_hand_over(self: &Rc<ChildSet>) {
        self.cancel_all();
        drop(self.waker.take());
        self.hand_over();
    }

    /// Makes the current task wait for the members without cancelling them.
    pub(super) fn hand_over(self: &Rc<ChildSet>) {
        self.close();
        if self.len() > 0 {
            self.hand_to_current_task();
        }
    }

    fn hand_to_current_task(self: &Rc<ChildSet>) {
        let Some(core) = LoopCore::try_current() else { return };
        if let Some(task) = core.current_task().filter(|&task| !self.would_cycle(task)) {
            self.owner.set(Some(Owner::new(task)));
            let mut scope = core.drop_scope.take();
            if let Some(scope) = scope.as_mut().filter(|scope| scope.task == task) {
                scope.child_sets.push(self.clone());
            }
            core.drop_scope.set(scope);
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

    /// The task that made the set.
    #[cfg(feature = "console")]
    pub(super) fn creator(&self) -> Option<super::TaskId> {
        self.child_set.creator.0
    }

    /// Removes the finished member. Returns the set's owner if the set is empty now.
    #[must_use]
    pub(super) fn leave(self) -> Option<Owner> {
        let member = self.child_set.members.borrow_mut().try_remove(self.index);
        if self.child_set.keeps_finished.get() {
            self.child_set.finished.borrow_mut().extend(member);
            self.child_set.wake();
            return None;
        }
        drop(member);
        if self.child_set.len() > 0 {
            return None;
        }
        let owner = self.child_set.owner.take();
        self.child_set.wake();
        owner
    }
}

/// While a combinator drops a future: the child sets that the combinator's task takes over.
pub(crate) struct DropScope {
    task: RawTask,
    child_sets: Vec<Rc<ChildSet>>,
}

/// The child sets that dropped futures left to the current task. A combinator waits for them before it returns, so
/// that a group, a `JoinSet` or a cleanup inside of a future that lost a `select` has ended when `select` returns.
#[derive(Default)]
pub(crate) struct Leftovers {
    child_sets: Vec<Rc<ChildSet>>,
}

impl Leftovers {
    /// Runs `drop_futures` and collects the child sets that the current task takes over meanwhile.
    pub(crate) fn of(drop_futures: impl FnOnce()) -> Leftovers {
        let Some((core, task)) = LoopCore::try_current().and_then(|core| Some((core, core.current_task()?))) else {
            drop_futures();
            return Leftovers::default();
        };
        let child_sets = Vec::new();
        let mut outer = core.drop_scope.replace(Some(DropScope { task, child_sets }));
        let mut child_sets = Vec::new();
        // Also if a destructor panics.
        let restored = OnDrop(|| {
            if let Some(scope) = core.drop_scope.replace(outer.take()) {
                child_sets = scope.child_sets;
            }
        });
        drop_futures();
        drop(restored);
        Leftovers { child_sets }
    }

    /// Completes when every child of the sets has ended and has no operation in the kernel.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(child_set) = self.child_sets.last() {
            std::task::ready!(child_set.poll_empty(cx));
            self.child_sets.pop();
        }
        Poll::Ready(())
    }

    /// Polls the leftovers once. If they have not ended, the current loop keeps them.
    pub(crate) fn poll_or_keep(mut self, cx: &mut Context<'_>) -> Option<KeptLeftovers> {
        if self.child_sets.is_empty() || self.poll(cx).is_ready() {
            return None;
        }
        // There are child sets only inside of a task.
        let core = LoopCore::try_current()?;
        let key = core.leftovers.borrow_mut().insert(self);
        Some(KeptLeftovers { home: core.id(), key })
    }

    /// As [`poll`](Leftovers::poll).
    pub(crate) async fn ended(mut self) {
        if !self.child_sets.is_empty() {
            poll_fn(|cx| self.poll(cx)).await;
        }
    }
}

/// [`Leftovers`] that are stored in their loop, so that a future that waits for them can be `Send`.
pub(crate) struct KeptLeftovers {
    home: LoopId,
    key: usize,
}

impl KeptLeftovers {
    /// As [`Leftovers::poll`]. Does not wait on another loop, which cannot see the child sets.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(core) = LoopCore::try_current().filter(|core| core.id() == self.home) else {
            return Poll::Ready(());
        };
        // Taken out: the poll clones a waker, which is foreign code.
        let mut leftovers = std::mem::take(&mut core.leftovers.borrow_mut()[self.key]);
        let polled = leftovers.poll(cx);
        core.leftovers.borrow_mut()[self.key] = leftovers;
        polled
    }
}

impl Drop for KeptLeftovers {
    fn drop(&mut self) {
        let (home, key) = (self.home, self.key);
        let remove = move |core: &LoopCore| {
            let leftovers = core.leftovers.borrow_mut().remove(key);
            drop(leftovers);
        };
        if home.with(remove).is_none() {
            home.send(RemoteEvent::Call(Box::new(move || {
                LoopCore::try_current().into_iter().for_each(remove);
            })));
        }
    }
}
