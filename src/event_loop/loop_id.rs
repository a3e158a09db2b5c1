//! The identity of a loop as plain data, and the way from there to the loop.
//!
//! A timer's future stores the [`LoopId`] of its loop instead of a reference, so that it is `Send` and costs no reference
//! count. On the loop's thread the id is compared with the current loop's, or looked up in a list of the thread's loops. From
//! other threads only the loop's inbox can be reached, through a list of the process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::rc::{Rc, Weak};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::timers::Timer;
use crate::sys::{self, PerProcess};

/// Identifies a loop. Never reused, not even by a loop of a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoopId(NonZeroU64);

/// The inboxes of the process's loops.
static INBOXES: PerProcess<Mutex<BTreeMap<LoopId, Arc<Inbox<RemoteEvent>>>>> = PerProcess::new(Mutex::default);

thread_local! {
    /// This thread's loops. In a simulation there are many.
    static LOOPS: RefCell<Vec<(LoopId, Weak<LoopCore>)>> = const { RefCell::new(Vec::new()) };
}

impl LoopId {
    /// As a positive number.
    #[inline]
    pub(crate) fn to_i64(self) -> i64 {
        self.0.get() as i64
    }

    /// `None` for zero and negative numbers, which are no loop's.
    #[inline]
    pub(crate) fn from_i64(id: i64) -> Option<LoopId> {
        u64::try_from(id).ok().and_then(NonZeroU64::new).map(LoopId)
    }

    /// The loop, if it belongs to this thread. `None` also while the thread exits.
    #[cold]
    pub(crate) fn on_this_thread(self) -> Option<Rc<LoopCore>> {
        let find = |loops: &RefCell<Vec<(LoopId, Weak<LoopCore>)>>| {
            let loops = loops.borrow();
            loops.iter().find(|(id, _)| *id == self)?.1.upgrade()
        };
        LOOPS.try_with(find).ok().flatten()
    }

    /// Calls `call` with the loop, if it belongs to this thread.
    #[inline]
    pub(crate) fn with<R>(self, call: impl FnOnce(&LoopCore) -> R) -> Option<R> {
        match LoopCore::try_current() {
            Some(core) if core.id() == self => Some(call(core)),
            _ => Some(call(&*self.on_this_thread()?)),
        }
    }

    /// Cancels a timer of the loop: at once on the loop's thread, from another thread in the loop's next turn.
    ///
    /// # Safety
    ///
    /// This loop's timers made `timer`.
    #[inline]
    pub(crate) unsafe fn cancel_timer(self, timer: Timer) {
        match LoopCore::try_running() {
            // SAFETY: the caller's promise.
            Some(core) if core.id() == self => unsafe { core.cancel_timer_fast(timer) },
            _ => self.cancel_timer_elsewhere(timer),
        }
    }

    #[cold]
    #[inline(never)]
    fn cancel_timer_elsewhere(self, timer: Timer) {
        if self.with(|core| core.cancel_timer(timer.id)).is_none() {
            self.send(RemoteEvent::CancelTimer(timer.id));
        }
    }

    /// Sends to the loop, unless it has closed.
    #[cold]
    pub(crate) fn send(self, event: RemoteEvent) {
        let inbox = sys::lock(INBOXES.get()).get(&self).cloned();
        if let Some(inbox) = inbox {
            // A loop that has closed has dropped its timers.
            drop(inbox.send(event));
        }
    }
}

impl LoopCore {
    /// The loop of this thread with this inbox, if it exists. `None` also while the thread exits.
    #[cold]
    pub(crate) fn with_inbox(inbox: &Arc<Inbox<RemoteEvent>>) -> Option<Rc<LoopCore>> {
        let find = |loops: &RefCell<Vec<(LoopId, Weak<LoopCore>)>>| {
            let loops = loops.borrow();
            let mut alive = loops.iter().filter_map(|(_, core)| core.upgrade());
            alive.find(|core| Arc::ptr_eq(&core.inbox, inbox))
        };
        LOOPS.try_with(find).ok().flatten()
    }
}

/// Keeps a loop in the lists while it exists.
pub(crate) struct Registration {
    pub(crate) id: LoopId,
}

impl Registration {
    pub(crate) fn new(core: &Weak<LoopCore>, inbox: &Arc<Inbox<RemoteEvent>>) -> Registration {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = LoopId(NonZeroU64::new(NEXT.fetch_add(1, Relaxed)).expect("there are fewer than 2^64 loops"));
        sys::lock(INBOXES.get()).insert(id, inbox.clone());
        let _ = LOOPS.try_with(|loops| loops.borrow_mut().push((id, core.clone())));
        Registration { id }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let inbox = sys::lock(INBOXES.get()).remove(&self.id);
        drop(inbox);
        let remove = |loops: &RefCell<Vec<(LoopId, Weak<LoopCore>)>>| {
            let index = loops.borrow().iter().position(|(id, _)| *id == self.id)?;
            Some(loops.borrow_mut().swap_remove(index))
        };
        drop(LOOPS.try_with(remove));
    }
}
