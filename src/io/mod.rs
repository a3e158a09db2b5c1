//! Asynchronous reading and writing with owned buffers.
//!
//! With a completion-based interface, the kernel fills a buffer after the call that submitted the read has returned. A
//! borrowed `&mut [u8]` could be freed in the meantime, so every call takes ownership of its buffer and returns it:
//!
//! ```
//! # windlass::run(async {
//! # let listener = windlass::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let mut stream = windlass::net::TcpStream::connect(listener.local_addr()?).await?;
//! # let (peer, _) = listener.accept().await?;
//! # peer.write_all(b"hi").await.0?;
//! let (result, buf) = stream.read(Vec::with_capacity(1024)).await;
//! println!("{} bytes: {:?}", result?, buf);
//! # Ok::<(), std::io::Error>(())
//! # })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`AsyncRead`] and [`AsyncWrite`] are the traits of all byte streams. [`copy`], [`BufReader`] and [`BufWriter`] work
//! with any implementation; [`copy_bidirectional`] and [`split`] need a stream that can be read and written at the same
//! time. [`duplex`] is an in-memory connection. With the feature `bytes` (default), the module `codec` turns byte streams
//! into streams of frames.

mod aligned;
mod async_fd;
mod buf;
mod buf_reader;
mod buf_writer;
mod buffer_cache;
#[cfg(feature = "bytes")]
mod bytes;
#[cfg(feature = "bytes")]
pub mod codec;
mod copy;
mod delegate;
mod duplex;
mod error;
mod lines;
mod managed;
mod memory;
pub(crate) mod payload;
pub mod pipe;
#[cfg(unix)]
mod raw_fd;
#[cfg(windows)]
mod raw_handle;
mod read;
mod slice;
mod splice;
mod split;
pub(crate) mod stdio;
pub(crate) mod vectored;
pub(crate) mod waker_cell;
pub(crate) mod watermarks;
mod write;
pub(crate) mod write_buffer;

use std::task::{Context, Poll};

use crate::event_loop::core::LoopCore;

pub use aligned::AlignedBuf;
pub use async_fd::AsyncFd;
pub use buf::{IoBuf, IoBufMut};
pub(crate) use buf::{bytes_from, fill_range, fill_target, impl_io_buf, no_capacity};
pub use buf_reader::{BufReader, BufReaderHalf};
pub use buf_writer::{BufWriter, IntoInnerError};
pub use copy::{copy, copy_bidirectional};
pub(crate) use delegate::{delegate_read, delegate_write, impl_async_read, impl_async_write};
pub use duplex::{DuplexStream, duplex};
pub(crate) use duplex::{IncomingPipe, OutgoingPipe};
pub use error::{NotUtf8, TooLong};
pub use lines::{Lines, LinesStream};
pub use managed::ManagedBuf;
pub use memory::{Empty, Repeat, Sink, empty, repeat, sink};
pub use read::{AsyncBufRead, AsyncRead};
pub(crate) use read::{HEAP_READ_LEN, check_exact_len, read_buffered, read_exact_in_parts, unexpected_eof};
pub use slice::Slice;
#[doc(hidden)]
pub use splice::KernelStream;
pub use split::{Halves, Join, ReadHalf, UnsplitError, WriteHalf, join, split};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub use write::AsyncWrite;

/// The result of an operation, and the buffer that was passed to it.
pub type BufResult<T, B> = (std::io::Result<T>, B);

/// Consumes one unit of the task's budget for operations that complete immediately; yields when it is used up.
pub(crate) async fn coop() {
    std::future::poll_fn(poll_coop).await;
}

pub(crate) fn poll_coop(cx: &mut Context<'_>) -> Poll<()> {
    match LoopCore::try_current() {
        Some(core) if !core.spend_budget(cx) => Poll::Pending,
        _ => Poll::Ready(()),
    }
}
