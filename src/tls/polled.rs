//! A TLS stream for poll-based code, through a [`Bridge`](crate::compat::Bridge).
//!
//! A bridge has exclusive access to its stream (`&mut self`) while every native call borrows it, so no other call is
//! queued while a bridge polls. State between two polls stays in the stream: a receive, whose bytes would otherwise be
//! lost, and the shutdown of the transport.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use super::stream::TlsStream;
use super::transport::TlsTransport;
use crate::compat::{PollRead, PollWrite, Reading, Writing};
use crate::io::ManagedBuf;

/// How much ciphertext may wait behind the send in flight.
const MAX_WAITING: usize = 64 * 1024;

type BoxedFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;
type StoredFuture<T> = Cell<Option<BoxedFuture<T>>>;

/// Futures that stay pending between two polls.
#[derive(Default)]
pub(super) struct PollState {
    /// A native read continues it.
    pub(super) receiving: StoredFuture<ManagedBuf>,
    shutdown: StoredFuture<()>,
    /// The task waiting for its records to be sent.
    writer: Option<Waker>,
}

impl<S: TlsTransport> TlsStream<S> {
    /// Ready when there is plaintext, EOF or an error.
    fn poll_plaintext(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let filled = self.session.get_mut().fill_plaintext();
            self.poll_send_while_reading(cx);
            if let Some(filled) = filled {
                return Poll::Ready(filled);
            }
            let received = poll_stored(&self.polled.receiving, cx, || {
                let transport = self.transport.clone();
                Box::pin(async move { transport.receive().await })
            });
            match received {
                Poll::Ready(received) => {
                    self.sender.reader.clear();
                    self.received(received?)?;
                }
                Poll::Pending => {
                    self.sender.set_reader(cx);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Drives pending sends before a reader waits: a response to a key update, or records left by a write.
    fn poll_send_while_reading(&mut self, cx: &mut Context<'_>) {
        let was_idle = self.sender.is_idle();
        self.poll_try_send(cx);
        // The send now wakes this task. If the writer is another task, it must poll again.
        if !was_idle
            && let Some(writer) = self.polled.writer.take()
            && !writer.will_wake(cx.waker())
        {
            writer.wake();
        }
    }

    /// Sends pending records for a writer. A reader waiting in another task is woken too: the writer may never poll
    /// again, and then only the reader can drive the send.
    fn poll_flush_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue_records();
        let reader = match self.sender.is_idle() {
            true => None,
            false => self.sender.reader.other_than(cx.waker()),
        };
        let sent = match reader {
            Some(reader) => {
                let both = Waker::from(Arc::new(WakeBoth(reader, cx.waker().clone())));
                self.poll_sent(&mut Context::from_waker(&both))
            }
            None => self.poll_sent(cx),
        };
        self.polled.writer = sent.is_pending().then(|| cx.waker().clone());
        sent
    }
}

/// A waker for two tasks.
struct WakeBoth(Waker, Waker);

impl Wake for WakeBoth {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

/// Returns plaintext directly from the session's buffer.
impl<S: TlsTransport> PollRead for TlsStream<S> {
    fn poll_fill_buf<'a>(&'a mut self, _: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>> {
        if self.leftover.get_mut().is_empty() {
            ready!(self.poll_plaintext(cx))?;
            return Poll::Ready(Ok(self.session.get_mut().plaintext()));
        }
        Poll::Ready(Ok(self.leftover.get_mut()))
    }

    fn consume(&mut self, _: &mut Reading, count: usize) {
        let leftover = self.leftover.get_mut();
        if !leftover.is_empty() {
            return leftover.advance(count);
        }
        let state = self.session.get_mut();
        let len = state.plaintext().len();
        assert!(count <= len, "{count} bytes used of {len}");
        state.consume(count);
    }
}

/// A write encrypts at once and starts sending before it returns, with up to 64 KiB plus one write queued. A flush, or
/// the next read or write, drives the send to completion.
impl<S: TlsTransport> PollWrite for TlsStream<S> {
    fn poll_write(&mut self, _: &mut Writing, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if let Poll::Ready(Err(error)) = self.poll_flush_records(cx) {
            return Poll::Ready(Err(error));
        }
        if self.sender.buffer.queued_len() >= MAX_WAITING {
            return Poll::Pending;
        }
        let count = self.session.get_mut().encrypt(bufs)?;
        match self.poll_flush_records(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_records(cx)
    }

    fn poll_shutdown(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush_records(cx))?;
        self.session.get_mut().close();
        ready!(self.poll_flush_records(cx))?;
        let shutdown = poll_stored(&self.polled.shutdown, cx, || {
            let transport = self.transport.clone();
            Box::pin(async move { transport.send_eof().await })
        });
        match shutdown {
            // The peer has sent its close_notify and closed.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            shutdown => shutdown,
        }
    }
}

/// Polls a stored future, or one that `start` creates, and stores it while it is pending.
fn poll_stored<T>(
    slot: &StoredFuture<T>,
    cx: &mut Context<'_>,
    start: impl FnOnce() -> BoxedFuture<T>,
) -> Poll<io::Result<T>> {
    let mut future = slot.take().unwrap_or_else(start);
    let polled = future.as_mut().poll(cx);
    if polled.is_pending() {
        slot.set(Some(future));
    }
    polled
}
