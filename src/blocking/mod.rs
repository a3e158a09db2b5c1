//! Blocking work on a thread pool.
//!
//! [`spawn_blocking`] runs a closure on a thread and returns its result to the awaiting task, like asyncio's
//! `to_thread` and `run_in_executor`:
//!
//! ```
//! windlass::run(async {
//!     let hosts = windlass::spawn_blocking(|| std::fs::read("/etc/hosts")).await.unwrap();
//!     println!("{:?}", hosts.map(|hosts| hosts.len()));
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Each loop has two pools, which start threads on demand: one for `spawn_blocking`, and one for its own name look-ups
//! and file operations that the driver cannot perform, so that neither starves the other. [`Pool`] makes further ones.

mod handle;
mod pool;

use std::fmt;

pub use self::handle::BlockingHandle;
#[cfg(feature = "console")]
pub(crate) use self::pool::PoolObserver;
use self::pool::Refusal;
pub(crate) use self::pool::{JobId, PoolSettings};
pub use self::pool::{Pool, PoolBuilder, PoolCounters, Shutdown};
use crate::event_loop::core::LoopCore;

/// Runs `work` on a thread of the current loop's pool for blocking work, like asyncio's `to_thread`.
///
/// The pool has at most as many threads as processors plus 4, and at most 32. They start on demand and exit after ten
/// idle seconds. When all are busy, jobs wait in a queue of at most 1,024. A job that finds it full is queued when its
/// handle is awaited and there is capacity, so await many handles together, not one after the other.
/// [`Builder`](crate::Builder) changes these numbers, and [`Pool::try_spawn`] fails instead of waiting.
///
/// A panic is returned as a [`JoinError`](crate::JoinError). Dropping the handle detaches the job.
///
/// ```
/// windlass::run(async {
///     let sum = windlass::spawn_blocking(|| (1..=1_000_000u64).sum::<u64>()).await?;
///     assert_eq!(sum, 500_000_500_000);
///     Ok::<(), windlass::JoinError>(())
/// })??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// Outside of a loop. [`Pool::spawn`] works anywhere.
#[doc(alias = "to_thread")]
#[doc(alias = "run_in_executor")]
#[track_caller]
pub fn spawn_blocking<T, F>(work: F) -> BlockingHandle<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    LoopCore::current("spawn_blocking").blocking.spawn(work)
}

/// Error of [`Pool::try_spawn`]: all threads are busy and the queue is full. Contains the closure.
pub struct PoolFull<F>(pub F);

impl<F> fmt::Debug for PoolFull<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolFull")
    }
}

impl<F> fmt::Display for PoolFull<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every thread of the pool is busy and its queue is full: await other jobs first")
    }
}

impl<F> std::error::Error for PoolFull<F> {}
