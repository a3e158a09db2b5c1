//! The threads and their queue.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::PoolFull;
use super::handle::BlockingHandle;
use crate::sys;

/// Threads for blocking work, with a queue.
///
/// A loop has its own; make another to keep one kind of work from holding up another. It can be used from any thread, by
/// any number of loops, and clones share the threads. When the last clone is dropped, jobs that have begun are not waited
/// for; [`shutdown`](Pool::shutdown) does that.
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

/// Closes the pool when the last clone of its handle is gone.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child there are no threads, and one of the parent's may have held the lock. What is queued is leaked.
        match self.shared.is_forked() {
            true => std::mem::forget(self.shared.clone()),
            false => self.shared.close(),
        }
    }
}

/// What a pool is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSettings {
    pub(crate) threads: usize,
    pub(crate) queue: usize,
    pub(crate) idle_exit: Duration,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        PoolSettings {
            threads: (processors + 4).min(32),
            queue: 1024,
            idle_exit: Duration::from_secs(10),
        }
    }
}

/// Makes a [`Pool`] to order.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until its build is called"]
pub struct PoolBuilder {
    name: String,
    settings: PoolSettings,
}

impl PoolBuilder {
    /// What the threads are called: `blocking` by default.
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        // The OS takes no NUL, and a thread's name is not worth an error.
        self.name = name.into().replace('\0', "");
        self
    }

    /// The most threads: by default four more than there are processors, and 32 at most. At least one.
    pub fn threads(mut self, most: usize) -> PoolBuilder {
        self.settings.threads = most.max(1);
        self
    }

    /// The most jobs that may wait for a thread (1,024).
    pub fn queue(mut self, most: usize) -> PoolBuilder {
        self.settings.queue = most;
        self
    }

    /// How long a thread stays when there is nothing to do (10 s).
    pub fn idle_exit(mut self, after: Duration) -> PoolBuilder {
        self.settings.idle_exit = after;
        self
    }

    /// Makes the pool. It starts threads as they are needed.
    pub fn build(self) -> Pool {
        Pool::with_settings(self.name, self.settings)
    }
}

/// Whether to wait for jobs that have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shutdown {
    /// However long they take.
    #[default]
    Wait,
    /// For so long.
    Within(Duration),
    /// Not at all: they go on by themselves, and their results are dropped.
    Detach,
}

/// What a pool is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Threads that there are now.
    pub threads: usize,
    /// Those of them that have nothing to do.
    pub idle: usize,
    /// Jobs that wait for a thread.
    pub queued: usize,
    /// Threads that were ever started.
    pub started: u64,
    /// Jobs that were carried out.
    pub done: u64,
}

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A job's number within its pool.
pub(crate) type JobId = u64;

/// The number of somebody who waits for room in a pool's queue.
pub(super) type Ticket = u64;

/// The ticket of all of a loop's flights; nobody else draws it.
const FLIGHTS: Ticket = 0;

struct Job {
    id: JobId,
    work: Work,
}

/// Why a job was not taken, with the job.
pub(super) enum Refusal {
    /// The queue is full.
    Full(Work),
    /// The pool is closed.
    Closed(Work),
    /// There is no thread, and none could be started.
    NoThread(Work, io::Error),
}

pub(super) struct Shared {
    name: String,
    settings: PoolSettings,
    state: Mutex<State>,
    /// There is work, or the pool has closed.
    work: Condvar,
    /// A thread has ended.
    ended: Condvar,
    /// The process that has the threads: see `sys::forks`.
    forks: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Whoever waits for room in the queue: each once, however often it asks, and in the order of asking.
    waiting: BTreeMap<Ticket, Waker>,
    /// Of jobs, and of those who wait.
    last_number: u64,
    counters: PoolCounters,
    closed: bool,
    /// Threads whose jobs wait for the other threads to end.
    ending_inside: usize,
}

