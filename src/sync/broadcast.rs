//! A channel in which every receiver gets every value.
//!
//! The channel keeps the last `capacity` values. Senders never wait: a receiver that lags behind by more gets an error
//! with the number of skipped values, and continues with the oldest value that is kept.
//!
//! ```
//! use windlass::sync::broadcast::{self, RecvError};
//! windlass::run(async {
//!     let (sender, mut one) = broadcast::channel(2);
//!     let mut other = sender.subscribe();
//!     sender.send("a").unwrap();
//!     assert_eq!(one.recv().await, Ok("a"));
//!     sender.send("b").unwrap();
//!     sender.send("c").unwrap(); // evicts "a"
//!     assert_eq!(other.recv().await, Err(RecvError::Lagged(1)));
//!     assert_eq!(other.recv().await, Ok("b"));
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::error::SendError;
use super::wait::{HeldWait, StateCell, Until, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;
use crate::event_loop::exception::guard;

/// Creates a channel that keeps the last `capacity` values, with one receiver.
///
/// # Panics
///
/// If the capacity is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast channel needs a capacity of at least 1");
    let shared = Rc::new(RefCell::new(State {
        slots: VecDeque::new(),
        next: 0,
        capacity,
        senders: 1,
        receivers: 0,
        wait_queue: WaitQueue::new(),
    }));
    let receiver = Receiver::new(&shared);
    (Sender { shared }, receiver)
}

type Shared<T> = Rc<RefCell<State<T>>>;

struct State<T> {
    /// The kept values, oldest first. A receiver that has read a value has read all before it, so `unread_by` never
    /// decreases from front to back, and only the first slot can become fully read.
    slots: VecDeque<Slot<T>>,
    /// The sequence number of the next value.
    next: u64,
    capacity: usize,
    senders: usize,
    receivers: usize,
    wait_queue: WaitQueue<()>,
}

/// In an `Rc`, because the user's `clone` must not run while the state is borrowed.
struct Slot<T> {
    value: Rc<T>,
    /// The number of receivers that have not read the value.
    unread_by: usize,
}

impl<T> State<T> {
    /// The sequence number of the oldest kept value.
    fn oldest(&self) -> u64 {
        self.next - self.slots.len() as u64
    }

    /// Appends a value. Returns the evicted one if the channel was full.
    fn push(&mut self, value: Rc<T>) -> Option<Rc<T>> {
        let evicted = match self.slots.len() == self.capacity {
            true => self.slots.pop_front(),
            false => None,
        };
        let unread_by = self.receivers;
        self.slots.push_back(Slot { value, unread_by });
        self.next += 1;
        self.wait_queue.grant_all(|| ());
        evicted.map(|slot| slot.value)
    }

    /// The next value or error of the receiver at `position`; `None` if it has to wait.
    fn read(&mut self, position: &mut u64) -> Option<Result<Rc<T>, RecvError>> {
        let oldest = self.oldest();
        if *position < oldest {
            let missed = oldest - *position;
            *position = oldest;
            return Some(Err(RecvError::Lagged(missed)));
        }
        if *position == self.next {
            return (self.senders == 0).then_some(Err(RecvError::Closed));
        }
        let slot = &mut self.slots[(*position - oldest) as usize];
        *position += 1;
        slot.unread_by -= 1;
        Some(Ok(match slot.unread_by {
            0 => self.slots.pop_front().expect("the slot that was read").value,
            _ => slot.value.clone(),
        }))
    }

    /// Pops the oldest value if all receivers have read it.
    fn pop_read(&mut self) -> Option<Rc<T>> {
        let first = self.slots.front()?;
        (first.unread_by == 0).then(|| self.slots.pop_front().expect("checked above").value)
    }
}

impl<T> WaitState for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// The sending side. Once all clones are dropped, receivers get [`RecvError::Closed`] after the last value.
pub struct Sender<T> {
    shared: Shared<T>,
}

impl<T> Sender<T> {
    /// Sends a value to all receivers and returns their number, without waiting. Returns the value if there are none.
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        let receivers = self.receiver_count();
        if receivers == 0 {
            return Err(SendError(value));
        }
        let value = Rc::new(value);
        let evicted = self.shared.update(|state| state.push(value));
        drop(evicted);
        Ok(receivers)
    }

    /// Creates a receiver of values sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.shared.with(|state| state.receivers)
    }

    /// The number of values that some receiver has not read.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.slots.len())
    }

    /// Whether all receivers have read all values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.with(|state| state.senders += 1);
        let shared = self.shared.clone();
        Sender { shared }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.update(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.wait_queue.grant_all(|| ());
            }
        });
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("receivers", &self.receiver_count())
            .field("len", &self.len())
            .finish()
    }
}

