//! hyper's I/O traits for a [`Bridge`] and a [`ThreadBound`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::compat::{Bridge, PollRead, PollWrite, ThreadBound};

impl<S: PollRead + Unpin> Read for Bridge<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let bridge = self.get_mut();
        bridge
            .poll_take(cx, buf.remaining(), |bytes| buf.put_slice(bytes))
            .map_ok(drop)
    }
}

impl<S: PollWrite + Unpin> Write for Bridge<S> {
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

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready once the sends have started: they complete without further polls. hyper flushes after each response, and
    /// waiting for the completion would cost one more poll of the connection each time. Before an orderly close, hyper
    /// calls shutdown, which waits for everything. After an error, such as a header timeout, hyper drops the
    /// connection, and bytes that the kernel does not have yet are lost.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_started(self.get_mut(), cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_shutdown(self.get_mut(), cx)
    }
}

impl<T: Read + Unpin> Read for ThreadBound<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for ThreadBound<T> {
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
