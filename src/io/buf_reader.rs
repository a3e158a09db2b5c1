//! `BufReader`: a buffered reader for lines and incremental parsers.
//!
//! A buffer that holds unconsumed bytes must never be passed to a read: if that future were dropped, the bytes would be
//! lost with it. So new bytes arrive in a managed buffer of their own. If nothing was buffered, that buffer becomes the
//! reader's buffer without a copy; otherwise its bytes are appended. While waiting for more, the reader holds no pool
//! buffer, only the bytes of an incomplete line.

use std::fmt;
use std::io;

use super::buf::IoBufMut;
use super::error::{NotUtf8, TooLong};
use super::lines::Lines;
use super::managed::ManagedBuf;
use super::read::{AsyncBufRead, AsyncRead, HEAP_READ_LEN, check_exact_len, read_buffered, unexpected_eof};
use super::splice::KernelStream;
use super::split::Halves;
use super::write::AsyncWrite;
use super::{BufResult, delegate_write};
use crate::sys;

/// The default maximum of `fill_at_least`.
const MAX_BUFFER_LEN: usize = 1024 * 1024;

/// Advice in the error for a request beyond that maximum.
const BUFFER_ADVICE: &str = "raise `max_buffer_len` to buffer them; nothing was read";

/// The default maximum line length, the same as asyncio's.
const MAX_LINE_LEN: usize = 64 * 1024;

/// Advice in the error for a line that is too long.
const LINE_ADVICE: &str = "the line is too long; raise `max_line_len` to accept it. \
                           The next call that reads a line skips the rest of this one";

/// Adds buffering to a reader, to read it by lines, by another delimiter, or with a parser of your own.
///
/// A parser of a binary or mixed protocol needs no buffer of its own: [`fill_at_least`](BufReader::fill_at_least) waits
/// for enough bytes and returns them, and [`consume`](BufReader::consume) removes those of a complete message.
///
/// Lines have a maximum length, [`max_line_len`](BufReader::max_line_len), so that a peer cannot exhaust the memory. A
/// longer line is a [`TooLong`] error, and the next call that reads a line skips it. Until then, the bytes received of
/// it stay buffered, and [`read`](AsyncRead::read) returns them.
///
/// Writes go directly to the inner stream.
///
/// **Cancel safety:** a dropped read loses nothing, including [`read_line`](BufReader::read_line),
/// [`read_until`](BufReader::read_until), [`fill_at_least`](BufReader::fill_at_least) and
/// [`read_exact`](AsyncRead::read_exact): the bytes stay buffered.
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
    buffer: LineBuffer,
}

impl<R: AsyncRead> BufReader<R> {
    /// Creates a reader with an empty buffer.
    pub fn new(inner: R) -> BufReader<R> {
        let buffer = LineBuffer {
            bytes: ManagedBuf::default(),
            max_line_len: MAX_LINE_LEN,
            max_len: MAX_BUFFER_LEN,
            refused_delimiter: None,
        };
        BufReader { inner, buffer }
    }
}

impl<R> BufReader<R> {
    /// Sets the maximum length of a line, without its delimiter. The default is 64 KiB.
    #[must_use]
    pub fn max_line_len(mut self, len: usize) -> BufReader<R> {
        self.set_max_line_len(len);
        self
    }

    /// Sets the maximum length of a line in place. A line that was just refused is checked again.
    pub fn set_max_line_len(&mut self, len: usize) {
        self.buffer.max_line_len = len;
        self.buffer.refused_delimiter = None;
    }

    /// Sets the largest number of bytes that [`fill_at_least`](BufReader::fill_at_least) accepts, so that a length that
    /// a peer sends cannot exhaust the memory. The default is 1 MiB.
    #[must_use]
    pub fn max_buffer_len(mut self, len: usize) -> BufReader<R> {
        self.set_max_buffer_len(len);
        self
    }

    /// Sets the largest number of bytes that [`fill_at_least`](BufReader::fill_at_least) accepts, in place.
    pub fn set_max_buffer_len(&mut self, len: usize) {
        self.buffer.max_len = len;
    }