/// The receiving side. Receives every value sent while it exists.
///
/// It is a [`Stream`] of the values, which ends when all senders were dropped. Its only error is [`RecvError::Lagged`].
///
/// ```
/// use futures_util::StreamExt;
/// use windlass::sync::broadcast::{self, RecvError};
/// windlass::run(async {
///     let (sender, receiver) = broadcast::channel(2);
///     for value in 1..=3 {
///         sender.send(value).unwrap();
///     }
///     drop(sender);
///     let all: Vec<_> = receiver.collect().await;
///     assert_eq!(all, [Err(RecvError::Lagged(1)), Ok(2), Ok(3)]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Receiver<T> {
    shared: Shared<T>,
    /// The sequence number of the next value to read.
    position: u64,
    /// The wait of the stream.
    wait: HeldWait<Shared<T>, Until<State<T>, u64>>,
}

/// Waits for the value at `position`, or until there are no senders.
fn readable<T>(position: u64) -> Until<State<T>, u64> {
    Until {
        queue: |state| &mut state.wait_queue,
        condition: |state, position| position < state.next || state.senders == 0,
        arg: position,
    }
}

impl<T> Receiver<T> {
    fn new(shared: &Shared<T>) -> Receiver<T> {
        let position = shared.with(|state| {
            state.receivers += 1;
            state.next
        });
        Receiver {
            shared: shared.clone(),
            position,
            wait: HeldWait::new(),
        }
    }

    /// The number of unread values, including skipped ones.
    pub fn len(&self) -> u64 {
        self.shared.with(|state| state.next - self.position)
    }

    /// Whether there are no unread values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Creates a receiver of values sent from now on.
    pub fn resubscribe(&self) -> Receiver<T> {
        Receiver::new(&self.shared)
    }
}

impl<T: Clone> Receiver<T> {
    /// Waits for the next value. Fails if values were skipped, or when all senders were dropped and no value is left.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no value was received: the next call returns it.
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        WaitFuture::new(&*self.shared, &"a broadcast", readable(self.position)).await;
        let read = self.shared.with(|state| state.read(&mut self.position));
        let value = read.expect("a value is available, or all senders were dropped")?;
        Ok(own(value))
    }

    /// Receives the next value if it is available.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.shared.with(|state| state.read(&mut self.position)) {
            Some(Ok(value)) => Ok(own(value)),
            Some(Err(RecvError::Lagged(missed))) => Err(TryRecvError::Lagged(missed)),
            Some(Err(RecvError::Closed)) => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T: Clone> Stream for Receiver<T> {
    type Item = Result<T, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Receiver { shared, position, wait } = &mut *self;
            let start = || WaitFuture::new(shared.clone(), &"a broadcast", readable(*position));
            std::task::ready!(wait.poll(cx, start));
            match shared.with(|state| state.read(position)) {
                Some(Ok(value)) => return Poll::Ready(Some(Ok(own(value)))),
                Some(Err(RecvError::Closed)) => return Poll::Ready(None),
                Some(Err(lagged)) => return Poll::Ready(Some(Err(lagged))),
                // The wait began before the value was received by another method.
                None => {}
            }
        }
    }
}

/// Nothing is pinned.
impl<T> Unpin for Receiver<T> {}

/// The last reader gets the value without a clone.
fn own<T: Clone>(value: Rc<T>) -> T {
    Rc::try_unwrap(value).unwrap_or_else(|shared| T::clone(&shared))
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Collected first: a value's destructor may use this channel.
        let fully_read: Vec<_> = self.shared.with(|state| {
            state.receivers -= 1;
            let read = self.position.saturating_sub(state.oldest()) as usize;
            for slot in state.slots.range_mut(read..) {
                slot.unread_by -= 1;
            }
            std::iter::from_fn(|| state.pop_read()).collect()
        });
        for value in fully_read {
            // A panicking destructor must not leak the other values.
            guard("a value's destructor", || drop(value));
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.len()).finish()
    }
}

/// Why no value was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// The receiver lagged behind; this many values were skipped. The next call returns the oldest value that is kept.
    Lagged(u64),
    /// All senders were dropped, and all values were received.
    Closed,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Lagged(missed) => write!(f, "the receiver lagged behind: {missed} values were skipped"),
            RecvError::Closed => f.write_str("closed"),
        }
    }
}

impl std::error::Error for RecvError {}

/// Why no value was received without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// No value is available.
    Empty,
    /// As [`RecvError::Lagged`].
    Lagged(u64),
    /// As [`RecvError::Closed`].
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryRecvError::Empty => f.write_str("empty: wait for a value, or try later"),
            TryRecvError::Lagged(missed) => RecvError::Lagged(*missed).fmt(f),
            TryRecvError::Closed => RecvError::Closed.fmt(f),
        }
    }
}

impl std::error::Error for TryRecvError {}
