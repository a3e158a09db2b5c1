//! Items from threads to threads.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::super::error::{Closed, SendError, TryRecvError, TrySendError};
use super::super::permits::{Denied, Outcome, Permits};
use super::super::wait::{Calls, Kept, Request, Waiting};
use super::super::wait_queue::WaitQueue;
use super::park;
use crate::sync::loom_shim::Mutex;

/// Makes a channel between threads with room for so many items.
///
/// ```
/// use windlass::sync::thread;
/// let (requests, inbox) = thread::channel(8);
/// let (replies, outbox) = thread::channel(8);
/// let server = std::thread::spawn(move || {
///     windlass::run(async move {
///         while let Ok(request) = inbox.recv().await {
///             replies.send(request * 2).await.unwrap();
///         }
///     })
/// });
/// for request in 1..=3 {
///     requests.send_blocking(request).unwrap();
///     assert_eq!(outbox.recv_blocking(), Ok(request * 2));
/// }
/// drop(requests); // the server's last `recv` fails, and its loop ends
/// server.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If the capacity is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        capacity > 0,
        "a channel without room could hold nothing: use `unbounded()`, or a capacity of 1"
    );
    with_room(capacity)
}

/// Makes a channel between threads without a limit: sending never waits. Whoever fills it faster than it is emptied
/// fills the memory.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    with_room(usize::MAX)
}

fn with_room<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(State {
        items: VecDeque::new(),
        ready: Permits::new(0),
        room: Permits::new(capacity),
        senders: 1,
        receivers: 1,
        is_closed: false,
    }));
    let sender = Sender { shared: shared.clone() };
    (sender, Receiver { shared })
}

struct State<T> {
    items: VecDeque<T>,
    /// Its permits: items that nobody was promised.
    ready: Permits,
    /// Its permits: places that nobody was promised.
    room: Permits,
    senders: usize,
    receivers: usize,
    is_closed: bool,
}

impl<T> State<T> {
    /// To be called with a permit for the room.
    fn push(&mut self, item: T) -> Result<(), SendError<T>> {
        if self.is_closed {
            return Err(SendError(item));
        }
        self.items.push_back(item);
        self.ready.put(1);
        Ok(())
    }

    /// To be called with a permit for an item.
    fn pop(&mut self) -> Result<T, Closed> {
        self.room.put(1);
        self.items.pop_front().ok_or(Closed)
    }

    /// Nothing is sent from now on; what was sent can be had.
    fn close(&mut self) {
        self.is_closed = true;
        self.ready.drain();
        self.room.close();
    }
}

impl<T> Calls for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.ready.next_waker().or_else(|| self.room.next_waker())
    }
}

/// Sends from any thread. Clones send to the same channel, which is closed when the last is dropped.
pub struct Sender<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> Sender<T> {
    /// Sends once there is room, in the order of asking. Gives the item back if the channel is closed or every receiver
    /// is gone.
    ///
    /// If the future is dropped before it has returned, the item was not sent, and is dropped with it.
    pub async fn send(&self, item: T) -> Result<(), SendError<T>> {
        Waiting::new(&*self.shared, Sending { item: Some(item) }).await
    }

    /// Sends if there is room that nobody waits for.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.shared.act(|state| match state.room.try_take(1) {
            Ok(()) => state.push(item).map_err(TrySendError::from),
            Err(Denied::Busy) => Err(TrySendError::Full(item)),
            Err(Denied::Closed) => Err(TrySendError::Closed(item)),
        })
    }

    /// Sends from a thread that has no loop, blocking it while there is no room.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop: await [`send`](Sender::send) there.
    #[track_caller]
    pub fn send_blocking(&self, item: T) -> Result<(), SendError<T>> {
        park::wait(self.send(item))
    }

    /// Closes the channel for sending: whoever waits gets the item back. What was sent can still be received.
    pub fn close(&self) {
        self.shared.act(State::close);
    }

    /// Whether sending is of no use: the channel is closed or every receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed)
    }

    /// How many items are in it, without those that somebody who waited is about to get.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.ready.available())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.with(|state| state.senders += 1);
        Sender {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.act(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.close();
            }
        });
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("len", &self.len())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// Receives on any thread. Clones receive from the same channel: each item goes to one of them. When the last is
/// dropped, the channel is closed, and what is in it is dropped.
pub struct Receiver<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> Receiver<T> {
    /// Waits for an item, in the order of asking. Fails when the channel is closed, or every sender gone, and it is
    /// empty.
    ///
    /// If the future is dropped before it has returned, nothing was received; an item that was meant for it goes to the
    /// next.
    pub async fn recv(&self) -> Result<T, Closed> {
        Waiting::new(&*self.shared, Receiving).await
    }

