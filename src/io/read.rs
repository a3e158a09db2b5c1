//! The traits [`AsyncRead`] and [`AsyncBufRead`].
//!
//! A read takes ownership of its buffer, unlike `poll_read` of futures or tokio, which borrows a slice: the kernel may
//! write to the buffer after the future was dropped. Every [`AsyncRead::read`] guarantees that a dropped read loses no
//! bytes: the next read returns them. The other methods keep this guarantee where they can, by storing partial data in
//! the caller's buffer or in the reader.

use std::future::Future;
use std::io;

use super::buf::{IoBufMut, no_capacity};
use super::error::{NotUtf8, TooLong};
use super::managed::ManagedBuf;
use super::splice::KernelStream;
use super::vectored::read_into_first;
use super::{BufResult, coop};

/// The size of the heap buffer of a managed read without a pool.
pub(crate) const HEAP_READ_LEN: usize = 8 * 1024;

/// A source of bytes: a socket, a file, memory, or an adapter around one of them.
///
/// Only [`read`](AsyncRead::read) is required. Streams that can do better override the other methods: a dropped
/// `read_exact` of a [`TcpStream`](crate::net::TcpStream), for instance, loses no data.
///
/// **Cancel safety:** implementations of `read` and `read_managed` must not lose data when their future is dropped: the
/// next call must return it. `copy`, [`BufReader`](super::BufReader) and the provided methods rely on this.
///
/// ```
/// use windlass::io::{AsyncRead, BufResult, IoBufMut};
///
/// /// Converts everything it reads to upper case, without unsafe code.
/// struct Loud<R>(R);
///
/// impl<R: AsyncRead> AsyncRead for Loud<R> {
///     async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
///         match self.0.read(Vec::with_capacity(buf.capacity())).await {
///             (Ok(_), bytes) => (Ok(buf.fill_from(&bytes.to_ascii_uppercase())), buf),
///             (Err(error), _) => (Err(error), buf),
///         }
///     }
/// }
///
/// windlass::run(async {
///     let text = Loud(&b"hello"[..]).read_to_string(1024).await?;
///     assert_eq!(text, "HELLO");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream that windlass can read",
    label = "does not implement `windlass::io::AsyncRead`",
    note = "convert a socket or file of std first: `windlass::net::TcpStream::from_std(stream)?`",
    note = "a reader written for tokio or futures implements another trait of the same name; only a stream of windlass \
            can be passed to them, in a `windlass::compat::Bridge`, not the other way around"
)]
pub trait AsyncRead {
    /// Reads into `buf`, from its start up to its capacity, and returns the number of bytes; 0 means end of stream. The
    /// length of a `Vec` is set to that number. A buffer without capacity is an `InvalidInput` error.
    ///
    /// **Cancel safety:** no data is lost.
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>>;

    /// Reads into a buffer that the runtime provides, from a pool if there is one. An empty buffer means end of stream.
    ///
    /// **Cancel safety:** no data is lost.
    fn read_managed(&mut self) -> impl Future<Output = io::Result<ManagedBuf>> {
        async move {
            let (result, bytes) = self.read(Vec::with_capacity(HEAP_READ_LEN)).await;
            result.map(|_| ManagedBuf::from_heap(bytes))
        }
    }

    /// Reads into several buffers, filling each to its capacity before the next, and returns the number of bytes; 0
    /// means end of stream. A stream without vectored reads fills only the first buffer that has capacity.
    ///
    /// **Cancel safety:** no data is lost.
    fn read_vectored<B: IoBufMut>(&mut self, bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        read_into_first(bufs, async |buf| self.read(buf).await)
    }

    /// Fills `buf` up to its length (not its capacity), like std's `read_exact`. If the stream ends first, the error is
    /// `UnexpectedEof`. A buffer with capacity but no length is an `InvalidInput` error, because it is almost certainly
    /// a mistake.
    ///
    /// **Cancel safety:** the runtime's own sockets, pipes and TLS streams, [`BufReader`](super::BufReader) and
    /// [`DuplexStream`](super::DuplexStream) keep partial data for the next read, after a cancellation and after an
    /// error. Other streams lose it on cancellation; on an error it is in the returned buffer.
    fn read_exact<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        read_exact_in_parts(self, buf)
    }

    /// Reads up to the end of the stream, appends the bytes to `into` and returns their number. If there are more than
    /// `limit` bytes, the error is [`TooLong`]: one byte more than the limit was appended, and the rest is still in the
    /// stream.
    ///
    /// **Cancel safety:** cancellation and errors lose no data: the bytes read so far are in `into`.
    fn read_to_end(&mut self, into: &mut Vec<u8>, limit: usize) -> impl Future<Output = io::Result<usize>> {
        read_to_end(self, into, limit)
    }

    /// Reads up to the end of the stream as text. If there are more than `limit` bytes, the error is [`TooLong`]; if
    /// the text is not UTF-8, it is [`NotUtf8`]. Both errors contain the bytes read, unless the reader keeps them.
    ///
    /// **Cancel safety:** on cancellation, or on another error of the stream, the bytes read so far are lost, except by
    /// [`BufReader`](super::BufReader). Use [`read_to_end`](AsyncRead::read_to_end) to keep them.
    fn read_to_string(&mut self, limit: usize) -> impl Future<Output = io::Result<String>> {
        async move {
            let mut bytes = Vec::new();
            match self.read_to_end(&mut bytes, limit).await {
                Ok(_) => NotUtf8::check("stream", bytes),
                Err(error) if bytes.len() > limit && TooLong::is(&error) => {
                    Err(TooLong::error(limit, STREAM_ADVICE, bytes))
                }
                Err(error) => Err(error),
            }
        }
    }

    /// The kernel socket behind this reader, if no bytes are buffered in between.
    #[doc(hidden)]
    fn kernel_stream(&self) -> Option<KernelStream> {
        None
    }
}

