//! A reader that holds more than was asked for, so that lines can be found in it.
//!
//! The trap with owned buffers: a buffer that holds unread bytes and is lent for the next read goes with that read when its
//! future is dropped. So what a `BufReader` holds is never lent. New bytes come in a managed buffer; if nothing was held that
//! is the buffer from then on, without a copy, and else they are appended. While it waits for more it holds no buffer of the
//! pool, only the bytes of a line that is not complete.

use std::fmt;
use std::io;

use super::BufResult;
use super::buf::{IoBuf, IoBufMut};
use super::lines::Lines;
use super::managed::ManagedBuf;
use super::read::{AsyncBufRead, AsyncRead, HEAP_READ_LEN, ended_early, refuse_exact};
use super::refused::{NotUtf8, TooLong};
use super::splice::KernelStream;
use super::split::Halves;
use super::write::AsyncWrite;
use crate::sys;

/// The longest line unless another length is given: asyncio's limit.
const MAX_LINE_LEN: usize = 64 * 1024;

/// What to do about a line that is too long.
const LINE_ADVICE: &str = "the line is too long, raise `max_line_len` if it should not be; \
                           the next call that reads a line goes on behind this one";

/// Reads lines, and whatever else ends with a certain byte, from any reader.
///
/// **Cancelling** any of its reading calls loses nothing: what was read stays in here. That holds for
/// [`read_line`](BufReader::read_line), [`read_until`](BufReader::read_until) and [`read_exact`](AsyncRead::read_exact) too.
///
/// Lines have a maximum length, [`max_line_len`](BufReader::max_line_len). A longer one is a [`TooLong`] error, and the call
/// after that goes on with the next line, so a peer cannot fill the memory, and one long line does not end the conversation.
/// Until then the bytes are still in here, to be taken with [`read`](AsyncRead::read) by who wants them.
///
/// Writes go through to the inner stream.
///
/// ```
/// use windlass::io::{AsyncWrite, BufReader, duplex};
/// windlass::run(async {
///     let (mut client, server) = duplex(1024);
///     client.write_all("GET / HTTP/1.0\r\nHost: here\r\n\r\n").await.0?;
///     let mut reader = BufReader::new(server);
///     let mut request = String::new();
///     reader.read_line(&mut request).await?;
///     assert_eq!(request, "GET / HTTP/1.0\r\n");
///     let mut lines = reader.lines();
///     assert_eq!(lines.next_line().await?.as_deref(), Some("Host: here"));
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct BufReader<R> {
    inner: R,
    held: Held,
}

impl<R> BufReader<R> {
    /// One that holds nothing yet.
    pub fn new(inner: R) -> BufReader<R> {
        let held = Held {
            bytes: nothing(),
            max_line_len: MAX_LINE_LEN,
            refused: None,
        };
        BufReader { inner, held }
    }

    /// How long a line may be (64 KiB), not counting the byte that ends it.
    #[must_use]
    pub fn max_line_len(mut self, len: usize) -> BufReader<R> {
        self.set_max_line_len(len);
        self
    }

    /// The same in place. A line that was just refused is looked at again.
    pub fn set_max_line_len(&mut self, len: usize) {
        self.held.max_line_len = len;
        self.held.refused = None;
    }

    /// What was read and not used, without reading more.
    pub fn buffer(&self) -> &[u8] {
        &self.held.bytes
    }

    /// The inner reader. What is read from it directly comes from behind what is held here.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The inner reader, to change.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Gives the inner reader back. What was read and not used is lost: see [`buffer`](BufReader::buffer) and
    /// [`into_parts`](BufReader::into_parts).
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// Gives the inner reader back, and what was read and not used.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        (self.inner, self.held.bytes.into_vec())
    }
}

impl<R: AsyncRead> BufReader<R> {
    /// Reads up to and with the next `delimiter`, appends that to `into` and gives how many bytes it was. At the end of the
    /// stream it is what is left, without a delimiter, and then 0.
    ///
    /// More than [`max_line_len`](BufReader::max_line_len) bytes are a [`TooLong`] error; the next call goes on behind them.
    ///
    /// Cancel, and any error: nothing is lost, the bytes stay in the reader.
    pub async fn read_until(&mut self, delimiter: u8, into: &mut Vec<u8>) -> io::Result<usize> {
        let count = self.held.find(&mut self.inner, delimiter).await?;
        into.extend_from_slice(&self.held.bytes[..count]);
        self.held.bytes.advance(count);
        Ok(count)
    }

