//! The latest value to everybody.
//!
//! Receivers see the value as it is now, and can wait for it to change. What they were too slow to see, they do not
//! see.
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
use std::rc::Rc;
use std::task::Waker;

use super::error::{Closed, SendError};
use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// Makes a channel with its first value, which the receiver counts as seen.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        value: RefCell::new(value),
        state: RefCell::new(State {
            version: 0,
            senders: 1,
            receivers: 1,
            changed: WaitQueue::new(),
            abandoned: WaitQueue::new(),
        }),
    });
    let receiver = Receiver {
        shared: shared.clone(),
        seen: 0,
    };
    (Sender { shared }, receiver)
}

struct Shared<T> {
    /// Apart from the state: users borrow it.
    value: RefCell<T>,
    state: RefCell<State>,
}

struct State {
    /// How often the value was changed.
    version: u64,
    senders: usize,
    receivers: usize,
    /// Receivers that wait for a change.
    changed: WaitQueue<(), ()>,
    /// Senders that wait for there to be no receivers.
    abandoned: WaitQueue<(), ()>,
}

impl State {
    fn announce(&mut self) {
        self.version += 1;
        self.changed.call_all(|| ());
    }
}

impl<T> Shared<T> {
    #[track_caller]
    fn borrow(&self) -> Ref<'_, T> {
        match self.value.try_borrow() {
            Ok(value) => Ref(value),
            Err(_) => {
                panic!("the value of a watch channel is being changed: do not borrow it in the closure that does")
            }
        }
    }

    #[track_caller]
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        match self.value.try_borrow_mut() {
            Ok(mut value) => change(&mut value),
            Err(_) => panic!("the value of a watch channel is borrowed: drop the `Ref` before an await"),
        }
    }
}

impl Calls for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.changed.next_waker().or_else(|| self.abandoned.next_waker())
    }
}

/// Changes the value. Clones change the same one; once all are dropped, receivers get [`Closed`] after the last change.
pub struct Sender<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Changes the value. Gives it back, without having changed anything, if there are no receivers.
    ///
    /// # Panics
    ///
    /// If somebody holds a [`Ref`] to it.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.receiver_count() == 0 {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Changes the value, whether or not there are receivers, and gives the old one.
    ///
    /// # Panics
    ///
    /// If somebody holds a [`Ref`] to it.
    #[track_caller]
    pub fn send_replace(&self, value: T) -> T {
        let old = self.shared.change(|place| std::mem::replace(place, value));
        self.shared.state.act(State::announce);
        old
    }

    /// Changes the value in place, whether or not there are receivers.
    ///
    /// # Panics
    ///
    /// If somebody holds a [`Ref`] to it, or if `change` uses the channel. If `change` panics, what it has done stays,
    /// and nobody is told.
    #[track_caller]
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value in place; receivers are told if `change` says that it did. Gives what it said. Panics as
    /// [`send_modify`](Sender::send_modify).
    #[track_caller]
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let is_modified = self.shared.change(change);
        if is_modified {
            self.shared.state.act(State::announce);
        }
        is_modified
    }

    /// The value as it is.
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// A receiver that counts the value as seen.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            shared: self.shared.clone(),
            seen: self.shared.state.with(|state| {
                state.receivers += 1;
                state.version
            }),
        }
    }

    /// How many receivers there are.
    pub fn receiver_count(&self) -> usize {
        self.shared.state.with(|state| state.receivers)
    }

    /// Whether there are no receivers.
    pub fn is_closed(&self) -> bool {
        self.receiver_count() == 0
    }

    /// Waits until there are no receivers. Dropping the future changes nothing.
    pub async fn closed(&self) {
        Waiting::new(&self.shared.state, Abandoned).await;
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
        self.shared.state.act(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.changed.call_all(|| ());
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

/// Sees the value and its changes. A clone has seen what this one has.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The version that was seen last.
    seen: u64,
}

impl<T> Receiver<T> {
    /// Waits until there is a value that was not seen, and counts it as seen. At once if there is one already. Fails
    /// when every sender is gone and the last value was seen.
    ///
    /// If the future is dropped before it has returned, nothing was seen: the next call returns at once.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let request = Changed { seen: self.seen };
        self.seen = Waiting::new(&self.shared.state, request).await?;
        Ok(())
    }

    /// Waits until the value is as the predicate wants it, and counts it as seen. At once if it is so already. Fails
    /// when every sender is gone and it is not.
    ///
    /// Dropping the future loses nothing.
    pub async fn wait_for(&mut self, mut predicate: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        loop {
            self.seen = self.shared.state.with(|state| state.version);
            // Not the `Ref` that is given out, which the borrow checker would keep for the whole loop.
            let is_so = predicate(&self.shared.borrow());
            if is_so {
                return Ok(self.shared.borrow());
            }
            self.changed().await?;
        }
    }

    /// The value as it is. Whether it was seen stays as it was. The [`Ref`] must be dropped before the next await.
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// The value as it is, which counts as seen.
    #[track_caller]
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.state.with(|state| state.version);
        self.shared.borrow()
    }

    /// Whether there is a value that was not seen. Fails when every sender is gone and the last value was seen.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        self.shared.state.with(|state| match state.version != self.seen {
            true => Ok(true),
            false if state.senders == 0 => Err(Closed),
            false => Ok(false),
        })
    }

    /// Counts the value as not seen.
    pub fn mark_changed(&mut self) {
        // No version is this one.
        self.seen = u64::MAX;
    }

    /// Counts the value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.state.with(|state| state.version);
    }

    /// Whether both see the same value.
    pub fn same_channel(&self, other: &Receiver<T>) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.shared.state.with(|state| state.receivers += 1);
        Receiver {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.state.act(|state| {
            state.receivers -= 1;
            if state.receivers == 0 {
                state.abandoned.call_all(|| ());
            }
        });
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("value", &self.shared.value).finish()
    }
}

/// The borrowed value of a watch channel. While it is there, the value cannot be changed: drop it before an await.
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

/// A version that was not seen.
struct Changed {
    seen: u64,
}

impl Request<State> for Changed {
    type Want = ();
    type Grant = ();
    type Output = Result<u64, Closed>;

    fn wait_queue(state: &mut State) -> &mut WaitQueue<(), ()> {
        &mut state.changed
    }

    fn name(&self) -> &'static str {
        "a watched value"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State) -> Option<Result<u64, Closed>> {
        match state.version != self.seen {
            true => Some(Ok(state.version)),
            false => (state.senders == 0).then_some(Err(Closed)),
        }
    }

    fn settle(_state: &mut State) {}

    fn joined(&mut self, state: &mut State) {
        if self.try_now(state).is_some() {
            state.changed.call_last(());
        }
    }

    fn take(&mut self, state: &mut State, (): ()) -> Result<u64, Closed> {
        self.try_now(state).expect("called")
    }

    fn give_back(&mut self, _state: &mut State, (): ()) {}
}

/// That there be no receivers.
struct Abandoned;

impl Request<State> for Abandoned {
    type Want = ();
    type Grant = ();
    type Output = ();

    fn wait_queue(state: &mut State) -> &mut WaitQueue<(), ()> {
        &mut state.abandoned
    }

    fn name(&self) -> &'static str {
        "watchers to go"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State) -> Option<()> {
        (state.receivers == 0).then_some(())
    }

    fn settle(state: &mut State) {
        if state.receivers == 0 {
            state.abandoned.call_all(|| ());
        }
    }

    fn take(&mut self, _state: &mut State, (): ()) {}

    fn give_back(&mut self, _state: &mut State, (): ()) {}
}
