//! Libraries that need tokio's runtime, on windlass.
//!
//! A library that opens sockets, sets timers or spawns tasks through tokio panics without tokio's runtime. There are two ways to
//! give it one:
//!
//! - **Beside**: one tokio runtime with a thread of its own serves all loops of the process. [`with_tokio`](WithTokio::with_tokio)
//!   makes it available to a future of a windlass task. tokio's thread watches the library's sockets, and wakes the task across
//!   threads. Nothing else changes, so this is the way for [`shards`](windlass::shards) and for programs with a few such
//!   libraries.
//! - **Guest**: the windlass loop runs inside of tokio's `current_thread` runtime, on the same thread: [`run`], [`Guest`]. Tasks of
//!   both kinds wake each other without crossing threads, and code of both kinds calls the other's functions freely.
//!
//! ```
//! use windlass_tokio::WithTokio;
//!
//! async fn fetch() { // stands for a call into a library
//!     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
//! }
//!
//! windlass::run(async {
//!     fetch().with_tokio().await;
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Both need real time and real sockets, so neither works in a simulation.

mod beside;
#[cfg(unix)]
mod gate;
#[cfg(unix)]
mod guest;

pub use tokio;

pub use self::beside::{InTokio, WithTokio, handle, set_handle, spawn};
#[cfg(unix)]
pub use self::guest::{Guest, run};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