    /// Reads a line of text with its newline, appends it to `into` and gives how many bytes it was; 0 is the end. The last
    /// line may lack the newline.
    ///
    /// A line that is not UTF-8 is a [`NotUtf8`] error that has the line's bytes, and a line of more than
    /// [`max_line_len`](BufReader::max_line_len) bytes is a [`TooLong`] error. In both cases the next call goes on with the
    /// next line.
    ///
    /// Cancel, and an error of the stream: nothing is lost, the bytes stay in the reader.
    pub async fn read_line(&mut self, into: &mut String) -> io::Result<usize> {
        let count = self.held.find(&mut self.inner, b'\n').await?;
        let line = &self.held.bytes[..count];
        let result = match std::str::from_utf8(line) {
            Ok(text) => {
                into.push_str(text);
                Ok(count)
            }
            Err(_) => NotUtf8::check("line", line.to_vec()).map(|_| count),
        };
        self.held.bytes.advance(count);
        result
    }

    /// The lines, one after the other, without their newlines.
    pub fn lines(self) -> Lines<R> {
        Lines::new(self)
    }
}

/// What was read and not used, and how lines are found in it.
struct Held {
    bytes: ManagedBuf,
    max_line_len: usize,
    /// What ends the over-long line at whose start `bytes` stands: its error was told, and who asks for a line gets the next.
    refused: Option<u8>,
}

fn nothing() -> ManagedBuf {
    ManagedBuf::from_heap(Vec::new())
}

impl Held {
    /// Reads if nothing is held. If still nothing is, it is the end.
    async fn fill<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<&[u8]> {
        if self.bytes.is_empty() {
            // The pool's buffer goes back before the wait.
            self.bytes = nothing();
            self.bytes = inner.read_managed().await?;
        }
        Ok(&self.bytes)
    }

    /// Reads behind what is held, and gives how much it was; 0 is the end.
    async fn fill_more<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Ok(self.fill(inner).await?.len());
        }
        let held = std::mem::replace(&mut self.bytes, nothing()).into_vec();
        self.bytes = ManagedBuf::from_heap(held);
        let more = inner.read_managed().await?;
        let mut held = std::mem::replace(&mut self.bytes, nothing()).into_vec();
        held.extend_from_slice(&more);
        self.bytes = ManagedBuf::from_heap(held);
        Ok(more.len())
    }

    /// How many of the bytes that are held are the next line, with what ends it. 0 at the end.
    async fn find<R: AsyncRead>(&mut self, inner: &mut R, delimiter: u8) -> io::Result<usize> {
        self.skip_refused(inner).await?;
        let mut searched = 0;
        loop {
            let found = sys::find_byte(&self.bytes[searched..], delimiter);
            let len = found.map_or(self.bytes.len(), |at| searched + at);
            if len > self.max_line_len {
                self.refused = Some(delimiter);
                return Err(TooLong::error(self.max_line_len, LINE_ADVICE, Vec::new()));
            }
            if found.is_some() {
                return Ok(len + 1);
            }
            searched = len;
            if self.fill_more(inner).await? == 0 {
                return Ok(searched);
            }
        }
    }

    /// Drops what is left of a line that was refused, piece by piece.
    async fn skip_refused<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<()> {
        while let Some(delimiter) = self.refused {
            let held = self.fill(inner).await?;
            let (count, is_over) = match sys::find_byte(held, delimiter) {
                Some(at) => (at + 1, true),
                None => (held.len(), held.is_empty()),
            };
            self.bytes.advance(count);
            if is_over {
                self.refused = None;
            }
        }
        Ok(())
    }

    fn consume(&mut self, count: usize) {
        self.bytes.advance(count);
        // Who takes the bytes of a refused line has taken it over.
        self.refused = None;
    }

    async fn read<R: AsyncRead, B: IoBufMut>(&mut self, inner: &mut R, mut buf: B) -> BufResult<usize, B> {
        if self.bytes.is_empty() && buf.capacity() >= HEAP_READ_LEN {
            self.refused = None;
            return inner.read(buf).await;
        }
        if buf.capacity() == 0 {
            return (Err(super::no_room()), buf);
        }
        match self.fill(inner).await {
            Ok(bytes) => {
                let count = buf.fill_from(bytes);
                self.consume(count);
                (Ok(count), buf)
            }
            Err(error) => (Err(error), buf),
        }
    }

    async fn read_managed<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<ManagedBuf> {
        self.fill(inner).await?;
        self.refused = None;
        Ok(std::mem::replace(&mut self.bytes, nothing()))
    }

    async fn read_exact<R: AsyncRead, B: IoBufMut>(&mut self, inner: &mut R, buf: B) -> BufResult<(), B> {
        if let Some(nothing_to_do) = refuse_exact(&buf) {
            return (nothing_to_do, buf);
        }
        let len = buf.len();
        while self.bytes.len() < len {
            match self.fill_more(inner).await {
                Ok(0) => return (Err(ended_early()), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        let mut part = buf.slice_mut(..len);
        let count = part.fill_from(&self.bytes[..len]);
        self.consume(count);
        (Ok(()), part.into_inner())
    }

    async fn read_to_string<R: AsyncRead>(&mut self, inner: &mut R, limit: usize) -> io::Result<String> {
        while self.bytes.len() <= limit {
            if self.fill_more(inner).await? == 0 {
                return NotUtf8::check("stream", self.read_managed(inner).await?.into_vec());
            }
        }
        let advice = "raise the limit, or take the stream in pieces with `read`; nothing was taken from the reader";
        Err(TooLong::error(limit, advice, Vec::new()))
    }
}

impl<R: AsyncRead> AsyncRead for BufReader<R> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.held.read(&mut self.inner, buf).await
    }

    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        self.held.read_managed(&mut self.inner).await
    }

    /// What arrives is held here until all of it is there. So dropping the future, or the stream's end, loses nothing.
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        self.held.read_exact(&mut self.inner, buf).await
    }

    /// What arrives is held here until all of it is there. So dropping the future loses nothing, and neither does an error.
    async fn read_to_string(&mut self, limit: usize) -> io::Result<String> {
        self.held.read_to_string(&mut self.inner, limit).await
    }

    fn kernel_stream(&self) -> Option<KernelStream> {
        match self.held.bytes.is_empty() {
            true => self.inner.kernel_stream(),
            false => None,
        }
    }
}

