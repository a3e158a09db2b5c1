//! An async mutex.

use std::cell::{RefCell, UnsafeCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::permits::{Denied, LocalPermits, Permits, acquire};
use super::wait::StateCell;

/// A mutex whose guard can be held across awaits: asyncio's `Lock`, with the value inside.
///
/// Waiters are served in FIFO order, without barging. The lock is only needed where the value is used *across* an
/// await; otherwise a `RefCell` suffices, since only one task of a loop runs at a time. There is no poisoning: a
/// panicking task releases the lock.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Lock;
/// windlass::run(async {
///     let total = Rc::new(Lock::new(0));
///     let tasks: Vec<_> = (0..10)
///         .map(|_| {
///             let total = total.clone();
///             windlass::spawn(async move {
///                 let mut total = total.lock().await;
///                 let seen = *total;
///                 windlass::task::yield_now().await;
///                 *total = seen + 1; // no other task changed it meanwhile
///             })
///         })
///         .collect();
///     for task in tasks {
///         task.await.unwrap();
///     }
///     assert_eq!(*total.lock().await, 10);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// It cannot be shared between threads:
///
/// ```compile_fail
/// let lock = windlass::sync::Lock::new(0);
/// std::thread::scope(|scope| {
///     scope.spawn(|| lock.try_lock().is_ok());
/// });
/// ```
pub struct Lock<T: ?Sized> {
    /// One permit: its holder may access the value.
    permits: LocalPermits,
    value: UnsafeCell<T>,
}

impl<T> Lock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            permits: RefCell::new(Permits::new(1)),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Lock<T> {
    /// Locks, after all earlier waiters. Dropping the guard unlocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only loses its position in the queue. A lock just granted to it goes to the next waiter.
    pub async fn lock(&self) -> LockGuard<'_, T> {
        self.take().await;
        LockGuard { lock: self }
    }

    /// Locks if the lock is free.
    pub fn try_lock(&self) -> Result<LockGuard<'_, T>, TryLockError> {
        self.try_take()?;
        Ok(LockGuard { lock: self })
    }

    /// As [`lock`](Lock::lock), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn lock_owned(self: Rc<Self>) -> OwnedLockGuard<T> {
        self.take().await;
        OwnedLockGuard { lock: self }
    }

    /// As [`try_lock`](Lock::try_lock), with a guard that owns an `Rc` of the lock.
    pub fn try_lock_owned(self: Rc<Self>) -> Result<OwnedLockGuard<T>, TryLockError> {
        self.try_take()?;
        Ok(OwnedLockGuard { lock: self })
    }

    /// Whether the lock is held, or is being handed to a waiter.
    pub fn is_locked(&self) -> bool {
        self.permits.with(|permits| permits.available() == 0)
    }

    /// The value. The exclusive borrow makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    async fn take(&self) {
        let taken = acquire(&self.permits, 1, "a lock").await;
        debug_assert!(taken.is_ok(), "a lock is never closed");
    }

    fn try_take(&self) -> Result<(), TryLockError> {
        self.permits
            .with(|permits| permits.try_take(1))
            .map_err(|_: Denied| TryLockError)
    }

    fn put(&self) {
        self.permits.update(|permits| permits.release(1));
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> From<T> for Lock<T> {
    fn from(value: T) -> Lock<T> {
        Lock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Lock");
        match self.try_lock() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(_) => shown.field("value", &format_args!("<locked>")),
        };
        shown
            .field("waiting", &self.permits.with(|permits| permits.waiting()))
            .finish()
    }
}

/// Gives access to a [`Lock`]'s value. Dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct LockGuard<'a, T: ?Sized> {
    lock: &'a Lock<T>,
}

impl<'a, T: ?Sized> LockGuard<'a, T> {
    /// The lock that this guard belongs to.
    pub fn lock(guard: &LockGuard<'a, T>) -> &'a Lock<T> {
        guard.lock
    }
}

impl<T: ?Sized> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock's only permit until it is dropped, and the reference cannot outlive it.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.put();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// As [`LockGuard`], with an `Rc` of the lock.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Lock;
/// windlass::run(async {
///     let log = Rc::new(Lock::new(Vec::new()));
///     let mut guard = log.clone().lock_owned().await;
///     let task = windlass::spawn(async move { guard.push("from a task") });
///     task.await.unwrap();
///     assert_eq!(*log.lock().await, ["from a task"]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping the guard unlocks"]
pub struct OwnedLockGuard<T: ?Sized> {
    lock: Rc<Lock<T>>,
}

impl<T: ?Sized> OwnedLockGuard<T> {
    /// The lock that this guard belongs to.
    pub fn lock(guard: &OwnedLockGuard<T>) -> &Rc<Lock<T>> {
        &guard.lock
    }
}

impl<T: ?Sized> Deref for OwnedLockGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as for `LockGuard`; the `Rc` keeps the lock alive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedLockGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for OwnedLockGuard<T> {
    fn drop(&mut self) {
        self.lock.put();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedLockGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for OwnedLockGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The lock is held, or other tasks are waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockError;

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lock is held: wait for it, or try later")
    }
}

impl std::error::Error for TryLockError {}
