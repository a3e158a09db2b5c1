//! One value, once, from thread to thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::error::{Closed, SendError, TryRecvError};
use super::super::oneshot::{NotWanted, State, Value};
use super::super::wait::{Kept, Waiting};
use super::park;
use crate::sync::loom_shim::Mutex;

/// Makes both ends of a channel between threads for one value.
///
/// ```
/// use windlass::sync::thread;
/// windlass::run(async {
///     let (sender, receiver) = thread::oneshot();
///     let thread = std::thread::spawn(move || sender.send(6 * 7).unwrap());
///     assert_eq!(receiver.await, Ok(42));
///     thread.join().unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let shared = Arc::new(Mutex::new(State::new()));
    let waiting = Waiting::new(shared.clone(), Value);
    (OneshotSender { shared }, OneshotReceiver { waiting })
}

/// Sends the value from any thread. Dropped without having sent, it lets the receiver know.
#[must_use = "without a value, the receiver gets an error"]
pub struct OneshotSender<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> OneshotSender<T> {
    /// Sends the value. Gives it back if nobody will receive it. That this succeeds does not say that it will be
    /// received.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.shared.act(|state| state.send(value))
    }

    /// Whether the receiver is gone or has closed.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed())
    }

    /// Waits until the receiver is gone or has closed. Dropping the future changes nothing.
    pub async fn closed(&mut self) {
        Waiting::new(&*self.shared, NotWanted).await;
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        self.shared.act(State::end_sending);
    }
}

impl<T> fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneshotSender")
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// Resolves to the value, or to [`Closed`] if the sender is dropped without one. It can be awaited by reference:
/// dropping that wait loses nothing.
#[must_use = "a receiver gives its value when it is awaited"]
pub struct OneshotReceiver<T> {
    waiting: Waiting<Arc<Mutex<State<T>>>, Value>,
}

impl<T> OneshotReceiver<T> {
    /// Takes the value if it is there.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.waiting.kept.with(State::try_recv)
    }

    /// Waits on a thread that has no loop, blocking it.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop: await the receiver there.
    #[track_caller]
    pub fn recv_blocking(self) -> Result<T, Closed> {
        park::wait(self)
    }

    /// Lets the sender know that nobody waits for the value. One that was sent before can still be had.
    pub fn close(&mut self) {
        self.waiting.kept.act(State::close);
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.waiting.kept.with(|state| state.is_taken()),
            "a OneshotReceiver was polled after it had given its value"
        );
        Pin::new(&mut self.waiting).poll(cx)
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        let value = self.waiting.kept.act(State::end_receiving);
        drop(value);
    }
}

impl<T> fmt::Debug for OneshotReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneshotReceiver").finish_non_exhaustive()
    }
}
