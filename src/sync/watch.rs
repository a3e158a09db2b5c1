//! A channel that holds only the latest value.
//!
//! Receivers can read the current value and wait for a change. Intermediate values may be skipped.
//!
//! ```
//! use windlass::sync::watch;
//! windlass::run(async {
//!     let (sender, mut receiver) = watch::channel("starting");
//!     let task = windlass::spawn(async move {
//!         receiver.wait_for(|state| *state == "running").await.unwrap();
//!         receiver.changed().await.unwrap();
//!         *receiver.borrow()
//!     });
//!     sender.send("running").unwrap();
//!     windlass::task::yield_now().await;
//!     windlass::task::yield_now().await;
//!     sender.send("stopping").unwrap();
//!     assert_eq!(task.await.unwrap(), "stopping");
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::error::{Closed, SendError};
use super::wait::{HeldWait, StateCell, Until, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// Creates a channel with an initial value, which the receiver has seen.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        value: RefCell::new(value),
        state: RefCell::new(State {
            version: 0,
            senders: 1,
            receivers: 1,
            changed: WaitQueue::new(),
            closed: WaitQueue::new(),
        }),
    });
    let receiver = Receiver::new(&shared, 0);
    (Sender { shared }, receiver)
}

struct Shared<T> {
    /// Separate from the state, because users hold borrows of it.
    value: RefCell<T>,
    state: RefCell<State>,
}

struct State {
    /// The number of changes.
    version: u64,
    senders: usize,
    receivers: usize,
    /// Receivers that wait for a change.
    changed: WaitQueue<()>,
    /// Senders that wait until there are no receivers.
    closed: WaitQueue<()>,
}

impl State {
    fn publish(&mut self) {
        self.version += 1;
        self.changed.grant_all(|| ());
    }
}

impl<T> Shared<T> {
    #[track_caller]
    fn borrow(&self) -> Ref<'_, T> {
        match self.value.try_borrow() {
            Ok(value) => Ref(value),
            Err(_) => {
                panic!("the value of a watch channel is borrowed inside the closure that changes it")
            }
        }
    }

    #[track_caller]
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        match self.value.try_borrow_mut() {
            Ok(mut value) => change(&mut value),
            Err(_) => panic!("the value of a watch channel is still borrowed: drop the `Ref` before an await"),
        }
    }
}

impl WaitState for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.changed.next_waker().or_else(|| self.closed.next_waker())
    }
}

/// The sending side. Once all clones are dropped, receivers get [`Closed`] after the last change.
pub struct Sender<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Replaces the value. If there are no receivers, changes nothing and returns `value` as an error.
    ///
    /// # Panics
    ///
    /// If a [`Ref`] to the value exists.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.receiver_count() == 0 {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value, even without receivers, and returns the old one.
    ///
    /// # Panics
    ///
    /// If a [`Ref`] to the value exists.
    #[track_caller]
    pub fn send_replace(&self, value: T) -> T {
        let old = self.shared.change(|current| std::mem::replace(current, value));
        self.shared.state.update(State::publish);
        old
    }

    /// Changes the value in place, even without receivers.
    ///
    /// # Panics
    ///
    /// If a [`Ref`] to the value exists, or if `change` uses the channel. If `change` panics, its partial changes
    /// remain, and receivers are not notified.
    #[track_caller]
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value in place. Receivers are notified if `change` returns true. Returns the result of `change`.
    /// Panics as [`send_modify`](Sender::send_modify).
    #[track_caller]
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let is_modified = self.shared.change(change);
        if is_modified {
            self.shared.state.update(State::publish);
        }
        is_modified
    }

    /// Borrows the current value. Panics inside the closure of [`send_modify`](Sender::send_modify).
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// Creates a receiver that has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.shared.state.with(|state| {
            state.receivers += 1;
            state.version
        });
        Receiver::new(&self.shared, seen)
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.shared.state.with(|state| state.receivers)
    }

    /// Whether there are no receivers.
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until there are no receivers. Dropping the future has no effect.
    pub async fn closed(&self) {
        let no_receivers = Until {
            queue: |state: &mut State| &mut state.closed,
            condition: |state, ()| state.receivers == 0,
            arg: (),
        };
        WaitFuture::new(&self.shared.state, &"watch receivers to be dropped", no_receivers).await;
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.state.with(|state| state.senders += 1);
        let shared = self.shared.clone();
        Sender { shared }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.state.update(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.changed.grant_all(|| ());
            }
        });
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("value", &self.shared.value)
            .field("receivers", &self.receiver_count())
            .finish()
    }
}

