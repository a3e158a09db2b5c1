//! What a stream does for its bridge.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::reading::Reading;
use super::writing::Writing;

/// A stream that can be read through a [`Bridge`](super::Bridge): sockets, pipes, a child's output, a connection in memory.
///
/// What has to be kept between two polls is in `kept`, which the bridge owns. A stream that has its own place for it, as one
/// that holds decrypted bytes anyway, leaves it alone:
///
/// ```
/// use std::io;
/// use std::task::{Context, Poll};
/// use windlass::compat::{Bridge, PollRead, Reading};
///
/// /// A stream that begins with something, and goes on as another.
/// struct Preceded<S> {
///     first: Vec<u8>,
///     rest: Bridge<S>,
/// }
///
/// impl<S: PollRead> PollRead for Preceded<S> {
///     fn poll_fill_buf<'a>(&'a mut self, _: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>> {
///         match self.first.is_empty() {
///             true => self.rest.poll_fill_buf(cx),
///             false => Poll::Ready(Ok(&self.first)),
///         }
///     }
///     fn consume(&mut self, _: &mut Reading, count: usize) {
///         match self.first.is_empty() {
///             true => self.rest.consume(count),
///             false => drop(self.first.drain(..count)),
///         }
///     }
/// }
///
/// windlass::run(async {
///     let (stream, _peer) = windlass::io::duplex(64);
///     let mut stream = Bridge::new(Preceded { first: b"hello".to_vec(), rest: Bridge::new(stream) });
///     let mut word = [0; 16];
///     assert_eq!(std::future::poll_fn(|cx| stream.poll_read(cx, &mut word)).await?, 5);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait PollRead {
    /// What comes next, at least one byte of it; empty at the end. It is given again until it is
    /// [consumed](PollRead::consume).
    ///
    /// What was received is never lost: when nobody polls any more it waits for the next read, of whatever kind.
    fn poll_fill_buf<'a>(&'a mut self, kept: &'a mut Reading, cx: &mut Context<'_>) -> Poll<io::Result<&'a [u8]>>;

    /// This much of what [`poll_fill_buf`](PollRead::poll_fill_buf) gave was used.
    ///
    /// # Panics
    ///
    /// If it gave less.
    fn consume(&mut self, kept: &mut Reading, count: usize);
}

/// A stream that can be written to through a [`Bridge`](super::Bridge). See [`PollRead`].
///
/// ```
/// use std::io::{self, IoSlice};
/// use std::task::{Context, Poll};
/// use windlass::compat::{Bridge, PollWrite, Writing};
///
/// /// Counts what goes through it.
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
    /// Takes bytes from the slices, in order, and gives how many. They are on their way without anybody's help; if that
    /// fails, every call tells from then on.
    fn poll_write(&mut self, kept: &mut Writing, cx: &mut Context<'_>, bufs: &[IoSlice<'_>])
    -> Poll<io::Result<usize>>;

    /// Waits until what was taken is out of our hands.
    fn poll_flush(&mut self, kept: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when what was taken will be sent without anybody's help, though it need not be out of our hands yet. Where there
    /// is no such difference it is a [flush](PollWrite::poll_flush).
    #[doc(hidden)]
    fn poll_started(&mut self, kept: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(kept, cx)
    }

    /// Says that nothing more will be written, after what was taken: a connection's other end sees the end of the stream.
    fn poll_shutdown(&mut self, kept: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