thread_local! {
    /// The pool that this thread works for, or null. Only compared.
    static WORKS_FOR: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

impl Pool {
    /// A pool with the defaults.
    pub fn new() -> Pool {
        Pool::builder().build()
    }

    /// A pool to order.
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

    /// Runs `work` on one of the threads: see [`spawn_blocking`](crate::spawn_blocking).
    pub fn spawn<T, F>(&self, work: F) -> BlockingHandle<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        BlockingHandle::start(self.shared(), work)
    }

    /// The same, but if every thread is busy and the queue is full, the work comes back at once.
    pub fn try_spawn<T, F>(&self, work: F) -> Result<BlockingHandle<T>, PoolFull<F>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        // Others may come in between; then the handle waits for room, as any other does.
        if self.shared().is_full() {
            return Err(PoolFull(work));
        }
        Ok(self.spawn(work))
    }

    /// Closes the pool, for all its clones: what has not begun is dropped, and so is what is spawned from now on. A job of
    /// the pool itself may call this; it waits for the others, and not for those that wait for it in the same way.
    pub fn shutdown(&self, how: Shutdown) {
        if self.shared().is_forked() {
            return;
        }
        self.shared().close();
        self.shared().wait_for_threads(how);
    }

    /// What the pool is doing.
    pub fn counters(&self) -> PoolCounters {
        if self.shared().is_forked() {
            return PoolCounters::default();
        }
        let state = self.shared().state();
        PoolCounters {
            queued: state.queue.len(),
            ..state.counters
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    /// Hands over work that answers by itself. Gives the job's number.
    pub(crate) fn submit(&self, work: Work) -> Result<JobId, (Work, Option<io::Error>)> {
        self.shared().submit(work, true).map_err(|refusal| match refusal {
            Refusal::Full(work) | Refusal::Closed(work) => (work, None),
            Refusal::NoThread(work, error) => (work, Some(error)),
        })
    }

    /// Wakes `waker` when there may be room in the queue for flights of the one loop that has this pool. False if there is.
    pub(crate) fn wait_for_capacity(&self, waker: &Waker) -> bool {
        self.shared().wait_for_capacity(&mut Some(FLIGHTS), waker)
    }

    /// Takes a job back that has not begun.
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under this lock.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether this process is a fork of the one that has the threads.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    fn is_full(&self) -> bool {
        !self.is_forked() && self.state().is_full(&self.settings)
    }

    /// Queues a job, and starts a thread for it if none is free. With `bounded` a full queue refuses it.
    pub(super) fn submit(self: &Arc<Self>, work: Work, bounded: bool) -> Result<JobId, Refusal> {
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
        state.queue.push_back(Job { id, work });
        if state.queue.len() <= state.counters.idle {
            drop(state);
            self.work.notify_one();
            return Ok(id);
        }
        if state.counters.threads < self.settings.threads
            && let Err(error) = self.start_thread(&mut state)
            // Those that are there will come to it.
            && state.counters.threads == 0
        {
            let job = state.queue.pop_back().expect("it was just queued");
            return Err(Refusal::NoThread(job.work, error));
        }
        Ok(id)
    }

    /// With the lock held: starting takes some ten microseconds, and happens a few times in a pool's life.
    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        let name = format!("{}-{}", self.name, state.counters.started);
        std::thread::Builder::new()
            .name(name)
            .spawn(move || shared.work_until_idle())
            .map_err(|error| crate::sys::context("no thread could be started for blocking work", error))?;
        state.counters.threads += 1;
        state.counters.started += 1;
        // It is free until it takes its first job; else a queue without room would count that job as one that waits.
        state.counters.idle += 1;
        Ok(())
    }

    /// A thread's life. It counts as idle whenever it does not hold a job.
    fn work_until_idle(&self) {
        WORKS_FOR.set(self);
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.counters.idle -= 1;
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                wake_all(waiting);
                // A job catches its own panics; this is for its destructors.
                crate::event_loop::exception::guard("a blocking job", job.work);
                state = self.state();
                state.counters.done += 1;
                state.counters.idle += 1;
                continue;
            }
            if state.closed {
                break;
            }
            // A free thread is room too, and where the queue has none it is the only room.
            if !state.waiting.is_empty() {
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                wake_all(waiting);
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

    /// Takes a job back that has not begun.
    pub(super) fn take_back(&self, id: JobId) -> Option<Work> {
        let (job, waiting) = {
            let mut state = self.state();
            let at = state.queue.iter().position(|job| job.id == id)?;
            (state.queue.remove(at)?, std::mem::take(&mut state.waiting))
        };
        wake_all(waiting);
        Some(job.work)
    }

    /// Wakes `waker` when there may be room in the queue. False if there is. Whoever asks again keeps its ticket.
    pub(super) fn wait_for_capacity(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        // Cloning and dropping wakers is foreign code, so neither happens under the lock.
        let waker = waker.clone();
        let old = {
            let mut state = self.state();
            if state.closed || !state.is_full(&self.settings) {
                return false;
            }
            let ticket = *ticket.get_or_insert_with(|| state.next_number());
            state.waiting.insert(ticket, waker)
        };
        drop(old);
        true
    }

    /// Whoever has this ticket waits no more.
    pub(super) fn stop_waiting(&self, ticket: Ticket) {
        let waker = self.state().waiting.remove(&ticket);
        drop(waker);
    }

    fn close(&self) {
        let (jobs, waiting) = {
            let mut state = self.state();
            state.closed = true;
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.waiting))
        };
        self.work.notify_all();
        wake_all(waiting);
        for job in jobs {
            crate::event_loop::exception::guard("a blocking job's destructor", || drop(job.work));
        }
    }

    fn wait_for_threads(&self, how: Shutdown) {
        let deadline = match how {
            Shutdown::Wait => None,
            // What no clock can hold means for ever.
            Shutdown::Within(limit) => Instant::now().checked_add(limit),
            Shutdown::Detach => return,
        };
        let is_inside = ptr::eq(WORKS_FOR.get(), self);
        let mut state = self.state();
        if is_inside {
            // Those who wait inside of a job, as this one does, need not wait for this one.
            state.ending_inside += 1;
            self.ended.notify_all();
        }
        while state.counters.threads > if is_inside { state.ending_inside } else { 0 } {
            state = match deadline {
                None => self.ended.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let waited = self.ended.wait_timeout(state, left);
                    waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
        state.ending_inside -= usize::from(is_inside);
    }
}

impl State {
    /// Begins with 1.
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether a job would have to wait behind a full queue. Threads that are free, or could be started, make room.
    fn is_full(&self, settings: &PoolSettings) -> bool {
        let free = self.counters.idle + (settings.threads - self.counters.threads.min(settings.threads));
        self.queue.len() >= settings.queue.saturating_add(free)
    }
}

fn wake_all(waiting: BTreeMap<Ticket, Waker>) {
    for waker in waiting.into_values() {
        crate::event_loop::exception::guard("a waker", || waker.wake());
    }
}
