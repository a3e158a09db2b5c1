//! A cell that stores the waker of one waiting task.

use std::cell::Cell;
use std::task::Waker;

#[derive(Default)]
pub(crate) struct WakerCell(Cell<Option<Waker>>);

impl WakerCell {
    /// Stores a waker. True if it was cloned, which runs user code: the caller must check its condition again.
    pub(crate) fn set(&self, waker: &Waker) -> bool {
        // Dropped at the end, after the new waker is stored.
        let old = self.0.take();
        if old.as_ref().is_some_and(|old| old.will_wake(waker)) {
            self.0.set(old);
            return false;
        }
        self.0.set(Some(waker.clone()));
        true
    }

    pub(crate) fn take(&self) -> Option<Waker> {
        self.0.take()
    }

    /// A clone of the waker, if it wakes another task than `waker`.
    #[cfg(feature = "tls")]
    pub(crate) fn other_than(&self, waker: &Waker) -> Option<Waker> {
        let own = self.0.take()?;
        let other = (!own.will_wake(waker)).then(|| own.clone());
        self.0.set(Some(own));
        other
    }

    pub(crate) fn clear(&self) {
        drop(self.0.take());
    }

    /// Wakes the task and keeps its waker.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake_by_ref();
            self.0.set(Some(waker));
        }
    }
}
