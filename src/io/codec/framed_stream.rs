//! Frames as a `Stream`, and a `Sink` of frames.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;

use super::{Decoder, Encoder, Framed, FramedRead, FramedWrite};
use crate::io::{AsyncRead, AsyncWrite};
use crate::stream::Generator;

impl<'a, R: AsyncRead + 'a, D: Decoder + 'a> FramedRead<R, D> {
    /// A [`Stream`] of the frames. Dropping it drops the reader with its buffered bytes; to keep them, call
    /// [`next`](FramedRead::next).
    ///
    /// ```
    /// use futures_util::TryStreamExt;
    /// use windlass::io::codec::{FramedRead, LinesCodec};
    /// windlass::run(async {
    ///     let frames = FramedRead::new(&b"one\ntwo\n"[..], LinesCodec::new()).into_stream();
    ///     assert_eq!(frames.try_collect::<Vec<_>>().await?, ["one", "two"]);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_stream(mut self) -> FramedStream<'a, D::Item, D::Error> {
        FramedStream {
            frames: Generator::new(async move |frames| {
                while let Some(frame) = self.next().await {
                    frames.emit(frame).await;
                }
            }),
        }
    }
}

impl<'a, S: AsyncRead + 'a, C: Decoder + 'a> Framed<S, C> {
    /// A [`Stream`] of the frames, as [`FramedRead::into_stream`]. To write at the same time, create a [`FramedRead`] and
    /// a [`FramedWrite`] of two references or halves.
    pub fn into_stream(mut self) -> FramedStream<'a, C::Item, C::Error> {
        FramedStream {
            frames: Generator::new(async move |frames| {
                while let Some(frame) = self.next().await {
                    frames.emit(frame).await;
                }
            }),
        }
    }
}

/// The frames of a reader: see [`FramedRead::into_stream`].
#[must_use = "a stream does nothing until it is polled"]
pub struct FramedStream<'a, T, E> {
    frames: Generator<'a, Result<T, E>>,
}

/// Nothing is pinned.
impl<T, E> Unpin for FramedStream<'_, T, E> {}

impl<T, E> Stream for FramedStream<'_, T, E> {
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        self.frames.poll_next(cx)
    }
}

impl<T, E> fmt::Debug for FramedStream<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedStream").finish_non_exhaustive()
    }
}

impl<'a, W: AsyncWrite + 'a, E: 'a> FramedWrite<W, E> {
    /// A [`Sink`] of frames. It writes when it is flushed, and when too many bytes are buffered; closing it ends the stream.
    /// **Dropping it discards buffered frames.**
    ///
    /// ```
    /// use futures_util::{SinkExt, StreamExt, stream};
    /// use windlass::io::codec::{FramedRead, FramedWrite, LinesCodec};
    /// use windlass::io::duplex;
    /// windlass::run(async {
    ///     let (client, server) = duplex(1024);
    ///     let sink = FramedWrite::new(client, LinesCodec::new()).into_sink();
    ///     stream::iter(["one", "two"]).map(Ok).forward(sink).await?;
    ///     let lines = FramedRead::new(server, LinesCodec::new()).into_stream();
    ///     assert_eq!(lines.map(Result::unwrap).collect::<Vec<_>>().await, ["one", "two"]);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_sink(self) -> FramedSink<'a, W, E> {
        FramedSink {
            state: SinkState::Idle(self),
            is_flushed: true,
            is_closed: false,
        }
    }
}

/// Writes frames: see [`FramedWrite::into_sink`].
#[must_use = "a sink does nothing until it is polled"]
pub struct FramedSink<'a, W, E> {
    state: SinkState<'a, W, E>,
    /// Nothing was sent since the last flush.
    is_flushed: bool,
    /// The stream was ended.
    is_closed: bool,
}

/// The result of a write, and the writer.
type Written<W, E> = (io::Result<()>, FramedWrite<W, E>);

enum SinkState<'a, W, E> {
    Idle(FramedWrite<W, E>),
    /// A write owns the writer, because it may take several polls.
    Writing(Pin<Box<dyn Future<Output = Written<W, E>> + 'a>>),
    /// Between the other two, and after a panic.
    Empty,
}

/// Nothing is pinned.
impl<W, E> Unpin for FramedSink<'_, W, E> {}

/// What to do with the writer.
#[derive(PartialEq, Eq)]
enum Goal {
    Flush,
    Close,
}

impl<'a, W: AsyncWrite + 'a, E: 'a> FramedSink<'a, W, E> {
    /// Starts to flush or close.
    fn start(&mut self, goal: Goal) {
        let SinkState::Idle(mut frames) = std::mem::replace(&mut self.state, SinkState::Empty) else {
            unreachable!("a write is started when none is in progress");
        };
        self.state = SinkState::Writing(Box::pin(async move {
            let result = match goal {
                Goal::Flush => frames.flush().await,
                Goal::Close => frames.close().await,
            };
            (result, frames)
        }));
    }

    /// Waits for the write in progress.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            SinkState::Idle(_) => Poll::Ready(Ok(())),
            SinkState::Writing(write) => {
                let (result, frames) = ready!(write.as_mut().poll(cx));
                self.state = SinkState::Idle(frames);
                Poll::Ready(result)
            }
            SinkState::Empty => panic!("a sink was polled after its writer panicked"),
        }
    }

    fn frames(&mut self) -> &mut FramedWrite<W, E> {
        match &mut self.state {
            SinkState::Idle(frames) => frames,
            _ => panic!("`start_send` without `poll_ready`"),
        }
    }
}

impl<'a, T, W: AsyncWrite + 'a, E: Encoder<T> + 'a> Sink<T> for FramedSink<'a, W, E> {
    type Error = E::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), E::Error>> {
        ready!(self.poll_idle(cx))?;
        if self.frames().writing.is_full() {
            self.start(Goal::Flush);
            ready!(self.poll_idle(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, item: T) -> Result<(), E::Error> {
        self.is_flushed = false;
        let frames = self.frames();
        frames.writing.encode(&mut frames.encoder, item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), E::Error>> {
        if matches!(self.state, SinkState::Idle(_)) && !self.is_flushed {
            self.is_flushed = true;
            self.start(Goal::Flush);
        }
        let flushed = ready!(self.poll_idle(cx));
        // After an error the next flush reports that the writer is broken.
        self.is_flushed &= flushed.is_ok();
        Poll::Ready(flushed.map_err(Into::into))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), E::Error>> {
        ready!(self.poll_idle(cx))?;
        if !self.is_closed {
            self.is_closed = true;
            self.start(Goal::Close);
        }
        self.poll_idle(cx).map_err(Into::into)
    }
}

impl<W, E> fmt::Debug for FramedSink<'_, W, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedSink").finish_non_exhaustive()
    }
}
