//! Reading, whatever from.
//!
//! A trait for streams with owned buffers cannot be polled with a borrowed slice, as std's and tokio's can: the kernel may write
//! into the buffer after the future is gone. So each call takes the buffer and its future gives it back, and what makes
//! cancelling safe is one promise of every [`AsyncRead::read`]: a dropped one has taken nothing from the stream that the next
//! one would not get. Everything else here is built so that it keeps what it has read where the next call finds it: in a
//! buffer that the caller still has, or in the reader.

use std::future::Future;
use std::io;

use super::buf::{IoBufMut, no_length, no_room};
use super::managed::ManagedBuf;
use super::refused::{NotUtf8, TooLong};
use super::splice::KernelStream;
use super::{BufResult, coop};

/// What a managed read takes from the heap where there is no pool.
pub(crate) const HEAP_READ_LEN: usize = 8 * 1024;

/// Something that bytes can be read from: sockets, files, memory, and whatever you make of them.
///
/// Only [`read`](AsyncRead::read) has to be written. Streams that can do better override the rest: a
/// [`TcpStream`](crate::net::TcpStream), for instance, loses nothing even when a `read_exact` is dropped half-way.
///
/// **Cancelling**: an implementation's `read` and `read_managed` lose nothing when their future is dropped: what they would
/// have given is given to the next call. `copy`, [`BufReader`](super::BufReader) and the provided methods rely on it.
///
/// ```
/// use windlass::io::{AsyncRead, BufResult, IoBufMut};
///
/// /// Turns what it reads to upper case. No unsafe code is needed for that.
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
pub trait AsyncRead {
    /// Reads into `buf`, from its start and up to its capacity, and gives the number of bytes; 0 is the end. A `Vec` then
    /// has just that length. A buffer without capacity is an error and not the end.
    ///
    /// Cancel: nothing is lost.
    fn read<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<usize, B>>;

    /// Reads into a buffer of the runtime's choice; an empty one is the end. Where there is no pool of them it is on the
    /// heap.
    ///
    /// Cancel: nothing is lost.
    fn read_managed(&mut self) -> impl Future<Output = io::Result<ManagedBuf>> {
        async move {
            let (result, bytes) = self.read(Vec::with_capacity(HEAP_READ_LEN)).await;
            result.map(|_| ManagedBuf::from_heap(bytes))
        }
    }

    /// Reads into several buffers, each filled to its capacity before the next, and gives the number of bytes; 0 is the end.
    /// Where the stream has no such call only the first buffer with room is filled.
    ///
    /// Cancel: nothing is lost.
    fn read_vectored<B: IoBufMut>(&mut self, mut bufs: Vec<B>) -> impl Future<Output = BufResult<usize, Vec<B>>> {
        async move {
            let Some(first) = bufs.iter().position(|buf| buf.capacity() > 0) else {
                return (Err(no_room()), bufs);
            };
            let (result, buf) = self.read(bufs.remove(first)).await;
            bufs.insert(first, buf);
            if result.is_ok() {
                for rest in &mut bufs[first + 1..] {
                    rest.fill_from(&[]);
                }
            }
            (result, bufs)
        }
    }

    /// Fills `buf` up to its length (not its capacity), as std's `read_exact` does. If the stream ends first the error is
    /// `UnexpectedEof`. A buffer with capacity but no length is an error, since it was surely not meant.
    ///
    /// Cancel, and an error half-way: what had been read is lost with the future, or is in the buffer that comes with the
    /// error, unless the stream keeps it for the next read: the runtime's own sockets, [`BufReader`](super::BufReader) and
    /// [`DuplexStream`](super::DuplexStream) do.
    fn read_exact<B: IoBufMut>(&mut self, buf: B) -> impl Future<Output = BufResult<(), B>> {
        read_exact_in_parts(self, buf)
    }

