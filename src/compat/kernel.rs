//! `PollRead` and `PollWrite` for sockets, pipes and the standard streams of child processes.

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

/// Implements `PollRead` for a type with a `fn bytes(&self) -> &ByteStream`.
macro_rules! impl_poll_read {
    ([$($generics:tt)*], $stream:ty) => {
        impl<$($generics)*> PollRead for $stream {
            fn poll_fill_buf<'a>(
                &'a mut self,
                state: &'a mut Reading,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&'a [u8]>> {
                state.poll_kernel(self.bytes(), cx)
            }
            fn consume(&mut self, state: &mut Reading, count: usize) {
                state.consume(count);
            }
        }
    };
}

/// Implements `PollWrite` for a socket or a half of one; with `closes`, for the write end of a pipe.
macro_rules! impl_poll_write {
    ([$($generics:tt)*], $stream:ty) => {
        impl_poll_write!([$($generics)*], $stream, this, state, cx, state.poll_shutdown(this.bytes(), cx));
    };
    ([$($generics:tt)*], $stream:ty, closes) => {
        impl_poll_write!([$($generics)*], $stream, this, state, cx, state.poll_close(this.bytes_mut(), cx));
    };
    ([$($generics:tt)*], $stream:ty, $this:ident, $state:ident, $cx:ident, $end:expr) => {
        impl<$($generics)*> PollWrite for $stream {
            fn poll_write(
                &mut self,
                state: &mut Writing,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                state.sender(self.bytes()).poll_write(cx, bufs)
            }
            fn poll_flush(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                state.poll_sent(self.bytes(), cx)
            }
            fn poll_started(&mut self, state: &mut Writing, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(state.failure(self.bytes()))
            }
            fn poll_shutdown(&mut self, $state: &mut Writing, $cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self;
                $end
            }
        }
    };
}

impl_poll_read!([], TcpStream);
impl_poll_write!([], TcpStream);
impl_poll_read!([], &TcpStream);
impl_poll_write!([], &TcpStream);

#[cfg(unix)]
impl_poll_read!([], UnixStream);
#[cfg(unix)]
impl_poll_write!([], UnixStream);
#[cfg(unix)]
impl_poll_read!([], &UnixStream);
#[cfg(unix)]
impl_poll_write!([], &UnixStream);

impl_poll_read!([S: Connection], ReadHalf<'_, S>);
impl_poll_read!([S: Connection], OwnedReadHalf<S>);
impl_poll_write!([S: Connection], WriteHalf<'_, S>);
impl_poll_write!([S: Connection], OwnedWriteHalf<S>);

impl_poll_read!([], pipe::Receiver);
impl_poll_write!([], pipe::Sender, closes);

impl_poll_read!([], ChildStdout);
impl_poll_read!([], ChildStderr);
impl_poll_write!([], ChildStdin, closes);
