//! A single-threaded async runtime with asyncio's event loop: a ready queue, a timer heap and one driver.
//!
//! The loop runs on a completion-based proactor (io_uring, IOCP), on a readiness-based reactor (epoll, kqueue, AFD) or,
//! for tests and Miri, on an in-memory driver that needs no kernel. A program behaves the same on each.
//!
//! ```no_run
//! use std::time::Duration;
//! use windlass::net::{TcpListener, TcpStream};
//! use windlass::time::sleep;
//!
//! fn main() -> std::io::Result<()> {
//!     windlass::run(async {
//!         let listener = TcpListener::bind("127.0.0.1:7777").await?;
//!         loop {
//!             match listener.accept().await {
//!                 // If `echo` fails, `detach` passes the error to the exception handler, which prints it by default.
//!                 Ok((stream, _peer)) => windlass::spawn(echo(stream)).detach(),
//!                 // The listener is still usable. The pause keeps a repeated error from using a whole core.
//!                 Err(error) => {
//!                     eprintln!("accept: {error}");
//!                     sleep(Duration::from_millis(50)).await;
//!                 }
//!             }
//!         }
//!     })?
//! }
//!
//! async fn echo(stream: TcpStream) -> std::io::Result<()> {
//!     loop {
//!         let bytes = stream.read_managed().await?;
//!         if bytes.is_empty() {
//!             return Ok(());
//!         }
//!         stream.write_all(bytes).await.0?;
//!     }
//! }
//! ```
//!
//! # What is different
//!
//! - **Cancellation loses no data.** If a read or accept future is dropped, by a timeout for instance, after the kernel
//!   has received data or a connection, the next read or accept on that socket returns it.
//! - **Calls own their buffers.** A call takes the buffer and returns it with the result, because the kernel may write
//!   to it after the future is dropped. [`TcpStream::read_managed`](net::TcpStream::read_managed) takes no buffer: it
//!   returns one from the loop's pool.
//! - **Files without threads.** On io_uring, [`fs`] uses kernel operations; cached reads complete immediately.
//! - **Fair, cancel-safe locks and channels.** In [`sync`], waiters are served in FIFO order. A permit or value granted
//!   to a waiter that is then dropped goes to the next waiter.
//! - **Callbacks too.** `call_soon`, `call_later`, `call_at` and `add_reader` work as in asyncio, without async code.
//! - **All cores.** [`shards`] runs one loop per core: shared listeners, calls between shards, an ordered stop. Tasks stay on
//!   their shard and need not be `Send`.
//! - **Embeddable.** The loop of a GUI or game watches one descriptor of this loop and runs a turn when it is readable:
//!   see [`EventLoop::pollable`].
//!
//! The guide has one page per topic: start with the [first program](guide::first_program), or with what you know:
//! [coming from tokio](guide::from_tokio), [coming from asyncio](guide::from_asyncio). [All pages](guide).
//!
//! # Features
//!
//! - `proactor` (default): the completion-based driver, io_uring on Linux, IOCP on Windows (experimental).
//! - `reactor` (default): the readiness-based driver, through mio: epoll on Linux, kqueue on macOS and BSD, AFD on
//!   Windows.
//! - `bytes` (default): `Bytes` and `BytesMut` of the `bytes` crate as buffers.
//! - `compat-futures`, `compat-tokio`: the I/O traits of futures-io and tokio for this crate's streams: see [`compat`].
//! - `hyper`: streams, timer and executor for hyper (HTTP/1.1 and HTTP/2, server and client), in the module `hyper`.
//! - `tracing`: emits `tracing` events for tasks, operations and exceptions, with the targets `windlass::task`,
//!   `windlass::op` and `windlass::loop`, and a span for each task, which tokio-console shows: see
//!   [the guide](guide::inspecting).
//! - `console`: a page about the running program, and metrics for Prometheus, in the module `console`.
//! - `macros`: the attributes `#[windlass::main]` and `#[windlass::test]`.
//! - `sim`: deterministic simulation of hosts, network and disks with faults, in the module `sim`.
//! - `tls`: TLS over any stream, with rustls, in the module `tls`.
//!
//! At least one driver must be enabled; each builds without the other's dependencies. With both, [`DriverChoice::Auto`]
//! picks the proactor if the kernel supports it, otherwise the reactor. [`EventLoop::describe`] reports the choice.

