//! A channel for a single value.
//!
//! Unlike [`promise`](crate::promise()), it needs no loop and has no done-callbacks. Between threads, use
//! [`thread::oneshot`](super::thread::oneshot()).
//!
//! ```
//! use windlass::sync::oneshot;
//! windlass::run(async {
//!     let (sender, receiver) = oneshot::channel();
//!     windlass::spawn(async move { sender.send(42).unwrap() });
//!     assert_eq!(receiver.await, Ok(42));
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::error::{Closed, SendError, TryRecvError};
use super::wait::{CellPtr, Request, StateCell, Until, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// Creates the channel.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State::new()));
    let waiting = WaitFuture::new(state.clone(), &"a oneshot value", Receive);
    (Sender { state }, Receiver { waiting })
}

/// The shared state; also used between threads.
pub(super) struct State<T> {
    value: Option<T>,
    /// No value will be stored: it was, or the sender was dropped.
    is_sent: bool,
    /// No value can be sent: the receiver was dropped or has closed the channel.
    pub(super) is_closed: bool,
    pub(super) is_taken: bool,
    receiver: WaitQueue<()>,
    sender: WaitQueue<()>,
}

impl<T> State<T> {
    pub(super) fn new() -> State<T> {
        State {
            value: None,
            is_sent: false,
            is_closed: false,
            is_taken: false,
            receiver: WaitQueue::new(),
            sender: WaitQueue::new(),
        }
    }

    /// Stores the value, or returns it.
    pub(super) fn send(&mut self, value: T) -> Result<(), SendError<T>> {
        if self.is_closed {
            return Err(SendError(value));
        }
        self.value = Some(value);
        self.end_sending();
        Ok(())
    }

    pub(super) fn end_sending(&mut self) {
        self.is_sent = true;
        self.receiver.grant_all(|| ());
    }

    /// Nothing can be sent from now on. A value that was sent can still be received.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.sender.grant_all(|| ());
        // The receiver may be waiting in another task; no value will come.
        self.receiver.grant_all(|| ());
    }

    /// Called when the receiver is dropped. Returns an unreceived value.
    #[must_use]
    pub(super) fn end_receiving(&mut self) -> Option<T> {
        self.close();
        self.value.take()
    }

    pub(super) fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.value.take() {
            Some(value) => {
                self.is_taken = true;
                Ok(value)
            }
            None if self.is_sent || self.is_closed => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> WaitState for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.receiver.next_waker().or_else(|| self.sender.next_waker())
    }
}

/// Waits for the value, or for the end of the sender.
pub(super) struct Receive;

impl<T> Request<State<T>> for Receive {
    type Grant = ();
    type Output = Result<T, Closed>;

    fn wait_queue<'s>(&self, state: &'s mut State<T>) -> &'s mut WaitQueue<()> {
        &mut state.receiver
    }

    fn try_now(&mut self, state: &mut State<T>) -> Option<Result<T, Closed>> {
        match state.try_recv() {
            Err(TryRecvError::Empty) => None,
            result => Some(result.map_err(|_| Closed)),
        }
    }

    fn enqueued(&mut self, state: &mut State<T>) {
        if state.is_sent || state.is_closed {
            state.receiver.grant_all(|| ());
        }
    }

    fn take_grant(&mut self, state: &mut State<T>, (): ()) -> Result<T, Closed> {
        state.try_recv().map_err(|_| Closed)
    }
}

/// A wait until the receiver is dropped or has closed the channel.
pub(super) fn receiver_gone<T, P: CellPtr<State = State<T>>>(state: P) -> impl Future<Output = ()> {
    let is_closed = Until {
        queue: |state: &mut State<T>| &mut state.sender,
        condition: |state, ()| state.is_closed,
        arg: (),
    };
    WaitFuture::new(state, &"a oneshot receiver to be dropped", is_closed)
}

/// The sending side. If it is dropped without sending, the receiver gets [`Closed`].
#[must_use = "if dropped without sending, the receiver gets an error"]
pub struct Sender<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Sender<T> {
    /// Sends the value. Returns it if the receiver was dropped or has closed the channel. Success does not mean that
    /// the value will be received.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.state.update(|state| state.send(value))
    }

    /// Whether the receiver was dropped or has closed the channel.
    pub fn is_closed(&self) -> bool {
        self.state.with(|state| state.is_closed)
    }

    /// Waits until the receiver was dropped or has closed the channel, so that the work for the value can stop.
    /// Dropping the future has no effect.
    pub async fn closed(&mut self) {
        receiver_gone(&*self.state).await;
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.state.update(State::end_sending);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("closed", &self.is_closed()).finish()
    }
}

/// The receiving side: a future that resolves to the value, or to [`Closed`] if the sender is dropped without sending.
/// Cancel-safe if awaited as `&mut receiver`: the value can still be received later.
#[must_use = "futures do nothing unless awaited"]
pub struct Receiver<T> {
    waiting: WaitFuture<Rc<RefCell<State<T>>>, Receive>,
}

impl<T> Receiver<T> {
    /// Receives the value if it is available.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.waiting.state_cell.with(State::try_recv)
    }

    /// Closes the channel: the sender can no longer send. A value that was sent can still be received.
    pub fn close(&mut self) {
        self.waiting.state_cell.update(State::close);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.waiting.state_cell.with(|state| state.is_taken),
            "oneshot Receiver polled after it returned its value"
        );
        Pin::new(&mut self.waiting).poll(cx)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let value = self.waiting.state_cell.update(State::end_receiving);
        drop(value);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