    /// The buffered bytes. Does not read.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer.bytes
    }

    /// Removes the first `count` buffered bytes.
    ///
    /// # Panics
    ///
    /// If fewer bytes are buffered.
    pub fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
    }

    /// The inner reader. Reading from it directly skips the buffered bytes.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The inner reader, mutably.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Returns the inner reader and drops the buffered bytes. [`into_parts`](BufReader::into_parts) returns both.
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// Returns the inner reader and the buffered bytes.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        (self.inner, self.buffer.bytes.into_vec())
    }
}

impl<R: AsyncRead> BufReader<R> {
    fn half(&mut self) -> BufReaderHalf<'_, &mut R> {
        let BufReader { inner, buffer } = self;
        BufReaderHalf { buffer, inner }
    }

    /// Reads until at least `count` bytes are buffered, and returns all buffered bytes. They stay buffered until
    /// [`consume`](BufReader::consume) removes them.
    ///
    /// A parser that needs more than it has, but does not know how much, asks for `reader.buffer().len() + 1`.
    ///
    /// # Errors
    ///
    /// - If the stream ends while nothing is buffered, the slice is empty. If it ends after some bytes but before `count`,
    ///   the error is `UnexpectedEof`, and the bytes stay buffered.
    /// - More than [`max_buffer_len`](BufReader::max_buffer_len) bytes are a [`TooLong`] error, before anything is read.
    ///
    /// **Cancel safety:** cancellation and errors lose no data: the bytes stay buffered.
    ///
    /// ```
    /// use windlass::io::{AsyncRead, AsyncWrite, BufReader, duplex};
    ///
    /// /// Reads a frame that starts with its length in two bytes; `None` at the end of the stream.
    /// async fn frame<R: AsyncRead>(reader: &mut BufReader<R>) -> std::io::Result<Option<Vec<u8>>> {
    ///     let [high, low, ..] = *reader.fill_at_least(2).await? else { return Ok(None) };
    ///     let end = 2 + usize::from(u16::from_be_bytes([high, low]));
    ///     let frame = reader.fill_at_least(end).await?[2..end].to_vec();
    ///     reader.consume(end);
    ///     Ok(Some(frame))
    /// }
    ///
    /// windlass::run(async {
    ///     let (mut client, server) = duplex(1024);
    ///     client.write_all(b"\x00\x03one\x00\x00").await.0?;
    ///     client.shutdown().await?;
    ///     let mut reader = BufReader::new(server);
    ///     assert_eq!(frame(&mut reader).await?.as_deref(), Some(&b"one"[..]));
    ///     assert_eq!(frame(&mut reader).await?.as_deref(), Some(&b""[..]));
    ///     assert_eq!(frame(&mut reader).await?, None);
    ///     Ok::<(), std::io::Error>(())
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn fill_at_least(&mut self, count: usize) -> io::Result<&[u8]> {
        self.buffer.fill_at_least(&mut self.inner, count).await
    }

    /// Reads up to and including the next `delimiter`, appends the bytes to `into` and returns their number. At the end
    /// of the stream it returns the remaining bytes without a delimiter, then 0.
    ///
    /// More than [`max_line_len`](BufReader::max_line_len) bytes before the delimiter are a [`TooLong`] error; the next
    /// call skips them and the delimiter.
    ///
    /// **Cancel safety:** cancellation and I/O errors lose no data: the bytes stay buffered.
    pub async fn read_until(&mut self, delimiter: u8, into: &mut Vec<u8>) -> io::Result<usize> {
        let count = self.buffer.find(&mut self.inner, delimiter).await?;
        into.extend_from_slice(&self.buffer.bytes[..count]);
        self.buffer.bytes.advance(count);
        Ok(count)
    }

    /// Reads a line of text with its newline, appends it to `into` and returns the number of bytes; 0 means end of
    /// stream. The last line may lack the newline.
    ///
    /// A line that is not UTF-8 is a [`NotUtf8`] error, which contains the bytes. A line of more than
    /// [`max_line_len`](BufReader::max_line_len) bytes is a [`TooLong`] error. In both cases the next call returns the
    /// next line.
    ///
    /// **Cancel safety:** cancellation and I/O errors lose no data: the bytes stay buffered.
    pub async fn read_line(&mut self, into: &mut String) -> io::Result<usize> {
        let count = self.buffer.find(&mut self.inner, b'\n').await?;
        let line = &self.buffer.bytes[..count];
        let result = match std::str::from_utf8(line) {
            Ok(text) => {
                into.push_str(text);
                Ok(count)
            }
            Err(_) => NotUtf8::check("line", line.to_vec()).map(|_| count),
        };
        self.buffer.bytes.advance(count);
        result
    }

    /// Returns a reader of lines without their newlines: see [`Lines::next_line`].
    pub fn lines(self) -> Lines<R> {
        Lines { reader: self }
    }
}

