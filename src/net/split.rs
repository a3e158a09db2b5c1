//! The two directions of a stream as two values.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;

use super::stream::TcpStream;
use crate::io::{BufResult, IoBuf, IoBufMut, ManagedBuf};

/// The reading half of a borrowed stream: see [`TcpStream::split`].
#[derive(Debug, Clone, Copy)]
pub struct ReadHalf<'a>(pub(super) &'a TcpStream);

impl ReadHalf<'_> {
    /// As [`TcpStream::read`].
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.0.read(buf).await
    }

    /// As [`TcpStream::read_exact`].
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        self.0.read_exact(buf).await
    }

    /// As [`TcpStream::read_managed`].
    pub async fn read_managed(&self) -> io::Result<ManagedBuf> {
        self.0.read_managed().await
    }

    /// As [`TcpStream::read_vectored`].
    pub async fn read_vectored<B: IoBufMut>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.0.read_vectored(bufs).await
    }
}

/// The writing half of a borrowed stream: see [`TcpStream::split`].
#[derive(Debug, Clone, Copy)]
pub struct WriteHalf<'a>(pub(super) &'a TcpStream);

impl WriteHalf<'_> {
    /// As [`TcpStream::write`].
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.0.write(buf).await
    }

    /// As [`TcpStream::write_all`].
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        self.0.write_all(buf).await
    }

    /// As [`TcpStream::write_vectored`].
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.0.write_vectored(bufs).await
    }

    /// As [`TcpStream::write_all_vectored`].
    pub async fn write_all_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        self.0.write_all_vectored(bufs).await
    }

    /// Ends the writing direction: the peer sees the end of the stream.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write).await
    }
}

/// The reading half of a stream, for a task of its own: see [`TcpStream::into_split`].
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
pub struct OwnedReadHalf {
    stream: Rc<TcpStream>,
}

/// The writing half of a stream, for a task of its own: see [`TcpStream::into_split`].
///
/// Dropping it ends the writing direction: the peer sees the end of the stream.
pub struct OwnedWriteHalf {
    /// Empty only while two halves are being reunited.
    stream: Option<Rc<TcpStream>>,
}

impl OwnedReadHalf {
    pub(super) fn pair(stream: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Rc::new(stream);
        let write = OwnedWriteHalf {
            stream: Some(stream.clone()),
        };
        (OwnedReadHalf { stream }, write)
    }

    /// The read calls of this half.
    fn half(&self) -> ReadHalf<'_> {
        ReadHalf(&self.stream)
    }

    /// As [`TcpStream::read`].
    pub async fn read<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        self.half().read(buf).await
    }

    /// As [`TcpStream::read_exact`].
    pub async fn read_exact<B: IoBufMut>(&self, buf: B) -> BufResult<(), B> {
        self.half().read_exact(buf).await
    }

    /// As [`TcpStream::read_managed`].
    pub async fn read_managed(&self) -> io::Result<ManagedBuf> {
        self.half().read_managed().await
    }

    /// As [`TcpStream::read_vectored`].
    pub async fn read_vectored<B: IoBufMut>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.half().read_vectored(bufs).await
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Makes the stream whole again. Refused, with both halves, if they belong to different streams.
    pub fn reunite(self, mut write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        let is_same = write
            .stream
            .as_ref()
            .is_some_and(|other| Rc::ptr_eq(&self.stream, other));
        if !is_same {
            return Err(ReuniteError(self, write));
        }
        drop(write.stream.take());
        Ok(Rc::into_inner(self.stream).expect("the two halves were its only owners"))
    }
}

impl OwnedWriteHalf {
    fn half(&self) -> WriteHalf<'_> {
        WriteHalf(
            self.stream
                .as_ref()
                .expect("a half has its stream until it is reunited"),
        )
    }

    /// As [`TcpStream::write`].
    pub async fn write<B: IoBuf>(&self, buf: B) -> BufResult<usize, B> {
        self.half().write(buf).await
    }

    /// As [`TcpStream::write_all`].
    pub async fn write_all<B: IoBuf>(&self, buf: B) -> BufResult<(), B> {
        self.half().write_all(buf).await
    }

    /// As [`TcpStream::write_vectored`].
    pub async fn write_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
        self.half().write_vectored(bufs).await
    }

    /// As [`TcpStream::write_all_vectored`].
    pub async fn write_all_vectored<B: IoBuf>(&self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
        self.half().write_all_vectored(bufs).await
    }

    /// Ends the writing direction: the peer sees the end of the stream.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.half().shutdown().await
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.half().0.peer_addr()
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            // A connection that is gone already has nothing to end.
            let _ = stream.socket().shutdown(Shutdown::Write);
        }
    }
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedWriteHalf").field("stream", &self.stream).finish()
    }
}

/// The halves that were to be reunited belong to different streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves belong to different streams")
    }
}

impl std::error::Error for ReuniteError {}
