//! Adapters for poll-based libraries: futures-io, tokio's I/O traits, hyper.
//!
//! ```
//! use std::future::poll_fn;
//! use windlass::compat::Bridge;
//! use windlass::net::UnixStream;
//!
//! windlass::run(async {
//!     let (one, other) = UnixStream::pair()?;
//!     let (mut one, mut other) = (Bridge::new(one), Bridge::new(other));
//!     poll_fn(|cx| one.poll_write(cx, b"hello")).await?;
//!     assert_eq!(poll_fn(|cx| other.poll_fill_buf(cx).map_ok(<[u8]>::len)).await?, 5);
//!     other.consume(1);
//!     let mut rest = [0; 16];
//!     assert_eq!(poll_fn(|cx| other.poll_read(cx, &mut rest)).await?, 4);
//!     assert_eq!(&rest[..4], b"ello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The features `compat-futures`, `compat-tokio` and `hyper` implement the traits of futures-io, tokio and hyper.
//! Implement [`PollRead`] and [`PollWrite`] to use a stream type of your own. For libraries that require `Send`, a [`ThreadBound`]
//! wraps any value or future of the loop, and [`Bridge::into_send`] a stream.
//!
//! # Design
//!
//! `poll_read` borrows a slice only until it returns, but a completion-based kernel writes to its buffer after that. So
//! a [`Bridge`] owns the buffers, at the cost of one copy:
//!
//! - **Reading** is a managed read whose operation stays in flight between polls. The received bytes are borrowed
//!   ([`Bridge::poll_fill_buf`]) or copied out ([`Bridge::poll_read`]). A waiting connection holds no buffer.
//! - **Writing** copies into the bridge's buffer and starts a send at once. Writes during a send are coalesced for the
//!   next, up to 64 KiB; beyond that a write waits. The loop starts the next send on completion, without any task.
//!
//! A bridge needs no task, thread or boxed future, and after warm-up a read or write does not allocate. Flush or shut
//! down before dropping the stream: the drop does not wait, and a TCP peer sees unsent bytes as a reset.

mod bridge;
#[cfg(feature = "compat-futures")]
mod futures;
mod kernel;
mod memory;
mod reading;
mod sender;
mod thread_bound;
#[cfg(feature = "compat-tokio")]
mod tokio;
mod traits;
mod writing;

pub use bridge::Bridge;
pub use reading::Reading;
pub use thread_bound::{ThreadBound, leaked_values};
pub use traits::{PollRead, PollWrite};
pub use writing::Writing;
