//! The adapter from completion-based streams to poll-based calls.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::reading::Reading;
use super::thread_bound::ThreadBound;
use super::traits::{PollRead, PollWrite};
use super::writing::Writing;
use crate::time::{Instant, Sleep, sleep};

/// A stream with a poll-based interface: see the [module](super).
///
/// Its own methods are poll-based calls without third-party traits. The features `compat-futures`, `compat-tokio` and
/// `hyper` implement the traits of `futures-io`, tokio and hyper.
///
/// One task may read while another writes, through a poll-based split such as `tokio::io::split`. A half of a socket
/// can have a bridge of its own.
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
///
/// # Cancel safety
///
/// - Reads lose nothing. Unconsumed bytes stay for the next poll, and return to the stream when the bridge is dropped
///   or [unwrapped](Bridge::into_inner).
/// - Accepted writes are sent without further polls, as long as the stream exists. (A `TlsStream` may need a flush or
///   the next read or write.) After a failed send, every write, flush and shutdown fails: accepted bytes are missing.
/// - Dropping the stream does not wait. It sends what the kernel accepts at once; if bytes remain, it resets a TCP
///   connection, so that the peer does not mistake the part for the whole. (Pipes and Unix sockets have no reset.)
///   Flush or shut down first.
/// - The stream's own calls queue behind the bridge's. A poll that returned `Pending` keeps its place in the queue
///   until it is polled to completion or the bridge is dropped, because a bridge cannot tell that the future around a
///   poll was dropped. After a timeout on a bridge read or write, native calls in that direction therefore wait
///   forever: call [`into_inner`](Bridge::into_inner) first, or continue through the bridge.
pub struct Bridge<S> {
    // Declared before the stream: on drop they return their data to it.
    reading: Reading,
    writing: Writing,
    write_limit: Option<Box<WriteLimit>>,
    stream: S,
}

/// The state of [`Bridge::write_timeout`].
struct WriteLimit {
    timeout: Duration,
    /// Runs while a write, flush or shutdown is pending.
    timer: Option<Sleep>,
    /// The number of unsent bytes when the timer was last started.
    unsent: usize,
}

impl<S> Bridge<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Bridge<S> {
        Bridge {
            reading: Reading::default(),
            writing: Writing::default(),
            write_limit: None,
            stream,
        }
    }

    /// Sets the longest time without write progress: a write, flush or shutdown that is pending for `timeout` without a
    /// single byte sent fails with [`TimedOut`](io::ErrorKind::TimedOut). Without it, a peer that stops reading keeps
    /// its connection and the data buffered for it indefinitely.
    ///
    /// A slow peer that keeps reading never times out, except on a stream with its own write state, such as a
    /// `TlsStream`: there the timeout bounds the whole pending call. Bytes that no call waits for do not time out. The
    /// cost is one timer while a call is pending.
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

    /// The stream. Its own calls queue with the bridge's in FIFO order. A call behind a pending poll waits until that
    /// poll has completed: see [`Bridge`].
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream, mutably.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Returns the stream. Unconsumed bytes are read from it next; unsent bytes precede its next write.
    pub fn into_inner(self) -> S {
        drop((self.reading, self.writing));
        self.stream
    }

    /// Wraps the bridge for a library that requires a `Send` stream, although it stays on this thread, such as hyper's
    /// `with_upgrades`. Used on another thread, it panics; dropped there, the stream is closed at home: see [`ThreadBound`].
    ///
    /// ```
    /// use windlass::compat::Bridge;
    ///
    /// fn upgradable_connection<S: Send + 'static>(stream: S) -> S {
    ///     stream // for example `http1::Builder::serve_connection(stream, service).with_upgrades()`
    /// }
    ///
    /// # windlass::run(async {
    /// let (stream, peer) = windlass::net::UnixStream::pair()?;
    /// let mut stream = upgradable_connection(Bridge::new(stream).into_send());
    /// std::future::poll_fn(|cx| stream.poll_write(cx, b"ping")).await?;
    /// assert_eq!(&*peer.read_managed().await?, b"ping");
    /// # Ok::<(), std::io::Error>(())
    /// # })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn into_send(self) -> ThreadBound<Bridge<S>>
    where
        S: 'static,
    {
        ThreadBound::new(self)
    }
}

impl<S: PollRead> Bridge<S> {
    /// Returns the next bytes, at least one, in the buffer that received them; empty at EOF. Call
    /// [`consume`](Bridge::consume) with the number used: until then they are returned again.
    ///
    /// While this is `Pending`, a read is in flight and the stream's own reads wait for it, even if the bridge is not
    /// polled again.
    pub fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.stream.poll_fill_buf(&mut self.reading, cx)
    }

    /// Marks `count` bytes returned by [`poll_fill_buf`](Bridge::poll_fill_buf) as used.
    ///
    /// # Panics
    ///
    /// If fewer bytes were returned.
    pub fn consume(&mut self, count: usize) {
        self.stream.consume(&mut self.reading, count);
    }

    /// Reads into `buf` and returns the number of bytes; 0 at EOF or if `buf` is empty.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_take(cx, buf.len(), |bytes| buf[..bytes.len()].copy_from_slice(bytes))
    }

    /// Passes the next bytes, at most `max`, to `take` and returns their number.
    pub(crate) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if max == 0 {
            return Poll::Ready(Ok(0));
        }
        let bytes = ready!(self.poll_fill_buf(cx))?;
        let count = bytes.len().min(max);
        take(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl<S: PollWrite> Bridge<S> {
    /// Accepts bytes from `buf` and returns their number. Their send has started when this returns.
    ///
    /// If the stream's own writes are in flight, this is `Pending` and waits in their queue. Later writes of the stream
    /// wait for it, even if the bridge is not polled again.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    /// Accepts bytes from the slices, in order, and returns their number.
    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = self.stream.poll_write(&mut self.writing, cx, bufs);
        self.check_limit(cx, polled)
    }

    /// Waits until the kernel has all accepted bytes.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.poll_flush(&mut self.writing, cx);
        self.check_limit(cx, polled)
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn poll_started(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_started(&mut self.writing, cx)
    }

    /// Sends the accepted bytes, then shuts down the write direction. Succeeds if the peer has reset the connection and
    /// no accepted byte is missing.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.poll_shutdown(&mut self.writing, cx);
        self.check_limit(cx, polled)
    }

    /// Fails if a call has been pending for too long without progress.
    fn check_limit<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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
                let why = format!("the peer has read nothing for {:?}", limit.timeout);
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
