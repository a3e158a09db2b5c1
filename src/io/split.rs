//! Splitting a stream into a read half and a write half, and joining two halves.
//!
//! A read borrows the stream as `&mut self` until it completes, and so does a write: code that is generic over streams
//! could not write while it waits to read. A lock does not help, because the reader would hold it while waiting. So
//! streams define how they split: [`Halves`] for a borrowed stream, and for an owned one, the traits for `&T`, as in
//! std.

use std::fmt;
use std::io;
use std::rc::Rc;

use super::read::{AsyncBufRead, AsyncRead};
use super::write::AsyncWrite;
use super::{delegate_read, delegate_write};

/// A stream that can be read and written at the same time.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, Halves, duplex};
///
/// /// A custom stream that wraps another.
/// struct Named<T>(&'static str, T);
///
/// impl<T: Halves> Halves for Named<T> {
///     type ReadHalf<'a> = T::ReadHalf<'a> where T: 'a;
///     type WriteHalf<'a> = T::WriteHalf<'a> where T: 'a;
///     fn halves(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>) {
///         self.1.halves()
///     }
/// }
///
/// windlass::run(async {
///     let (stream, mut peer) = duplex(64);
///     let mut stream = Named("ours", stream);
///     let (mut reader, mut writer) = stream.halves();
///     peer.write_all("ping").await.0?;
///     writer.write_all(reader.read_managed().await?).await.0?;
///     assert_eq!(&*peer.read_managed().await?, b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read and written at the same time",
    label = "does not implement `windlass::io::Halves`",
    note = "join a reader and a writer into one stream: `windlass::io::join(reader, writer)`"
)]
pub trait Halves {
    /// The type of the read half.
    type ReadHalf<'a>: AsyncRead
    where
        Self: 'a;

    /// The type of the write half.
    type WriteHalf<'a>: AsyncWrite
    where
        Self: 'a;

    /// Borrows the stream as two halves.
    fn halves(&mut self) -> (Self::ReadHalf<'_>, Self::WriteHalf<'_>);
}

/// Splits a stream that can be used through a shared reference into two owned halves, for two tasks.
///
/// Dropping the write half does not end the stream, because the read half keeps it alive: call
/// [`shutdown`](AsyncWrite::shutdown). [`TcpStream::into_split`](crate::net::TcpStream::into_split) shuts down when its
/// write half is dropped.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, duplex, split};
/// windlass::run(async {
///     let (stream, mut peer) = duplex(64);
///     let (mut reader, mut writer) = split(stream);
///     let reading = windlass::spawn(async move { (reader.read_managed().await, reader) });
///     writer.write_all("ping").await.0?;
///     assert_eq!(&*peer.read_managed().await?, b"ping");
///     peer.write_all("pong").await.0?;
///     let (bytes, reader) = reading.await.unwrap();
///     assert_eq!(&*bytes?, b"pong");
///     let _stream = reader.unsplit(writer).unwrap();
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn split<T>(stream: T) -> (ReadHalf<T>, WriteHalf<T>)
where
    for<'a> &'a T: AsyncRead + AsyncWrite,
{
    let stream = Rc::new(stream);
    let write = WriteHalf { stream: stream.clone() };
    (ReadHalf { stream }, write)
}

/// The read half of a stream: see [`split`].
///
/// ```
/// # windlass::run(async {
/// use windlass::io::{AsyncRead, DuplexStream, ReadHalf, duplex, split};
/// let (stream, peer) = duplex(64);
/// let (mut reader, _writer): (ReadHalf<DuplexStream>, _) = split(stream);
/// drop(peer);
/// assert!(reader.read_managed().await?.is_empty());
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReadHalf<T> {
    stream: Rc<T>,
}

