//! A single-threaded async runtime: asyncio's event loop in Rust.
//!
//! One drum, two drives. The loop is a ready deque and a timer heap, turned as asyncio's `_run_once` turns them, and it
//! never knows what drives it: a completion-based proactor (io_uring) or, for tests and Miri, a driver that needs no
//! kernel.
//!
//! ```no_run
//! use windlass::net::TcpListener;
//!
//! fn main() -> std::io::Result<()> {
//!     windlass::run(async {
//!         let listener = TcpListener::bind("127.0.0.1:7777").await?;
//!         loop {
//!             let (stream, peer) = listener.accept().await?;
//!             println!("{peer} is here");
//!             windlass::spawn(async move {
//!                 loop {
//!                     let bytes = stream.read_managed().await?;
//!                     if bytes.is_empty() {
//!                         return Ok::<(), std::io::Error>(());
//!                     }
//!                     stream.write_all(bytes).await.0?;
//!                 }
//!             });
//!         }
//!     })?
//! }
//! ```
//!
//! # What is different here
//!
//! - **Nothing is lost.** A read or an accept whose future is dropped, by a timeout for instance, loses no byte and no
//!   connection: the next one gets it.
//! - **Buffers are lent, not borrowed.** A call takes the buffer and gives it back with the result, because the kernel
//!   may write to it after the future is gone. [`TcpStream::read_managed`](net::TcpStream::read_managed) spares you the
//!   buffer altogether.
//! - **Callbacks too.** `call_soon`, `call_later` and `call_at` work as in asyncio, with no async in sight.
//!
//! # Features
//!
//! - `proactor` (default): the io_uring driver on Linux.

#[cfg(not(unix))]
compile_error!("windlass runs on Unix; the Windows driver is not there yet");

mod callback;
mod error;
mod event_loop;
mod exception;
mod flight;
pub mod io;
mod lane;
mod loop_core;
mod loop_handle;
mod metrics;
pub mod net;
mod null;
mod op;
mod prims;
mod proactor;
mod promise;
mod remote;
mod runtime;
mod sys;
pub mod task;
pub mod time;
mod timers;

pub mod driver;

pub use callback::{Handle, TimerHandle};
pub use driver::DriverChoice;
pub use error::os_code;
pub use event_loop::{EventLoop, call_at, call_later, call_soon, counters};
pub use exception::Exception;
pub use loop_handle::{LoopHandle, RemoteHandle};
pub use metrics::Counters;
pub use promise::{Abandoned, Placeholder, Promise, promise};
pub use remote::LoopClosed;
pub use runtime::{Builder, run};
pub use task::{JoinError, JoinHandle, spawn};

/// The README's first example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
