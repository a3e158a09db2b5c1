//! A channel between threads as a `Stream` of its items, and as a `Sink`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_sink::Sink;

use super::super::error::Closed;
use super::super::permits::{AcquireOnly, AcquireThen};
use super::super::wait::{HeldWait, StateCell, WaitFuture};
use super::channel::{Receiver, Sender, State};
use crate::sync::loom_shim::Mutex;

impl<T> Receiver<T> {
    /// A [`Stream`] of the items, which ends when the channel is closed and empty: tokio's `ReceiverStream`.
    ///
    /// While the stream waits, it has a place among the receivers, and an item may be reserved for it until it is polled
    /// again or dropped.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use windlass::sync::thread;
    /// let (sender, receiver) = thread::channel(2);
    /// let producer = std::thread::spawn(move || {
    ///     for n in 1..=3 {
    ///         sender.send_blocking(n).unwrap();
    ///     }
    /// });
    /// windlass::run(async {
    ///     assert_eq!(receiver.into_stream().collect::<Vec<_>>().await, [1, 2, 3]);
    /// })?;
    /// producer.join().unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_stream(self) -> ReceiverStream<T> {
        ReceiverStream {
            wait: HeldWait::new(),
            receiver: self,
        }
    }
}

impl<T> Sender<T> {
    /// A [`Sink`] that sends items: tokio-util's `PollSender`.
    ///
    /// `poll_ready` reserves room for an item, behind earlier senders. Closing the sink drops the sender, so the channel is
    /// closed if no other sender exists.
    ///
    /// ```
    /// use futures_util::SinkExt;
    /// use windlass::sync::thread;
    /// windlass::run(async {
    ///     let (sender, receiver) = thread::channel(8);
    ///     let mut sink = sender.into_sink().with(async |n: u32| Ok::<_, windlass::sync::Closed>(n.to_string()));
    ///     # let mut sink = std::pin::pin!(sink);
    ///     sink.send(7).await.unwrap();
    ///     sink.close().await.unwrap();
    ///     assert_eq!(receiver.recv().await.unwrap(), "7");
    ///     assert!(receiver.recv().await.is_err());
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_sink(self) -> SenderSink<T> {
        SenderSink {
            wait: HeldWait::new(),
            has_room: false,
            sender: Some(self),
        }
    }
}

type SharedState<T> = Arc<Mutex<State<T>>>;

type Receive<T> = AcquireThen<State<T>, Result<T, Closed>>;

/// The items of a channel between threads: see [`Receiver::into_stream`].
#[must_use = "a stream does nothing until it is polled"]
pub struct ReceiverStream<T> {
    wait: HeldWait<SharedState<T>, Receive<T>>,
    receiver: Receiver<T>,
}

/// Nothing is pinned.
impl<T> Unpin for ReceiverStream<T> {}

impl<T> Stream for ReceiverStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let ReceiverStream { wait, receiver } = &mut *self;
        let start = || {
            let receive = Receive {
                permits: State::ready,
                count: 1,
                then: |state, acquired| acquired.and_then(|()| state.pop()),
            };
            WaitFuture::new(receiver.shared.clone(), &"a channel", receive)
        };
        wait.poll(cx, start).map(Result::ok)
    }
}

/// Sends items to a channel between threads: see [`Sender::into_sink`].
#[must_use = "a sink does nothing until it is polled"]
pub struct SenderSink<T> {
    wait: HeldWait<SharedState<T>, AcquireOnly<State<T>>>,
    /// Room is reserved for the next item.
    has_room: bool,
    /// `None` once the sink is closed.
    sender: Option<Sender<T>>,
}

/// Nothing is pinned.
impl<T> Unpin for SenderSink<T> {}

impl<T> SenderSink<T> {
    /// Drops the sender, and gives reserved room to the next one.
    fn close(&mut self) {
        self.wait = HeldWait::new();
        if let Some(sender) = self.sender.take()
            && std::mem::take(&mut self.has_room)
        {
            sender.shared.update(|state| state.free_slots().release(1));
        }
    }
}

impl<T> Sink<T> for SenderSink<T> {
    type Error = Closed;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let SenderSink { wait, has_room, sender } = &mut *self;
        let sender = sender.as_ref().ok_or(Closed)?;
        if !*has_room {
            let start = || {
                let reserve = AcquireOnly {
                    permits: State::free_slots,
                    count: 1,
                    then: |_, acquired| acquired,
                };
                WaitFuture::new(sender.shared.clone(), &"room in a channel", reserve)
            };
            std::task::ready!(wait.poll(cx, start))?;
            *has_room = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), Closed> {
        assert!(self.has_room, "`start_send` without `poll_ready`");
        self.has_room = false;
        let sender = self.sender.as_ref().ok_or(Closed)?;
        // An item that is refused is dropped after the lock.
        let sent = sender.shared.update(|state| state.push(item));
        sent.map_err(|_| Closed)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl<T> Drop for SenderSink<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> fmt::Debug for ReceiverStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReceiverStream").field(&self.receiver).finish()
    }
}

impl<T> fmt::Debug for SenderSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SenderSink").field(&self.sender).finish()
    }
}
