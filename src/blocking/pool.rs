//! `Pool`: a thread pool with a bounded queue of jobs.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::Waker;
use std::time::Duration;

use super::PoolFull;
use super::handle::BlockingHandle;
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::exception::{guard, wake_all};
use crate::event_loop::inbox::Inbox;
use crate::sys;
use crate::worker_thread;

/// A thread pool for blocking work, with a bounded queue.
///
/// Each loop has its own; make another to isolate one kind of work from another. A pool can be used from any thread and
/// by any number of loops, and clones share the threads. Dropping the last clone is [`shutdown`](Pool::shutdown) with
/// [`Shutdown::Detach`].
///
/// ```
/// use windlass::blocking::{Pool, Shutdown};
/// let pool = Pool::builder().name("hash").threads(2).queue(16).build();
/// windlass::run({
///     let pool = pool.clone();
///     async move { assert_eq!(pool.spawn(|| 6 * 7).await.unwrap(), 42) }
/// })?;
/// pool.shutdown(Shutdown::Wait);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// Closes the pool when the last clone is dropped.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child there are no threads, and a thread of the parent may have held the lock: leak the queue.
        match self.shared.is_forked() {
            true => std::mem::forget(self.shared.clone()),
            false => self.shared.close(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSettings {
    pub(crate) threads: usize,
    pub(crate) queue: usize,
    pub(crate) idle_exit: Duration,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        // Asking reads files of the kernel, which takes longer than everything else about a new loop.
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        PoolSettings {
            threads: (processors + 4).min(32),
            queue: 1024,
            idle_exit: Duration::from_secs(10),
        }
    }
}

/// Configures and makes a [`Pool`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PoolBuilder {
    name: String,
    settings: PoolSettings,
}

impl PoolBuilder {
    /// The prefix of the threads' names: `blocking` by default.
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        // The OS accepts no NUL, and a thread's name is not worth an error.
        self.name = name.into().replace('\0', "");
        self
    }

    /// The maximum number of threads; 0 counts as 1. The default is the number of processors plus 4, at most 32.
    pub fn threads(mut self, max: usize) -> PoolBuilder {
        self.settings.threads = max.max(1);
        self
    }

    /// The maximum number of jobs that wait for a thread (1,024).
    pub fn queue(mut self, max: usize) -> PoolBuilder {
        self.settings.queue = max;
        self
    }

    /// How long an idle thread stays alive (10 s).
    pub fn idle_exit(mut self, after: Duration) -> PoolBuilder {
        self.settings.idle_exit = after;
        self
    }

    /// Makes the pool, which starts threads on demand.
    pub fn build(self) -> Pool {
        Pool::with_settings(self.name, self.settings)
    }
}

/// How long a shutdown waits for running jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shutdown {
    /// Until all have finished.
    #[default]
    Wait,
    /// For at most this time. Jobs that have not finished then continue in the background.
    Within(Duration),
    /// Not at all: running jobs continue in the background.
    Detach,
}

/// A snapshot of a pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Threads alive now.
    pub threads: usize,
    /// Threads idle now.
    pub idle: usize,
    /// Jobs that wait for a thread now.
    pub queued: usize,
    /// Threads started so far.
    pub started: u64,
    /// Jobs finished so far.
    pub done: u64,
}

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A job's number within its pool.
pub(crate) type JobId = u64;

/// Identifies a waiter for capacity in the queue.
pub(super) type Ticket = u64;

/// The ticket shared by all operations of a loop; `next_number` never returns it.
const OPS_TICKET: Ticket = 0;

struct Job {
    id: JobId,
    work: Work,
}

/// A job of a loop whose driver runs jobs itself.
struct OffloadedJob {
    id: JobId,
    work: Work,
    /// The loop's.
    inbox: Arc<Inbox<RemoteEvent>>,
    /// Whether there is an [`Assignment`] for it: it counts as running.
    is_assigned: bool,
}