impl<R: AsyncRead> AsyncBufRead for BufReader<R> {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.held.fill(&mut self.inner).await
    }
    fn consume(&mut self, count: usize) {
        self.held.consume(count);
    }
}

/// Writes go through to the inner stream.
impl<W: AsyncWrite> AsyncWrite for BufReader<W> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.inner.write(buf).await
    }
    async fn flush(&mut self) -> io::Result<()> {
        self.inner.flush().await
    }
    async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }
    async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
        self.inner.write_all(buf).await
    }
    async fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.inner.write_vectored(bufs).await
    }
    async fn write_all_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        self.inner.write_all_vectored(bufs).await
    }
    fn kernel_stream(&self) -> Option<KernelStream> {
        self.inner.kernel_stream()
    }
}

/// What is held is read first. So a proxy may read a header and give the rest to
/// [`copy_bidirectional`](super::copy_bidirectional).
impl<T: Halves> Halves for BufReader<T> {
    type ReadHalf<'a>
        = BufReaderHalf<'a, T::ReadHalf<'a>>
    where
        T: 'a;
    type WriteHalf<'a>
        = T::WriteHalf<'a>
    where
        T: 'a;

    fn halves(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>) {
        let (inner, writer) = self.inner.halves();
        let held = &mut self.held;
        (BufReaderHalf { held, inner }, writer)
    }
}

/// The reading half of a [`BufReader`] around a stream with two directions.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, BufReader, Halves, duplex};
/// windlass::run(async {
///     let (mut client, server) = duplex(1024);
///     client.write_all("ping\nrest").await.0?;
///     let mut server = BufReader::new(server);
///     server.read_line(&mut String::new()).await?;
///     let (mut reader, mut writer) = server.halves();
///     writer.write_all(reader.read_managed().await?).await.0?;
///     assert_eq!(&*client.read_managed().await?, b"rest");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct BufReaderHalf<'a, R> {
    held: &'a mut Held,
    inner: R,
}

impl<R: AsyncRead> AsyncRead for BufReaderHalf<'_, R> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.held.read(&mut self.inner, buf).await
    }
    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        self.held.read_managed(&mut self.inner).await
    }
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        self.held.read_exact(&mut self.inner, buf).await
    }
    async fn read_to_string(&mut self, limit: usize) -> io::Result<String> {
        self.held.read_to_string(&mut self.inner, limit).await
    }

    fn kernel_stream(&self) -> Option<KernelStream> {
        match self.held.bytes.is_empty() {
            true => self.inner.kernel_stream(),
            false => None,
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for BufReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "BufReader", &self.inner, &self.held)
    }
}

impl<R: fmt::Debug> fmt::Debug for BufReaderHalf<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "BufReaderHalf", &self.inner, self.held)
    }
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, inner: &impl fmt::Debug, held: &Held) -> fmt::Result {
    f.debug_struct(name)
        .field("inner", inner)
        .field("held", &held.bytes.len())
        .field("max_line_len", &held.max_line_len)
        .finish()
}
