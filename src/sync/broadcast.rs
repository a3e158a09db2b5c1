//! Every value to everybody.
//!
//! The channel keeps the last so many values. A receiver that falls further behind is told how many it has missed, and
//! goes on with the oldest that is still there; it never slows the sender down.
//!
//! ```
//! use windlass::sync::broadcast::{self, RecvError};
//! windlass::run(async {
//!     let (sender, mut one) = broadcast::channel(2);
//!     let mut other = sender.subscribe();
//!     sender.send("a").unwrap();
//!     assert_eq!(one.recv().await, Ok("a"));
//!     sender.send("b").unwrap();
//!     sender.send("c").unwrap(); // there is no room for "a" any more
//!     assert_eq!(other.recv().await, Err(RecvError::Lagged(1)));
//!     assert_eq!(other.recv().await, Ok("b"));
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use super::error::SendError;
use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;
use crate::event_loop::exception::guard;

/// Makes a channel that keeps the last `capacity` values, with one receiver.
///
/// # Panics
///
/// If the capacity is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast channel keeps at least one value");
    let shared = Rc::new(RefCell::new(State {
        kept: VecDeque::new(),
        next: 0,
        capacity,
        senders: 1,
        receivers: 1,
        wait_queue: WaitQueue::new(),
    }));
    let receiver = Receiver {
        shared: shared.clone(),
        at: 0,
    };
    (Sender { shared }, receiver)
}

struct State<T> {
    /// The last values, oldest first. As many receivers have the oldest still to read as any, or fewer: who has read
    /// one has read those before it. So the first place is the only one that can become read by all.
    kept: VecDeque<Place<T>>,
    /// The number of the next value.
    next: u64,
    capacity: usize,
    senders: usize,
    receivers: usize,
    wait_queue: WaitQueue<(), ()>,
}

/// Shared, because a user's `clone` may not run while the state is borrowed.
struct Place<T> {
    value: Rc<T>,
    /// How many receivers have not read it.
    leftover: usize,
}

impl<T> State<T> {
    /// The number of the oldest value.
    fn oldest(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Keeps a value. Gives the one that had to go.
    fn push(&mut self, value: Rc<T>) -> Option<Rc<T>> {
        let gone = match self.kept.len() == self.capacity {
            true => self.kept.pop_front(),
            false => None,
        };
        let leftover = self.receivers;
        self.kept.push_back(Place { value, leftover });
        self.next += 1;
        self.wait_queue.call_all(|| ());
        gone.map(|place| place.value)
    }

    /// What a receiver reads next, if there is anything.
    fn read(&mut self, at: &mut u64) -> Option<Result<Rc<T>, RecvError>> {
        let oldest = self.oldest();
        if *at < oldest {
            let missed = oldest - *at;
            *at = oldest;
            return Some(Err(RecvError::Lagged(missed)));
        }
        if *at == self.next {
            return (self.senders == 0).then_some(Err(RecvError::Closed));
        }
        let place = &mut self.kept[(*at - oldest) as usize];
        *at += 1;
        place.leftover -= 1;
        Some(Ok(match place.leftover {
            0 => self.kept.pop_front().expect("the first").value,
            _ => place.value.clone(),
        }))
    }

    /// One value that everybody has read.
    fn pop_read(&mut self) -> Option<Rc<T>> {
        let first = self.kept.front()?;
        (first.leftover == 0).then(|| self.kept.pop_front().expect("as above").value)
    }
}

impl<T> Calls for State<T> {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// Sends to every receiver. Clones send to the same ones; once all are dropped, receivers get [`RecvError::Closed`]
/// after the last value.
pub struct Sender<T> {
    shared: Rc<RefCell<State<T>>>,
}

impl<T> Sender<T> {
    /// Sends a value to all receivers that there are now, and gives their number. Never waits. Gives the value back if
    /// there are none.
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        let receivers = self.receiver_count();
        if receivers == 0 {
            return Err(SendError(value));
        }
        let value = Rc::new(value);
        let gone = self.shared.act(|state| state.push(value));
        drop(gone);
        Ok(receivers)
    }