/// Why a job was not accepted, with the job.
pub(super) enum Refusal {
    Full(Work),
    Closed(Work),
    /// There is no thread, and none could be started.
    NoThread(Work, io::Error),
}

pub(super) struct Shared {
    name: String,
    settings: PoolSettings,
    state: Mutex<State>,
    /// Signals that a job was queued or the pool was closed.
    work: Condvar,
    /// Signals that a thread has ended.
    ended: Condvar,
    /// Identifies the process that has the threads: see `sys::forks`.
    forks: u32,
}

#[derive(Default)]
struct State {
    /// Jobs for the threads.
    queue: VecDeque<Job>,
    /// Jobs for drivers, in the order of their submission, until they run.
    offloaded: VecDeque<OffloadedJob>,
    /// The number of [`Assignment`]s: at most as many as the pool may have threads.
    assigned: usize,
    /// Waiters for capacity in the queue, in FIFO order; each is registered once.
    waiters: BTreeMap<Ticket, Waker>,
    /// The last job id or ticket.
    last_number: u64,
    counters: PoolCounters,
    closed: bool,
    /// Threads whose jobs are inside `shutdown`, waiting for the other threads.
    shutting_down: usize,
}

thread_local! {
    /// The pool that this thread belongs to, or null. Only compared.
    static POOL_OF_THREAD: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

impl Pool {
    /// A pool with the default settings.
    pub fn new() -> Pool {
        Pool::builder().build()
    }

    /// A builder with the default settings.
    pub fn builder() -> PoolBuilder {
        PoolBuilder {
            name: "blocking".into(),
            settings: PoolSettings::default(),
        }
    }

    pub(crate) fn with_settings(name: impl Into<String>, settings: PoolSettings) -> Pool {
        let shared = Arc::new(Shared {
            name: name.into(),
            settings,
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            forks: sys::count_forks(),
        });
        Pool {
            owner: Arc::new(Owner { shared }),
        }
    }

    /// Runs `work` on a thread of the pool: see [`spawn_blocking`](crate::spawn_blocking).
    #[track_caller]
    pub fn spawn<T, F>(&self, work: F) -> BlockingHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        BlockingHandle::start(self.shared(), work)
    }

    /// As [`spawn`](Pool::spawn), but fails and returns the closure if every thread is busy and the queue is full.
    #[track_caller]
    pub fn try_spawn<T, F>(&self, work: F) -> Result<BlockingHandle<T>, PoolFull<F>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let shared = self.shared();
        // If another thread fills the queue in between, the handle waits for capacity.
        if !shared.is_forked() && shared.state().is_full(&shared.settings) {
            return Err(PoolFull(work));
        }
        Ok(self.spawn(work))
    }

    /// Closes the pool for all its clones: queued jobs, and jobs spawned later, are cancelled. Then waits for running
    /// jobs as `how` says. A job of the pool may call this too: it waits for the jobs that are not inside this call.
    pub fn shutdown(&self, how: Shutdown) {
        if self.shared().is_forked() {
            return;
        }
        self.shared().close();
        self.shared().wait_for_threads(how);
    }

    /// A snapshot of the pool's counters.
    pub fn counters(&self) -> PoolCounters {
        self.shared().counters()
    }

    /// For another thread that does not keep the pool open.
    #[cfg(feature = "console")]
    pub(crate) fn observer(&self) -> PoolObserver {
        PoolObserver(Arc::downgrade(self.shared()))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    /// Queues work that delivers its result itself, for the driver of `core` if it runs jobs. Returns the job's id.
    pub(crate) fn submit(&self, work: Work, core: Option<&LoopCore>) -> Result<JobId, (Work, Option<io::Error>)> {
        self.shared().submit(work, true, core).map_err(|refusal| match refusal {
            Refusal::Full(work) | Refusal::Closed(work) => (work, None),
            Refusal::NoThread(work, error) => (work, Some(error)),
        })
    }

    /// Wakes `waker` when the queue may have capacity for the loop's operations. False if it has capacity now.
    pub(crate) fn wait_for_capacity(&self, waker: &Waker) -> bool {
        self.shared().wait_for_capacity(&mut Some(OPS_TICKET), waker)
    }

    /// Removes a job that has not started from the queue.
    pub(crate) fn take_back(&self, id: JobId) -> bool {
        self.shared().take_back(id).is_some()
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pool");
        debug.field("name", &self.shared().name);
        debug.field("counters", &self.counters()).finish()
    }
}

