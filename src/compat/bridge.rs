//! The bridge itself.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::reading::Reading;
use super::traits::{PollRead, PollWrite};
use super::writing::Writing;
use crate::time::{Instant, Sleep, sleep};

/// A stream for poll-based code: see the [module](super).
///
/// Its own methods are the poll-based calls without anybody's traits; the traits of `futures-io`, tokio and hyper are
/// implemented with the features `compat-futures`, `compat-tokio` and `hyper`.
///
/// **Cancelling**: nothing is lost. Bytes that were received and not consumed are there for the next poll, and when the bridge
/// is [taken away](Bridge::into_inner) or dropped they go back to the stream. Bytes that a write took are sent even if nobody
/// polls again, as long as the stream is there. If that fails, something is missing, so every write, flush and shutdown fails
/// from then on.
///
/// **Dropping the stream**, with its bridge or without, waits for nobody: what the kernel takes at once is sent, and if something
/// is left then, a TCP connection is reset, so that its peer does not take a part for the whole. (A pipe or a Unix socket has no
/// such sign.) Flush or shut down first.
///
/// **The stream's own calls** beside the bridge's take turns with them. A poll that was `Pending` keeps its turn until it is polled
/// to its end or the bridge is dropped, also if nobody is interested any more: a bridge cannot see that the future around a poll
/// was dropped. So after a read or a write of the bridge's that was given up, by a timeout for instance, native calls in that
/// direction wait for ever. Take the bridge [away](Bridge::into_inner) first, or go on through it.
///
/// One task may read and another write, through whatever splits the bridge; and a half of a socket can be bridged by itself.
///
/// ```
/// use std::future::poll_fn;
/// use windlass::compat::Bridge;
/// # windlass::run(async {
/// let (stream, peer) = windlass::net::UnixStream::pair()?;
/// peer.write_all("ping").await.0?;
/// let mut bridge = Bridge::new(stream);
/// assert_eq!(poll_fn(|cx| bridge.poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await?, b"ping");
/// bridge.consume(1);
/// let stream = bridge.into_inner();
/// assert_eq!(&*stream.read_managed().await?, b"ing");
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Bridge<S> {
    // Before the stream: what they give back when they are dropped, the stream then disposes of.
    reading: Reading,
    writing: Writing,
    write_limit: Option<Box<WriteLimit>>,
    stream: S,
}

/// How long a peer may take nothing, and how long it has.
struct WriteLimit {
    timeout: Duration,
    /// Runs while a write, flush or shutdown is pending.
    timer: Option<Sleep>,
    /// What was unsent when the timer was last started.
    unsent: usize,
}

impl<S> Bridge<S> {
    /// A bridge to this stream.
    pub fn new(stream: S) -> Bridge<S> {
        Bridge {
            reading: Reading::default(),
            writing: Writing::default(),
            write_limit: None,
            stream,
        }
    }

    /// Limits how long the peer may take nothing: a write, flush or shutdown that has been pending for `timeout` without a
    /// single byte sent fails with [`TimedOut`](io::ErrorKind::TimedOut). Without a limit, a peer that stops reading keeps its
    /// connection, and what is buffered for it, for as long as it likes.
    ///
    /// A slow peer is not cut off as long as it reads something. The limit costs a timer while a call is pending, and nothing
    /// else. It is seen by the task that polls; bytes that no call waits for are not watched.
    ///
    /// ```
    /// use std::future::poll_fn;
    /// use std::time::Duration;
    /// use windlass::compat::Bridge;
    /// # windlass::run(async {
    /// let (stream, _peer_that_does_not_read) = windlass::io::duplex(4);
    /// let mut bridge = Bridge::new(stream).write_timeout(Duration::from_millis(10));
    /// assert_eq!(poll_fn(|cx| bridge.poll_write(cx, b"hello")).await?, 4);
    /// let error = poll_fn(|cx| bridge.poll_write(cx, b"o")).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    /// # Ok::<(), std::io::Error>(())
    /// # })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Bridge<S> {
        self.write_limit = Some(Box::new(WriteLimit {
            timeout,
            timer: None,
            unsent: 0,
        }));
        self
    }

    /// The stream. Its own calls take turns with the bridge's: which of two reads gets which bytes is decided by who asked first.
    /// One that comes after a poll which was `Pending` waits until the bridge is polled to that end: see [Bridge].
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream, to change.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Takes the bridge away. What was received and not consumed is read from the stream next; what was taken and is not sent
    /// yet comes before the stream's next write.
    pub fn into_inner(self) -> S {
        let Bridge {
            reading,
            writing,
            write_limit: _,
            stream,
        } = self;
        drop((reading, writing));
        stream
    }
}

impl<S: PollRead> Bridge<S> {
    /// What comes next, at least one byte of it, in the buffer that it was received in; empty at the end.
    /// [`consume`](Bridge::consume) tells how much of it was used; until then it is given again.
    ///
    /// While it is `Pending` a read is under way, and the stream's own reads wait for it, even if nobody polls again.
    pub fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.stream.poll_fill_buf(&mut self.reading, cx)
    }

    /// This much of what [`poll_fill_buf`](Bridge::poll_fill_buf) gave was used.
    ///
    /// # Panics
    ///
    /// If it gave less.
    pub fn consume(&mut self, count: usize) {
        self.stream.consume(&mut self.reading, count);
    }

    /// Reads into `buf` and gives how many bytes; 0 is the end of the stream, or that there is no room.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let bytes = ready!(self.poll_fill_buf(cx))?;
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl<S: PollWrite> Bridge<S> {
    /// Takes bytes from `buf` and gives how many. They are being sent when this returns.
    ///
    /// While it is `Pending` because the stream's own writes are under way it is in their queue, and those that come later wait for
    /// it, even if nobody polls again.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Takes bytes from the slices, in order, and gives how many.
    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = self.stream.poll_write(&mut self.writing, cx, bufs);
        self.limited(cx, polled)
    }

    /// Waits until everything that was taken is with the kernel.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.poll_flush(&mut self.writing, cx);
        self.limited(cx, polled)
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn poll_started(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_started(&mut self.writing, cx)
    }

    /// Sends what was taken, and then says that nothing more will be written: the peer sees the end of the stream. If the peer has
    /// reset the connection and nothing that was taken is missing, there is nothing to end, and that is no error.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.poll_shutdown(&mut self.writing, cx);
        self.limited(cx, polled)
    }

    /// Fails if a call has been pending for too long without progress.
    fn limited<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(limit) = &mut self.write_limit else {
            return polled;
        };
        if polled.is_ready() {
            limit.timer = None;
            return polled;
        }
        let unsent = self.writing.unsent();
        let timer = limit.timer.get_or_insert_with(|| {
            limit.unsent = unsent;
            sleep(limit.timeout)
        });
        while Pin::new(&mut *timer).poll(cx).is_ready() {
            if unsent == limit.unsent {
                let why = format!("the peer has taken nothing for {:?}", limit.timeout);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            limit.unsent = unsent;
            timer.reset(Instant::now() + limit.timeout);
        }
        Poll::Pending
    }
}

impl<S: fmt::Debug> fmt::Debug for Bridge<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("stream", &self.stream)
            .field("reading", &self.reading)
            .field("writing", &self.writing)
            .finish()
    }
}

impl<S> From<S> for Bridge<S> {
    fn from(stream: S) -> Bridge<S> {
        Bridge::new(stream)
    }
}
