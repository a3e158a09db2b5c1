//! A single-threaded async runtime: asyncio's event loop in Rust.
//!
//! One drum, two drives. The loop is a ready deque and a timer heap, turned as asyncio's `_run_once` turns them, and it
//! never knows what drives it: a completion-based proactor (io_uring, IOCP), a readiness-based reactor (epoll, kqueue, AFD) or, for
//! tests and Miri, a driver that needs no kernel. The same program gives the same results on each.
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
//! - **Files without threads.** On io_uring [`fs`] uses the kernel's own operations, and cached reads complete at once.
//! - **Locks and queues that lose nothing.** In [`sync`], a wait that is dropped passes on what it had got, and who came first is
//!   served first.
//! - **Callbacks too.** `call_soon`, `call_later`, `call_at` and `add_reader` work as in asyncio, with no async in sight.
//! - **Inside another loop.** A GUI's or a game's loop can watch one descriptor of ours and turn us when it is readable: see
//!   [`EventLoop::pollable`].
//!
//! # Features
//!
//! - `proactor` (default): the completion-based driver, io_uring on Linux and completion ports on Windows.
//! - `reactor` (default): the readiness-based driver, epoll on Linux, kqueue on macOS and the BSDs, AFD on
//!   Windows, through mio.
//! - `bytes` (default): `Bytes` and `BytesMut` of the crate `bytes` as buffers.
//! - `compat-futures`, `compat-tokio`: the traits of futures-io and of tokio over our streams: see [`compat`].
//! - `hyper`: hyper's streams, timer and executor: HTTP/1.1 and HTTP/2, server and client, in the module `hyper`.
//! - `tracing`: tasks, operations and exceptions are told to a `tracing` subscriber, under the targets `windlass::task`,
//!   `windlass::op` and `windlass::loop`.
//! - `tls`: TLS over any stream, by rustls. See `tls`.
//!
//! Each driver alone builds without the other's crates. With both, [`DriverChoice::Auto`] takes the proactor where the kernel
//! lets it, and else the reactor; [`EventLoop::describe`] says which and why.

#[cfg(not(any(feature = "proactor", feature = "reactor")))]
compile_error!("windlass needs a driver: enable the feature `proactor`, `reactor`, or both (the default)");

#[cfg(not(any(unix, windows)))]
compile_error!("windlass runs on Unix and on Windows");

pub mod blocking;
pub mod compat;
mod diagnostics;
pub mod driver;
mod error;
mod event_loop;
pub mod fs;
#[cfg(feature = "hyper")]
pub mod hyper;
mod inflight;
pub mod io;
pub mod net;
mod null;
mod proactor;
pub mod process;
pub mod protocol;
mod reactor;
pub mod signal;
pub mod sync;
mod sys;
pub mod task;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;

pub use blocking::spawn_blocking;
pub use diagnostics::dump::{Dump, DumpGuard, TaskDump, TaskState, Waiting, dump, dump_on};
pub use diagnostics::metrics;
pub use diagnostics::metrics::Counters;
pub use driver::DriverChoice;
pub use error::LoopClosed;
pub use event_loop::builder::{Builder, run};
pub use event_loop::callback::{Handle, TimerHandle};
pub use event_loop::exception::Exception;
pub use event_loop::handle::{LoopHandle, RemoteHandle};
pub use event_loop::{EventLoop, call_at, call_later, call_soon, counters};
pub use inflight::watch::{add_reader, add_writer, remove_reader, remove_writer};
pub use sys::os_code;
pub use task::promise::{Abandoned, Placeholder, Promise, promise};
pub use task::{JoinError, JoinHandle, spawn};

/// The README's first example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
