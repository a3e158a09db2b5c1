//! A value that many may read or one may write, across awaits.

use std::cell::{RefCell, UnsafeCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::lock::TryLockError;
use super::permits::{LocalPermits, Permits, acquire};
use super::wait::Kept;

/// A writer takes all permits, a reader one.
const ALL: usize = usize::MAX;

/// A value that many tasks may read, or one may write.
///
/// Fair: first come, first served. Readers that follow each other share the lock; a writer waits for those before it,
/// and readers that come after it wait for the writer, so that it is not starved. For the same reason a task that
/// holds a read guard must not wait for another one: a writer between the two would make it wait for itself.
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
    /// Makes a free lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            permits: RefCell::new(Permits::new(ALL)),
            value: UnsafeCell::new(value),
        }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock and none that asked before waits for it.
    ///
    /// Dropping the future loses only its place in the line; if the lock had just been handed to it, the next gets it.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.take(1).await;
        RwLockReadGuard { lock: self }
    }

    /// Waits until nobody holds the lock and everybody who asked before has had it. Dropping the future is as for
    /// [`read`](RwLock::read): readers that waited behind this writer go on.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.take(ALL).await;
        RwLockWriteGuard { lock: self }
    }

    /// Reads if that needs no waiting.
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        self.try_take(1)?;
        Ok(RwLockReadGuard { lock: self })
    }

    /// Writes if that needs no waiting.
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        self.try_take(ALL)?;
        Ok(RwLockWriteGuard { lock: self })
    }

    /// As [`read`](RwLock::read), with a guard that owns its share of the lock and can go into a task.
    pub async fn read_owned(self: Rc<Self>) -> OwnedRwLockReadGuard<T> {
        self.take(1).await;
        OwnedRwLockReadGuard { lock: self }
    }

    /// As [`write`](RwLock::write), with a guard that owns its share of the lock and can go into a task.
    pub async fn write_owned(self: Rc<Self>) -> OwnedRwLockWriteGuard<T> {
        self.take(ALL).await;
        OwnedRwLockWriteGuard { lock: self }
    }

    /// As [`try_read`](RwLock::try_read), with a guard that owns its share of the lock.
    pub fn try_read_owned(self: Rc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError> {
        self.try_take(1)?;
        Ok(OwnedRwLockReadGuard { lock: self })
    }

    /// As [`try_write`](RwLock::try_write), with a guard that owns its share of the lock.
    pub fn try_write_owned(self: Rc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError> {
        self.try_take(ALL)?;
        Ok(OwnedRwLockWriteGuard { lock: self })
    }

    /// Whether somebody holds the lock.
    pub fn is_locked(&self) -> bool {
        self.permits.with(|permits| permits.available() != ALL)
    }

    /// The value, which nobody else can use meanwhile.
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
        self.permits.act(|permits| permits.put(count));
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

/// The right to read a [`RwLock`]'s value, until dropped.
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

/// The right to write a [`RwLock`]'s value, until dropped.
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Goes on reading and lets other readers in, with no writer in between.
    pub fn downgrade(guard: RwLockWriteGuard<'a, T>) -> RwLockReadGuard<'a, T> {
        let lock = ManuallyDrop::new(guard).lock;
        // First the guard, which keeps one permit whatever the wakers do.
        let reading = RwLockReadGuard { lock };
        lock.put(ALL - 1);
        reading
    }
}

/// As [`RwLockReadGuard`], owning its share of the lock.
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
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct OwnedRwLockReadGuard<T: ?Sized> {
    lock: Rc<RwLock<T>>,
}

/// As [`RwLockWriteGuard`], owning its share of the lock.
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct OwnedRwLockWriteGuard<T: ?Sized> {
    lock: Rc<RwLock<T>>,
}

impl<T: ?Sized> OwnedRwLockWriteGuard<T> {
    /// Goes on reading and lets other readers in, with no writer in between.
    pub fn downgrade(guard: OwnedRwLockWriteGuard<T>) -> OwnedRwLockReadGuard<T> {
        let guard = ManuallyDrop::new(guard);
        // SAFETY: the guard is not dropped, so that its share is moved out once.
        let lock = unsafe { std::ptr::read(&guard.lock) };
        let reading = OwnedRwLockReadGuard { lock };
        reading.lock.put(ALL - 1);
        reading
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard has a permit until it is dropped, so that no writer, who would need all, has any.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard has all permits until it is dropped.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard itself is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for OwnedRwLockReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as for `RwLockReadGuard`; the share keeps the lock alive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for OwnedRwLockWriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as for `RwLockWriteGuard`; the share keeps the lock alive.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for OwnedRwLockWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard itself is borrowed exclusively.
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
