//! Splitting a connection into a read half and a write half.

#![allow(private_bounds, reason = "only the runtime implements `Connection`")]

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use super::stream::TcpStream;
use crate::inflight::stream::{ByteStream, reading_methods, writing_methods};
use crate::io::{impl_async_read, impl_async_write};

/// A connection that can be split.
pub(crate) trait Connection {
    fn bytes(&self) -> &ByteStream;
}

/// The public methods of a [`Connection`] that concern both directions.
macro_rules! connection_methods {
    () => {
        /// Shuts down one or both directions, with std's argument. The write side is shut down after the write in
        /// progress; the peer then reads end of stream. tokio's `shutdown()` is `shutdown(Shutdown::Write)`.
        ///
        /// If [`AsyncWrite`](crate::io::AsyncWrite) is in scope, `stream.shutdown(..)` is still this method. Call the
        /// trait's, which takes no argument and shuts down the write side, as `AsyncWrite::shutdown(&mut stream)`.
        pub async fn shutdown(&self, how: std::net::Shutdown) -> std::io::Result<()> {
            self.bytes().shutdown(how).await
        }

        /// Borrows the stream as two halves, to read and write concurrently in one task.
        pub fn split(&self) -> ($crate::net::ReadHalf<'_, Self>, $crate::net::WriteHalf<'_, Self>) {
            $crate::net::split::halves(self)
        }

        /// Splits the stream into two owned halves, for two tasks. Dropping the write half shuts down the write side.
        pub fn into_split(
            self,
        ) -> (
            $crate::net::OwnedReadHalf<Self>,
            $crate::net::OwnedWriteHalf<Self>,
        ) {
            $crate::net::OwnedReadHalf::pair(self)
        }
    };
}
pub(super) use connection_methods;

pub(super) fn halves<S>(stream: &S) -> (ReadHalf<'_, S>, WriteHalf<'_, S>) {
    (ReadHalf(stream), WriteHalf(stream))
}

/// The read half of a borrowed stream: see [`TcpStream::split`].
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let stream = TcpStream::connect(listener.local_addr()?).await?;
///     let (peer, _) = listener.accept().await?;
///     let (reader, writer) = stream.split();
///     writer.write_all("ping").await.0?;
///     peer.write_all(peer.read_managed().await?).await.0?;
///     assert_eq!(&*reader.read_managed().await?, b"ping");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ReadHalf<'a, S = TcpStream>(&'a S);

impl<S: Connection> ReadHalf<'_, S> {
    pub(crate) fn bytes(&self) -> &ByteStream {
        self.0.bytes()
    }

    reading_methods!();
}

impl<S> Clone for ReadHalf<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for ReadHalf<'_, S> {}

/// The write half of a borrowed stream: see [`TcpStream::split`].
///
/// ```
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, other) = UnixStream::pair()?;
///     let (_, writer) = one.split();
///     writer.write_all("that was all").await.0?;
///     writer.shutdown().await?;
///     assert_eq!(&*other.read_managed().await?, b"that was all");
///     assert!(other.read_managed().await?.is_empty());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteHalf<'a, S = TcpStream>(&'a S);

impl<S: Connection> WriteHalf<'_, S> {
    pub(crate) fn bytes(&self) -> &ByteStream {
        self.0.bytes()
    }

    writing_methods!();

    /// Shuts down the write side: the peer reads end of stream.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.bytes().shutdown(Shutdown::Write).await
    }
}

impl<S> Clone for WriteHalf<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for WriteHalf<'_, S> {}

/// The owned read half of a stream, for a task of its own: see [`TcpStream::into_split`].
///
/// ```
/// use windlass::net::{TcpListener, TcpStream};
/// windlass::run(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let (reader, writer) = TcpStream::connect(listener.local_addr()?).await?.into_split();
///     let (peer, _) = listener.accept().await?;
///     windlass::spawn(async move { writer.write_all("hello").await.0 });
///     assert_eq!(&*peer.read_managed().await?, b"hello");
///     drop(peer);
///     assert!(reader.read_managed().await?.is_empty());
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf<S = TcpStream> {
    pub(super) stream: Rc<S>,
}

/// The owned write half of a stream, for a task of its own: see [`TcpStream::into_split`].
///
/// Dropping it shuts down the write side: the peer reads end of stream.
///
/// ```
/// use windlass::net::UnixStream;
/// windlass::run(async {
///     let (one, other) = UnixStream::pair()?;
///     let (reader, writer) = one.into_split();
///     drop(writer);
///     assert!(other.read_managed().await?.is_empty());
///     other.write_all("still open").await.0?;
///     assert_eq!(&*reader.read_managed().await?, b"still open");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct OwnedWriteHalf<S: Connection = TcpStream> {
    /// `None` only while the halves are being reunited.
    stream: Option<Rc<S>>,
}

impl<S: Connection> OwnedReadHalf<S> {
    pub(super) fn pair(stream: S) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
        let stream = Rc::new(stream);
        let write = OwnedWriteHalf {
            stream: Some(stream.clone()),
        };
        (OwnedReadHalf { stream }, write)
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.stream.bytes()
    }

    reading_methods!();

    /// Reunites the halves. Halves of different streams are returned in the error.
    pub fn reunite(self, mut write: OwnedWriteHalf<S>) -> Result<S, ReuniteError<S>> {
        let is_same = write
            .stream
            .as_ref()
            .is_some_and(|other| Rc::ptr_eq(&self.stream, other));
        if !is_same {
            return Err(ReuniteError(self, write));
        }
        drop(write.stream.take());
        Ok(Rc::into_inner(self.stream).expect("the two halves are the only owners"))
    }
}

impl<S: Connection> OwnedWriteHalf<S> {
    pub(super) fn stream(&self) -> &S {
        let stream = self.stream.as_ref();
        stream.expect("a half has its stream until it is reunited")
    }

    pub(crate) fn bytes(&self) -> &ByteStream {
        self.stream().bytes()
    }

    writing_methods!();

    /// Shuts down the write side: the peer reads end of stream.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.bytes().shutdown(Shutdown::Write).await
    }
}

impl<S: Connection> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            // Fails if the connection is already gone, which does not matter here.
            let _ = stream.bytes().owned.shutdown(Shutdown::Write);
        }
    }
}

impl_async_read!([S: Connection], ReadHalf<'_, S>);
impl_async_read!([S: Connection], OwnedReadHalf<S>);
impl_async_write!([S: Connection], WriteHalf<'_, S>);
impl_async_write!([S: Connection], OwnedWriteHalf<S>);

/// The error of [`OwnedReadHalf::reunite`]: the halves belong to different streams.
///
/// ```
/// use windlass::net::{ReuniteError, UnixStream};
/// windlass::run(async {
///     let (one, other) = UnixStream::pair()?;
///     let ((reader, _), (_, writer)) = (one.into_split(), other.into_split());
///     let ReuniteError(_reader, _writer) = reader.reunite(writer).unwrap_err();
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ReuniteError<S: Connection = TcpStream>(pub OwnedReadHalf<S>, pub OwnedWriteHalf<S>);

impl<S: Connection> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReuniteError")
    }
}

impl<S: Connection> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves belong to different streams")
    }
}

impl<S: Connection> std::error::Error for ReuniteError<S> {}
