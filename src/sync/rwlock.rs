//! An async read-write lock.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use super::guard::{AccessGuard, Exclusive, Guarded, RawLock, Shared, fmt_lock};
use super::lock::TryLockError;
use super::wait::StateCell;
use crate::task::WaitName;

/// A read-write lock whose guards can be held across awaits: many readers or one writer.
///
/// Waiters are served in FIFO order. Consecutive readers share the lock. Readers that arrive after a waiting writer
/// wait for it, so readers cannot starve a writer. For the same reason, a task that holds a read guard must not wait
/// for a second one: with a writer waiting in between, it would deadlock.
///
/// ```
/// use windlass::sync::RwLock;
/// windlass::run(async {
///     let settings = RwLock::new(vec!["a"]);
///     {
///         let (one, other) = (settings.read().await, settings.read().await);
///         assert_eq!(one.len() + other.len(), 2);
///         assert!(settings.try_write().is_err());
///     }
///     settings.write().await.push("b");
///     assert_eq!(settings.read().await.len(), 2);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct RwLock<T: ?Sized>(Guarded<T>);

impl<T: ?Sized> RawLock for RwLock<T> {
    type Value = T;
    const ALL: usize = usize::MAX;
    const NAME: WaitName = &"a read-write lock";

    fn guarded(&self) -> &Guarded<T> {
        &self.0
    }
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(Guarded::new(RwLock::<T>::ALL, value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading, after all earlier waiters.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only loses its position in the queue. A lock just granted to it goes to the next waiter.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        AccessGuard::acquire(self).await
    }

    /// Locks for writing, after all earlier waiters.
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](RwLock::read). Readers that waited only for this writer proceed.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        AccessGuard::acquire(self).await
    }

    /// Locks for reading if that needs no waiting.
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// Locks for writing if that needs no waiting.
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// As [`read`](RwLock::read), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn read_owned(self: Rc<Self>) -> OwnedRwLockReadGuard<T> {
        AccessGuard::acquire(self).await
    }

    /// As [`write`](RwLock::write), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn write_owned(self: Rc<Self>) -> OwnedRwLockWriteGuard<T> {
        AccessGuard::acquire(self).await
    }

    /// As [`try_read`](RwLock::try_read), with a guard that owns an `Rc` of the lock.
    pub fn try_read_owned(self: Rc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// As [`try_write`](RwLock::try_write), with a guard that owns an `Rc` of the lock.
    pub fn try_write_owned(self: Rc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError> {
        AccessGuard::try_acquire(self)
    }

    /// Whether the lock is held by a reader or a writer.
    pub fn is_locked(&self) -> bool {
        self.0.permits.with(|permits| permits.available() != Self::ALL)
    }

    /// The value, without locking: the exclusive borrow proves that there is no guard.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.value.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_lock::<Shared, _>("RwLock", self, f)
    }
}

/// Shared access to a [`RwLock`]'s value. Dropping it unlocks.
pub type RwLockReadGuard<'a, T> = AccessGuard<&'a RwLock<T>, Shared>;

/// Exclusive access to a [`RwLock`]'s value. Dropping it unlocks.
pub type RwLockWriteGuard<'a, T> = AccessGuard<&'a RwLock<T>, Exclusive>;

/// As [`RwLockReadGuard`], with an `Rc` of the lock.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::RwLock;
/// windlass::run(async {
///     let page = Rc::new(RwLock::new("text"));
///     let reading = page.clone().read_owned().await;
///     let task = windlass::spawn(async move { reading.len() });
///     assert_eq!(task.await.unwrap(), 4);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type OwnedRwLockReadGuard<T> = AccessGuard<Rc<RwLock<T>>, Shared>;

/// As [`RwLockWriteGuard`], with an `Rc` of the lock.
pub type OwnedRwLockWriteGuard<T> = AccessGuard<Rc<RwLock<T>>, Exclusive>;

impl<T: ?Sized, P: Deref<Target = RwLock<T>>> AccessGuard<P, Exclusive> {
    /// Converts the guard into a read guard and admits waiting readers. No writer gets the lock in between.
    pub fn downgrade(guard: AccessGuard<P, Exclusive>) -> AccessGuard<P, Shared> {
        guard.into_shared()
    }
}
