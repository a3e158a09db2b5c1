//! The connections of a listener as a stream.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::stream::TcpStream;
use crate::stream::Generator;

/// A [`Stream`] of a listener's connections, which never ends: see
/// [`TcpListener::incoming`](super::TcpListener::incoming).
#[must_use = "a stream does nothing until it is polled"]
pub struct Incoming<'a, S = TcpStream> {
    accepts: Generator<'a, io::Result<S>>,
}

impl<'a, S: 'a> Incoming<'a, S> {
    pub(super) fn new(accept: impl AsyncFn() -> io::Result<S> + 'a) -> Incoming<'a, S> {
        Incoming {
            accepts: Generator::new(async move |connections| {
                loop {
                    connections.emit(accept().await).await;
                }
            }),
        }
    }
}

/// Nothing is pinned.
impl<S> Unpin for Incoming<'_, S> {}

impl<S> Stream for Incoming<'_, S> {
    type Item = io::Result<S>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<S>>> {
        self.accepts.poll_next(cx)
    }
}

impl<S> fmt::Debug for Incoming<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}
