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

mod aligned;
mod async_fd;
mod buf;
mod managed;
pub(crate) mod pool;
pub(crate) mod stdio;
pub(crate) mod vectored;

pub use aligned::AlignedBuf;
pub use async_fd::AsyncFd;
pub use buf::{IoBuf, IoBufMut, Slice};
pub(crate) use buf::{no_length, no_room};
pub use managed::ManagedBuf;
pub(crate) use pool::BufferPool;
pub use stdio::{Stderr, Stdin, Stdout, stderr, stdin, stdout};

/// A result and the buffer that was lent for it.
pub type BufResult<T, B> = (std::io::Result<T>, B);