/// Reads the counters of a pool.
#[cfg(feature = "console")]
pub(crate) struct PoolObserver(std::sync::Weak<Shared>);

#[cfg(feature = "console")]
impl PoolObserver {
    /// The name, the counters and the maximum number of threads; `None` if the pool is gone.
    pub(crate) fn read(&self) -> Option<(String, PoolCounters, usize)> {
        let shared = self.0.upgrade()?;
        Some((shared.name.clone(), shared.counters(), shared.settings.threads))
    }
}

impl Shared {
    fn counters(&self) -> PoolCounters {
        if self.is_forked() {
            return PoolCounters::default();
        }
        let state = self.state();
        PoolCounters {
            queued: state.queue.len() + state.offloaded.iter().filter(|job| !job.is_assigned).count(),
            ..state.counters
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether this process is a fork of the process that has the threads.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    /// Queues a job for the driver of `core`, if it runs jobs itself, else for a thread: then starts one if none is
    /// idle. With `bounded`, fails if the queue is full.
    pub(super) fn submit(
        self: &Arc<Self>,
        work: Work,
        bounded: bool,
        core: Option<&LoopCore>,
    ) -> Result<JobId, Refusal> {
        if self.is_forked() {
            return Err(Refusal::NoThread(work, crate::error::forked_error()));
        }
        let mut state = self.state();
        if state.closed {
            return Err(Refusal::Closed(work));
        }
        if bounded && state.is_full(&self.settings) {
            return Err(Refusal::Full(work));
        }
        let id = state.next_number();
        match core.filter(|core| core.may_take_jobs()) {
            None => self.queue_for_threads(state, Job { id, work }),
            Some(core) => {
                let is_assigned = state.assigned < self.settings.threads;
                state.assigned += usize::from(is_assigned);
                state.offloaded.push_back(OffloadedJob {
                    id,
                    work,
                    inbox: core.inbox.clone(),
                    is_assigned,
                });
                drop(state);
                match is_assigned {
                    true => self.assignment(id).give_to(core),
                    false => Ok(id),
                }
            }
        }
    }

    /// Queues a job for a thread.
    fn queue_for_threads(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job) -> Result<JobId, Refusal> {
        let id = job.id;
        state.queue.push_back(job);
        if state.queue.len() <= state.counters.idle {
            drop(state);
            self.work.notify_one();
            return Ok(id);
        }
        if state.counters.threads < self.settings.threads
            && let Err(error) = self.start_thread(&mut state)
            // Existing threads will run the job.
            && state.counters.threads == 0
        {
            let job = state.queue.pop_back().expect("the job was just queued");
            return Err(Refusal::NoThread(job.work, error));
        }
        Ok(id)
    }

    /// Called with the lock held: starting a thread takes about 10 us and is rare.
    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        let name = format!("{}-{}", self.name, state.counters.started);
        worker_thread::spawn(name, move || shared.work_until_idle())
            .map_err(|error| crate::sys::context("no thread could be started for blocking work", error))?;
        state.counters.threads += 1;
        state.counters.started += 1;
        // The thread is idle until it takes its first job. Otherwise a queue of length 0 would refuse that job.
        state.counters.idle += 1;
        Ok(())
    }

    /// The main function of a thread. The thread counts as idle whenever it does not run a job.
    fn work_until_idle(&self) {
        POOL_OF_THREAD.set(self);
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.counters.idle -= 1;
                let waiters = std::mem::take(&mut state.waiters);
                drop(state);
                wake_all(waiters.into_values());
                // The job catches panics of the closure; this is for destructors.
                guard("a blocking job", job.work);
                state = self.state();
                state.counters.done += 1;
                state.counters.idle += 1;
                continue;
            }
            if state.closed {
                break;
            }
            // An idle thread is capacity too, and with a queue of length 0 it is the only capacity.
            if !state.waiters.is_empty() {
                let waiters = std::mem::take(&mut state.waiters);
                drop(state);
                wake_all(waiters.into_values());
                state = self.state();
                continue;
            }
            let waited = self.work.wait_timeout(state, self.settings.idle_exit);
            let (back, timeout) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
            state = back;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.counters.idle -= 1;
        state.counters.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }

