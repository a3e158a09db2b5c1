//! A queue as a `Stream` of its items, and as a `Sink`.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_sink::Sink;

use super::error::Closed;
use super::order::Order;
use super::permits::{AcquireOnly, LocalPermits, Permits, acquire_with};
use super::queue::{OrderedQueue, Shared};
use super::wait::{HeldWait, StateCell};

impl<T, O: Order<T>> OrderedQueue<T, O> {
    /// A [`Stream`] of the queue's items, which ends when the queue is closed and empty. Clone the queue to keep a handle.
    ///
    /// Several streams and getters may share a queue; each item goes to one of them. While the stream waits, it has a
    /// place among the getters, and an item may be reserved for it until it is polled again or dropped.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use windlass::sync::Queue;
    /// windlass::run(async {
    ///     let queue = Queue::unbounded();
    ///     let squares = queue.clone().into_stream().map(|n| n * n);
    ///     for n in 1..=3 {
    ///         queue.put(n).await.unwrap();
    ///     }
    ///     queue.close();
    ///     assert_eq!(squares.collect::<Vec<_>>().await, [1, 4, 9]);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_stream(self) -> QueueStream<T, O> {
        QueueStream {
            wait: HeldWait::new(),
            queue: self,
        }
    }

    /// A [`Sink`] that puts items. Clone the queue to keep a handle.
    ///
    /// `poll_ready` reserves a slot, behind earlier putters. Closing the sink does not close the queue, which other
    /// producers may use: call [`close`](OrderedQueue::close).
    ///
    /// ```
    /// use futures_util::{StreamExt, stream};
    /// use windlass::sync::Queue;
    /// windlass::run(async {
    ///     let queue = Queue::bounded(2);
    ///     let producer = stream::iter([1, 2, 3]).map(Ok).forward(queue.clone().into_sink());
    ///     let consumer = async { (queue.get().await, queue.get().await, queue.get().await) };
    ///     let (produced, consumed) = windlass::task::join((producer, consumer)).await;
    ///     assert_eq!((produced, consumed), (Ok(()), (Ok(1), Ok(2), Ok(3))));
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_sink(self) -> QueueSink<T, O> {
        QueueSink {
            wait: HeldWait::new(),
            has_slot: false,
            queue: self,
        }
    }
}

/// The items of a queue: see [`OrderedQueue::into_stream`].
#[must_use = "a stream does nothing until it is polled"]
pub struct QueueStream<T, O: Order<T>> {
    wait: HeldWait<ItemsOf<T, O>, AcquireOnly<Permits>>,
    queue: OrderedQueue<T, O>,
}

/// Nothing is pinned.
impl<T, O: Order<T>> Unpin for QueueStream<T, O> {}

impl<T, O: Order<T>> Stream for QueueStream<T, O> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let QueueStream { wait, queue } = &mut *self;
        let start = || acquire_with(ItemsOf(queue.shared.clone()), 1, &"a queue");
        match std::task::ready!(wait.poll(cx, start)) {
            // The store is empty if `close_now` was called since the grant.
            Ok(()) => Poll::Ready(queue.shared.remove()),
            Err(Closed) => Poll::Ready(None),
        }
    }
}

/// Puts items into a queue: see [`OrderedQueue::into_sink`].
#[must_use = "a sink does nothing until it is polled"]
pub struct QueueSink<T, O: Order<T>> {
    wait: HeldWait<SlotsOf<T, O>, AcquireOnly<Permits>>,
    /// A slot is reserved for the next item.
    has_slot: bool,
    queue: OrderedQueue<T, O>,
}

/// Nothing is pinned.
impl<T, O: Order<T>> Unpin for QueueSink<T, O> {}

impl<T, O: Order<T>> Sink<T> for QueueSink<T, O> {
    type Error = Closed;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let QueueSink { wait, has_slot, queue } = &mut *self;
        if !*has_slot {
            let start = || acquire_with(SlotsOf(queue.shared.clone()), 1, &"room in a queue");
            std::task::ready!(wait.poll(cx, start))?;
            *has_slot = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), Closed> {
        assert!(self.has_slot, "`start_send` without `poll_ready`");
        // The queue may have been closed since the grant.
        if self.queue.is_closed() {
            return Err(Closed);
        }
        self.has_slot = false;
        self.queue.shared.insert(item);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Poll::Ready(Ok(()))
    }
}

impl<T, O: Order<T>> Drop for QueueSink<T, O> {
    fn drop(&mut self) {
        if self.has_slot {
            self.queue.shared.free_slots.update(|free| free.release(1));
        }
    }
}

/// A pointer to the item permits of a queue.
struct ItemsOf<T, O: Order<T>>(Rc<Shared<T, O>>);

impl<T, O: Order<T>> Deref for ItemsOf<T, O> {
    type Target = LocalPermits;

    fn deref(&self) -> &LocalPermits {
        &self.0.items
    }
}

/// A pointer to the slot permits of a queue.
struct SlotsOf<T, O: Order<T>>(Rc<Shared<T, O>>);

impl<T, O: Order<T>> Deref for SlotsOf<T, O> {
    type Target = LocalPermits;

    fn deref(&self) -> &LocalPermits {
        &self.0.free_slots
    }
}

impl<T, O: Order<T>> fmt::Debug for QueueStream<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueStream").field(&self.queue).finish()
    }
}

impl<T, O: Order<T>> fmt::Debug for QueueSink<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueSink").field(&self.queue).finish()
    }
}
