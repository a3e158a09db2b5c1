//! Writing, whatever to.

use std::future::Future;
use std::io;

use super::buf::IoBuf;
use super::splice::KernelStream;
use super::{BufResult, coop};

/// Something that bytes can be written to: sockets, files, memory, and whatever you make of them.
///
/// [`write`](AsyncWrite::write), [`flush`](AsyncWrite::flush) and [`shutdown`](AsyncWrite::shutdown) have to be written;
/// the rest is provided, and overridden by streams that can do better.
///
/// **Cancelling** a write may have written any part from the front of its buffer, which goes with the future. A write that
/// follows comes behind that, never in between.
///
/// ```
/// use windlass::io::{AsyncWrite, BufResult, IoBuf};
///
/// /// Counts what goes through it. No unsafe code is needed for that.
/// struct Counted<W>(W, usize);
///
/// impl<W: AsyncWrite> AsyncWrite for Counted<W> {
///     async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
///         let (result, buf) = self.0.write(buf).await;
///         self.1 += *result.as_ref().unwrap_or(&0);
///         (result, buf)
///     }
///     async fn flush(&mut self) -> std::io::Result<()> {
///         self.0.flush().await
///     }
///     async fn shutdown(&mut self) -> std::io::Result<()> {
///         self.0.shutdown().await
///     }
/// }
///
/// windlass::run(async {
///     let mut writer = Counted(Vec::new(), 0);
///     writer.write_all("hello").await.0?;
///     assert_eq!((&writer.0[..], writer.1), (&b"hello"[..], 5));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait AsyncWrite {
    /// Writes from `buf` and gives how many bytes were taken, which may be fewer than there are.
    ///
    /// Cancel: any part from the front may have been written.
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>>;

    /// Waits until what was written is on its way, and not in a buffer of the writer's.
    ///
    /// Cancel: part of it may be on its way. See [`BufWriter`](super::BufWriter).
    fn flush(&mut self) -> impl Future<Output = io::Result<()>>;

    /// Says that nothing more will be written, after a [`flush`](AsyncWrite::flush): a connection's other end sees the end of
    /// the stream.
    ///
    /// Cancel: the end may have been told or not; ask again.
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>>;

    /// Writes the whole of `buf`. If the writer takes no more the error is `WriteZero`.
    ///
    /// Cancel: any part from the front may have been written.
    fn write_all<B: IoBuf>(&mut self, mut buf: B) -> impl Future<Output = BufResult<(), B>> {
        async move {
            let len = buf.len();
            let mut written = 0;
            while written < len {
                coop().await;
                let (result, part) = self.write(buf.slice(written..len)).await;
                buf = part.into_inner();
                match result {
                    Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                    // A writer of somebody else's may claim more than there was.
                    Ok(count) => written = written.saturating_add(count).min(len),
                    Err(error) => return (Err(error), buf),
                }
            }
            (Ok(()), buf)
        }
    }

    /// Writes from several buffers, one after the other, and gives how many bytes were taken. Where the stream has no such
    /// call only the first buffer that holds something is looked at.
    ///
    /// Cancel: any part from the front may have been written.
    fn write_vectored<B: IoBuf>(&mut self, mut bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        async move {
            let Some(first) = bufs.iter().position(|buf| !buf.is_empty()) else {
                return (Ok(0), bufs);
            };
            let (result, buf) = self.write(bufs.remove(first)).await;
            bufs.insert(first, buf);
            (result, bufs)
        }
    }

    /// Writes the whole of all buffers, one after the other, however many.
    ///
    /// Cancel: any part from the front may have been written.
    fn write_all_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<(), Vec<B>>> {
        async move {
            let mut written = Vec::with_capacity(bufs.len());
            let mut rest = bufs.into_iter();
            while let Some(buf) = rest.next() {
                let (result, buf) = self.write_all(buf).await;
                written.push(buf);
                if let Err(error) = result {
                    written.extend(rest);
                    return (Err(error), written);
                }
            }
            (Ok(()), written)
        }
    }

    /// The kernel's stream behind this one, if there is nothing in between.
    #[doc(hidden)]
    fn kernel_stream(&self) -> Option<KernelStream> {
        None
    }
}
