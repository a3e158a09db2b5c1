//! A multi-producer, multi-consumer channel between threads.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::super::error::{Closed, SendError, TryRecvError, TrySendError};
use super::super::permits::{Acquire, Denied, Permits};
use super::super::wait::{StateCell, WaitFuture, WaitState};
use super::park;
use crate::sync::loom_shim::Mutex;

/// Creates a bounded channel between threads.
///
/// ```
/// use windlass::sync::thread;
/// let (requests, inbox) = thread::channel(8);
/// let (replies, results) = thread::channel(8);
/// let server = std::thread::spawn(move || {
///     windlass::run(async move {
///         while let Ok(request) = inbox.recv().await {
///             replies.send(request * 2).await.unwrap();
///         }
///     })
/// });
/// for request in 1..=3 {
///     requests.send_blocking(request).unwrap();
///     assert_eq!(results.recv_blocking(), Ok(request * 2));
/// }
/// drop(requests); // closes the channel: the server's `recv` fails and its loop ends
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
        "the capacity of a channel must be at least 1: use `unbounded()` for no limit"
    );
    with_capacity(capacity)
}

/// Creates an unbounded channel: sending never waits. If senders outpace receivers, memory use grows unbounded.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    with_capacity(usize::MAX)
}

fn with_capacity<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(State {
        items: VecDeque::new(),
        ready: Permits::new(0),
        free_slots: Permits::new(capacity),
        senders: 1,
        receivers: 1,
    }));
    let sender = Sender { shared: shared.clone() };
    (sender, Receiver { shared })
}

pub(super) struct State<T> {
    items: VecDeque<T>,
    /// One permit per item that is not reserved for a waiting receiver.
    ready: Permits,
    /// One permit per free slot that is not reserved for a waiting sender.
    free_slots: Permits,
    senders: usize,
    receivers: usize,
}

impl<T> State<T> {
    pub(super) fn free_slots(&mut self) -> &mut Permits {
        &mut self.free_slots
    }

    pub(super) fn ready(&mut self) -> &mut Permits {
        &mut self.ready
    }

    fn is_closed(&self) -> bool {
        self.free_slots.is_closed()
    }

    /// Requires a slot permit.
    pub(super) fn push(&mut self, item: T) -> Result<(), SendError<T>> {
        if self.is_closed() {
            return Err(SendError(item));
        }
        self.items.push_back(item);
        self.ready.release(1);
        Ok(())
    }

    /// Requires an item permit.
    pub(super) fn pop(&mut self) -> Result<T, Closed> {
        self.free_slots.release(1);
        self.items.pop_front().ok_or(Closed)
    }

    /// Nothing can be sent from now on. Items in the channel can still be received.
    fn close(&mut self) {
        self.ready.drain();
        self.free_slots.close();
    }
}

impl<T> WaitState for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.ready.next_waker().or_else(|| self.free_slots.next_waker())
    }
}

/// The sending side, for any thread. Clones send to the same channel. Dropping the last one closes it.
pub struct Sender<T> {
    pub(super) shared: Arc<Mutex<State<T>>>,
}

impl<T> Sender<T> {
    /// Sends an item, waiting for room behind earlier senders. Returns the item if the channel is or gets closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the item was not sent and is dropped too.
    pub async fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut item = Some(item);
        let send = Acquire {
            permits: State::<T>::free_slots,
            count: 1,
            then: |state: &mut State<T>, acquired: Result<(), Closed>| {
                let item = item.take().expect("sent once");
                match acquired {
                    Ok(()) => state.push(item),
                    Err(Closed) => Err(SendError(item)),
                }
            },
        };
        WaitFuture::new(&*self.shared, &"room in a channel", send).await
    }

    /// Sends an item if there is room and no other sender waits.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.shared.update(|state| match state.free_slots.try_take(1) {
            Ok(()) => state.push(item).map_err(TrySendError::from),
            Err(Denied::Busy) => Err(TrySendError::Full(item)),
            Err(Denied::Closed) => Err(TrySendError::Closed(item)),
        })
    }

    /// Sends from a thread without a loop, blocking it while the channel is full.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop. Await [`send`](Sender::send) there.
    #[track_caller]
    pub fn send_blocking(&self, item: T) -> Result<(), SendError<T>> {
        park::wait(self.send(item))
    }

    /// Closes the channel: waiting senders get their items back. Items in the channel can still be received.
    pub fn close(&self) {
        self.shared.update(State::close);
    }

    /// Whether the channel is closed or all receivers were dropped.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed())
    }

    /// The number of items, without those reserved for waiting receivers.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.ready.available())
    }

    /// Whether there are no items.
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
        self.shared.update(|state| {
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

/// The receiving side, for any thread. Clones receive from the same channel; each item goes to one of them. Dropping
/// the last one closes the channel and drops its items.
pub struct Receiver<T> {
    pub(super) shared: Arc<Mutex<State<T>>>,
}

impl<T> Receiver<T> {
    /// Receives an item, waiting behind earlier receivers. Fails when the channel is closed and empty.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, nothing was received; a reserved item goes to the next receiver.
    pub async fn recv(&self) -> Result<T, Closed> {
        let receive = Acquire {
            permits: State::<T>::ready,
            count: 1,
            then: |state: &mut State<T>, acquired: Result<(), Closed>| acquired.and_then(|()| state.pop()),
        };
        WaitFuture::new(&*self.shared, &"a channel", receive).await
    }

    /// Receives an item if there is one that is not reserved.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.shared.update(|state| match state.ready.try_take(1) {
            Ok(()) => state.pop().map_err(TryRecvError::from),
            Err(Denied::Busy) => Err(TryRecvError::Empty),
            Err(Denied::Closed) => Err(TryRecvError::Closed),
        })
    }

    /// Receives on a thread without a loop, blocking it while the channel is empty.
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop. Await [`recv`](Receiver::recv) there.
    #[track_caller]
    pub fn recv_blocking(&self) -> Result<T, Closed> {
        park::wait(self.recv())
    }

    /// As [`recv_blocking`](Receiver::recv_blocking), for at most `timeout`, with the name of std's method. Returns
    /// [`TryRecvError::Empty`] if no item came in time. In async code, use `timeout(duration, receiver.recv())`, which
    /// loses no item.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::sync::{TryRecvError, thread};
    /// let (sender, receiver) = thread::channel(1);
    /// assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(TryRecvError::Empty));
    /// sender.try_send(7).unwrap();
    /// assert_eq!(receiver.recv_timeout(Duration::from_secs(1)), Ok(7));
    /// ```
    ///
    /// # Panics
    ///
    /// On a thread that runs a loop.
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, TryRecvError> {
        match park::wait_timeout(timeout, self.recv()) {
            Some(received) => received.map_err(TryRecvError::from),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Closes the channel: waiting senders get their items back. Items in the channel can still be received.
    pub fn close(&self) {
        self.shared.update(State::close);
    }

    /// Whether the channel is closed. It may still contain items.
    pub fn is_closed(&self) -> bool {
        self.shared.with(|state| state.is_closed())
    }

    /// The number of items, without those reserved for waiting receivers.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.ready.available())
    }

    /// Whether there are no items.
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
        let unreceived = self.shared.update(|state| {
            state.receivers -= 1;
            if state.receivers > 0 {
                return VecDeque::new();
            }
            state.close();
            state.ready.remove(usize::MAX);
            std::mem::take(&mut state.items)
        });
        drop(unreceived);
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
