//! The traits of streams that a bridge can wrap.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::reading::Reading;
use super::writing::Writing;

/// A stream that can be read through a [`Bridge`](super::Bridge): sockets, pipes, a child's output, in-memory streams.
///
/// The bridge owns `state`, which holds what must survive between two polls. A stream with its own storage, such as one
/// that buffers decrypted bytes, ignores it:
///
/// ```
/// use std::io;
/// use std::task::{Context, Poll};
/// use windlass::compat::{Bridge, PollRead, Reading};
///
/// /// A stream with extra bytes in front.
/// struct Prefixed<S> {
///     prefix: Vec<u8>,
///     rest: Bridge<S>,
/// }
///
/// impl<S: PollRead> PollRead for Prefixed<S> {
///     fn poll_fill_buf<'a>(&'a mut self, _: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>> {
///         match self.prefix.is_empty() {
///             true => self.rest.poll_fill_buf(cx),
///             false => Poll::Ready(Ok(&self.prefix)),
///         }
///     }
///     fn consume(&mut self, _: &mut Reading, count: usize) {
///         match self.prefix.is_empty() {
///             true => self.rest.consume(count),
///             false => drop(self.prefix.drain(..count)),
///         }
///     }
/// }
///
/// windlass::run(async {
///     let (stream, _peer) = windlass::io::duplex(64);
///     let mut stream = Bridge::new(Prefixed { prefix: b"hello".to_vec(), rest: Bridge::new(stream) });
///     let mut word = [0; 16];
///     assert_eq!(std::future::poll_fn(|cx| stream.poll_read(cx, &mut word)).await?, 5);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait PollRead {
    /// Returns the next bytes, at least one; empty at EOF. Returns the same bytes until they are
    /// [consumed](PollRead::consume).
    ///
    /// Received bytes are never lost: if the bridge is not polled again, the next read of any kind gets them.
    fn poll_fill_buf<'a>(&'a mut self, state: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>>;

    /// Marks `count` bytes returned by [`poll_fill_buf`](PollRead::poll_fill_buf) as used.
    ///
    /// # Panics
    ///
    /// If fewer bytes were returned.
    fn consume(&mut self, state: &mut Reading, count: usize);
}

/// A stream that can be written through a [`Bridge`](super::Bridge). See [`PollRead`].
///
/// ```
/// use std::io::{self, IoSlice};
/// use std::task::{Context, Poll};
/// use windlass::compat::{Bridge, PollWrite, Writing};
///
/// /// Counts the bytes written.
/// struct Counted<S>(Bridge<S>, usize);
///
/// impl<S: PollWrite> PollWrite for Counted<S> {
///     fn poll_write(&mut self, _: &mut Writing, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
///         let result = self.0.poll_write_vectored(cx, bufs);
///         if let Poll::Ready(Ok(count)) = result {
///             self.1 += count;
///         }
///         result
///     }
///     fn poll_flush(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
///         self.0.poll_flush(cx)
///     }
///     fn poll_shutdown(&mut self, _: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
///         self.0.poll_shutdown(cx)
///     }
/// }
///
/// windlass::run(async {
///     let (stream, _peer) = windlass::io::duplex(64);
///     let mut stream = Bridge::new(Counted(Bridge::new(stream), 0));
///     std::future::poll_fn(|cx| stream.poll_write(cx, b"hello")).await?;
///     assert_eq!(stream.get_ref().1, 5);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait PollWrite {
    /// Accepts bytes from the slices, in order, and returns their number. A socket or pipe sends them without further
    /// polls; another stream may need a [flush](PollWrite::poll_flush). After a failed send, every call fails.
    fn poll_write(
        &mut self,
        state: &mut Writing,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Waits until all accepted bytes have been sent.
    fn poll_flush(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when the accepted bytes will be sent without further polls, even if they are not sent yet. By default this
    /// is a [flush](PollWrite::poll_flush).
    #[doc(hidden)]
    fn poll_started(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(state, cx)
    }

    /// Sends the accepted bytes, then shuts down the write direction: the peer sees EOF.
    fn poll_shutdown(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
