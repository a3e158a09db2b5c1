//! tokio's I/O traits for a [`Bridge`] and a [`ThreadBound`]. Nothing else of tokio is used.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{Bridge, PollRead, PollWrite, ThreadBound};

impl<S: PollRead + Unpin> AsyncRead for Bridge<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let bridge = self.get_mut();
        bridge
            .poll_take(cx, buf.remaining(), |bytes| buf.put_slice(bytes))
            .map_ok(drop)
    }
}

impl<S: PollRead + Unpin> AsyncBufRead for Bridge<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Bridge::poll_fill_buf(self.get_mut(), cx)
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        Bridge::consume(self.get_mut(), count);
    }
}

impl<S: PollWrite + Unpin> AsyncWrite for Bridge<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Bridge::poll_write(self.get_mut(), cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Bridge::poll_write_vectored(self.get_mut(), cx, bufs)
    }

    /// The bridge copies the slices into its buffer; joining them in the caller would add a second copy.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_flush(self.get_mut(), cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_shutdown(self.get_mut(), cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ThreadBound<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_read(cx, buf)
    }
}

impl<T: AsyncBufRead + Unpin> AsyncBufRead for ThreadBound<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut **self.get_mut()).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        Pin::new(&mut **self).consume(count);
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ThreadBound<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut **self).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut **self).poll_write_vectored(cx, bufs)
    }

    /// The value's answer; false on another thread.
    fn is_write_vectored(&self) -> bool {
        self.get().is_some_and(T::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_shutdown(cx)
    }
}
