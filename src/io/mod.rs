//! Buffers that can be lent to the kernel, and the results that bring them back.
//!
//! A completion-based kernel writes into a buffer *after* the call that named it has returned. A borrowed `&mut [u8]`
//! could be freed in between, so a call takes the buffer itself and gives it back with the result:
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
//! The traits [`AsyncRead`] and [`AsyncWrite`] say the same of any stream. On them stand [`copy`], [`copy_bidirectional`],
//! [`split`], [`BufReader`] with its lines, and [`BufWriter`]; [`duplex`] is a connection in memory.

mod aligned;
mod async_fd;
mod buf;
mod buf_reader;
mod buf_writer;
#[cfg(feature = "bytes")]
mod bytes;
mod copy;
mod delegate;
mod duplex;
mod lines;
mod managed;
mod memory;
pub mod pipe;
#[cfg(unix)]
mod raw_fd;
#[cfg(windows)]
mod raw_handle;
mod read;
mod refused;
mod slice;
mod splice;
mod split;
pub(crate) mod stdio;
pub(crate) mod vectored;
mod write;

use std::task::{Context, Poll};

use crate::event_loop::core::LoopCore;

pub use aligned::AlignedBuf;
pub use async_fd::AsyncFd;
pub use buf::{IoBuf, IoBufMut};
pub(crate) use buf::{no_length, no_room, part_of, rest_of, room_of};
pub use buf_reader::{BufReader, BufReaderHalf};
pub use buf_writer::{BufWriter, IntoInnerError};
pub use copy::{copy, copy_bidirectional};
pub(crate) use delegate::{reads_its_bytes, writes_its_bytes};
pub use duplex::{DuplexStream, duplex};
pub(crate) use duplex::{IncomingPipe, OutgoingPipe};
pub use lines::Lines;
pub use managed::ManagedBuf;
pub use memory::{Empty, Repeat, Sink, empty, repeat, sink};
pub(crate) use read::read_exact_in_parts;
pub use read::{AsyncBufRead, AsyncRead};
pub use refused::{NotUtf8, TooLong};
pub use slice::Slice;
#[doc(hidden)]
pub use splice::KernelStream;
pub use split::{Halves, Join, ReadHalf, UnsplitError, WriteHalf, join, split};
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};
pub use write::AsyncWrite;

/// A result and the buffer that was lent for it.
pub type BufResult<T, B> = (std::io::Result<T>, B);

/// Takes one from the task's budget of results that are there at once; lets others run when it is spent.
pub(crate) async fn coop() {
    std::future::poll_fn(poll_coop).await;
}

pub(crate) fn poll_coop(cx: &mut Context<'_>) -> Poll<()> {
    match LoopCore::try_current() {
        Some(core) if !core.spend_budget(cx) => Poll::Pending,
        _ => Poll::Ready(()),
    }
}
