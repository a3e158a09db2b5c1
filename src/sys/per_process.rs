//! A static value that a forked child makes anew: a thread of the parent may have held a lock in it at the time of the fork.

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// A lazily created static value for each process. The value of the parent is leaked in a forked child.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<Versioned<T>>,
    make: fn() -> T,
}

struct Versioned<T> {
    /// Identifies the process that made the value: see `sys::forks`.
    forks: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// `make` creates the value of a process, perhaps on several threads at once, of which one succeeds.
    pub(crate) const fn new(make: fn() -> T) -> PerProcess<T> {
        let current = AtomicPtr::new(ptr::null_mut());
        PerProcess { current, make }
    }

    /// The value of this process.
    pub(crate) fn get(&self) -> &'static T {
        self.get_or_replace(|| {})
    }

    /// As [`get`](PerProcess::get). Calls `replaced` if it makes the value of a forked child.
    pub(crate) fn get_or_replace(&self, replaced: impl Fn()) -> &'static T {
        let forks = super::count_forks();
        loop {
            let current = self.current.load(Acquire);
            // SAFETY: null, or a box that the exchange below has leaked, which is never freed.
            if let Some(made) = unsafe { current.as_ref() }.filter(|made| made.forks == forks) {
                return &made.value;
            }
            let value = (self.make)();
            let new = Box::into_raw(Box::new(Versioned { forks, value }));
            if self.current.compare_exchange(current, new, AcqRel, Acquire).is_err() {
                // SAFETY: made above and not shared.
                drop(unsafe { Box::from_raw(new) });
            } else if !current.is_null() {
                replaced();
            }
        }
    }
}
