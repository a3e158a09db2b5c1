//! An async read-write lock.

use std::cell::{RefCell, UnsafeCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::lock::TryLockError;
use super::permits::{LocalPermits, Permits, acquire};
use super::wait::StateCell;

/// A writer acquires all permits, a reader one.
const ALL: usize = usize::MAX;

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
pub struct RwLock<T: ?Sized> {
    permits: LocalPermits,
    value: UnsafeCell<T>,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            permits: RefCell::new(Permits::new(ALL)),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading, after all earlier waiting writers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only loses its position in the queue. A lock just granted to it goes to the next waiter.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.take(1).await;
        RwLockReadGuard { lock: self }
    }

    /// Locks for writing, after all earlier waiters.
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](RwLock::read). Readers that wait behind this writer proceed.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.take(ALL).await;
        RwLockWriteGuard { lock: self }
    }

    /// Locks for reading if that needs no waiting.
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        self.try_take(1)?;
        Ok(RwLockReadGuard { lock: self })
    }

    /// Locks for writing if that needs no waiting.
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        self.try_take(ALL)?;
        Ok(RwLockWriteGuard { lock: self })
    }

    /// As [`read`](RwLock::read), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn read_owned(self: Rc<Self>) -> OwnedRwLockReadGuard<T> {
        self.take(1).await;
        OwnedRwLockReadGuard { lock: self }
    }

    /// As [`write`](RwLock::write), with a guard that owns an `Rc` of the lock and can move into a task.
    pub async fn write_owned(self: Rc<Self>) -> OwnedRwLockWriteGuard<T> {
        self.take(ALL).await;
        OwnedRwLockWriteGuard { lock: self }
    }

    /// As [`try_read`](RwLock::try_read), with a guard that owns an `Rc` of the lock.
    pub fn try_read_owned(self: Rc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError> {
        self.try_take(1)?;
        Ok(OwnedRwLockReadGuard { lock: self })
    }

    /// As [`try_write`](RwLock::try_write), with a guard that owns an `Rc` of the lock.
    pub fn try_write_owned(self: Rc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError> {
        self.try_take(ALL)?;
        Ok(OwnedRwLockWriteGuard { lock: self })
    }

    /// Whether the lock is held by a reader or a writer.
    pub fn is_locked(&self) -> bool {
        self.permits.with(|permits| permits.available() != ALL)
    }

    /// The value. The exclusive borrow makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    async fn take(&self, count: usize) {
        let taken = acquire(&self.permits, count, "a read-write lock").await;
        debug_assert!(taken.is_ok(), "a lock is never closed");
    }

    fn try_take(&self, count: usize) -> Result<(), TryLockError> {
        self.permits
            .with(|permits| permits.try_take(count))
            .map_err(|_| TryLockError)
    }

    fn put(&self, count: usize) {
        self.permits.update(|permits| permits.release(count));
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
        let mut shown = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(_) => shown.field("value", &format_args!("<locked>")),
        };
        shown
            .field("waiting", &self.permits.with(|permits| permits.waiting()))
            .finish()
    }
}

/// Shared access to a [`RwLock`]'s value. Dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

/// Exclusive access to a [`RwLock`]'s value. Dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Converts the guard into a read guard and admits other readers, without letting a writer in between.
    pub fn downgrade(guard: RwLockWriteGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        let lock = ManuallyDrop::new(guard).lock;
        // The guard comes first: it keeps its permit even if a waker panics.
        let reading = RwLockReadGuard { lock };
        lock.put(ALL - 1);
        reading
    }
}

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
#[must_use = "dropping the guard unlocks"]
pub struct OwnedRwLockReadGuard<T: ?Sized> {
    lock: Rc<RwLock<T>>,
}

/// As [`RwLockWriteGuard`], with an `Rc` of the lock.
#[must_use = "dropping the guard unlocks"]
pub struct OwnedRwLockWriteGuard<T: ?Sized> {
    lock: Rc<RwLock<T>>,
}

impl<T: ?Sized> OwnedRwLockWriteGuard<T> {
    /// Converts the guard into a read guard and admits other readers, without letting a writer in between.
    pub fn downgrade(guard: OwnedRwLockWriteGuard<T>) -> OwnedRwLockReadGuard<T> {
        let guard = ManuallyDrop::new(guard);
        // SAFETY: `guard` is never dropped, so the `Rc` is moved out exactly once.
        let lock = unsafe { std::ptr::read(&guard.lock) };
        let reading = OwnedRwLockReadGuard { lock };
        reading.lock.put(ALL - 1);
        reading
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds a permit until it is dropped, so no writer can hold all of them.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds all permits until it is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for OwnedRwLockReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as for `RwLockReadGuard`; the `Rc` keeps the lock alive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for OwnedRwLockWriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as for `RwLockWriteGuard`; the `Rc` keeps the lock alive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedRwLockWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.put(1);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.put(ALL);
    }
}

impl<T: ?Sized> Drop for OwnedRwLockReadGuard<T> {
    fn drop(&mut self) {
        self.lock.put(1);
    }
}

impl<T: ?Sized> Drop for OwnedRwLockWriteGuard<T> {
    fn drop(&mut self) {
        self.lock.put(ALL);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for OwnedRwLockWriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
