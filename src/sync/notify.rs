//! A nudge for one task, kept if nobody waits yet.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// Wakes one waiting task, or the next one to wait; or all that wait.
///
/// It carries no data: the state that it tells of is kept elsewhere. [`notify_one`](Notify::notify_one) is never lost:
/// with nobody waiting it is kept, once, for the next [`notified`](Notify::notified), and one that went to a task which
/// is then cancelled goes to the next.
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
    /// A `notify_one` that nobody has had yet.
    is_kept: bool,
    /// How often `notify_waiters` was called.
    calls: u64,
    wait_queue: WaitQueue<(), Told>,
}

/// Why a waiter was called.
enum Told {
    Alone,
    WithAll,
}

impl Notify {
    /// Makes one that has no notification.
    pub const fn new() -> Notify {
        Notify {
            state: RefCell::new(State {
                is_kept: false,
                calls: 0,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Notifies who has waited longest, or else the next to wait. Several without anybody waiting are one.
    pub fn notify_one(&self) {
        self.state.act(State::notify_one);
    }

    /// Notifies everybody who holds a [`Notified`] now, awaited already or not. Nothing is kept for who comes later.
    pub fn notify_waiters(&self) {
        self.state.act(|state| {
            state.calls += 1;
            state.wait_queue.call_all(|| Told::WithAll);
        });
    }

    /// Waits for a notification. It counts as waiting for [`notify_waiters`](Notify::notify_waiters) from this call on,
    /// so a condition can be checked between the call and the await; it takes its place in the line when it is first
    /// polled.
    ///
    /// Dropping the future passes on a [`notify_one`](Notify::notify_one) that it had got.
    pub fn notified(&self) -> Notified<'_> {
        let calls = self.state.with(|state| state.calls);
        Notified {
            waiting: Waiting::new(&self.state, Notification { calls }),
        }
    }
}

impl State {
    fn notify_one(&mut self) {
        if !self.wait_queue.call_first(Told::Alone) {
            self.is_kept = true;
        }
    }
}

impl Calls for State {
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
        let (is_kept, waiting) = self.state.with(|state| (state.is_kept, state.wait_queue.len()));
        f.debug_struct("Notify")
            .field("kept", &is_kept)
            .field("waiting", &waiting)
            .finish()
    }
}

/// Made by [`Notify::notified`].
#[must_use = "nobody waits until this is awaited"]
pub struct Notified<'a> {
    waiting: Waiting<&'a RefCell<State>, Notification>,
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
    /// How often `notify_waiters` had been called when this began.
    calls: u64,
}

impl Request<State> for Notification {
    type Want = ();
    type Grant = Told;
    type Output = ();

    fn wait_queue(state: &mut State) -> &mut WaitQueue<(), Told> {
        &mut state.wait_queue
    }

    fn name(&self) -> &'static str {
        "a notification"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State) -> Option<()> {
        if self.calls != state.calls {
            // Polled again, it waits for the next.
            self.calls = state.calls;
            return Some(());
        }
        std::mem::take(&mut state.is_kept).then_some(())
    }

    fn joined(&mut self, state: &mut State) {
        if self.calls != state.calls {
            state.wait_queue.call_last(Told::WithAll);
        } else {
            Self::settle(state);
        }
    }

    fn settle(state: &mut State) {
        if state.is_kept && state.wait_queue.call_first(Told::Alone) {
            state.is_kept = false;
        }
    }

    fn take(&mut self, state: &mut State, _told: Told) {
        self.calls = state.calls;
    }

    fn give_back(&mut self, state: &mut State, told: Told) {
        match told {
            Told::Alone => state.notify_one(),
            Told::WithAll => {}
        }
    }
}
