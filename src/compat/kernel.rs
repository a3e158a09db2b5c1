//! Sockets and pipes, bridged.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::reading::Reading;
use super::traits::{PollRead, PollWrite};
use super::writing::Writing;
use crate::io::pipe;
#[cfg(unix)]
use crate::net::UnixStream;
use crate::net::{Connection, OwnedReadHalf, OwnedWriteHalf, ReadHalf, TcpStream, WriteHalf};
use crate::process::{ChildStderr, ChildStdin, ChildStdout};

/// `PollRead` for a type that has a `fn bytes(&self) -> &ByteStream`.
macro_rules! polls_its_bytes {
    ([$($generics:tt)*], $stream:ty) => {
        impl<$($generics)*> PollRead for $stream {
            fn poll_fill_buf<'a>(
                &'a mut self,
                kept: &'a mut Reading,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&'a [u8]>> {
                kept.poll_kernel(self.bytes(), cx)
            }
            fn consume(&mut self, kept: &mut Reading, count: usize) {
                kept.consume(count);
            }
        }
    };
}

/// `PollWrite` for a socket, or a half of one; and, with `closes`, for the end of a pipe.
macro_rules! polls_its_writes {
    ([$($generics:tt)*], $stream:ty) => {
        polls_its_writes!([$($generics)*], $stream, this, kept, cx, kept.poll_end(this.bytes(), cx));
    };
    ([$($generics:tt)*], $stream:ty, closes) => {
        polls_its_writes!([$($generics)*], $stream, this, kept, cx, kept.poll_close(this.bytes_mut(), cx));
    };
    ([$($generics:tt)*], $stream:ty, $this:ident, $kept:ident, $cx:ident, $end:expr) => {
        impl<$($generics)*> PollWrite for $stream {
            fn poll_write(
                &mut self,
                kept: &mut Writing,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                kept.poll_kernel(self.bytes(), cx, bufs)
            }
            fn poll_flush(&mut self, kept: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                kept.poll_sent(self.bytes(), cx)
            }
            fn poll_started(&mut self, kept: &mut Writing, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(kept.failure(self.bytes()))
            }
            fn poll_shutdown(&mut self, $kept: &mut Writing, $cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self;
                $end
            }
        }
    };
}

polls_its_bytes!([], TcpStream);
polls_its_writes!([], TcpStream);
polls_its_bytes!([], &TcpStream);
polls_its_writes!([], &TcpStream);

#[cfg(unix)]
polls_its_bytes!([], UnixStream);
#[cfg(unix)]
polls_its_writes!([], UnixStream);
#[cfg(unix)]
polls_its_bytes!([], &UnixStream);
#[cfg(unix)]
polls_its_writes!([], &UnixStream);

polls_its_bytes!([S: Connection], ReadHalf<'_, S>);
polls_its_bytes!([S: Connection], OwnedReadHalf<S>);
polls_its_writes!([S: Connection], WriteHalf<'_, S>);
polls_its_writes!([S: Connection], OwnedWriteHalf<S>);

polls_its_bytes!([], pipe::Receiver);
polls_its_writes!([], pipe::Sender, closes);

polls_its_bytes!([], ChildStdout);
polls_its_bytes!([], ChildStderr);
polls_its_writes!([], ChildStdin, closes);
