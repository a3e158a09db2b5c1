//! A TLS stream as poll-based code sees it, through a [`Bridge`](crate::compat::Bridge).
//!
//! A bridge has its stream alone (`&mut self`), and every call of ours borrows it; so nobody else is in a lane while it polls.
//! What is under way between two polls stays in the stream: a receive, whose bytes nobody else could get, and the end.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use super::stream::TlsStream;
use super::transport::TlsTransport;
use crate::compat::{PollRead, PollWrite, Reading, Writing};
use crate::io::ManagedBuf;

/// How much ciphertext may wait behind what is being sent.
const MAX_WAITING: usize = 64 * 1024;

type UnderWay<T> = Cell<Option<Pin<Box<dyn Future<Output = io::Result<T>>>>>>;

/// What is under way between two polls.
#[derive(Default)]
pub(super) struct Polled {
    /// A call of ours that receives goes on with it.
    pub(super) receiving: UnderWay<ManagedBuf>,
    ending: UnderWay<()>,
    /// Who waits for what was written to be sent.
    writer: Option<Waker>,
}

impl<S: TlsTransport> TlsStream<S> {
    /// Ready when there is plaintext, or an end to tell.
    fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let seen = self.session.get_mut().look();
            self.poll_beside(cx);
            if let Some(seen) = seen {
                return Poll::Ready(seen);
            }
            let begun = self.polled.receiving.take();
            let mut receiving = begun.unwrap_or_else(|| {
                let carrier = self.carrier.clone();
                Box::pin(async move { carrier.receive().await })
            });
            match receiving.as_mut().poll(cx) {
                Poll::Ready(received) => {
                    self.write_buffer.reader_is_up();
                    self.received(received?)?;
                }
                Poll::Pending => {
                    self.polled.receiving.set(Some(receiving));
                    self.write_buffer.reader_sleeps(cx.waker());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S: TlsTransport> TlsStream<S> {
    /// Lets what there is to send go on before a reader sleeps: an answer to new keys, or what a write has left.
    fn poll_beside(&mut self, cx: &mut Context<'_>) {
        let was_idle = self.write_buffer.is_idle();
        self.poll_nudge(cx);
        // If reader and writer are two tasks, it is this one that hears of it now. The other is to ask again.
        if !was_idle
            && let Some(writer) = self.polled.writer.take()
            && !writer.will_wake(cx.waker())
        {
            writer.wake();
        }
    }

    /// Sends, for a writer who waits. If a reader sleeps in another task it is woken too: the writer may never ask again, and
    /// nothing would tell.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.collect();
        let reader = match self.write_buffer.is_idle() {
            true => None,
            false => self.write_buffer.other_reader(cx.waker()),
        };
        let sent = match reader {
            Some(reader) => {
                let both = Waker::from(Arc::new(Both(reader, cx.waker().clone())));
                self.poll_sent(&mut Context::from_waker(&both))
            }
            None => self.poll_sent(cx),
        };
        self.polled.writer = sent.is_pending().then(|| cx.waker().clone());
        sent
    }
}

/// Two tasks that are woken as one.
struct Both(Waker, Waker);

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
        self.1.wake_by_ref();
    }
}

/// Plaintext is lent where the session holds it.
impl<S: TlsTransport> PollRead for TlsStream<S> {
    fn poll_fill_buf<'a>(&'a mut self, _: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>> {
        if self.leftover.get_mut().is_empty() {
            ready!(self.poll_look(cx))?;
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

/// Records are made at once and are on their way when a write returns, up to 64 KiB and what one write takes. A flush, or the
/// next read or write, sees them to their end.
impl<S: TlsTransport> PollWrite for TlsStream<S> {
    fn poll_write(&mut self, _: &mut Writing, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if let Poll::Ready(Err(error)) = self.poll_out(cx) {
            return Poll::Ready(Err(error));
        }
        if self.write_buffer.waiting_len() >= MAX_WAITING {
            return Poll::Pending;
        }
        let count = self.session.get_mut().encrypt(bufs)?;
        match self.poll_out(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx)
    }

    fn poll_shutdown(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        self.session.get_mut().close();
        ready!(self.poll_out(cx))?;
        let begun = self.polled.ending.take();
        let mut ending = begun.unwrap_or_else(|| {
            let carrier = self.carrier.clone();
            Box::pin(async move { carrier.end().await })
        });
        match ending.as_mut().poll(cx) {
            // The peer has said its own last word, and is gone.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                self.polled.ending.set(Some(ending));
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Polled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polled").finish_non_exhaustive()
    }
}
