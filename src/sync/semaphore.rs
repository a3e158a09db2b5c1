//! A counting semaphore.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use super::error::Closed;
use super::permits::{Denied, LocalPermits, Permits, acquire};
use super::wait::StateCell;

/// Limits how many tasks do something at a time: asyncio's `Semaphore`, with permits that are returned when dropped.
///
/// Waiters are served in FIFO order, so a request for many permits is not starved by requests for few. asyncio's
/// `BoundedSemaphore` raises an error when more permits are released than acquired; here that is impossible, because
/// dropping a permit releases it. Only [`add_permits`](Semaphore::add_permits) adds permits.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Semaphore;
/// windlass::run(async {
///     let two_at_a_time = Rc::new(Semaphore::new(2));
///     let tasks: Vec<_> = (0..5)
///         .map(|_| {
///             let semaphore = two_at_a_time.clone();
///             windlass::spawn(async move {
///                 let _permit = semaphore.acquire().await.unwrap();
///                 windlass::task::yield_now().await; // at most two tasks are here
///             })
///         })
///         .collect();
///     for task in tasks {
///         task.await.unwrap();
///     }
///     assert_eq!(two_at_a_time.available_permits(), 2);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Semaphore {
    permits: LocalPermits,
    /// Available and acquired permits.
    total: Cell<usize>,
}

impl Semaphore {
    /// Creates a semaphore with `permits` permits.
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore {
            permits: RefCell::new(Permits::new(permits)),
            total: Cell::new(permits),
        }
    }

    /// The number of available permits.
    pub fn available_permits(&self) -> usize {
        self.permits.with(|permits| permits.available())
    }

    /// Acquires a permit, waiting behind earlier callers. Fails if the semaphore is or gets closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only loses its position in the queue. A permit just granted to it goes to the next waiter.
    pub async fn acquire(&self) -> Result<Permit<'_>, Closed> {
        self.acquire_many(1).await
    }

    /// Acquires `count` permits together. Later callers wait behind this one, even if they need fewer. A request for
    /// more than the total waits for [`add_permits`](Semaphore::add_permits).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Semaphore::acquire). Later waiters proceed if enough permits are available.
    pub async fn acquire_many(&self, count: usize) -> Result<Permit<'_>, Closed> {
        PermitGuard::acquire(self, count).await
    }

    /// Acquires a permit if that needs no waiting.
    pub fn try_acquire(&self) -> Result<Permit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Acquires `count` permits if that needs no waiting.
    pub fn try_acquire_many(&self, count: usize) -> Result<Permit<'_>, TryAcquireError> {
        PermitGuard::try_acquire(self, count)
    }

    /// As [`acquire`](Semaphore::acquire), with a permit that owns an `Rc` of the semaphore and can move into a task.
    pub async fn acquire_owned(self: Rc<Self>) -> Result<OwnedPermit, Closed> {
        self.acquire_many_owned(1).await
    }

    /// As [`acquire_many`](Semaphore::acquire_many), with a permit that owns an `Rc` of the semaphore.
    pub async fn acquire_many_owned(self: Rc<Self>, count: usize) -> Result<OwnedPermit, Closed> {
        PermitGuard::acquire(self, count).await
    }

    /// As [`try_acquire`](Semaphore::try_acquire), with a permit that owns an `Rc` of the semaphore.
    pub fn try_acquire_owned(self: Rc<Self>) -> Result<OwnedPermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// As [`try_acquire_many`](Semaphore::try_acquire_many), with a permit that owns an `Rc` of the semaphore.
    pub fn try_acquire_many_owned(self: Rc<Self>, count: usize) -> Result<OwnedPermit, TryAcquireError> {
        PermitGuard::try_acquire(self, count)
    }

    /// Adds permits.
    ///
    /// # Panics
    ///
    /// If the total would exceed `usize::MAX`.
    #[track_caller]
    pub fn add_permits(&self, count: usize) {
        let total = self.total.get().checked_add(count);
        self.total
            .set(total.expect("a semaphore has at most usize::MAX permits"));
        self.permits.update(|permits| permits.release(count));
    }

    /// Permanently removes up to `count` available permits. Returns how many were removed. To remove permits that are
    /// in use, acquire them and call [`forget`](Permit::forget).
    pub fn forget_permits(&self, count: usize) -> usize {
        let removed = self.permits.with(|permits| permits.remove(count));
        self.total.set(self.total.get() - removed);
        removed
    }

    /// Closes the semaphore: current and future acquisitions fail. Permits already acquired stay valid.
    pub fn close(&self) {
        self.permits.update(Permits::close);
    }

    /// Whether the semaphore is closed.
    pub fn is_closed(&self) -> bool {
        self.permits.with(|permits| permits.is_closed())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("available", &self.available_permits())
            .field("total", &self.total.get())
            .field("waiting", &self.permits.with(|permits| permits.waiting()))
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// One or several permits of a [`Semaphore`]. Dropping it releases them.
pub type Permit<'a> = PermitGuard<&'a Semaphore>;

/// As [`Permit`], with an `Rc` of the semaphore.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Semaphore;
/// windlass::run(async {
///     let slots = Rc::new(Semaphore::new(1));
///     let permit = slots.clone().acquire_owned().await.unwrap();
///     let task = windlass::spawn(async move { drop(permit) });
///     let _again = slots.acquire().await.unwrap();
///     task.await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type OwnedPermit = PermitGuard<Rc<Semaphore>>;

/// The generic form of [`Permit`] and [`OwnedPermit`]: `P` is a reference to the semaphore, or an `Rc` of it.
#[must_use = "dropping the permit releases it"]
pub struct PermitGuard<P: Deref<Target = Semaphore>> {
    semaphore: P,
    count: usize,
}

impl<P: Deref<Target = Semaphore>> PermitGuard<P> {
    async fn acquire(semaphore: P, count: usize) -> Result<PermitGuard<P>, Closed> {
        acquire(&semaphore.permits, count, &"a semaphore").await?;
        Ok(PermitGuard { semaphore, count })
    }

    fn try_acquire(semaphore: P, count: usize) -> Result<PermitGuard<P>, TryAcquireError> {
        match semaphore.permits.with(|permits| permits.try_take(count)) {
            Ok(()) => Ok(PermitGuard { semaphore, count }),
            Err(Denied::Busy) => Err(TryAcquireError::NoPermits),
            Err(Denied::Closed) => Err(TryAcquireError::Closed),
        }
    }

    /// The number of permits.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Removes the permits permanently instead of releasing them.
    pub fn forget(mut self) {
        let count = std::mem::take(&mut self.count);
        self.semaphore.total.set(self.semaphore.total.get() - count);
    }

    /// Splits off `count` permits; `None` if there are fewer.
    pub fn split(&mut self, count: usize) -> Option<PermitGuard<P>>
    where
        P: Clone,
    {
        self.count = self.count.checked_sub(count)?;
        let semaphore = self.semaphore.clone();
        Some(PermitGuard { semaphore, count })
    }
}

impl<P: Deref<Target = Semaphore>> Drop for PermitGuard<P> {
    fn drop(&mut self) {
        self.semaphore.permits.update(|permits| permits.release(self.count));
    }
}

impl<P: Deref<Target = Semaphore>> fmt::Debug for PermitGuard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish()
    }
}

/// Why no permit could be acquired without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// Not enough permits are available, or other tasks are waiting for them.
    NoPermits,
    /// The semaphore is closed.
    Closed,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryAcquireError::NoPermits => "no permit is available: wait for one, or try later",
            TryAcquireError::Closed => "the semaphore is closed",
        })
    }
}

impl std::error::Error for TryAcquireError {}
