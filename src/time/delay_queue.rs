//! `DelayQueue`: a queue of values with deadlines.
//!
//! The queue orders its values by deadline in a map of its own, and arms one timer of the loop, for the earliest deadline. So
//! a queue of a million values costs the loop one timer.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use slab::Slab;

use super::{Instant, Sleep, sleep_until};
use crate::io::poll_coop;

/// A queue of values with deadlines. The methods have the names of tokio-util's `DelayQueue`.
///
/// It is a [`Stream`] of the values whose deadline has passed, in the order of their deadlines; of equal deadlines, in the
/// order in which they were set. The stream ends when the queue is empty, and continues when a value is inserted.
///
/// ```
/// use std::time::Duration;
/// use futures_util::StreamExt;
/// use windlass::time::DelayQueue;
/// windlass::run(async {
///     let mut queue = DelayQueue::new();
///     let session = queue.insert("session", Duration::from_secs(3600));
///     queue.insert("ping", Duration::from_millis(2));
///     let token = queue.insert("token", Duration::from_millis(1));
///
///     assert_eq!(queue.next().await.unwrap().into_inner(), "token");
///     queue.reset(&session, Duration::from_secs(7200));
///     assert_eq!(queue.next().await.unwrap().into_inner(), "ping");
///     assert_eq!(queue.remove(&session).into_inner(), "session");
///     assert!(queue.try_remove(&token).is_none() && queue.next().await.is_none());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cancel safety
///
/// A dropped `next()` loses no value.
pub struct DelayQueue<T> {
    entries: Slab<Entry<T>>,
    /// The slots of the entries, by deadline and then by the number of the `insert` or `reset` that set it.
    by_deadline: BTreeMap<(Instant, u64), usize>,
    /// The next number.
    next_number: u64,
    /// The timer, once the queue was polled and had to wait. It is always set to the earliest deadline.
    sleep: Option<Sleep>,
}

struct Entry<T> {
    value: T,
    /// The number of the `insert`: the generation of the slot.
    generation: u64,
    /// Its key in `by_deadline`.
    place: (Instant, u64),
}

/// Identifies a value in a [`DelayQueue`]. A key of a value that has left the queue never matches a later value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    slot: usize,
    generation: u64,
}

/// A value that has left a [`DelayQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired<T> {
    value: T,
    deadline: Instant,
    key: Key,
}

impl<T> Expired<T> {
    /// The value.
    pub fn get_ref(&self) -> &T {
        &self.value
    }

    /// The value, mutably.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// The deadline that was set.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The key that the value had.
    pub fn key(&self) -> Key {
        self.key
    }
}

impl<T> DelayQueue<T> {
    /// Creates an empty queue.
    pub fn new() -> DelayQueue<T> {
        DelayQueue::with_capacity(0)
    }

    /// Creates an empty queue with memory for `capacity` values.
    pub fn with_capacity(capacity: usize) -> DelayQueue<T> {
        DelayQueue {
            entries: Slab::with_capacity(capacity),
            by_deadline: BTreeMap::new(),
            next_number: 0,
            sleep: None,
        }
    }

    /// Inserts a value that expires after `timeout`.
    pub fn insert(&mut self, value: T, timeout: Duration) -> Key {
        self.insert_at(value, Instant::now() + timeout)
    }

    /// Inserts a value that expires at `when`. If that is in the past, the next poll returns it.
    pub fn insert_at(&mut self, value: T, when: Instant) -> Key {
        let place = self.next_place(when);
        let (_, generation) = place;
        let slot = self.entries.insert(Entry {
            value,
            generation,
            place,
        });
        self.by_deadline.insert(place, slot);
        self.rearm();
        Key { slot, generation }
    }

    /// Makes a value expire after `timeout` from now instead.
    ///
    /// # Panics
    ///
    /// If the value has left the queue.
    #[track_caller]
    pub fn reset(&mut self, key: &Key, timeout: Duration) {
        self.reset_at(key, Instant::now() + timeout);
    }