    /// Takes an item if there is one that nobody waits for.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.shared.act(|state| match state.ready.try_take(1) {
            Ok(()) => state.pop().map_err(TryRecvError::from),
            Err(Denied::Busy) => Err(TryRecvError::Empty),
            Err(Denied::Closed) => Err(TryRecvError::Closed),
        })
    }

    /// Receives on a thread that has no loop, blocking it while there is nothing.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop: await [`recv`](Receiver::recv) there.
    #[track_caller]
    pub fn recv_blocking(&self) -> Result<T, Closed> {
        park::wait(self.recv())
    }

    /// Closes the channel for sending: whoever waits gets the item back. What was sent can still be received.
    pub fn close(&self) {
        self.shared.act(State::close);
    }

    /// Whether nothing can be sent any more. There may be items in it still.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed)
    }

    /// How many items are in it, without those that somebody who waited is about to get.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.ready.available())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.shared.with(|state| state.receivers += 1);
        Receiver {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let leftover = self.shared.act(|state| {
            state.receivers -= 1;
            if state.receivers > 0 {
                return VecDeque::new();
            }
            state.close();
            state.ready.remove(usize::MAX);
            std::mem::take(&mut state.items)
        });
        drop(leftover);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("len", &self.len())
            .field("closed", &self.is_closed())
            .finish()
    }
}

/// That an item be sent.
struct Sending<T> {
    item: Option<T>,
}

impl<T> Sending<T> {
    fn item(&mut self) -> T {
        self.item.take().expect("an item is sent once")
    }
}

impl<T> Request<State<T>> for Sending<T> {
    type Want = usize;
    type Grant = Outcome;
    type Output = Result<(), SendError<T>>;

    fn wait_queue(state: &mut State<T>) -> &mut WaitQueue<usize, Outcome> {
        state.room.wait_queue()
    }

    fn name(&self) -> &'static str {
        "room in a channel"
    }

    fn want(&self) -> usize {
        1
    }

    fn try_now(&mut self, state: &mut State<T>) -> Option<Self::Output> {
        match state.room.try_take(1) {
            Ok(()) => Some(state.push(self.item())),
            Err(Denied::Busy) => None,
            Err(Denied::Closed) => Some(Err(SendError(self.item()))),
        }
    }

    fn settle(state: &mut State<T>) {
        state.room.settle();
    }

    fn take(&mut self, state: &mut State<T>, outcome: Outcome) -> Self::Output {
        match state.room.accept(&outcome) {
            Ok(()) => state.push(self.item()),
            Err(_) => Err(SendError(self.item())),
        }
    }

    fn give_back(&mut self, state: &mut State<T>, outcome: Outcome) {
        state.room.refuse(&outcome, 1);
    }
}

/// That there be an item.
struct Receiving;

impl<T> Request<State<T>> for Receiving {
    type Want = usize;
    type Grant = Outcome;
    type Output = Result<T, Closed>;

    fn wait_queue(state: &mut State<T>) -> &mut WaitQueue<usize, Outcome> {
        state.ready.wait_queue()
    }

    fn name(&self) -> &'static str {
        "a channel"
    }

    fn want(&self) -> usize {
        1
    }

    fn try_now(&mut self, state: &mut State<T>) -> Option<Self::Output> {
        match state.ready.try_take(1) {
            Ok(()) => Some(state.pop()),
            Err(Denied::Busy) => None,
            Err(Denied::Closed) => Some(Err(Closed)),
        }
    }

    fn settle(state: &mut State<T>) {
        state.ready.settle();
    }

    fn take(&mut self, state: &mut State<T>, outcome: Outcome) -> Self::Output {
        match state.ready.accept(&outcome) {
            Ok(()) => state.pop(),
            Err(_) => Err(Closed),
        }
    }

    fn give_back(&mut self, state: &mut State<T>, outcome: Outcome) {
        state.ready.refuse(&outcome, 1);
    }
}
