//! tokio's I/O traits for a [`Bridge`]. Nothing else of tokio is used.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{Bridge, PollRead, PollWrite};

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
