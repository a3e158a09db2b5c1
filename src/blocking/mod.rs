//! Work that blocks, off the loop.
//!
//! [`spawn_blocking`] is asyncio's `to_thread` and `run_in_executor`: it runs a closure on a pool of threads and gives its
//! result to whoever awaits it. Each loop has two pools, which start no thread before they are needed: one for its users,
//! and one for its own files (where the driver cannot do them) and name look-ups, so that neither can starve the other.
//! [`Pool`] makes more.

mod handle;
mod pool;

use std::fmt;
use std::io;

pub use self::handle::BlockingHandle;
use self::pool::Refusal;
pub(crate) use self::pool::{JobId, PoolSettings};
pub use self::pool::{Pool, PoolBuilder, PoolCounters, Shutdown};
use crate::event_loop::core::LoopCore;

/// Runs `work` on one of the current loop's threads for blocking work, and gives its result: asyncio's `to_thread`.
///
/// There are four more threads than processors, and at most 32; they start when they are needed and end when they have
/// been idle for ten seconds. When all are busy, work waits in a queue; when that is full (1,024 jobs), the handle waits for
/// room when it is awaited: that is the backpressure. (So await such handles together, not one after the other.) [`Builder`](crate::Builder) changes these numbers, and
/// [`Pool::try_spawn`] tells instead of waiting.
///
/// A panic comes back as a [`JoinError`](crate::JoinError). Dropping the handle lets the work go on.
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
/// Outside of a loop; [`Pool::spawn`] needs none.
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

/// Runs `work` on one of the loop's own threads. Dropping the future takes it back if it has not begun.
pub(crate) async fn off_loop<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    struct TakeBack<T>(BlockingHandle<T>);
    impl<T> Drop for TakeBack<T> {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let mut job = TakeBack(LoopCore::current("off_loop").files.spawn(work));
    (&mut job.0).await?
}

/// The pool's queue was full; here is the work back.
pub struct PoolFull<F>(pub F);

impl<F> fmt::Debug for PoolFull<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolFull")
    }
}

impl<F> fmt::Display for PoolFull<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every thread of the pool is busy and its queue is full: await some of its work first")
    }
}

impl<F> std::error::Error for PoolFull<F> {}