/// Advice in the error for a stream that is too long.
const STREAM_ADVICE: &str = "raise the limit, or read the stream in pieces with `read`";

/// The first and the largest read size of `read_to_end`.
const READ_SIZES: (usize, usize) = (4 * 1024, 128 * 1024);

async fn read_to_end<R: AsyncRead + ?Sized>(reader: &mut R, into: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
    let (mut size, max_size) = READ_SIZES;
    // Reads use a separate buffer: if `into` were passed, dropping this future would lose its content.
    let mut piece = Vec::new();
    let mut total = 0;
    loop {
        coop().await;
        // One byte more than allowed, to tell a stream of exactly `limit` bytes from a longer one.
        let wanted = size.min((limit - total).saturating_add(1));
        piece.clear();
        piece.reserve_exact(wanted);
        let (result, part) = reader.read(piece.slice_mut(..wanted)).await;
        piece = part.into_inner();
        result?;
        if piece.is_empty() {
            return Ok(total);
        }
        into.try_reserve(piece.len())?;
        into.extend_from_slice(&piece);
        total += piece.len();
        if total > limit {
            return Err(TooLong::error(limit, STREAM_ADVICE, Vec::new()));
        }
        if piece.len() == size {
            size = (size * 2).min(max_size);
        }
    }
}

/// `read_exact` by repeated `read`.
pub(crate) async fn read_exact_in_parts<R: AsyncRead + ?Sized, B: IoBufMut>(
    reader: &mut R,
    mut buf: B,
) -> BufResult<(), B> {
    let len = buf.len();
    if let Some(result) = check_exact_len(&buf) {
        return (result, buf);
    }
    let mut filled = 0;
    while filled < len {
        coop().await;
        let (result, part) = reader.read(buf.slice_mut(filled..len)).await;
        buf = part.into_inner();
        match result {
            Ok(0) => return (Err(unexpected_eof()), buf),
            // A user's `AsyncRead` may report more bytes than the buffer holds.
            Ok(count) => filled = filled.saturating_add(count).min(len),
            Err(error) => return (Err(error), buf),
        }
    }
    (Ok(()), buf)
}

/// The immediate result of a `read_exact` into a buffer of length 0.
pub(crate) fn check_exact_len<B: IoBufMut>(buf: &B) -> Option<io::Result<()>> {
    match buf.len() {
        0 if buf.capacity() == 0 => Some(Ok(())),
        0 => Some(Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "read_exact fills a buffer to its length, and this buffer's length is 0: set one, as in vec![0; 16]",
        ))),
        _ => None,
    }
}

pub(crate) fn unexpected_eof() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the stream ended before the buffer was full",
    )
}

/// A reader with an internal buffer whose content can be inspected before it is consumed.
///
/// ```
/// use windlass::io::{AsyncBufRead, BufReader};
/// windlass::run(async {
///     let mut reader = BufReader::new(&b"one two"[..]);
///     assert_eq!(reader.fill_buf().await?, b"one two");
///     reader.consume(4);
///     assert_eq!(reader.fill_buf().await?, b"two");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffered reader",
    label = "does not implement `windlass::io::AsyncBufRead`",
    note = "wrap the stream: `windlass::io::BufReader::new(stream)`"
)]
pub trait AsyncBufRead: AsyncRead {
    /// Returns the buffered bytes, and reads first if there are none. An empty slice means end of stream. The same
    /// bytes are returned again until [`consume`](AsyncBufRead::consume) is called.
    ///
    /// **Cancel safety:** no data is lost.
    fn fill_buf(&mut self) -> impl Future<Output = io::Result<&[u8]>>;

    /// Removes the first `count` bytes that [`fill_buf`](AsyncBufRead::fill_buf) returned.
    ///
    /// # Panics
    ///
    /// If fewer bytes are buffered.
    fn consume(&mut self, count: usize);
}

/// `read` by means of `fill_buf` and `consume`.
pub(crate) async fn read_buffered<R: AsyncBufRead + ?Sized, B: IoBufMut>(
    reader: &mut R,
    mut buf: B,
) -> BufResult<usize, B> {
    if buf.capacity() == 0 {
        return (Err(no_capacity()), buf);
    }
    match reader.fill_buf().await {
        Ok(bytes) => {
            let count = buf.fill_from(bytes);
            reader.consume(count);
            (Ok(count), buf)
        }
        Err(error) => (Err(error), buf),
    }
}
