//! The guards of [`Lock`](super::Lock) and [`RwLock`](super::RwLock): by reference or by `Rc`, shared or exclusive.

use std::cell::{RefCell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use super::lock::TryLockError;
use super::permits::{LocalPermits, Permits, acquire};
use super::wait::StateCell;
use crate::task::WaitName;

/// A value and its permits: the holder of one permit may read the value, the holder of all may also write it.
#[allow(missing_debug_implementations, reason = "not part of the public API")]
pub struct Guarded<T: ?Sized> {
    pub(super) permits: LocalPermits,
    pub(super) value: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    pub(super) const fn new(permits: usize, value: T) -> Guarded<T> {
        Guarded {
            permits: RefCell::new(Permits::new(permits)),
            value: UnsafeCell::new(value),
        }
    }
}

/// [`Lock`](super::Lock) or [`RwLock`](super::RwLock). Only this crate can name the trait, and so implement it.
pub trait RawLock {
    type Value: ?Sized;

    /// The number of permits.
    const ALL: usize;

    /// What dumps show for a task that waits for the lock.
    const NAME: WaitName;

    fn guarded(&self) -> &Guarded<Self::Value>;
}

/// [`Shared`] or [`Exclusive`].
pub trait Access {
    /// The number of permits to acquire.
    fn permits<L: RawLock + ?Sized>() -> usize;
}

/// Read access, shared with other readers.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl Access for Shared {
    fn permits<L: RawLock + ?Sized>() -> usize {
        1
    }
}

/// Read and write access for a single holder.
#[derive(Clone, Copy, Debug)]
pub enum Exclusive {}

impl Access for Exclusive {
    fn permits<L: RawLock + ?Sized>() -> usize {
        L::ALL
    }
}

/// The generic form of the guards of [`Lock`](super::Lock) and [`RwLock`](super::RwLock). Dropping it unlocks.
///
/// `P` is a reference to the lock, or an `Rc` of it. `A` is [`Shared`] or [`Exclusive`].
#[must_use = "dropping the guard unlocks"]
pub struct AccessGuard<P: Deref<Target: RawLock>, A: Access> {
    lock: P,
    access: PhantomData<A>,
}

impl<P: Deref<Target: RawLock>, A: Access> AccessGuard<P, A> {
    pub(super) async fn acquire(lock: P) -> AccessGuard<P, A> {
        let permits = &lock.guarded().permits;
        let acquired = acquire(permits, A::permits::<P::Target>(), P::Target::NAME).await;
        debug_assert!(acquired.is_ok(), "a lock is never closed");
        AccessGuard::new(lock)
    }

    pub(super) fn try_acquire(lock: P) -> Result<AccessGuard<P, A>, TryLockError> {
        let permits = &lock.guarded().permits;
        match permits.with(|permits| permits.try_take(A::permits::<P::Target>())) {
            Ok(()) => Ok(AccessGuard::new(lock)),
            Err(_) => Err(TryLockError),
        }
    }

    /// Requires the permits.
    fn new(lock: P) -> AccessGuard<P, A> {
        AccessGuard {
            lock,
            access: PhantomData,
        }
    }

    pub(super) fn lock_ptr(&self) -> &P {
        &self.lock
    }

    /// Unlocks.
    pub(super) fn into_lock(self) -> P {
        self.release(A::permits::<P::Target>());
        self.into_ptr()
    }

    /// Keeps the permits.
    fn into_ptr(self) -> P {
        let guard = ManuallyDrop::new(self);
        // SAFETY: `guard` is never dropped, so the pointer is moved out exactly once.
        unsafe { std::ptr::read(&guard.lock) }
    }

    fn release(&self, count: usize) {
        self.lock.guarded().permits.update(|permits| permits.release(count));
    }
}

impl<P: Deref<Target: RawLock>> AccessGuard<P, Exclusive> {
    /// Keeps one permit and releases the others.
    pub(super) fn into_shared(self) -> AccessGuard<P, Shared> {
        let shared = AccessGuard::new(self.into_ptr());
        shared.release(P::Target::ALL - 1);
        shared
    }
}

impl<P: Deref<Target: RawLock>, A: Access> Deref for AccessGuard<P, A> {
    type Target = <P::Target as RawLock>::Value;

    fn deref(&self) -> &Self::Target {
        // SAFETY: this guard holds at least one permit until it is dropped, so no other guard can be exclusive. `lock`
        // is a reference or an `Rc`, which keeps the lock alive; the returned reference cannot outlive the guard.
        unsafe { &*self.lock.guarded().value.get() }
    }
}

impl<P: Deref<Target: RawLock>> DerefMut for AccessGuard<P, Exclusive> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: this guard holds all permits until it is dropped, so it is the only one; it is borrowed exclusively.
        unsafe { &mut *self.lock.guarded().value.get() }
    }
}

impl<P: Deref<Target: RawLock>, A: Access> Drop for AccessGuard<P, A> {
    fn drop(&mut self) {
        self.release(A::permits::<P::Target>());
    }
}

impl<P: Deref<Target: RawLock<Value: fmt::Debug>>, A: Access> fmt::Debug for AccessGuard<P, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<P: Deref<Target: RawLock<Value: fmt::Display>>, A: Access> fmt::Display for AccessGuard<P, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Formats a lock, with its value if it can be locked for `A` without waiting.
pub(super) fn fmt_lock<A: Access, L>(name: &str, lock: &L, f: &mut fmt::Formatter<'_>) -> fmt::Result
where
    L: RawLock<Value: fmt::Debug> + ?Sized,
{
    let mut shown = f.debug_struct(name);
    match AccessGuard::<_, A>::try_acquire(lock) {
        Ok(guard) => shown.field("value", &guard),
        Err(_) => shown.field("value", &format_args!("<locked>")),
    };
    let waiting = lock.guarded().permits.with(|permits| permits.waiting());
    shown.field("waiting", &waiting).finish()
}