/// The write half of a stream: see [`split`].
///
/// ```
/// # windlass::run(async {
/// use windlass::io::{AsyncWrite, DuplexStream, WriteHalf, duplex, split};
/// let (stream, peer) = duplex(64);
/// let (_reader, mut writer): (_, WriteHalf<DuplexStream>) = split(stream);
/// writer.write_all("hello").await.0?;
/// # drop(peer);
/// # Ok::<(), std::io::Error>(())
/// # })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteHalf<T> {
    stream: Rc<T>,
}

impl<T> ReadHalf<T> {
    /// Reunites the halves. Halves of different streams are returned in the error.
    pub fn unsplit(self, write: WriteHalf<T>) -> Result<T, UnsplitError<T>> {
        if !Rc::ptr_eq(&self.stream, &write.stream) {
            return Err(UnsplitError(self, write));
        }
        drop(write);
        Ok(Rc::into_inner(self.stream).expect("the two halves are the only owners"))
    }

    /// The stream.
    pub fn get_ref(&self) -> &T {
        &self.stream
    }
}

impl<T> WriteHalf<T> {
    /// The stream.
    pub fn get_ref(&self) -> &T {
        &self.stream
    }
}

impl<T> AsyncRead for ReadHalf<T>
where
    for<'a> &'a T: AsyncRead,
{
    delegate_read!(self => &*self.stream);
}

impl<T> AsyncWrite for WriteHalf<T>
where
    for<'a> &'a T: AsyncWrite,
{
    delegate_write!(self => &*self.stream);
}

/// The error of [`ReadHalf::unsplit`]: the halves belong to different streams.
///
/// ```
/// use windlass::io::{UnsplitError, duplex, split};
/// let (a, b) = duplex(64);
/// let ((a_reader, _), (_, b_writer)) = (split(a), split(b));
/// let UnsplitError(_reader, _writer) = a_reader.unsplit(b_writer).unwrap_err();
/// ```
#[derive(Debug)]
pub struct UnsplitError<T>(pub ReadHalf<T>, pub WriteHalf<T>);

impl<T> fmt::Display for UnsplitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves belong to different streams")
    }
}

impl<T: fmt::Debug> std::error::Error for UnsplitError<T> {}

/// Combines a reader and a writer into one stream, for instance the output and input of a child process.
///
/// ```
/// use windlass::io::{AsyncRead, AsyncWrite, join};
/// windlass::run(async {
///     let mut stream = join(&b"in"[..], Vec::new());
///     assert_eq!(stream.read_to_string(16).await?, "in");
///     stream.write_all("out").await.0?;
///     assert_eq!(stream.into_parts().1, b"out");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn join<R: AsyncRead, W: AsyncWrite>(reader: R, writer: W) -> Join<R, W> {
    Join { reader, writer }
}

/// The stream returned by [`join`].
///
/// ```
/// use windlass::io::{Join, empty, join, sink};
/// let stream: Join<_, _> = join(empty(), sink());
/// let (_reader, _writer) = stream.into_parts();
/// ```
#[derive(Debug)]
pub struct Join<R, W> {
    reader: R,
    writer: W,
}

impl<R, W> Join<R, W> {
    /// Returns the reader and the writer.
    pub fn into_parts(self) -> (R, W) {
        (self.reader, self.writer)
    }

    /// The reader.
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        &self.writer
    }
}

impl<R: AsyncRead, W: AsyncWrite> Halves for Join<R, W> {
    type ReadHalf<'a>
        = &'a mut R
    where
        Self: 'a;
    type WriteHalf<'a>
        = &'a mut W
    where
        Self: 'a;

    fn halves(&mut self) -> (&mut R, &mut W) {
        (&mut self.reader, &mut self.writer)
    }
}

impl<R: AsyncRead, W> AsyncRead for Join<R, W> {
    delegate_read!(self => self.reader);
}

impl<R: AsyncBufRead, W> AsyncBufRead for Join<R, W> {
    async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf().await
    }
    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}

impl<R, W: AsyncWrite> AsyncWrite for Join<R, W> {
    delegate_write!(self => self.writer);
}
