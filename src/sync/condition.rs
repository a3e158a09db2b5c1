//! A condition variable for [`Lock`].

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::task::Poll;

use super::guard::{AccessGuard, Exclusive};
use super::lock::Lock;
use super::wait::{Request, StateCell, WaitFuture};
use super::wait_queue::WaitQueue;
use crate::on_drop::OnDrop;

/// A condition variable for a [`Lock`]: asyncio's `Condition`, with the signature of std's `Condvar`.
///
/// The lock is separate, so several conditions can share it: `wait` takes the guard and returns it. Notifying does not
/// need the lock. If a notified task is cancelled before it has its guard back, the next waiter is notified.
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
    wait_queue: RefCell<WaitQueue<()>>,
}

impl Condition {
    /// Creates a condition.
    pub const fn new() -> Condition {
        Condition {
            wait_queue: RefCell::new(WaitQueue::new()),
        }
    }

    /// Releases the lock, waits for a notification, and locks again. No notification is missed between releasing and
    /// waiting. Other tasks may change the value between the notification and the locking, so call this in a loop, or
    /// use [`wait_for`](Condition::wait_for).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lock released. A notification that it received goes to the next waiter.
    pub async fn wait<G: Guard>(&self, guard: G) -> G {
        let (guard, unused) = self.wait_once(guard).await;
        std::mem::forget(unused);
        guard
    }

    /// Waits until the predicate holds. Calls it with the lock held, once at the start and after each notification.
    ///
    /// # Cancel safety
    ///
    /// As for [`wait`](Condition::wait), also if the predicate panics.
    pub async fn wait_for<G: Guard>(&self, mut guard: G, mut predicate: impl FnMut(&mut G::Target) -> bool) -> G {
        let mut unused = None;
        loop {
            let holds = predicate(&mut guard);
            std::mem::forget(unused.take());
            if holds {
                return guard;
            }
            let (locked, notification) = self.wait_once(guard).await;
            (guard, unused) = (locked, Some(notification));
        }
    }

    /// Notifies the first waiter, if there is one.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Notifies the first `count` waiters.
    pub fn notify(&self, count: usize) {
        self.wait_queue.update(|wait_queue| {
            for _ in 0..count.min(wait_queue.len()) {
                wait_queue.grant_first(());
            }
        });
    }

    /// Notifies all waiters.
    pub fn notify_all(&self) {
        self.wait_queue.update(|wait_queue| wait_queue.grant_all(|| ()));
    }

    /// Also returns the notification: unless it is forgotten, its drop notifies the next waiter.
    async fn wait_once<G: Guard>(&self, guard: G) -> (G, OnDrop<impl FnMut()>) {
        let mut waiting = pin!(WaitFuture::new(&self.wait_queue, &"a condition", Notification));
        // Enqueue before releasing the lock, so that no notification is missed.
        let joined = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        let notified = async {
            if joined.is_pending() {
                waiting.await;
            }
            OnDrop(|| self.notify_one())
        };
        guard.unlocked(notified).await
    }
}

struct Notification;

impl Request<WaitQueue<()>> for Notification {
    type Grant = ();
    type Output = ();

    fn wait_queue<'s>(&self, wait_queue: &'s mut WaitQueue<()>) -> &'s mut WaitQueue<()> {
        wait_queue
    }

    fn try_now(&mut self, _queue: &mut WaitQueue<()>) -> Option<()> {
        None
    }

    fn enqueued(&mut self, _queue: &mut WaitQueue<()>) {}

    fn take_grant(&mut self, _queue: &mut WaitQueue<()>, (): ()) {}

    fn left(&mut self, wait_queue: &mut WaitQueue<()>, unused: Option<()>) {
        if unused.is_some() {
            wait_queue.grant_first(());
        }
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

/// A guard that a [`Condition`] can release and reacquire: [`LockGuard`](super::LockGuard) and
/// [`OwnedLockGuard`](super::OwnedLockGuard).
pub trait Guard: sealed::Relock + DerefMut {}

impl<T: ?Sized, P: Deref<Target = Lock<T>>> Guard for AccessGuard<P, Exclusive> {}

mod sealed {
    use std::future::Future;

    pub trait Relock: Sized {
        /// Unlocks, awaits `event` and locks again.
        fn unlocked<R>(self, event: impl Future<Output = R>) -> impl Future<Output = (Self, R)>;
    }
}

impl<T: ?Sized, P: Deref<Target = Lock<T>>> sealed::Relock for AccessGuard<P, Exclusive> {
    async fn unlocked<R>(self, event: impl Future<Output = R>) -> (Self, R) {
        let lock = self.into_lock();
        let result = event.await;
        (AccessGuard::acquire(lock).await, result)
    }
}
