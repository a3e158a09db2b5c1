//! One value, once, from task to task.
//!
//! As [`promise`](crate::promise()), without the loop and its done-callbacks; between threads see
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
use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// Makes both ends.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State::new()));
    let waiting = Waiting::new(state.clone(), Value);
    (Sender { state }, Receiver { waiting })
}

/// What both ends share, here and between threads.
pub(super) struct State<T> {
    value: Option<T>,
    /// No value will be put in: it was, or the sender is gone.
    is_sent: bool,
    /// Nobody will take a value out: somebody did, or the receiver is gone or has closed.
    is_closed: bool,
    is_taken: bool,
    receiver: WaitQueue<(), ()>,
    sender: WaitQueue<(), ()>,
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

    /// Puts the value in, or gives it back.
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
        self.receiver.call_all(|| ());
    }

    /// Nobody sends from now on; a value that was sent can still be had.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.sender.call_all(|| ());
        // It may have been polled before; nothing more will come.
        self.receiver.call_all(|| ());
    }

    /// The receiver goes. Gives what it did not take.
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

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken
    }
}

impl<T> Calls for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.receiver.next_waker().or_else(|| self.sender.next_waker())
    }
}

/// That the value be there, or be known not to come.
pub(super) struct Value;

impl<T> Request<State<T>> for Value {
    type Want = ();
    type Grant = ();
    type Output = Result<T, Closed>;

    fn wait_queue(state: &mut State<T>) -> &mut WaitQueue<(), ()> {
        &mut state.receiver
    }

    fn name(&self) -> &'static str {
        "a oneshot value"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State<T>) -> Option<Result<T, Closed>> {
        match state.try_recv() {
            Ok(value) => Some(Ok(value)),
            Err(TryRecvError::Closed) => Some(Err(Closed)),
            Err(TryRecvError::Empty) => None,
        }
    }

    fn settle(state: &mut State<T>) {
        if state.is_sent || state.is_closed {
            state.receiver.call_all(|| ());
        }
    }

    fn take(&mut self, state: &mut State<T>, (): ()) -> Result<T, Closed> {
        state.try_recv().map_err(|_| Closed)
    }

    fn give_back(&mut self, _state: &mut State<T>, (): ()) {}
}

/// That nobody wait for the value any more.
pub(super) struct NotWanted;

impl<T> Request<State<T>> for NotWanted {
    type Want = ();
    type Grant = ();
    type Output = ();

    fn wait_queue(state: &mut State<T>) -> &mut WaitQueue<(), ()> {
        &mut state.sender
    }

    fn name(&self) -> &'static str {
        "a oneshot receiver to go"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State<T>) -> Option<()> {
        state.is_closed.then_some(())
    }

    fn settle(state: &mut State<T>) {
        if state.is_closed {
            state.sender.call_all(|| ());
        }
    }

    fn take(&mut self, _state: &mut State<T>, (): ()) {}

    fn give_back(&mut self, _state: &mut State<T>, (): ()) {}
}

/// Sends the value. Dropped without having sent, it lets the receiver know.
#[must_use = "without a value, the receiver gets an error"]
pub struct Sender<T> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Sender<T> {
    /// Sends the value. Gives it back if nobody will receive it. That this succeeds does not say that it will be
    /// received.
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        self.state.act(|state| state.send(value))
    }

    /// Whether the receiver is gone or has closed.
    pub fn is_closed(&self) -> bool {
        self.state.with(|state| state.is_closed())
    }

    /// Waits until the receiver is gone or has closed: the work for the value can end. Dropping the future changes
    /// nothing.
    pub async fn closed(&mut self) {
        Waiting::new(&*self.state, NotWanted).await;
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.state.act(State::end_sending);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("closed", &self.is_closed()).finish()
    }
}

/// Resolves to the value, or to [`Closed`] if the sender is dropped without one. It can be awaited by reference:
/// dropping that wait loses nothing.
#[must_use = "a receiver gives its value when it is awaited"]
pub struct Receiver<T> {
    waiting: Waiting<Rc<RefCell<State<T>>>, Value>,
}

impl<T> Receiver<T> {
    /// Takes the value if it is there.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.waiting.kept.with(State::try_recv)
    }

    /// Lets the sender know that nobody waits for the value. One that was sent before can still be had.
    pub fn close(&mut self) {
        self.waiting.kept.act(State::close);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.waiting.kept.with(|state| state.is_taken()),
            "a oneshot Receiver was polled after it had given its value"
        );
        Pin::new(&mut self.waiting).poll(cx)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let value = self.waiting.kept.act(State::end_receiving);
        drop(value);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