    /// Makes a value expire at `when` instead.
    ///
    /// # Panics
    ///
    /// If the value has left the queue.
    #[track_caller]
    pub fn reset_at(&mut self, key: &Key, when: Instant) {
        self.expect(key);
        let place = self.next_place(when);
        let old = std::mem::replace(&mut self.entries[key.slot].place, place);
        self.by_deadline.remove(&old);
        self.by_deadline.insert(place, key.slot);
        self.rearm();
    }

    /// Removes a value.
    ///
    /// # Panics
    ///
    /// If the value has left the queue.
    #[track_caller]
    pub fn remove(&mut self, key: &Key) -> Expired<T> {
        self.expect(key);
        self.take(key.slot)
    }

    /// Removes a value; `None` if it has left the queue.
    pub fn try_remove(&mut self, key: &Key) -> Option<Expired<T>> {
        self.entry(key)?;
        Some(self.take(key.slot))
    }

    /// The deadline of a value.
    ///
    /// # Panics
    ///
    /// If the value has left the queue.
    #[track_caller]
    pub fn deadline(&self, key: &Key) -> Instant {
        self.expect(key).place.0
    }

    /// The key of the value that expires next.
    pub fn peek(&self) -> Option<Key> {
        let (_, &slot) = self.by_deadline.first_key_value()?;
        let generation = self.entries[slot].generation;
        Some(Key { slot, generation })
    }

    /// The next value whose deadline has passed; `Ready(None)` if the queue is empty. While the result is `Pending`, the
    /// waker of the last call is woken at the earliest deadline, even if that value is inserted after the call.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        loop {
            let Some((&(deadline, _), &slot)) = self.by_deadline.first_key_value() else {
                self.sleep = None;
                return Poll::Ready(None);
            };
            if deadline <= Instant::now() {
                std::task::ready!(poll_coop(cx));
                return Poll::Ready(Some(self.take(slot)));
            }
            let sleep = self.sleep.get_or_insert_with(|| sleep_until(deadline));
            std::task::ready!(Pin::new(sleep).poll(cx));
            self.sleep = None;
        }
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.by_deadline.clear();
        let entries = std::mem::take(&mut self.entries);
        self.rearm();
        // Their destructors find an empty queue.
        drop(entries);
    }

    /// The number of values, including those that have expired and were not returned yet.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn next_place(&mut self, when: Instant) -> (Instant, u64) {
        let number = self.next_number;
        self.next_number += 1;
        (when, number)
    }

    fn entry(&self, key: &Key) -> Option<&Entry<T>> {
        let entry = self.entries.get(key.slot)?;
        (entry.generation == key.generation).then_some(entry)
    }

    #[track_caller]
    fn expect(&self, key: &Key) -> &Entry<T> {
        let Some(entry) = self.entry(key) else {
            panic!("the value of this key has left the queue");
        };
        entry
    }

    fn take(&mut self, slot: usize) -> Expired<T> {
        let entry = self.entries.remove(slot);
        self.by_deadline.remove(&entry.place);
        self.rearm();
        let generation = entry.generation;
        Expired {
            value: entry.value,
            deadline: entry.place.0,
            key: Key { slot, generation },
        }
    }

    /// Sets the timer to the earliest deadline. If the queue is empty, it fires now: the task that waits then gets `None`.
    fn rearm(&mut self) {
        let Some(sleep) = &mut self.sleep else { return };
        let deadline = match self.by_deadline.first_key_value() {
            Some((&(deadline, _), _)) => deadline,
            None => Instant::now(),
        };
        if sleep.deadline() != Some(deadline) {
            sleep.reset(deadline);
        }
    }
}

/// Nothing is pinned.
impl<T> Unpin for DelayQueue<T> {}

impl<T> Default for DelayQueue<T> {
    fn default() -> DelayQueue<T> {
        DelayQueue::new()
    }
}

impl<T> Stream for DelayQueue<T> {
    type Item = Expired<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Expired<T>>> {
        self.poll_expired(cx)
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("next", &self.peek().map(|key| self.deadline(&key)))
            .finish()
    }
}