/// The buffered bytes, and the search for lines in them.
struct LineBuffer {
    bytes: ManagedBuf,
    max_line_len: usize,
    /// The maximum of `fill_at_least`.
    max_len: usize,
    /// The delimiter of the refused line at the front of `bytes`: the next call that reads a line skips that line.
    refused_delimiter: Option<u8>,
}

impl LineBuffer {
    /// Reads if the buffer is empty. If it is still empty then, the stream has ended.
    async fn fill<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<&[u8]> {
        if self.bytes.is_empty() {
            // Return the pool buffer before waiting.
            self.bytes = ManagedBuf::default();
            self.bytes = inner.read_managed().await?;
        }
        Ok(&self.bytes)
    }

    /// Appends received bytes to the buffered ones and returns their number; 0 means end of stream.
    async fn fill_more<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Ok(self.fill(inner).await?.len());
        }
        if self.bytes.is_pooled() {
            self.bytes = std::mem::take(&mut self.bytes).into_heap();
        }
        let more = inner.read_managed().await?;
        let mut bytes = std::mem::take(&mut self.bytes).into_vec();
        bytes.extend_from_slice(&more);
        self.bytes = ManagedBuf::from_heap(bytes);
        Ok(more.len())
    }

    /// Reads until `count` bytes are buffered, or the stream ends with none.
    async fn fill_at_least<R: AsyncRead>(&mut self, inner: &mut R, count: usize) -> io::Result<&[u8]> {
        if count > self.max_len {
            return Err(TooLong::error(self.max_len, BUFFER_ADVICE, Vec::new()));
        }
        while self.bytes.len() < count {
            if self.fill_more(inner).await? == 0 {
                match self.bytes.len() {
                    0 => break,
                    len => return Err(ended_early(len, count)),
                }
            }
        }
        Ok(&self.bytes)
    }

    /// The length of the next line in the buffer, including its delimiter; 0 at the end of the stream.
    async fn find<R: AsyncRead>(&mut self, inner: &mut R, delimiter: u8) -> io::Result<usize> {
        self.skip_refused_line(inner).await?;
        let mut searched = 0;
        loop {
            let found = sys::find_byte(&self.bytes[searched..], delimiter);
            let len = found.map_or(self.bytes.len(), |at| searched + at);
            if len > self.max_line_len {
                self.refused_delimiter = Some(delimiter);
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

    /// Discards the rest of a refused line, piece by piece.
    async fn skip_refused_line<R: AsyncRead>(&mut self, inner: &mut R) -> io::Result<()> {
        while let Some(delimiter) = self.refused_delimiter {
            let bytes = self.fill(inner).await?;
            let (count, is_over) = match sys::find_byte(bytes, delimiter) {
                Some(at) => (at + 1, true),
                None => (bytes.len(), bytes.is_empty()),
            };
            self.bytes.advance(count);
            if is_over {
                self.refused_delimiter = None;
            }
        }
        Ok(())
    }

    /// The kernel socket behind the reader, if nothing is buffered.
    fn kernel_stream(&self, inner: &impl AsyncRead) -> Option<KernelStream> {
        self.bytes.is_empty().then(|| inner.kernel_stream())?
    }

    fn consume(&mut self, count: usize) {
        self.bytes.advance(count);
        // A caller that consumes bytes of a refused line handles it itself.
        self.refused_delimiter = None;
    }
}

fn ended_early(len: usize, count: usize) -> io::Error {
    let message = format!("the stream ended after {len} of {count} bytes, which are still in the reader");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

impl<R: AsyncRead> AsyncRead for BufReader<R> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.half().read(buf).await
    }

    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        self.half().read_managed().await
    }

    /// Buffers until all bytes have arrived, so neither cancellation nor the end of the stream loses data.
    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        self.half().read_exact(buf).await
    }

    /// Buffers until the end of the stream, so neither cancellation nor an error loses data.
    async fn read_to_string(&mut self, limit: usize) -> io::Result<String> {
        self.half().read_to_string(limit).await
    }

    fn kernel_stream(&self) -> Option<KernelStream> {
        self.buffer.kernel_stream(&self.inner)
    }
}

