//! In-memory readers and writers. Each call consumes a unit of the task's budget, so an endless copy yields to other
//! tasks.

use std::io::{self, Cursor, Write};

use super::buf::{IoBuf, IoBufMut, no_capacity};
use super::managed::ManagedBuf;
use super::read::{AsyncBufRead, AsyncRead, HEAP_READ_LEN, read_buffered};
use super::write::AsyncWrite;
use super::{BufResult, coop};

/// Reads from the front of the slice and advances it.
impl AsyncRead for &[u8] {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        read_buffered(self, buf).await
    }
}

impl AsyncBufRead for &[u8] {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        coop().await;
        Ok(self)
    }
    fn consume(&mut self, count: usize) {
        *self = &self[count..];
    }
}

/// Reads at the cursor's position and advances it.
impl<T: AsRef<[u8]>> AsyncRead for Cursor<T> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        read_buffered(self, buf).await
    }
}

impl<T: AsRef<[u8]>> AsyncBufRead for Cursor<T> {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        coop().await;
        io::BufRead::fill_buf(self)
    }
    fn consume(&mut self, count: usize) {
        io::BufRead::consume(self, count);
    }
}

/// Writes at the cursor's position, like std, and advances it.
impl<T> AsyncWrite for Cursor<T>
where
    Cursor<T>: Write,
{
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        coop().await;
        (Write::write(self, buf.as_slice()), buf)
    }
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends to the vector; never blocks.
impl AsyncWrite for Vec<u8> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        coop().await;
        let bytes = buf.as_slice();
        let count = bytes.len();
        if let Err(error) = self.try_reserve(count) {
            return (Err(error.into()), buf);
        }
        self.extend_from_slice(bytes);
        (Ok(count), buf)
    }
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates a reader that is always at its end.
///
/// ```
/// use windlass::io::{AsyncRead, empty};
/// windlass::run(async {
///     assert!(empty().read_managed().await?.is_empty());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn empty() -> Empty {
    Empty(())
}

/// The reader returned by [`empty`].
///
/// ```
/// # windlass::run(async {
/// use windlass::io::{AsyncBufRead, Empty, empty};
/// let mut reader: Empty = empty();
/// assert_eq!(reader.fill_buf().await?, b"");
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Empty(());

impl AsyncRead for Empty {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        read_buffered(self, buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        coop().await;
        Ok(ManagedBuf::default())
    }
}

impl AsyncBufRead for Empty {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        coop().await;
        Ok(&[])
    }
    fn consume(&mut self, count: usize) {
        assert_eq!(count, 0, "consumed more bytes than are buffered");
    }
}

/// Creates a reader that returns one byte endlessly.
///
/// ```
/// use windlass::io::{AsyncRead, repeat};
/// windlass::run(async {
///     let (result, buf) = repeat(b'x').read_exact([0; 3]).await;
///     result?;
///     assert_eq!(&buf, b"xxx");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn repeat(byte: u8) -> Repeat {
    Repeat(byte)
}

/// The reader returned by [`repeat`].
///
/// ```
/// # windlass::run(async {
/// use windlass::io::{AsyncRead, Repeat, repeat};
/// let mut reader: Repeat = repeat(7);
/// assert!(reader.read_managed().await?.iter().all(|byte| *byte == 7));
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Repeat(u8);

impl AsyncRead for Repeat {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        coop().await;
        if buf.capacity() == 0 {
            return (Err(no_capacity()), buf);
        }
        let count = buf.fill_from(&[self.0; HEAP_READ_LEN]);
        (Ok(count), buf)
    }
}

/// Creates a writer that discards everything.
///
/// ```
/// use windlass::io::{copy, sink};
/// windlass::run(async {
///     assert_eq!(copy(&mut &b"hello"[..], &mut sink()).await?, 5);
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sink() -> Sink {
    Sink(())
}

/// The writer returned by [`sink`].
///
/// ```
/// # windlass::run(async {
/// use windlass::io::{AsyncWrite, Sink, sink};
/// let mut writer: Sink = sink();
/// writer.write_all("gone").await.0?;
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Sink(());

impl AsyncWrite for Sink {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        coop().await;
        (Ok(buf.len()), buf)
    }
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}
