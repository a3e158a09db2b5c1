//! A connection in memory, bridged: it needs no outbox, since a write is over when it returns.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::reading::Reading;
use super::traits::{PollRead, PollWrite};
use super::writing::Writing;
use crate::io::DuplexStream;

macro_rules! polls_its_pipes {
    ($stream:ty) => {
        impl PollRead for $stream {
            fn poll_fill_buf<'a>(
                &'a mut self,
                kept: &'a mut Reading,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<&'a [u8]>> {
                kept.poll_memory(self, cx)
            }

            fn consume(&mut self, kept: &mut Reading, count: usize) {
                kept.consume(count);
            }
        }

        impl PollWrite for $stream {
            fn poll_write(
                &mut self,
                kept: &mut Writing,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                kept.pipe(self).poll_put(cx, bufs)
            }

            fn poll_flush(&mut self, _kept: &mut Writing, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(&mut self, kept: &mut Writing, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                kept.pipe(self).poll_end(cx).map(Ok)
            }
        }
    };
}

polls_its_pipes!(DuplexStream);
polls_its_pipes!(&DuplexStream);