/// The receiving side. A clone has seen the same values.
///
/// It is a [`Stream`] of the values that it has not seen, cloned. To begin with the current value, call
/// [`mark_changed`](Receiver::mark_changed) first.
///
/// ```
/// use futures_util::StreamExt;
/// use windlass::sync::watch;
/// windlass::run(async {
///     let (sender, mut receiver) = watch::channel(1);
///     receiver.mark_changed();
///     assert_eq!(receiver.next().await, Some(1));
///     sender.send(2).unwrap();
///     sender.send(3).unwrap(); // 2 is skipped
///     drop(sender);
///     assert_eq!(receiver.collect::<Vec<_>>().await, [3]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The last seen version.
    seen: u64,
    /// The wait of the stream.
    wait: HeldWait<StateOf<T>, Until<State, u64>>,
}

/// A pointer to the state of a channel.
struct StateOf<T>(Rc<Shared<T>>);

impl<T> Deref for StateOf<T> {
    type Target = RefCell<State>;

    fn deref(&self) -> &RefCell<State> {
        &self.0.state
    }
}

/// Waits for another version than `seen`, or until there are no senders.
fn not_seen(seen: u64) -> Until<State, u64> {
    Until {
        queue: |state| &mut state.changed,
        condition: |state, seen| state.version != seen || state.senders == 0,
        arg: seen,
    }
}

impl<T> Receiver<T> {
    /// Counted by the caller.
    fn new(shared: &Rc<Shared<T>>, seen: u64) -> Receiver<T> {
        Receiver {
            shared: shared.clone(),
            seen,
            wait: HeldWait::new(),
        }
    }

    /// Waits for a value that was not seen and marks it as seen; returns immediately if there is one. Fails when all
    /// senders were dropped and the last value was seen.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, nothing is marked as seen: the next call returns the change.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        WaitFuture::new(&self.shared.state, &"a watched value", not_seen(self.seen)).await;
        self.has_changed()?;
        self.mark_unchanged();
        Ok(())
    }

    /// Waits until the value satisfies the predicate; returns immediately if it does already. Fails when all senders
    /// were dropped and it does not. Every value that was checked is marked as seen, even if the future is dropped.
    pub async fn wait_for(&mut self, mut predicate: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        loop {
            self.seen = self.shared.state.with(|state| state.version);
            // A separate borrow: returning this `Ref` would extend its borrow over the whole loop (borrow checker
            // limitation).
            let holds = predicate(&self.shared.borrow());
            if holds {
                return Ok(self.shared.borrow());
            }
            self.changed().await?;
        }
    }

    /// Borrows the current value without marking it as seen. Drop the [`Ref`] before the next await.
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// Borrows the current value and marks it as seen.
    #[track_caller]
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.state.with(|state| state.version);
        self.shared.borrow()
    }

    /// Whether there is a value that was not seen. Fails when all senders were dropped and the last value was seen.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        self.shared.state.with(|state| match state.version != self.seen {
            true => Ok(true),
            false if state.senders == 0 => Err(Closed),
            false => Ok(false),
        })
    }

    /// Marks the current value as not seen.
    pub fn mark_changed(&mut self) {
        // Not a valid version.
        self.seen = u64::MAX;
    }

    /// Marks the current value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.state.with(|state| state.version);
    }

    /// Whether both receivers belong to the same channel.
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T: Clone> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            let Receiver { shared, seen, wait } = &mut *self;
            let start = || WaitFuture::new(StateOf(shared.clone()), &"a watched value", not_seen(*seen));
            std::task::ready!(wait.poll(cx, start));
            match self.has_changed() {
                Ok(true) => return Poll::Ready(Some(self.borrow_and_update().clone())),
                // The wait began before the value was seen by another method.
                Ok(false) => {}
                Err(Closed) => return Poll::Ready(None),
            }
        }
    }
}

/// Nothing is pinned.
impl<T> Unpin for Receiver<T> {}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.shared.state.with(|state| state.receivers += 1);
        Receiver::new(&self.shared, self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.state.update(|state| {
            state.receivers -= 1;
            if state.receivers == 0 {
                state.closed.grant_all(|| ());
            }
        });
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("value", &self.shared.value).finish()
    }
}

/// A borrow of a watch channel's value. The value cannot change while it exists: drop it before an await.
pub struct Ref<'a, T>(std::cell::Ref<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
