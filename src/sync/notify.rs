//! `Notify`: a wake-up for one task, stored if no task waits yet.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::wait::{Request, StateCell, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// Wakes one waiting task, or the next one to wait, or all waiting tasks.
///
/// It carries no data: the state it signals is kept elsewhere. [`notify_one`](Notify::notify_one) is never lost:
/// without a waiter, one notification is stored for the next [`notified`](Notify::notified), and if the notified task
/// is cancelled first, the notification goes to the next waiter.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use windlass::sync::Notify;
/// windlass::run(async {
///     let (notify, level) = (Rc::new(Notify::new()), Rc::new(Cell::new(0)));
///     let task = windlass::spawn({
///         let (notify, level) = (notify.clone(), level.clone());
///         async move {
///             while level.get() < 3 {
///                 notify.notified().await;
///             }
///         }
///     });
///     for _ in 0..3 {
///         level.set(level.get() + 1);
///         notify.notify_one();
///         windlass::task::yield_now().await;
///     }
///     task.await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Notify {
    state: RefCell<State>,
}

struct State {
    /// A `notify_one` that no task has received.
    is_stored: bool,
    /// The number of `notify_waiters` calls.
    generation: u64,
    wait_queue: WaitQueue<NotifiedBy>,
}

/// Which method notified a waiter.
enum NotifiedBy {
    One,
    All,
}

impl Notify {
    /// Creates a `Notify` without a stored notification.
    pub const fn new() -> Notify {
        Notify {
            state: RefCell::new(State {
                is_stored: false,
                generation: 0,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Notifies the first waiter, or stores the notification for the next one to wait. At most one is stored.
    pub fn notify_one(&self) {
        self.state.update(State::notify_one);
    }

    /// Notifies every existing [`Notified`], whether or not it is being awaited. Nothing is stored.
    pub fn notify_waiters(&self) {
        self.state.update(|state| {
            state.generation += 1;
            state.wait_queue.grant_all(|| NotifiedBy::All);
        });
    }

    /// Waits for a notification. The future receives [`notify_waiters`](Notify::notify_waiters) from this call on, so a
    /// condition can be checked between the call and the await. It enters the FIFO queue at its first poll.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it received a [`notify_one`](Notify::notify_one), the next waiter is notified.
    pub fn notified(&self) -> Notified<'_> {
        let generation = self.state.with(|state| state.generation);
        Notified {
            waiting: WaitFuture::new(&self.state, &"a notification", Notification { generation }),
        }
    }
}

impl State {
    fn notify_one(&mut self) {
        if !self.wait_queue.grant_first(NotifiedBy::One) {
            self.is_stored = true;
        }
    }
}

impl WaitState for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_stored, waiting) = self.state.with(|state| (state.is_stored, state.wait_queue.len()));
        f.debug_struct("Notify")
            .field("stored", &is_stored)
            .field("waiting", &waiting)
            .finish()
    }
}

/// The future returned by [`Notify::notified`].
#[must_use = "futures do nothing unless awaited"]
pub struct Notified<'a> {
    waiting: WaitFuture<&'a RefCell<State>, Notification>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.waiting).poll(cx)
    }
}

impl fmt::Debug for Notified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notified").finish_non_exhaustive()
    }
}

struct Notification {
    /// The number of `notify_waiters` calls when the wait began.
    generation: u64,
}

impl Request<State> for Notification {
    type Grant = NotifiedBy;
    type Output = ();

    fn wait_queue<'s>(&self, state: &'s mut State) -> &'s mut WaitQueue<NotifiedBy> {
        &mut state.wait_queue
    }

    fn try_now(&mut self, state: &mut State) -> Option<()> {
        if self.generation != state.generation {
            // If polled again, waits for the next notification.
            self.generation = state.generation;
            return Some(());
        }
        std::mem::take(&mut state.is_stored).then_some(())
    }

    fn enqueued(&mut self, state: &mut State) {
        if self.generation != state.generation {
            state.wait_queue.grant_last(NotifiedBy::All);
        } else if state.is_stored && state.wait_queue.grant_first(NotifiedBy::One) {
            state.is_stored = false;
        }
    }

    fn take_grant(&mut self, state: &mut State, _by: NotifiedBy) {
        self.generation = state.generation;
    }

    fn left(&mut self, state: &mut State, unused: Option<NotifiedBy>) {
        if let Some(NotifiedBy::One) = unused {
            state.notify_one();
        }
    }
}
