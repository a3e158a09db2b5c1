//! openraft's [`AsyncRuntime`] on [windlass], a single-threaded event loop on io_uring, epoll, kqueue or IOCP, or on a
//! simulated kernel.
//!
//! ```
//! use std::time::Duration;
//! use openraft_rt::AsyncRuntime;
//! use openraft_rt_windlass::WindlassRuntime;
//!
//! let answer = WindlassRuntime::run(async {
//!     let task = WindlassRuntime::spawn(async {
//!         WindlassRuntime::sleep(Duration::from_millis(1)).await;
//!         42
//!     });
//!     task.await.unwrap()
//! });
//! assert_eq!(answer, 42);
//! ```
//!
//! In a program, start the loop as always ([`windlass::run`], [`windlass::Builder`]) and name [`WindlassRuntime`] as the
//! `AsyncRuntime` of the openraft type configuration. [`AsyncRuntime::new`] and [`AsyncRuntime::block_on`] are for tests.
//!
//! # The feature `single-threaded`
//!
//! With it, futures, entries and responses need not be `Send`, so a state machine can hold `Rc`s, windlass streams and files.
//! openraft has a feature of the same name: switch on both or neither. Without it, everything that openraft spawns must be
//! `Send`. Tasks still run on the loop that spawned them; the handles can be awaited on another thread.
//!
//! # Simulation
//!
//! Time, random numbers and blocking work come from the current loop. On a host of [`windlass::sim`](windlass) all of them follow the
//! simulation's seed, and so do the election timeouts of openraft. The channels wake their tasks in a fixed order.

mod instant;
mod join;
mod mpsc;
mod mutex;
mod oneshot;
mod rng;
mod watch;

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use openraft_rt::{AsyncRuntime, OptionalSend};
use windlass::EventLoop;

pub use self::instant::WindlassInstant;
pub use self::join::JoinHandle;
pub use self::mpsc::{WindlassMpsc, WindlassMpscReceiver, WindlassMpscSender, WindlassMpscWeakSender};
pub use self::mutex::WindlassMutex;
pub use self::oneshot::{WindlassOneshot, WindlassOneshotSender};
pub use self::rng::LoopRng;
pub use self::watch::{WindlassWatch, WindlassWatchReceiver, WindlassWatchRef, WindlassWatchSender};

/// openraft's runtime on windlass. The functions of the trait use the current loop; a value owns a loop, for
/// [`block_on`](AsyncRuntime::block_on).
pub struct WindlassRuntime {
    event_loop: EventLoop,
}

impl WindlassRuntime {
    /// A runtime whose `block_on` uses this loop, for a loop with other settings than those of [`EventLoop::new`].
    pub fn from_loop(event_loop: EventLoop) -> WindlassRuntime {
        WindlassRuntime { event_loop }
    }
}

impl fmt::Debug for WindlassRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindlassRuntime").finish_non_exhaustive()
    }
}

impl AsyncRuntime for WindlassRuntime {
    type JoinError = windlass::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = windlass::time::Sleep;
    type Instant = WindlassInstant;
    type TimeoutError = windlass::time::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = windlass::time::Timeout<T>;
    type ThreadLocalRng = LoopRng;

    #[track_caller]
    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        JoinHandle::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        windlass::time::sleep(duration)
    }

    fn sleep_until(deadline: WindlassInstant) -> Self::Sleep {
        windlass::time::sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        windlass::time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: WindlassInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        windlass::time::timeout_at(deadline.0, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> LoopRng {
        LoopRng::new()
    }

    type Mpsc = WindlassMpsc;
    type Watch = WindlassWatch;
    type Oneshot = WindlassOneshot;
    type Mutex<T: OptionalSend + 'static> = WindlassMutex<T>;

    /// One loop, whatever the number of threads: a loop has one thread.
    fn new(_threads: usize) -> WindlassRuntime {
        WindlassRuntime::from_loop(EventLoop::new().expect("the driver can be opened"))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        let result = self.event_loop.run_until_complete(future);
        result.expect("the driver does not fail, and no other loop runs on this thread")
    }

    /// Runs the function on a thread of the loop's pool; in a simulation, on the simulation's thread.
    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let job = windlass::spawn_blocking(f);
        async { Ok(job.await?) }
    }
}
