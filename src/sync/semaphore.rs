//! So many at a time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use super::error::Closed;
use super::permits::{Denied, LocalPermits, Permits, acquire};
use super::wait::Kept;

/// Lets so many in at a time: asyncio's `Semaphore`, with permits that put themselves back.
///
/// First come, first served: whoever asks for many is not overtaken by who asks for few. asyncio's `BoundedSemaphore`
/// raises when more is released than was acquired; here that cannot be written, since a permit is released by dropping
/// it. Only [`add_permits`](Semaphore::add_permits) makes more.
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
///                 windlass::task::yield_now().await; // at most two are here
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
    /// Those that are here and those that are out.
    total: Cell<usize>,
}

impl Semaphore {
    /// Makes a semaphore with so many permits.
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore {
            permits: RefCell::new(Permits::new(permits)),
            total: Cell::new(permits),
        }
    }

    /// How many permits could be had now, if nobody waits.
    pub fn available_permits(&self) -> usize {
        self.permits.with(|permits| permits.available())
    }

    /// Waits for a permit, in the order of asking.
    ///
    /// Dropping the future loses only its place in the line; a permit that had just been handed to it goes to the next.
    pub async fn acquire(&self) -> Result<Permit<'_>, Closed> {
        self.acquire_many(1).await
    }

    /// Waits until so many permits can be had at once. Those who come after wait behind it, even for fewer. More than
    /// there are in all can be had only once [`add_permits`](Semaphore::add_permits) has made them.
    ///
    /// Dropping the future is as for [`acquire`](Semaphore::acquire); who waited behind goes on.
    pub async fn acquire_many(&self, count: usize) -> Result<Permit<'_>, Closed> {
        self.take(count).await?;
        Ok(Permit { semaphore: self, count })
    }

    /// Takes a permit if that needs no waiting.
    pub fn try_acquire(&self) -> Result<Permit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes so many permits if that needs no waiting.
    pub fn try_acquire_many(&self, count: usize) -> Result<Permit<'_>, TryAcquireError> {
        self.try_take(count)?;
        Ok(Permit { semaphore: self, count })
    }

    /// As [`acquire`](Semaphore::acquire), with a permit that owns its share of the semaphore and can go into a task.
    pub async fn acquire_owned(self: Rc<Self>) -> Result<OwnedPermit, Closed> {
        self.acquire_many_owned(1).await
    }

    /// As [`acquire_many`](Semaphore::acquire_many), with a permit that owns its share of the semaphore.
    pub async fn acquire_many_owned(self: Rc<Self>, count: usize) -> Result<OwnedPermit, Closed> {
        self.take(count).await?;
        let semaphore = self;
        Ok(OwnedPermit { semaphore, count })
    }

    /// As [`try_acquire`](Semaphore::try_acquire), with a permit that owns its share of the semaphore.
    pub fn try_acquire_owned(self: Rc<Self>) -> Result<OwnedPermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// As [`try_acquire_many`](Semaphore::try_acquire_many), with a permit that owns its share of the semaphore.
    pub fn try_acquire_many_owned(self: Rc<Self>, count: usize) -> Result<OwnedPermit, TryAcquireError> {
        self.try_take(count)?;
        let semaphore = self;
        Ok(OwnedPermit { semaphore, count })
    }

    /// Makes more permits.
    ///
    /// # Panics
    ///
    /// If there would be more than `usize::MAX` in all.
    #[track_caller]
    pub fn add_permits(&self, count: usize) {
        let total = self.total.get().checked_add(count);
        self.total
            .set(total.expect("a semaphore has at most usize::MAX permits"));
        self.permits.act(|permits| permits.put(count));
    }

    /// Takes away up to so many permits that nobody has, for good. Gives how many. To take away more, acquire them and
    /// [`forget`](Permit::forget) the permit.
    pub fn forget_permits(&self, count: usize) -> usize {
        let removed = self.permits.with(|permits| permits.remove(count));
        self.total.set(self.total.get() - removed);
        removed
    }

    /// From now on nobody gets a permit: who waits is told, and who asks. Permits that are out stay valid.
    pub fn close(&self) {
        self.permits.act(Permits::close);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.permits.with(|permits| permits.is_closed())
    }

    async fn take(&self, count: usize) -> Result<(), Closed> {
        acquire(&self.permits, count, "a semaphore").await.map_err(|_| Closed)
    }

    fn try_take(&self, count: usize) -> Result<(), TryAcquireError> {
        let taken = self.permits.with(|permits| permits.try_take(count));
        taken.map_err(|denied| match denied {
            Denied::Busy => TryAcquireError::NoPermits,
            Denied::Closed => TryAcquireError::Closed,
        })
    }

    fn put(&self, count: usize) {
        self.permits.act(|permits| permits.put(count));
    }

    fn forget(&self, count: usize) {
        self.total.set(self.total.get() - count);
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

/// One or several permits of a [`Semaphore`], put back when dropped.
#[must_use = "a permit goes back as soon as it is dropped"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl<'a> Permit<'a> {
    /// How many permits these are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Never puts them back.
    pub fn forget(mut self) {
        self.semaphore.forget(std::mem::take(&mut self.count));
    }

    /// Takes `count` of these out as a permit of their own; `None` if there are not so many.
    pub fn split(&mut self, count: usize) -> Option<Permit<'a>> {
        self.count = self.count.checked_sub(count)?;
        let semaphore = self.semaphore;
        Some(Permit { semaphore, count })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.semaphore.put(self.count);
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish()
    }
}

/// As [`Permit`], owning its share of the semaphore.
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
#[must_use = "a permit goes back as soon as it is dropped"]
pub struct OwnedPermit {
    semaphore: Rc<Semaphore>,
    count: usize,
}

impl OwnedPermit {
    /// How many permits these are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Never puts them back.
    pub fn forget(mut self) {
        self.semaphore.forget(std::mem::take(&mut self.count));
    }

    /// Takes `count` of these out as a permit of their own; `None` if there are not so many.
    pub fn split(&mut self, count: usize) -> Option<OwnedPermit> {
        self.count = self.count.checked_sub(count)?;
        let semaphore = self.semaphore.clone();
        Some(OwnedPermit { semaphore, count })
    }
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        self.semaphore.put(self.count);
    }
}

impl fmt::Debug for OwnedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedPermit").field("count", &self.count).finish()
    }
}

/// Why no permit could be had without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// There are not enough now, or others wait for them already.
    NoPermits,
    /// The semaphore was closed.
    Closed,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryAcquireError::NoPermits => "no permit is free: await one, or try later",
            TryAcquireError::Closed => "the semaphore is closed",
        })
    }
}

impl std::error::Error for TryAcquireError {}