impl<R: AsyncRead> AsyncBufRead for BufReader<R> {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.buffer.fill(&mut self.inner).await
    }
    fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
    }
}

/// Writes go directly to the inner stream.
impl<W: AsyncWrite> AsyncWrite for BufReader<W> {
    delegate_write!(self => self.inner);
}

/// The read half returns the buffered bytes first, so a proxy can read a header and then pass the reader to
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
        let buffer = &mut self.buffer;
        (BufReaderHalf { buffer, inner }, writer)
    }
}

/// The read half of a [`BufReader`] around a bidirectional stream.
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
    buffer: &'a mut LineBuffer,
    inner: R,
}

impl<R: AsyncRead> BufReaderHalf<'_, R> {
    /// See [`BufReader::fill_at_least`].
    pub async fn fill_at_least(&mut self, count: usize) -> io::Result<&[u8]> {
        self.buffer.fill_at_least(&mut self.inner, count).await
    }
}

impl<R: AsyncRead> AsyncRead for BufReaderHalf<'_, R> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        if self.buffer.bytes.is_empty() && buf.capacity() >= HEAP_READ_LEN {
            self.buffer.refused_delimiter = None;
            return self.inner.read(buf).await;
        }
        read_buffered(self, buf).await
    }

    async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
        self.buffer.fill(&mut self.inner).await?;
        self.buffer.refused_delimiter = None;
        Ok(std::mem::take(&mut self.buffer.bytes))
    }

    async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
        if let Some(result) = check_exact_len(&buf) {
            return (result, buf);
        }
        let len = buf.len();
        while self.buffer.bytes.len() < len {
            match self.buffer.fill_more(&mut self.inner).await {
                Ok(0) => return (Err(unexpected_eof()), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        let mut part = buf.slice_mut(..len);
        let count = part.fill_from(&self.buffer.bytes[..len]);
        self.consume(count);
        (Ok(()), part.into_inner())
    }

    async fn read_to_string(&mut self, limit: usize) -> io::Result<String> {
        while self.buffer.bytes.len() <= limit {
            if self.buffer.fill_more(&mut self.inner).await? == 0 {
                return NotUtf8::check("stream", self.read_managed().await?.into_vec());
            }
        }
        let advice = "raise the limit, or read the stream in pieces with `read`; all bytes are still in the reader";
        Err(TooLong::error(limit, advice, Vec::new()))
    }

    fn kernel_stream(&self) -> Option<KernelStream> {
        self.buffer.kernel_stream(&self.inner)
    }
}

impl<R: AsyncRead> AsyncBufRead for BufReaderHalf<'_, R> {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.buffer.fill(&mut self.inner).await
    }
    fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
    }
}

impl<R: fmt::Debug> fmt::Debug for BufReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_reader(f, "BufReader", &self.inner, &self.buffer)
    }
}

impl<R: fmt::Debug> fmt::Debug for BufReaderHalf<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_reader(f, "BufReaderHalf", &self.inner, self.buffer)
    }
}

fn fmt_reader(f: &mut fmt::Formatter<'_>, name: &str, inner: &impl fmt::Debug, buffer: &LineBuffer) -> fmt::Result {
    f.debug_struct(name)
        .field("inner", inner)
        .field("buffered", &buffer.bytes.len())
        .field("max_line_len", &buffer.max_line_len)
        .finish()
}
