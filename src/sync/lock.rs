//! An async mutex.

use std::fmt;
use std::rc::Rc;

use super::guard::{AccessGuard, Exclusive, Guarded, RawLock, fmt_lock};
use super::wait::StateCell;
use crate::task::WaitName;

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
pub struct Lock<T: ?Sized>(Guarded<T>);

impl<T: ?Sized> RawLock for Lock<T> {
    type Value = T;
    const ALL: usize = 1;
    const NAME: WaitName = &"a lock";

    fn guarded(&self) -> &Guarded<T> {
        &self.0
    }
}

impl<T> Lock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock(Guarded::new(Lock::<T>::ALL, value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.value.into_inner()
    }
}

impl<T: ?Sized> Lock<T> {
    /// Locks, after all earlier waiters. Dropping the guard unlocks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only loses its position in the queue. A lock just granted to it goes to the next waiter.
    pub async fn lock(&self) -> LockGuard<'_, T> {
        AccessGuard::acquire(self).await
    }

    /// Locks if the lock is free.
    pub fn try_lock(&self) -> Result<LockGuard<'_, T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// As [`lock`](Lock::lock), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn lock_owned(self: Rc<Self>) -> OwnedLockGuard<T> {
        AccessGuard::acquire(self).await
    }

    /// As [`try_lock`](Lock::try_lock), with a guard that owns an `Rc` of the lock.
    pub fn try_lock_owned(self: Rc<Self>) -> Result<OwnedLockGuard<T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// Whether the lock is held, or is being handed to a waiter.
    pub fn is_locked(&self) -> bool {
        self.0.permits.with(|permits| permits.available() == 0)
    }

    /// The value, without locking: the exclusive borrow proves that there is no guard.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.value.get_mut()
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
        fmt_lock::<Exclusive, _>("Lock", self, f)
    }
}

/// Exclusive access to a [`Lock`]'s value. Dropping it unlocks.
pub type LockGuard<'a, T> = AccessGuard<&'a Lock<T>, Exclusive>;

impl<'a, T: ?Sized> LockGuard<'a, T> {
    /// The lock that this guard belongs to.
    pub fn lock(guard: &LockGuard<'a, T>) -> &'a Lock<T> {
        guard.lock_ptr()
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
pub type OwnedLockGuard<T> = AccessGuard<Rc<Lock<T>>, Exclusive>;

impl<T: ?Sized> OwnedLockGuard<T> {
    /// The lock that this guard belongs to.
    pub fn lock(guard: &OwnedLockGuard<T>) -> &Rc<Lock<T>> {
        guard.lock_ptr()
    }
}

/// Error: the lock is held, or other tasks are waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TryLockError;

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lock is held: wait for it, or try later")
    }
}

impl std::error::Error for TryLockError {}
