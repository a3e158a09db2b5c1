//! An asynchronous `OnceCell`.

use std::cell::{OnceCell as StdOnceCell, RefCell};
use std::convert::Infallible;
use std::fmt;

use super::permits::{LocalPermits, Permits, ReleaseOnDrop, acquire};
use super::wait::StateCell;

/// A cell whose value is initialized asynchronously, once. Concurrent callers wait for the first initializer.
///
/// If an initializer fails, panics or is cancelled, the next waiter runs its own.
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
    /// One permit to initialize; closed once there is a value.
    permits: LocalPermits,
}

impl<T> OnceCell<T> {
    /// Creates an empty cell.
    pub const fn new() -> OnceCell<T> {
        OnceCell {
            value: StdOnceCell::new(),
            permits: RefCell::new(Permits::new(1)),
        }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// The value, if there is one.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Sets the value. Returns it if the cell has a value or is being initialized.
    pub fn set(&self, value: T) -> Result<(), T> {
        match self.permits.with(|permits| permits.try_take(1)) {
            Ok(()) => {
                self.fill(value);
                Ok(())
            }
            Err(_) => Err(value),
        }
    }

    /// Returns the value. If there is none, waits for an initializer that is running, or else runs `init`.
    ///
    /// An `init` that waits for the same cell deadlocks.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it runs `init`, the next waiter runs its own.
    pub async fn get_or_init(&self, init: impl AsyncFnOnce() -> T) -> &T {
        let made: Result<&T, Infallible> = self.get_or_try_init(async || Ok(init().await)).await;
        match made {
            Ok(value) => value,
        }
    }

    /// As [`get_or_init`](OnceCell::get_or_init). If `init` fails, returns its error, and the next waiter runs its own.
    pub async fn get_or_try_init<E>(&self, init: impl AsyncFnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        if acquire(&self.permits, 1, &"an initializer").await.is_ok() {
            let permit = ReleaseOnDrop(&self.permits);
            let value = init().await?;
            std::mem::forget(permit);
            self.fill(value);
        }
        Ok(self.get().expect("closed only once there is a value"))
    }

    /// Takes the value and empties the cell.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }

    /// Returns the value, if there is one.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Requires the permit, which closing makes obsolete.
    fn fill(&self, value: T) {
        let filled = self.value.set(value);
        debug_assert!(filled.is_ok(), "only the permit holder sets the value");
        self.permits.update(Permits::close);
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
        debug_assert!(set.is_ok(), "the cell is new");
        cell
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceCell").field(&self.get()).finish()
    }
}
