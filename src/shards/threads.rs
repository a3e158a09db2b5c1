//! The threads of a pool: they start together and end in order.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::Shared;
use super::error::{Cause, Error};
use super::packet::message;
use super::pool::Settings;
use super::run::{run_shard, stop_on_signals};
use super::shard::Shard;
use super::state::ShardState;
use crate::event_loop::exception::BoxError;
use crate::on_drop::OnDrop;
use crate::sys::{self, CpuSet, lock};
use crate::{Builder, EventLoop};

/// How long after a forced stop a shard still waits to close in order. Then it closes before shards that are stuck.
const UNORDERED_AFTER: Duration = Duration::from_secs(2);

/// How long after a forced stop a thread that has not ended is reported as stuck and left alone.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// What the threads of a running pool share.
struct Threads<T, M> {
    shared: Arc<Shared>,
    settings: Settings,
    /// The processors of each shard, where they are limited.
    cpus: Vec<Option<CpuSet>>,
    main: M,
    outputs: Mutex<Vec<Option<T>>>,
    stages: Mutex<Vec<Stage>>,
    changed: Condvar,
    /// When a thread first saw that the stop is forced.
    forced_at: OnceLock<Instant>,
}

/// How far a shard's thread has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Starting,
    /// Its loop is made and registered.
    Started,
    /// Its loop has closed, or could not be made.
    Closed,
}

/// Runs a pool on this thread and on one thread for each further shard.
pub(super) fn run<T, E, F, M>(shared: &Arc<Shared>, settings: Settings, main: M) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>> + 'static,
    M: Fn(Shard) -> F + Send + Sync + 'static,
{
    let count = shared.peers.len();
    let threads = Arc::new(Threads {
        shared: shared.clone(),
        cpus: settings.pin.plan_here(count)?,
        settings,
        main,
        outputs: Mutex::new((0..count).map(|_| None).collect()),
        stages: Mutex::new(vec![Stage::Starting; count]),
        changed: Condvar::new(),
        forced_at: OnceLock::new(),
    });
    let mut handles = Vec::new();
    for index in 1..count {
        let this = threads.clone();
        let name = shared.peers[index].name.clone();
        match thread::Builder::new().name(name).spawn(move || this.shard(index)) {
            Ok(handle) => handles.push((index, handle)),
            Err(error) => {
                shared.fail_start(index, Cause::Start(error));
                threads.reach(index, Stage::Closed);
            }
        }
    }
    {
        // This thread is the caller's: it gets its processors back.
        let before = sys::current_mask();
        let _unpin = OnDrop(|| {
            if let (Some(Some(_)), Ok(before)) = (threads.cpus.first(), &before) {
                let _ = sys::set_thread_mask(before);
            }
        });
        threads.shard(0);
    }
    for (index, handle) in handles {
        match threads.wait_for_end(&handle) {
            true => drop(handle.join()),
            false => shared.fail(index, Cause::Stuck),
        }
    }
    match shared.take_error() {
        Some(error) => Err(error),
        None => Ok(lock(&threads.outputs).iter_mut().filter_map(Option::take).collect()),
    }
}

impl<T, E, F, M> Threads<T, M>
where
    T: Send + 'static,
    E: Into<BoxError>,
    F: Future<Output = Result<T, E>> + 'static,
    M: Fn(Shard) -> F + Send + Sync + 'static,
{
    /// The body of a shard's thread.
    fn shard(&self, index: usize) {
        // Whatever happens here, the others do not wait for it.
        let _closed = OnDrop(|| {
            self.shared.shard_died(index);
            self.reach(index, Stage::Closed);
        });
        let started = catch_unwind(AssertUnwindSafe(|| self.build(index)));
        let event_loop = match started {
            Ok(Ok(event_loop)) => event_loop,
            Ok(Err(error)) => return self.shared.fail_start(index, Cause::Start(error)),
            Err(payload) => return self.shared.fail_start(index, Cause::Panicked(message(payload))),
        };
        self.shared.peers[index].register(event_loop.handle());
        self.reach(index, Stage::Started);
        self.wait_until(|stages| stages.iter().all(|&stage| stage >= Stage::Started));
        if self.shared.has_start_failed() {
            return;
        }
        let ran = catch_unwind(AssertUnwindSafe(|| event_loop.run_until_complete(self.run(index))));
        match ran {
            Ok(Ok(output)) => lock(&self.outputs)[index] = output,
            Ok(Err(error)) => self.failed(index, Cause::Loop(error)),
            Err(payload) => self.failed(index, Cause::Panicked(message(payload))),
        }
        // The last shard closes first, unless this one ends before the others.
        if self.shared.peers[index].is_alive() {
            self.wait_until(|stages| stages[index + 1..].iter().all(|&stage| stage == Stage::Closed));
        }
        drop(event_loop);
    }

    /// The loop itself has failed. It closes at once: the others may wait for its answers.
    fn failed(&self, index: usize, cause: Cause) {
        self.shared.fail(index, cause);
        self.shared.mark_dead(index);
    }

    /// Makes a shard's event loop, on its thread: the memory of a pinned thread is then local to its processors.
    fn build(&self, index: usize) -> io::Result<EventLoop> {
        // As many threads for blocking work as a single loop would have.
        let available = thread::available_parallelism().map_or(1, usize::from);
        let blocking = ((available + 4).min(32) / self.shared.peers.len()).max(2);
        let mut builder = Builder::new().max_blocking_threads(blocking).max_file_threads(blocking);
        if let Some(cpus) = &self.cpus[index] {
            builder = builder.worker_cpus(sys::process_mask()?.iter());
            sys::set_thread_mask(cpus)?;
        }
        (self.settings.each_loop)(index, builder).build()
    }

    async fn run(&self, index: usize) -> Option<T> {
        let state = ShardState::install(&self.shared, index);
        // On every shard: one of them may fail.
        if self.settings.stops_on_signals {
            stop_on_signals(&state);
        }
        run_shard(state, &self.main).await
    }

    fn reach(&self, index: usize, stage: Stage) {
        lock(&self.stages)[index] = stage;
        self.changed.notify_all();
    }

    /// Waits for the other threads; after a forced stop not for those that are stuck.
    fn wait_until(&self, condition: impl Fn(&[Stage]) -> bool) {
        let mut stages = lock(&self.stages);
        while !condition(&stages) && !self.was_forced_before(UNORDERED_AFTER) {
            stages = self.wait(stages);
        }
    }

    /// Whether the stop was forced longer ago than this.
    fn was_forced_before(&self, limit: Duration) -> bool {
        self.shared.is_forced() && self.forced_at.get_or_init(Instant::now).elapsed() > limit
    }

    fn wait<'a>(&self, stages: MutexGuard<'a, Vec<Stage>>) -> MutexGuard<'a, Vec<Stage>> {
        // A forced stop does not notify.
        let waited = self.changed.wait_timeout(stages, Duration::from_millis(100));
        waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Whether a thread has ended; false if it is stuck after a forced stop.
    fn wait_for_end(&self, handle: &thread::JoinHandle<()>) -> bool {
        let mut stages = lock(&self.stages);
        while !handle.is_finished() {
            if self.was_forced_before(STUCK_AFTER) {
                return false;
            }
            // Its last action is to reach `Closed`; then it ends by itself.
            let waited = self.changed.wait_timeout(stages, Duration::from_millis(1));
            stages = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        true
    }
}
