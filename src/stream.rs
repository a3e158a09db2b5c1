//! Streams and sinks: which types of this crate implement [`Stream`] and [`Sink`].
//!
//! The traits are those of futures-core and futures-sink, so the adapters of futures-util work on them: `map`,
//! `buffer_unordered`, `take_until`, `zip`, `select`, `forward` to a sink.
//!
//! | source | stream of |
//! |---|---|
//! | [`Interval`](crate::time::Interval) | ticks, endless |
//! | [`DelayQueue`](crate::time::DelayQueue) | expired items |
//! | [`TcpListener::incoming`](crate::net::TcpListener::incoming), `UnixListener::incoming` | connections, endless |
//! | [`Lines::into_stream`](crate::io::Lines::into_stream) | lines |
//! | `FramedRead::into_stream`, `Framed::into_stream` (feature `bytes`) | frames |
//! | [`Queue::into_stream`](crate::sync::OrderedQueue::into_stream) | items |
//! | [`sync::thread::Receiver::into_stream`](crate::sync::thread::Receiver::into_stream) | items |
//! | [`broadcast::Receiver`](crate::sync::broadcast::Receiver), [`watch::Receiver`](crate::sync::watch::Receiver) | values |
//! | [`Signal`](crate::signal::Signal), [`ShutdownSignal`](crate::signal::ShutdownSignal) | signals |
//! | [`AsCompleted`](crate::task::AsCompleted), [`JoinSet`](crate::task::JoinSet) | outputs in the order of completion |
//! | [`ReadDir`](crate::fs::ReadDir) | directory entries |
//!
//! | target | sink of |
//! |---|---|
//! | [`Queue::into_sink`](crate::sync::OrderedQueue::into_sink) | items |
//! | [`sync::thread::Sender::into_sink`](crate::sync::thread::Sender::into_sink) | items |
//! | `FramedWrite::into_sink` (feature `bytes`) | frames |
//!
//! A type implements the trait itself if it is the only consumer of its items and can store its wait between polls.
//! `into_stream` and `incoming` return a separate stream where other handles compete for the items, as with a queue, or
//! where the stream must own a read or accept in progress.
//!
//! ```
//! use std::time::Duration;
//! use futures_util::StreamExt;
//! windlass::run(async {
//!     let ticks = windlass::time::interval(Duration::from_millis(1));
//!     let numbered: Vec<usize> = ticks.enumerate().map(|(number, _)| number).take(3).collect().await;
//!     assert_eq!(numbered, [0, 1, 2]);
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Cancel safety
//!
//! Dropping a `next()` of futures-util drops no item: the next poll of the stream returns it. Dropping the stream gives
//! a connection back to its listener and an item back to its channel.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

#[doc(no_inline)]
pub use futures_core::Stream;
#[doc(no_inline)]
pub use futures_sink::Sink;

/// A stream whose items an async block makes: two allocations for the whole stream. The block suspends in
/// [`Emitter::emit`] until the item is taken.
pub(crate) struct Generator<'a, T> {
    /// `None` once the block has ended.
    block: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    item: Rc<Cell<Option<T>>>,
}

/// Passes items from the block to the stream.
pub(crate) struct Emitter<T>(Rc<Cell<Option<T>>>);

impl<T> Emitter<T> {
    /// Makes the stream return `item`.
    pub(crate) async fn emit(&self, item: T) {
        self.0.set(Some(item));
        let mut is_taken = false;
        poll_fn(|_| match std::mem::replace(&mut is_taken, true) {
            true => Poll::Ready(()),
            // No waker is needed: the stream's next poll continues here.
            false => Poll::Pending,
        })
        .await;
    }
}

impl<'a, T> Generator<'a, T> {
    pub(crate) fn new<F: Future<Output = ()> + 'a>(block: impl FnOnce(Emitter<T>) -> F) -> Generator<'a, T> {
        let item = Rc::new(Cell::new(None));
        Generator {
            block: Some(Box::pin(block(Emitter(item.clone())))),
            item,
        }
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(block) = &mut self.block else {
            return Poll::Ready(None);
        };
        let polled = block.as_mut().poll(cx);
        if polled.is_ready() {
            self.block = None;
            return Poll::Ready(None);
        }
        match self.item.take() {
            None => Poll::Pending,
            item => Poll::Ready(item),
        }
    }
}
