//! `PollRead` and `PollWrite` for in-memory streams. These need no write buffer: a write is complete when it returns.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::reading::Reading;
use super::traits::{PollRead, PollWrite};
use super::writing::Writing;
use crate::io::DuplexStream;

macro_rules! impl_memory_stream {
    ($stream:ty) => {
        impl PollRead for $stream {
            fn poll_fill_buf<'a>(
                &'a mut self,
                state: &'a mut Reading,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&'a [u8]>> {
                state.poll_memory(self, cx)
            }

            fn consume(&mut self, state: &mut Reading, count: usize) {
                state.consume(count);
            }
        }

        impl PollWrite for $stream {
            fn poll_write(
                &mut self,
                state: &mut Writing,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                state.pipe(self).poll_put(cx, bufs)
            }

            fn poll_flush(&mut self, _state: &mut Writing, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(&mut self, state: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                state.pipe(self).poll_end(cx).map(Ok)
            }
        }
    };
}

impl_memory_stream!(DuplexStream);
impl_memory_stream!(&DuplexStream);
