//! A value that is made once, by whoever needs it first.

use std::cell::{OnceCell as StdOnceCell, RefCell};
use std::convert::Infallible;
use std::fmt;

use super::permits::{LocalPermits, Permits, PutBack, acquire};
use super::wait::Kept;

/// A value that is made once, asynchronously, by whoever needs it first; the others wait for it.
///
/// If the one that makes it fails, panics or is cancelled, the next in the line makes it.
///
/// ```
/// use windlass::sync::OnceCell;
/// windlass::run(async {
///     let config = OnceCell::new();
///     assert_eq!(config.get_or_init(async || 5).await, &5);
///     assert_eq!(config.get_or_init(async || 6).await, &5);
///     assert_eq!(config.get(), Some(&5));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct OnceCell<T> {
    value: StdOnceCell<T>,
    /// One permit to make the value; closed when it is there.
    permits: LocalPermits,
}

impl<T> OnceCell<T> {
    /// Makes an empty cell.
    pub const fn new() -> OnceCell<T> {
        OnceCell {
            value: StdOnceCell::new(),
            permits: RefCell::new(Permits::new(1)),
        }
    }

    /// The value, if it is there.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, if it is there.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Sets the value. Gives it back if there is one, or somebody is making one.
    pub fn set(&self, value: T) -> Result<(), T> {
        match self.permits.with(|permits| permits.try_take(1)) {
            Ok(()) => {
                self.fill(value);
                Ok(())
            }
            Err(_) => Err(value),
        }
    }

    /// The value; if there is none yet, made by `init`, or by whoever began before.
    ///
    /// Dropping the future while it makes the value leaves that to the next. An `init` that asks the same cell waits
    /// for itself for ever.
    pub async fn get_or_init(&self, init: impl AsyncFnOnce() -> T) -> &T {
        let made: Result<&T, Infallible> = self.get_or_try_init(async || Ok(init().await)).await;
        match made {
            Ok(value) => value,
        }
    }

    /// The same with an `init` that may fail: then this one gets the error, and the next in the line tries.
    pub async fn get_or_try_init<E>(&self, init: impl AsyncFnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        if acquire(&self.permits, 1, "a value that is being made").await.is_ok() {
            let permit = PutBack {
                permits: &self.permits,
                count: 1,
            };
            let value = init().await?;
            std::mem::forget(permit);
            self.fill(value);
        }
        Ok(self.get().expect("it is closed once there is a value"))
    }

    /// Takes the value out: the cell is as new.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }

    /// The value, if there is one.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// To be called with the permit, which is then of no use any more.
    fn fill(&self, value: T) {
        let filled = self.value.set(value);
        debug_assert!(filled.is_ok(), "who has the permit is alone");
        self.permits.act(Permits::close);
    }
}

impl<T> Default for OnceCell<T> {
    fn default() -> OnceCell<T> {
        OnceCell::new()
    }
}

impl<T> From<T> for OnceCell<T> {
    fn from(value: T) -> OnceCell<T> {
        let cell = OnceCell::new();
        let set = cell.set(value);
        debug_assert!(set.is_ok(), "it is new");
        cell
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceCell").field(&self.get()).finish()
    }
}
