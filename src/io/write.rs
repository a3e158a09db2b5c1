//! The trait [`AsyncWrite`].

use std::future::Future;
use std::io;

use super::buf::IoBuf;
use super::splice::KernelStream;
use super::{BufResult, coop};

/// A destination for bytes: a socket, a file, memory, or an adapter around one of them.
///
/// Only [`write`](AsyncWrite::write), [`flush`](AsyncWrite::flush) and [`shutdown`](AsyncWrite::shutdown) are required;
/// streams that can do better override the other methods.
///
/// **Cancel safety:** a dropped write may have written any prefix of its buffer, and the buffer is lost. A later write
/// never interleaves with it.
///
/// ```
/// use windlass::io::{AsyncWrite, BufResult, IoBuf};
///
/// /// Counts the bytes written through it, without unsafe code.
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream that windlass can write to",
    label = "does not implement `windlass::io::AsyncWrite`",
    note = "convert a socket or file of std first: `windlass::net::TcpStream::from_std(stream)?`",
    note = "a writer written for tokio or futures implements another trait of the same name; only a stream of windlass \
            can be passed to them, in a `windlass::compat::Bridge`, not the other way around"
)]
pub trait AsyncWrite {
    /// Writes from `buf` and returns the number of bytes written, which may be less than the buffer's length.
    ///
    /// **Cancel safety:** any prefix may have been written.
    fn write<B: IoBuf>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>>;

    /// Writes out everything that the writer has buffered.
    ///
    /// **Cancel safety:** any prefix of the buffered bytes may have been written. See [`BufWriter`](super::BufWriter).
    fn flush(&mut self) -> impl Future<Output = io::Result<()>>;

    /// Flushes, then ends the stream: the peer of a connection reads end of stream.
    ///
    /// **Cancel safety:** the stream may or may not have been ended; call it again.
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>>;

    /// Writes all of `buf`. If the writer accepts no more bytes, the error is `WriteZero`.
    ///
    /// **Cancel safety:** any prefix may have been written.
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
                    // A user's `AsyncWrite` may report more bytes than it was given.
                    Ok(count) => written = written.saturating_add(count).min(len),
                    Err(error) => return (Err(error), buf),
                }
            }
            (Ok(()), buf)
        }
    }

    /// Writes from several buffers in order and returns the number of bytes written. A stream without vectored writes
    /// only writes from the first non-empty buffer.
    ///
    /// **Cancel safety:** any prefix may have been written.
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

    /// Writes all buffers completely, in order; their number is not limited.
    ///
    /// **Cancel safety:** any prefix may have been written.
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

    /// The kernel socket behind this writer, if no bytes are buffered in between.
    #[doc(hidden)]
    fn kernel_stream(&self) -> Option<KernelStream> {
        None
    }
}
