//! The [`io`](crate::io) traits for a TLS stream.

use std::io;

use super::stream::TlsStream;
use super::transport::TlsTransport;
use crate::io::{AsyncRead, AsyncWrite, BufResult, Halves, IoBuf, IoBufMut, ManagedBuf};

macro_rules! delegate {
    ($stream:ty) => {
        impl<S: TlsTransport> AsyncRead for $stream {
            async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
                TlsStream::read(self, buf).await
            }
            async fn read_managed(&mut self) -> io::Result<ManagedBuf> {
                TlsStream::read_managed(self).await
            }
            async fn read_exact<B: IoBufMut>(&mut self, buf: B) -> BufResult<(), B> {
                TlsStream::read_exact(self, buf).await
            }
        }

        impl<S: TlsTransport> AsyncWrite for $stream {
            async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
                TlsStream::write(self, buf).await
            }
            async fn flush(&mut self) -> io::Result<()> {
                TlsStream::flush(self).await
            }
            /// Sends close_notify and shuts down the write direction of the transport.
            async fn shutdown(&mut self) -> io::Result<()> {
                TlsStream::shutdown(self).await
            }
            async fn write_all<B: IoBuf>(&mut self, buf: B) -> BufResult<(), B> {
                TlsStream::write_all(self, buf).await
            }
            async fn write_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<usize, Vec<B>> {
                TlsStream::write_vectored(self, bufs).await
            }
            async fn write_all_vectored<B: IoBuf>(&mut self, bufs: Vec<B>) -> BufResult<(), Vec<B>> {
                TlsStream::write_all_vectored(self, bufs).await
            }
        }
    };
}

delegate!(TlsStream<S>);
delegate!(&TlsStream<S>);

impl<S: TlsTransport> Halves for TlsStream<S> {
    type ReadHalf<'a> = &'a TlsStream<S>;
    type WriteHalf<'a> = &'a TlsStream<S>;

    fn halves(&mut self) -> (&TlsStream<S>, &TlsStream<S>) {
        (self, self)
    }
}
