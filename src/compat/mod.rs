//! Streams as poll-based code wants them.
//!
//! Most libraries poll: `poll_read` is handed a borrowed slice and must be done with it when it returns. A kernel that
//! completes cannot work that way, since it would go on writing there. So a [`Bridge`] stands in between, and the bytes
//! cross it with one copy:
//!
//! - **Reading** is a managed read. Its flight stays in the lane from one poll to the next, and what landed is lent
//!   ([`Bridge::poll_fill_buf`]) or copied out ([`Bridge::poll_read`]). There is no buffer while a connection waits.
//! - **Writing** copies into a buffer of the bridge's and starts its send at once. What is written while a send is under
//!   way gathers for the next one, up to 64 KiB; then a write waits. The loop itself starts the next send when one has
//!   landed: no task has to be there to see to it, and none is made.
//!
//! Flush or shut down before the stream is dropped: that waits for nobody, and what the kernel has no room for then is lost, which a
//! TCP peer sees as a reset.
//!
//! No task, no thread, no future in a box: the state is a flight's number, and after warm-up a read or a write allocates
//! nothing.
//!
//! The traits of others are there by features: futures-io's with `compat-futures`, tokio's with `compat-tokio`, hyper's with
//! `hyper`. [`PollRead`] and [`PollWrite`] say how a stream of your own gets them.
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

mod bridge;
#[cfg(feature = "compat-futures")]
mod futures;
mod kernel;
mod memory;
mod reading;
mod spares;
#[cfg(feature = "compat-tokio")]
mod tokio;
mod traits;
mod write_buffer;
mod writing;

pub use bridge::Bridge;
pub use reading::Reading;
pub use traits::{PollRead, PollWrite};
pub use writing::Writing;