    /// Removes a job that has not started from the queue.
    pub(super) fn take_back(&self, id: JobId) -> Option<Work> {
        let (work, waiters) = {
            let mut state = self.state();
            let work = match state.queue.iter().position(|job| job.id == id) {
                Some(at) => state.queue.remove(at)?.work,
                None => state.take_offloaded(id)?,
            };
            (work, std::mem::take(&mut state.waiters))
        };
        wake_all(waiters.into_values());
        Some(work)
    }

    fn assignment(self: &Arc<Self>, id: JobId) -> Assignment {
        let shared = self.clone();
        Assignment { shared, id }
    }

    /// Runs a job that a driver took, unless it was cancelled.
    fn run_offloaded(&self, id: JobId) {
        // Also wakes the waiters for capacity, as a thread does that takes a job.
        let Some(work) = self.take_back(id) else { return };
        // The job catches panics of the closure; this is for destructors.
        guard("a blocking job", work);
        self.state().counters.done += 1;
    }

    /// Asks the loop of the next offloaded job to pass it to its driver.
    fn assign_next(self: &Arc<Self>) {
        let (id, inbox) = {
            let mut state = self.state();
            if state.assigned >= self.settings.threads {
                return;
            }
            let Some(next) = state.offloaded.iter_mut().find(|job| !job.is_assigned) else {
                return;
            };
            next.is_assigned = true;
            let next = (next.id, next.inbox.clone());
            state.assigned += 1;
            next
        };
        let assignment = self.assignment(id);
        let give = move || {
            if let Some(core) = LoopCore::try_current()
                && let Err(refusal) = assignment.give_to(core)
            {
                guard("a blocking job's destructor", || drop(refusal));
            }
        };
        if let Err(event) = inbox.send(RemoteEvent::Call(Box::new(give))) {
            // The loop has closed. All of its jobs go at once, since dropping the event assigns the next job.
            let gone = {
                let is_of_loop = |job: &OffloadedJob| Arc::ptr_eq(&job.inbox, &inbox) && !job.is_assigned;
                self.state().remove_offloaded(is_of_loop)
            };
            drop_works(gone);
            drop(event);
        }
    }

    /// Wakes `waker` when the queue may have capacity. False if it has capacity now. Later calls reuse the ticket.
    pub(super) fn wait_for_capacity(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        // Cloning and dropping wakers is foreign code, so neither happens under the lock.
        let waker = waker.clone();
        let old = {
            let mut state = self.state();
            if state.closed || !state.is_full(&self.settings) {
                return false;
            }
            let ticket = *ticket.get_or_insert_with(|| state.next_number());
            state.waiters.insert(ticket, waker)
        };
        drop(old);
        true
    }

    pub(super) fn stop_waiting(&self, ticket: Ticket) {
        let waker = self.state().waiters.remove(&ticket);
        drop(waker);
    }