#[cfg(not(any(feature = "proactor", feature = "reactor")))]
compile_error!("windlass needs a driver: enable the feature `proactor`, `reactor`, or both (the default)");

#[cfg(not(any(unix, windows)))]
compile_error!("windlass runs on Unix and on Windows");

pub mod blocking;
pub mod compat;
#[cfg(feature = "console")]
pub mod console;
mod copy_vec;
mod diagnostics;
pub mod driver;
mod error;
mod event_loop;
pub mod fs;
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "hyper")]
pub mod hyper;
mod inflight;
pub mod io;
mod loop_thread;
mod macros;
pub mod net;
mod on_drop;
mod peer;
mod proactor;
pub mod process;
pub mod protocol;
pub mod rand;
mod reactor;
pub mod shards;
pub mod signal;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(not(feature = "sim"))]
mod sim;
pub mod stream;
pub mod sync;
mod sys;
pub mod task;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
mod worker_thread;

pub use blocking::spawn_blocking;
pub use diagnostics::dump::{Dump, DumpGuard, TaskDump, TaskState, Waiting, dump, dump_on};
pub use diagnostics::metrics;
pub use diagnostics::metrics::Counters;
pub use driver::{DriverChoice, NullFiles};
pub use error::LoopClosed;
pub use event_loop::builder::{Builder, run};
pub use event_loop::callback::{Handle, TimerHandle};
pub use event_loop::current::Entered;
pub use event_loop::exception::Exception;
pub use event_loop::handle::{LoopHandle, RemoteHandle, SendOrUseSpawnWith};
pub use event_loop::{EventLoop, call_at, call_later, call_soon, counters};
pub use inflight::watch::{add_reader, add_writer, remove_reader, remove_writer};
pub use loop_thread::{LoopLocal, LoopThread};
pub use sys::os_code;
pub use task::promise::{Abandoned, Placeholder, Promise, promise};
pub use task::{JoinError, JoinHandle, spawn};
/// Runs an `async fn main` on a new event loop: tokio's `#[tokio::main]`. Feature `macros`.
///
/// ```
/// #[windlass::main]
/// async fn main() -> std::io::Result<()> {
///     windlass::task::yield_now().await;
///     Ok(())
/// }
/// ```
///
/// It is short for `fn main() { windlass::run(async { ... }) }`, and panics if the loop cannot start. Options, separated by
/// commas:
///
/// - `driver = "auto"`, `"proactor"`, `"reactor"` or `"null"`: see [`DriverChoice`]. Without it, the environment
///   variable `WINDLASS_DRIVER` decides.
/// - `virtual_clock`: runs on the null driver, whose clock jumps to the next deadline when no task can run.
/// - `crate = "path"`: where the crate is, if it was renamed.
///
/// For other settings, write `fn main` and use a [`Builder`].
#[cfg(feature = "macros")]
pub use windlass_macros::main;
/// Runs an `async fn` as a test on a new event loop: tokio's `#[tokio::test]`. Feature `macros`.
///
/// The options are those of [`main`](macro@main). With `virtual_clock`, an hour of sleep takes no time:
///
/// ```
/// # mod tests {
/// use std::time::Duration;
/// use windlass::time::{Instant, sleep};
///
/// #[windlass::test(virtual_clock)]
/// async fn an_hour_passes() {
///     let start = Instant::now();
///     sleep(Duration::from_secs(3600)).await;
///     assert_eq!(start.elapsed(), Duration::from_secs(3600));
/// }
/// # }
/// ```
#[cfg(feature = "macros")]
pub use windlass_macros::test;

/// What the macros of this crate expand to. Not part of the public API.
#[doc(hidden)]
pub mod __private {
    #[cfg(feature = "macros")]
    pub use windlass_macros::by_reference;

    #[cfg(feature = "macros")]
    pub use crate::macros::run_attribute;
    pub use crate::task::{Choice, NoArm, select_arms};
}

/// Compiles the code of the README, which needs hyper for one of its servers.
#[cfg(all(doctest, feature = "hyper"))]
#[doc = include_str!("../README.md")]
mod readme {}
