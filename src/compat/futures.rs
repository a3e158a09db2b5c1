//! The traits of futures-io for a [`Bridge`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use super::{Bridge, PollRead, PollWrite};

impl<S: PollRead + Unpin> AsyncRead for Bridge<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Bridge::poll_read(self.get_mut(), cx, buf)
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_flush(self.get_mut(), cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Bridge::poll_shutdown(self.get_mut(), cx)
    }
}
