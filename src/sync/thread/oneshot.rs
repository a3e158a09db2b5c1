//! A channel for a single value between threads.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::error::{Closed, SendError, TryRecvError};
use super::super::oneshot::{Receive, State, receiver_gone};
use super::super::wait::{StateCell, WaitFuture};
use super::park;
use crate::sync::loom_shim::Mutex;

/// Creates a channel for a single value between threads.
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
    let waiting = WaitFuture::new(shared.clone(), &"a oneshot value", Receive);
    (OneshotSender { shared }, OneshotReceiver { waiting })
}

/// The sending side, for any thread. If it is dropped without sending, the receiver gets [`Closed`].
#[must_use = "if dropped without sending, the receiver gets an error"]
pub struct OneshotSender<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> OneshotSender<T> {
    /// Sends the value. Returns it if the receiver was dropped or has closed the channel. Success does not mean that
    /// the value will be received.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.shared.update(|state| state.send(value))
    }

    /// Whether the receiver was dropped or has closed the channel.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed)
    }

    /// Waits until the receiver was dropped or has closed the channel. Dropping the future has no effect.
    pub async fn closed(&mut self) {
        receiver_gone(&*self.shared).await;
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        self.shared.update(State::end_sending);
    }
}

impl<T> fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneshotSender")
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// The receiving side: a future that resolves to the value, or to [`Closed`] if the sender is dropped without sending.
/// Cancel-safe if awaited as `&mut receiver`: the value can still be received later.
#[must_use = "futures do nothing unless awaited"]
pub struct OneshotReceiver<T> {
    waiting: WaitFuture<Arc<Mutex<State<T>>>, Receive>,
}

impl<T> OneshotReceiver<T> {
    /// Receives the value if it is available.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.waiting.state_cell.with(State::try_recv)
    }

    /// Receives on a thread without a loop, blocking it.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop. Await the receiver there.
    #[track_caller]
    pub fn recv_blocking(self) -> Result<T, Closed> {
        park::wait(self)
    }

    /// Closes the channel: the sender can no longer send. A value that was sent can still be received.
    pub fn close(&mut self) {
        self.waiting.state_cell.update(State::close);
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.waiting.state_cell.with(|state| state.is_taken),
            "OneshotReceiver polled after it returned its value"
        );
        Pin::new(&mut self.waiting).poll(cx)
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        let value = self.waiting.state_cell.update(State::end_receiving);
        drop(value);
    }
}

impl<T> fmt::Debug for OneshotReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneshotReceiver").finish_non_exhaustive()
    }
}
