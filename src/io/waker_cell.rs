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
        self.put_back(own);
        other
    }

    pub(crate) fn clear(&self) {
        drop(self.0.take());
    }

    /// Wakes the task and keeps its waker.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake_by_ref();
            self.put_back(waker);
        }
    }

    /// Stores a waker again, unless the user code that it ran has stored a newer one.
    fn put_back(&self, waker: Waker) {
        let newer = self.0.take();
        self.0.set(Some(newer.unwrap_or(waker)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use super::*;

    thread_local! {
        static CELL: WakerCell = WakerCell::default();
    }

    /// Records a wake, and then stores the other waker.
    #[derive(Default)]
    struct Replaces {
        is_woken: AtomicBool,
        other: Option<Waker>,
    }

    impl Wake for Replaces {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::Relaxed);
            if let Some(other) = &self.other {
                CELL.with(|cell| cell.set(other));
            }
        }
    }

    #[test]
    fn a_waker_stored_while_waking_is_kept() {
        let newer = Arc::new(Replaces::default());
        let older = Replaces {
            other: Some(newer.clone().into()),
            ..Replaces::default()
        };
        CELL.with(|cell| {
            cell.set(&Arc::new(older).into());
            cell.wake();
            assert!(!newer.is_woken.load(Ordering::Relaxed));
            cell.wake();
            assert!(newer.is_woken.load(Ordering::Relaxed));
        });
    }
}
