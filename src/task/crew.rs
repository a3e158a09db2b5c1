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
use crate::exception::guard;
use crate::loop_core::LoopCore;

#[derive(Default)]
pub(crate) struct Crew {
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

impl Crew {
    pub(super) fn new() -> Rc<Crew> {
        Rc::default()
    }

    /// A crew that is handed over from the beginning: whichever task of this loop is running waits for it.
    pub(super) fn for_cleanup(core: &LoopCore) -> Rc<Crew> {
        let crew = Rc::new(Crew {
            cleans_up: true,
            ..Crew::default()
        });
        let is_running = LoopCore::try_current().is_some_and(|current| std::ptr::eq(current, core));
        if is_running {
            crew.be_inherited();
        }
        crew
    }

    /// Starts a task that belongs to the crew. If that is closed, the task is over at once, without having been polled.
    pub(super) fn spawn<F: Future + 'static>(
        self: &Rc<Crew>,
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
    pub(super) fn adopt(self: &Rc<Crew>, task: RawTask) {
        let place = self.members.borrow_mut().insert(TaskRef::new(task));
        task.take_seat(Seat {
            crew: Some(self.clone()),
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
    pub(super) fn dismiss(&self) {
        self.close();
        drop(self.waker.take());
        self.cancel_all();
        if self.len() > 0 {
            self.be_inherited();
        }
    }

    /// As [`dismiss`](Crew::dismiss), but the members may finish.
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
            let above = task.with_seat(|seat| match seat {
                Some(Seat { crew: Some(crew), .. }) if std::ptr::eq(&**crew, self) => Above::Myself,
                Some(Seat { crew: Some(crew), .. }) => crew.owner_task().map_or(Above::Nobody, Above::Task),
                Some(Seat { crew: None, .. }) | None => Above::Nobody,
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
pub(crate) struct Seat {
    /// `None` once it is vacant.
    crew: Option<Rc<Crew>>,
    /// Its number among the members, and one.
    place: NonZeroU32,
}

impl Seat {
    pub(super) fn cleans_up(&self) -> bool {
        self.crew.as_ref().is_some_and(|crew| crew.cleans_up)
    }

    /// The member is finished. Gives who waited for its crew, if that is empty now.
    pub(super) fn vacate(mut self) -> Option<Owner> {
        self.crew.take().and_then(|crew| crew.leave(self.place))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(crew) = self.crew.take() {
            drop(crew.leave(self.place));
        }
    }
}