    /// Reads everything up to the end, appends it to `into` and gives how much it was. If that is more than `limit` bytes the
    /// error is a [`TooLong`]; `into` then has one byte more than the limit, and the rest is still in the stream.
    ///
    /// Cancel, and any error: nothing is lost, what was read so far is in `into`.
    fn read_to_end(&mut self, into: &mut Vec<u8>, limit: usize) -> impl Future<Output = io::Result<usize>> {
        read_to_end(self, into, limit)
    }

    /// Reads everything up to the end as text. If that is more than `limit` bytes the error is a [`TooLong`], and if it is
    /// not UTF-8, a [`NotUtf8`]; each has what was read.
    ///
    /// Cancel, and an error of the stream: what was read so far is lost. Where that matters use
    /// [`read_to_end`](AsyncRead::read_to_end).
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

    /// The kernel's stream behind this one, if there is nothing in between.
    #[doc(hidden)]
    fn kernel_stream(&self) -> Option<KernelStream> {
        None
    }
}

/// What to do about a stream that is too long.
const STREAM_ADVICE: &str = "raise the limit, or take the stream in pieces with `read`";

/// What `read_to_end` reads at once, at first and at most.
const PIECES: (usize, usize) = (4 * 1024, 128 * 1024);

async fn read_to_end<R: AsyncRead + ?Sized>(reader: &mut R, into: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
    let (mut room, most) = PIECES;
    // The pieces go through a buffer of their own: `into` itself could not be lent without losing what it holds if this
    // future is dropped.
    let mut piece = Vec::new();
    let mut total = 0;
    loop {
        coop().await;
        // One more than is allowed: a read that fills it up would not say that it was the last.
        let wanted = room.min((limit - total).saturating_add(1));
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
        if piece.len() == room {
            room = (room * 2).min(most);
        }
    }
}

/// Fills a buffer to its length by plain reads.
pub(crate) async fn read_exact_in_parts<R: AsyncRead + ?Sized, B: IoBufMut>(
    reader: &mut R,
    mut buf: B,
) -> BufResult<(), B> {
    let len = buf.len();
    if let Some(refused) = refuse_exact(&buf) {
        return (refused, buf);
    }
    let mut filled = 0;
    while filled < len {
        coop().await;
        let (result, part) = reader.read(buf.slice_mut(filled..len)).await;
        buf = part.into_inner();
        match result {
            Ok(0) => return (Err(ended_early()), buf),
            // A reader of somebody else's may claim more than there was room for.
            Ok(count) => filled = filled.saturating_add(count).min(len),
            Err(error) => return (Err(error), buf),
        }
    }
    (Ok(()), buf)
}

/// The result of a `read_exact` that has nothing to do.
pub(crate) fn refuse_exact<B: IoBufMut>(buf: &B) -> Option<io::Result<()>> {
    match (buf.len(), buf.capacity()) {
        (0, 0) => Some(Ok(())),
        (0, _) => Some(Err(no_length())),
        _ => None,
    }
}

pub(crate) fn ended_early() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the stream ended before the buffer was full",
    )
}

/// A reader that holds what it has read until it is used.
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
pub trait AsyncBufRead: AsyncRead {
    /// What comes next, at least one byte of it; empty at the end. [`consume`](AsyncBufRead::consume) tells how much of it
    /// was used; until then it is given again.
    ///
    /// Cancel: nothing is lost.
    fn fill_buf(&mut self) -> impl Future<Output = io::Result<&[u8]>>;

    /// This much of what [`fill_buf`](AsyncBufRead::fill_buf) gave was used.
    ///
    /// # Panics
    ///
    /// If it gave less.
    fn consume(&mut self, count: usize);
}

/// Reads from what a buffered reader holds.
pub(super) async fn read_buffered<R: AsyncBufRead + ?Sized, B: IoBufMut>(
    reader: &mut R,
    mut buf: B,
) -> BufResult<usize, B> {
    if buf.capacity() == 0 {
        return (Err(no_room()), buf);
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
