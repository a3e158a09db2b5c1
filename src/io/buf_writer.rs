//! A buffered writer that combines small writes.

use std::fmt;
use std::io;

use super::buf::IoBuf;
use super::read::AsyncRead;
use super::write::AsyncWrite;
use super::{BufResult, coop, delegate_read};

/// The default capacity of the buffer.
const DEFAULT_CAPACITY: usize = 8 * 1024;

/// Combines small writes into large ones.
///
/// Call [`flush`](AsyncWrite::flush) or [`shutdown`](AsyncWrite::shutdown) before dropping it: a destructor cannot wait
/// for a write, so **dropping a `BufWriter` discards its buffered bytes**. If writing to the inner writer fails, the
/// unwritten bytes stay buffered and the next flush tries again.
///
/// Reads go directly to the inner stream.
///
/// **Cancel safety:** a write or flush dropped while it writes out the buffer loses the unwritten rest of the buffer.
///
/// ```
/// use windlass::io::{AsyncWrite, BufWriter};
/// windlass::run(async {
///     let mut writer = BufWriter::new(Vec::new());
///     writer.write_all("hello, ").await.0?;
///     writer.write_all("world").await.0?;
///     assert_eq!(writer.get_ref().len(), 0);
///     assert_eq!(writer.into_inner().await?, b"hello, world");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping a BufWriter discards its buffered bytes: flush it first"]
pub struct BufWriter<W> {
    inner: W,
    buffer: Vec<u8>,
    capacity: usize,
}

impl<W> BufWriter<W> {
    /// Creates a writer with a buffer of 8 KiB.
    pub fn new(inner: W) -> BufWriter<W> {
        BufWriter::with_capacity(DEFAULT_CAPACITY, inner)
    }

    /// Creates a writer with a buffer of this size. Writes of at least this size flush the buffer and bypass it.
    pub fn with_capacity(capacity: usize, inner: W) -> BufWriter<W> {
        BufWriter {
            inner,
            buffer: Vec::new(),
            capacity,
        }
    }

    /// The bytes that were not yet written to the inner writer.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// The inner writer. Writing to it directly overtakes the buffered bytes.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// The inner writer, mutably.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Returns the inner writer and the unwritten bytes.
    pub fn into_parts(self) -> (W, Vec<u8>) {
        (self.inner, self.buffer)
    }

    /// Appends `bytes`, which must fit.
    fn append(&mut self, bytes: &[u8]) {
        if self.buffer.capacity() < self.capacity {
            self.buffer.reserve_exact(self.capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(bytes);
    }
}

impl<W: AsyncWrite> BufWriter<W> {
    /// Flushes and returns the inner writer. If that fails, the error contains this writer and its bytes.
    ///
    /// **Cancel safety:** as for a flush; the writer is dropped.
    pub async fn into_inner(mut self) -> Result<W, IntoInnerError<W>> {
        match self.flush().await {
            Ok(()) => Ok(self.inner),
            Err(error) => Err(IntoInnerError { writer: self, error }),
        }
    }

    /// Writes the buffer to the inner writer. Bytes that an error left unwritten stay buffered.
    async fn flush_buffer(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let len = buffer.len();
        let mut written = 0;
        let mut result = Ok(());
        while written < len && result.is_ok() {
            let taken;
            let part;
            (taken, part) = self.inner.write(buffer.slice(written..)).await;
            buffer = part.into_inner();
            match taken {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                // A user's `AsyncWrite` may report more bytes than it was given.
                Ok(count) => written = written.saturating_add(count).min(len),
                Err(error) => result = Err(error),
            }
        }
        buffer.drain(..written);
        self.buffer = buffer;
        result
    }

    /// Flushes the buffer if `len` more bytes do not fit. Returns false for bytes that must bypass the buffer.
    async fn make_space(&mut self, len: usize) -> io::Result<bool> {
        if self.buffer.len().saturating_add(len) > self.capacity {
            self.flush_buffer().await?;
        }
        Ok(len < self.capacity)
    }
}

impl<W: AsyncWrite> AsyncWrite for BufWriter<W> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        coop().await;
        match self.make_space(buf.len()).await {
            Ok(true) => {
                let bytes = buf.as_slice();
                self.append(bytes);
                (Ok(bytes.len()), buf)
            }
            Ok(false) => self.inner.write(buf).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.flush_buffer().await?;
        self.inner.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.inner.shutdown().await
    }

    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        coop().await;
        match self.make_space(buf.len()).await {
            Ok(true) => {
                self.append(buf.as_slice());
                (Ok(()), buf)
            }
            Ok(false) => self.inner.write_all(buf).await,
            Err(error) => (Err(error), buf),
        }
    }
}

/// Reads go directly to the inner stream.
impl<R: AsyncRead> AsyncRead for BufWriter<R> {
    delegate_read!(self => self.inner);
}

impl<W: fmt::Debug> fmt::Debug for BufWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufWriter")
            .field("inner", &self.inner)
            .field("buffered", &self.buffer.len())
            .field("capacity", &self.capacity)
            .finish()
    }
}

/// The error of [`BufWriter::into_inner`], with the writer.
///
/// ```
/// use windlass::io::{AsyncWrite, BufWriter, duplex};
/// windlass::run(async {
///     let (stream, peer) = duplex(1024);
///     let mut writer = BufWriter::new(stream);
///     writer.write_all("too late").await.0?;
///     drop(peer);
///     let failed = writer.into_inner().await.unwrap_err();
///     assert_eq!(failed.error().kind(), std::io::ErrorKind::BrokenPipe);
///     assert_eq!(failed.into_writer().buffer(), b"too late");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct IntoInnerError<W> {
    writer: BufWriter<W>,
    error: io::Error,
}

impl<W> IntoInnerError<W> {
    /// Why the flush failed.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The writer with its unwritten bytes.
    pub fn into_writer(self) -> BufWriter<W> {
        self.writer
    }
}

impl<W> fmt::Display for IntoInnerError<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<W: fmt::Debug> std::error::Error for IntoInnerError<W> {}

impl<W> From<IntoInnerError<W>> for io::Error {
    fn from(failed: IntoInnerError<W>) -> io::Error {
        failed.error
    }
}
