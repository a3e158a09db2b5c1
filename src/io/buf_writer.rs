//! A writer that collects small writes.

use std::fmt;
use std::io;

use super::buf::{IoBuf, IoBufMut};
use super::managed::ManagedBuf;
use super::read::AsyncRead;
use super::write::AsyncWrite;
use super::{BufResult, coop};

/// How much is collected unless another size is given.
const CAPACITY: usize = 8 * 1024;

/// Collects small writes and hands them on in one.
///
/// [`flush`](AsyncWrite::flush) it, or [`shutdown`](AsyncWrite::shutdown), before you drop it: a destructor cannot wait for a
/// write, so **what a dropped one still holds is never written**.
///
/// If handing on fails, what was not taken stays in here, and a later flush tries again. **Cancelling** a write or a flush
/// while it hands on gives up what it was handing on: any part from the front of that was written, the rest is gone.
///
/// Reads go through to the inner stream.
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
#[must_use = "what a dropped one holds is never written: flush it first"]
pub struct BufWriter<W> {
    inner: W,
    held: Vec<u8>,
    capacity: usize,
}

impl<W> BufWriter<W> {
    /// One that collects 8 KiB.
    pub fn new(inner: W) -> BufWriter<W> {
        BufWriter::with_capacity(CAPACITY, inner)
    }

    /// One that collects this many bytes. Larger writes go past it, after what it holds.
    pub fn with_capacity(capacity: usize, inner: W) -> BufWriter<W> {
        BufWriter {
            inner,
            held: Vec::new(),
            capacity,
        }
    }

    /// What was not handed on yet.
    pub fn buffer(&self) -> &[u8] {
        &self.held
    }

    /// The inner writer. What is written to it directly overtakes what is held here.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// The inner writer, to change.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.inner
    }

    /// Gives the inner writer back, and what was not handed on.
    pub fn into_parts(self) -> (W, Vec<u8>) {
        (self.inner, self.held)
    }

    /// Takes `bytes` in, which fit.
    fn collect(&mut self, bytes: &[u8]) {
        if self.held.capacity() < self.capacity {
            self.held.reserve_exact(self.capacity - self.held.len());
        }
        self.held.extend_from_slice(bytes);
    }
}

impl<W: AsyncWrite> BufWriter<W> {
    /// Flushes and gives the inner writer back. If that fails the error has this writer, with what was not written.
    ///
    /// Cancel: as for a flush, and the writer is gone.
    pub async fn into_inner(mut self) -> Result<W, IntoInnerError<W>> {
        match self.flush().await {
            Ok(()) => Ok(self.inner),
            Err(error) => Err(IntoInnerError { writer: self, error }),
        }
    }

    /// Hands on everything. What is not taken because of an error stays.
    async fn hand_on(&mut self) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        let len = held.len();
        let mut written = 0;
        let mut result = Ok(());
        while written < len && result.is_ok() {
            let taken;
            let part;
            (taken, part) = self.inner.write(held.slice(written..)).await;
            held = part.into_inner();
            match taken {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                // A writer of somebody else's may claim more than there was.
                Ok(count) => written = written.saturating_add(count).min(len),
                Err(error) => result = Err(error),
            }
        }
        held.drain(..written);
        self.held = held;
        result
    }

    /// Makes room for `len` bytes; false if there are too many to be collected.
    async fn make_room(&mut self, len: usize) -> io::Result<bool> {
        if self.held.len().saturating_add(len) > self.capacity {
            self.hand_on().await?;
        }
        Ok(len < self.capacity)
    }
}

impl<W: AsyncWrite> AsyncWrite for BufWriter<W> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        coop().await;
        match self.make_room(buf.len()).await {
            Ok(true) => {
                let bytes = buf.as_slice();
                self.collect(bytes);
                (Ok(bytes.len()), buf)
            }
            Ok(false) => self.inner.write(buf).await,
            Err(error) => (Err(error), buf),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.hand_on().await?;
        self.inner.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.inner.shutdown().await
    }

    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        coop().await;
        match self.make_room(buf.len()).await {
            Ok(true) => {
                self.collect(buf.as_slice());
                (Ok(()), buf)
            }
            Ok(false) => self.inner.write_all(buf).await,
            Err(error) => (Err(error), buf),
        }
    }
}

/// Reads go through to the inner stream.
impl<R: AsyncRead> AsyncRead for BufWriter<R> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.inner.read(buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        self.inner.read_managed().await
    }
    async fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.inner.read_vectored(bufs).await
    }
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        self.inner.read_exact(buf).await
    }
    async fn read_to_end(&mut self, into: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        self.inner.read_to_end(into, limit).await
    }
    async fn read_to_string(&mut self, limit: usize) -> io::Result<String> {
        self.inner.read_to_string(limit).await
    }
}

impl<W: fmt::Debug> fmt::Debug for BufWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufWriter")
            .field("inner", &self.inner)
            .field("held", &self.held.len())
            .field("capacity", &self.capacity)
            .finish()
    }
}

/// Why a [`BufWriter`] could not hand on what it holds, with the writer.
///
/// ```
/// use windlass::io::{AsyncWrite, BufWriter, duplex};
/// windlass::run(async {
///     let (stream, peer) = duplex(1024);
///     let mut writer = BufWriter::new(stream);
///     writer.write_all("too late").await.0?;
///     drop(peer);
///     let refused = writer.into_inner().await.unwrap_err();
///     assert_eq!(refused.error().kind(), std::io::ErrorKind::BrokenPipe);
///     assert_eq!(refused.into_writer().buffer(), b"too late");
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
    /// The reason.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The writer, with what was not written.
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
    fn from(refused: IntoInnerError<W>) -> io::Error {
        refused.error
    }
}