    fn close(&self) {
        let (jobs, offloaded, waiters, has_threads) = {
            let mut state = self.state();
            state.closed = true;
            let has_threads = state.counters.threads > 0;
            let offloaded = state.remove_offloaded(|job| !job.is_assigned);
            let (jobs, waiters) = (std::mem::take(&mut state.queue), std::mem::take(&mut state.waiters));
            (jobs, offloaded, waiters, has_threads)
        };
        // Each is a system call, and a simulation closes thousands of pools that never had a thread.
        if has_threads {
            self.work.notify_all();
        }
        wake_all(waiters.into_values());
        drop_works(jobs.into_iter().map(|job| job.work));
        drop_works(offloaded);
    }

    /// Runs the jobs that drivers took and have not run. A driver would run them later in virtual time, which does not
    /// pass while the caller waits.
    fn run_assigned(&self) {
        loop {
            let next = self
                .state()
                .offloaded
                .iter()
                .find(|job| job.is_assigned)
                .map(|job| job.id);
            let Some(id) = next else { return };
            LoopCore::outside(|| self.run_offloaded(id));
        }
    }

    fn wait_for_threads(&self, how: Shutdown) {
        if how == Shutdown::Detach {
            return;
        }
        self.run_assigned();
        let is_pool_thread = ptr::eq(POOL_OF_THREAD.get(), self);
        let mut state = self.state();
        if is_pool_thread {
            // Other jobs inside `shutdown` must not wait for this one.
            state.shutting_down += 1;
            self.ended.notify_all();
        }
        let is_running =
            |state: &mut State| state.counters.threads > if is_pool_thread { state.shutting_down } else { 0 };
        state = match how {
            Shutdown::Within(limit) => {
                let waited = self.ended.wait_timeout_while(state, limit, is_running);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
            Shutdown::Wait | Shutdown::Detach => {
                let waited = self.ended.wait_while(state, is_running);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner())
            }
        };
        state.shutting_down -= usize::from(is_pool_thread);
    }
}

/// A driver's permission to run one job: it takes the place of a thread.
struct Assignment {
    shared: Arc<Shared>,
    id: JobId,
}

impl Assignment {
    fn run(&self) {
        self.shared.run_offloaded(self.id);
    }

    /// Passes the job to the driver of a loop, or to a thread if the driver refuses.
    fn give_to(self, core: &LoopCore) -> Result<JobId, Refusal> {
        let (shared, id) = (self.shared.clone(), self.id);
        let Err(refused) = core.offload(Box::new(move || self.run())) else {
            return Ok(id);
        };
        // Before the assignment is dropped, which cancels its job.
        let work = shared.state().take_offloaded(id);
        drop(refused);
        match work {
            Some(work) if shared.state().closed => Err(Refusal::Closed(work)),
            Some(work) => shared.queue_for_threads(shared.state(), Job { id, work }),
            None => Ok(id),
        }
    }
}

impl Drop for Assignment {
    /// The job has run, or the driver has dropped it: then it is cancelled.
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        drop_works(self.shared.take_back(self.id));
        self.shared.state().assigned -= 1;
        self.shared.assign_next();
    }
}

fn drop_works(works: impl IntoIterator<Item = Work>) {
    for work in works {
        guard("a blocking job's destructor", || drop(work));
    }
}

impl State {
    fn take_offloaded(&mut self, id: JobId) -> Option<Work> {
        let at = self.offloaded.iter().position(|job| job.id == id)?;
        Some(self.offloaded.remove(at)?.work)
    }

    fn remove_offloaded(&mut self, is_removed: impl Fn(&OffloadedJob) -> bool) -> Vec<Work> {
        let (removed, kept) = self.offloaded.drain(..).partition(is_removed);
        self.offloaded = kept;
        let removed: VecDeque<OffloadedJob> = removed;
        removed.into_iter().map(|job| job.work).collect()
    }

    /// The next job id or ticket, from 1.
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether the queue is full. Threads that are idle, or could be started, count as capacity.
    fn is_full(&self, settings: &PoolSettings) -> bool {
        let free = self.counters.idle + (settings.threads - self.counters.threads.min(settings.threads));
        self.queue.len() + self.offloaded.len() >= settings.queue.saturating_add(free)
    }
}