    /// A receiver of what is sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        let at = self.shared.with(|state| {
            state.receivers += 1;
            state.next
        });
        let shared = self.shared.clone();
        Receiver { shared, at }
    }

    /// How many receivers there are.
    pub fn receiver_count(&self) -> usize {
        self.shared.with(|state| state.receivers)
    }

    /// How many values are kept because some receiver has not read them.
    pub fn len(&self) -> usize {
        self.shared.with(|state| state.kept.len())
    }

    /// Whether everybody has read everything.
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
        self.shared.act(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.wait_queue.call_all(|| ());
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

/// Receives every value that is sent while it is there.
pub struct Receiver<T> {
    shared: Rc<RefCell<State<T>>>,
    /// The number of the value to read next.
    at: u64,
}

impl<T> Receiver<T> {
    /// How many values it has yet to read, with those that it has missed.
    pub fn len(&self) -> u64 {
        self.shared.with(|state| state.next - self.at)
    }

    /// Whether it has read everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A receiver of what is sent from now on.
    pub fn resubscribe(&self) -> Receiver<T> {
        let at = self.shared.with(|state| {
            state.receivers += 1;
            state.next
        });
        let shared = self.shared.clone();
        Receiver { shared, at }
    }
}

impl<T: Clone> Receiver<T> {
    /// Waits for the next value.
    ///
    /// If the future is dropped before it has returned, nothing was received: the next call gives it.
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        let value = Waiting::new(&*self.shared, Next { at: &mut self.at }).await?;
        Ok(own(value))
    }

    /// The next value, if it is there.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.shared.with(|state| state.read(&mut self.at)) {
            Some(Ok(value)) => Ok(own(value)),
            Some(Err(RecvError::Lagged(missed))) => Err(TryRecvError::Lagged(missed)),
            Some(Err(RecvError::Closed)) => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

/// The last who reads a value gets it without a clone.
fn own<T: Clone>(value: Rc<T>) -> T {
    Rc::try_unwrap(value).unwrap_or_else(|shared| T::clone(&shared))
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // All at once: a value's destructor may be somebody who receives.
        let gone: Vec<_> = self.shared.with(|state| {
            state.receivers -= 1;
            let read = self.at.saturating_sub(state.oldest()) as usize;
            for place in state.kept.range_mut(read..) {
                place.leftover -= 1;
            }
            std::iter::from_fn(|| state.pop_read()).collect()
        });
        for value in gone {
            // One bad destructor must not keep the others' values.
            guard("a value's destructor", || drop(value));
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("len", &self.len()).finish()
    }
}

/// The next value of a receiver.
struct Next<'a> {
    at: &'a mut u64,
}

impl<T> Request<State<T>> for Next<'_> {
    type Want = ();
    type Grant = ();
    type Output = Result<Rc<T>, RecvError>;

    fn wait_queue(state: &mut State<T>) -> &mut WaitQueue<(), ()> {
        &mut state.wait_queue
    }

    fn name(&self) -> &'static str {
        "a broadcast"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State<T>) -> Option<Self::Output> {
        state.read(self.at)
    }

    fn settle(_state: &mut State<T>) {}

    fn joined(&mut self, state: &mut State<T>) {
        if *self.at < state.next || state.senders == 0 {
            state.wait_queue.call_last(());
        }
    }

    fn take(&mut self, state: &mut State<T>, (): ()) -> Self::Output {
        state.read(self.at).expect("called")
    }

    fn give_back(&mut self, _state: &mut State<T>, (): ()) {}
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// So many values were sent that this receiver has missed some: so many. The next call goes on with the oldest that
    /// is kept.
    Lagged(u64),
    /// Every sender is gone, and everything was received.
    Closed,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Lagged(missed) => write!(f, "the receiver fell behind and missed {missed} values"),
            RecvError::Closed => f.write_str("closed, and nothing more will come"),
        }
    }
}

impl std::error::Error for RecvError {}

/// Why nothing was received without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is nothing now.
    Empty,
    /// As [`RecvError::Lagged`].
    Lagged(u64),
    /// As [`RecvError::Closed`].
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryRecvError::Empty => f.write_str("there is nothing now: await `recv`, or try later"),
            TryRecvError::Lagged(missed) => RecvError::Lagged(*missed).fmt(f),
            TryRecvError::Closed => RecvError::Closed.fmt(f),
        }
    }
}

impl std::error::Error for TryRecvError {}
