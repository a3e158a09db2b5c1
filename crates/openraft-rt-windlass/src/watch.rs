//! The watch channel.
//!
//! Not tokio's: its receivers wait in one of eight lists, which is chosen at random if any crate in the build enables tokio's
//! feature `rt`. Two runs of a simulation would then wake tasks in different orders. Here they are woken in the order in
//! which they began to wait.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

use openraft_rt::watch::{RecvError, SendError};
use openraft_rt::{OptionalSend, OptionalSync, Watch, WatchReceiver, WatchSender};

/// openraft's `Watch` for [`WindlassRuntime`](crate::WindlassRuntime).
#[derive(Debug)]
pub struct WindlassWatch;

/// The sending half of a watch channel.
pub struct WindlassWatchSender<T>(Arc<Shared<T>>);

/// The receiving half of a watch channel.
pub struct WindlassWatchReceiver<T> {
    shared: Arc<Shared<T>>,
    /// The newest version that this receiver has seen.
    seen: u64,
}

/// A borrow of the value. Sending waits until it is dropped, so hold it for a moment only, and never across an `await`.
pub struct WindlassWatchRef<'a, T>(RwLockReadGuard<'a, T>);

struct Shared<T> {
    value: RwLock<T>,
    /// Locked after `value` where both are needed, and never while a waker runs.
    state: Mutex<State>,
}

struct State {
    /// Changes with the value, under its write lock.
    version: u64,
    senders: usize,
    receivers: usize,
    /// By the ticket of the wait, so in the order in which the waits began.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> WindlassWatchRef<'_, T> {
        WindlassWatchRef(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn modify(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.value.write().unwrap_or_else(PoisonError::into_inner);
        if !modify(&mut value) {
            return false;
        }
        self.state().version += 1;
        drop(value);
        self.wake_all();
        true
    }

    fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_values().for_each(Waker::wake);
    }
}

impl Watch for WindlassWatch {
    type Sender<T: OptionalSend + OptionalSync> = WindlassWatchSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = WindlassWatchReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = WindlassWatchRef<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (WindlassWatchSender<T>, WindlassWatchReceiver<T>) {
        let state = State {
            version: 0,
            senders: 1,
            receivers: 1,
            waiting: BTreeMap::new(),
            next_ticket: 0,
        };
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            state: Mutex::new(state),
        });
        let receiver = WindlassWatchReceiver {
            shared: shared.clone(),
            seen: 0,
        };
        (WindlassWatchSender(shared), receiver)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<WindlassWatch, T> for WindlassWatchSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.state().receivers == 0 {
            return Err(SendError(value));
        }
        let mut value = Some(value);
        self.0.modify(|current| {
            // The old value is dropped after the lock: its destructor may use this channel.
            value = value.take().map(|value| std::mem::replace(current, value));
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.0.modify(modify)
    }

    fn borrow_watched(&self) -> WindlassWatchRef<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> WindlassWatchReceiver<T> {
        let mut state = self.0.state();
        state.receivers += 1;
        WindlassWatchReceiver {
            seen: state.version,
            shared: self.0.clone(),
        }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<WindlassWatch, T> for WindlassWatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        let changed = Changed {
            receiver: self,
            ticket: None,
        };
        changed.await
    }

    fn borrow_watched(&self) -> WindlassWatchRef<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> WindlassWatchRef<'_, T> {
        let value = self.shared.read();
        // Under the read lock, so that it is the version of this value.
        self.seen = self.shared.state().version;
        value
    }
}

/// Waits for a version that the receiver has not seen.
struct Changed<'a, T> {
    receiver: &'a mut WindlassWatchReceiver<T>,
    /// The key in `State::waiting`, once this has waited.
    ticket: Option<u64>,
}

impl<T> Future for Changed<'_, T> {
    type Output = Result<(), RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let waker = cx.waker().clone();
        let mut state = this.receiver.shared.state();
        if state.version != this.receiver.seen {
            this.receiver.seen = state.version;
            return Poll::Ready(Ok(()));
        }
        if state.senders == 0 {
            return Poll::Ready(Err(RecvError(())));
        }
        let ticket = *this.ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        let earlier = state.waiting.insert(ticket, waker);
        drop(state);
        // A waker's destructor is foreign code.
        drop(earlier);
        Poll::Pending
    }
}

impl<T> Drop for Changed<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let waker = self.receiver.shared.state().waiting.remove(&ticket);
            drop(waker);
        }
    }
}

impl<T> Clone for WindlassWatchSender<T> {
    fn clone(&self) -> WindlassWatchSender<T> {
        self.0.state().senders += 1;
        WindlassWatchSender(self.0.clone())
    }
}

impl<T> Drop for WindlassWatchSender<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.0.state();
            state.senders -= 1;
            state.senders == 0
        };
        if is_last {
            self.0.wake_all();
        }
    }
}

impl<T> Clone for WindlassWatchReceiver<T> {
    fn clone(&self) -> WindlassWatchReceiver<T> {
        self.shared.state().receivers += 1;
        WindlassWatchReceiver {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for WindlassWatchReceiver<T> {
    fn drop(&mut self) {
        self.shared.state().receivers -= 1;
    }
}

impl<T> Deref for WindlassWatchRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for WindlassWatchRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> fmt::Debug for WindlassWatchSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassWatchSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for WindlassWatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassWatchReceiver").finish_non_exhaustive()
    }
}
