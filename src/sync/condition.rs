//! Waiting, without holding a lock, until what it guards is as one wants it.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::lock::{Lock, LockGuard, OwnedLockGuard};
use super::wait::{Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// Lets go of a [`Lock`] until it is notified: asyncio's `Condition`, with std's signature.
///
/// The lock is apart, so that several conditions can share it: `wait` takes the guard and gives it back. Notifying does
/// not need the lock. A notification that went to a task which is then cancelled goes to the next, as long as that task
/// had not yet got its guard back.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::{Condition, Lock};
/// windlass::run(async {
///     let shared = Rc::new((Lock::new(Vec::new()), Condition::new()));
///     let consumer = windlass::spawn({
///         let shared = shared.clone();
///         async move {
///             let (lock, condition) = &*shared;
///             let mut items = condition.wait_for(lock.lock().await, |items| items.len() >= 2).await;
///             items.drain(..).sum::<i32>()
///         }
///     });
///     let (lock, condition) = &*shared;
///     for item in [20, 22] {
///         lock.lock().await.push(item);
///         condition.notify_one();
///         windlass::task::yield_now().await;
///     }
///     assert_eq!(consumer.await.unwrap(), 42);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Condition {
    wait_queue: RefCell<WaitQueue<(), ()>>,
}

impl Condition {
    /// Makes a condition.
    pub const fn new() -> Condition {
        Condition {
            wait_queue: RefCell::new(WaitQueue::new()),
        }
    }

    /// Frees the lock, waits to be notified, and locks it again. Nothing is missed between freeing and waiting. Others
    /// may have changed the value since the notification, so this is called in a loop: see
    /// [`wait_for`](Condition::wait_for).
    ///
    /// Dropping the future leaves the lock free, and passes on a notification that it had got.
    pub async fn wait<G: Guard>(&self, guard: G) -> G {
        let (guard, mut baton) = self.wait_once(guard).await;
        baton.keep();
        guard
    }

    /// Waits until the predicate holds. It is called with the lock held, first of all at once, and then after each
    /// notification.
    ///
    /// Dropping the future, or a panic of the predicate, leaves the lock free and passes on a notification that was
    /// got.
    pub async fn wait_for<G: Guard>(&self, mut guard: G, mut predicate: impl FnMut(&mut G::Target) -> bool) -> G {
        let mut baton = Baton(None);
        loop {
            let is_so = predicate(&mut guard);
            baton.keep();
            if is_so {
                return guard;
            }
            (guard, baton) = self.wait_once(guard).await;
        }
    }

    /// Wakes who has waited longest, if anybody does.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes those `count` who have waited longest, or as many as there are.
    pub fn notify(&self, count: usize) {
        self.wait_queue.act(|wait_queue| {
            for _ in 0..count.min(wait_queue.len()) {
                wait_queue.call_first(());
            }
        });
    }

    /// Wakes everybody who waits.
    pub fn notify_all(&self) {
        self.wait_queue.act(|wait_queue| wait_queue.call_all(|| ()));
    }

    async fn wait_once<G: Guard>(&self, guard: G) -> (G, Baton<'_>) {
        let mut waiting = pin!(Waiting::new(&self.wait_queue, Notification));
        // In the line first, and then out of the lock.
        let joined = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        let lock = guard.unlock();
        if joined.is_pending() {
            waiting.await;
        }
        let baton = Baton(Some(self));
        (G::relock(lock).await, baton)
    }
}

/// A notification that was got and not yet made use of: dropped, it goes to the next.
struct Baton<'a>(Option<&'a Condition>);

impl Baton<'_> {
    fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        if let Some(condition) = self.0.take() {
            condition.notify_one();
        }
    }
}

struct Notification;

impl Request<WaitQueue<(), ()>> for Notification {
    type Want = ();
    type Grant = ();
    type Output = ();

    fn wait_queue(wait_queue: &mut WaitQueue<(), ()>) -> &mut WaitQueue<(), ()> {
        wait_queue
    }

    fn name(&self) -> &'static str {
        "a condition"
    }

    fn want(&self) {}

    fn try_now(&mut self, _line: &mut WaitQueue<(), ()>) -> Option<()> {
        None
    }

    fn settle(_line: &mut WaitQueue<(), ()>) {}

    fn take(&mut self, _line: &mut WaitQueue<(), ()>, (): ()) {}

    fn give_back(&mut self, wait_queue: &mut WaitQueue<(), ()>, (): ()) {
        wait_queue.call_first(());
    }
}

impl Default for Condition {
    fn default() -> Condition {
        Condition::new()
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition")
            .field("waiting", &self.wait_queue.with(|wait_queue| wait_queue.len()))
            .finish()
    }
}

/// A guard that a [`Condition`] can let go of and get back: [`LockGuard`] and [`OwnedLockGuard`].
pub trait Guard: sealed::Relock + DerefMut {}

impl<T: ?Sized> Guard for LockGuard<'_, T> {}

impl<T: ?Sized> Guard for OwnedLockGuard<T> {}

mod sealed {
    pub trait Relock: Sized {
        type Lock;

        fn unlock(self) -> Self::Lock;

        fn relock(lock: Self::Lock) -> impl Future<Output = Self>;
    }

    use std::future::Future;
}

impl<'a, T: ?Sized> sealed::Relock for LockGuard<'a, T> {
    type Lock = &'a Lock<T>;

    fn unlock(self) -> &'a Lock<T> {
        LockGuard::lock(&self)
    }

    fn relock(lock: &'a Lock<T>) -> impl Future<Output = Self> {
        lock.lock()
    }
}

impl<T: ?Sized> sealed::Relock for OwnedLockGuard<T> {
    type Lock = Rc<Lock<T>>;

    fn unlock(self) -> Rc<Lock<T>> {
        OwnedLockGuard::lock(&self).clone()
    }

    fn relock(lock: Rc<Lock<T>>) -> impl Future<Output = Self> {
        lock.lock_owned()
    }
}
