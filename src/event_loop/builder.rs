//! `Builder`, which makes loops, and `run`, which runs a whole program on one.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::blocking::{PoolSettings, Shutdown};
use crate::driver::select::choose;
use crate::driver::{self, Driver, DriverChoice, NullFiles};
use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;

/// Runs `future` to completion on a new loop and returns its output, like asyncio's `run`.
///
/// The loop is then [closed](EventLoop::close), which cancels the remaining tasks. Fails if a loop is already running
/// on this thread, if the loop cannot be made, or if its driver fails.
///
/// ```
/// let answer = windlass::run(async { 42 })?;
/// assert_eq!(answer, 42);
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn run<F: Future>(future: F) -> io::Result<F::Output> {
    Builder::new().build()?.run_until_complete(future)
}

/// Configures and makes an [`EventLoop`].
///
/// ```
/// use windlass::{Builder, DriverChoice};
/// let event_loop = Builder::new().driver(DriverChoice::Auto).ring_entries(512).build()?;
/// # drop(event_loop);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    choice: Option<DriverChoice>,
    custom: Option<Box<dyn Driver>>,
    wrap: Option<Box<WrapDriver>>,
    debug: Option<bool>,
    settings: Settings,
}

type WrapDriver = dyn FnOnce(Box<dyn Driver>) -> Box<dyn Driver>;

/// The settings of a loop, and of its driver.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) driver: driver::Settings,
    pub(crate) blocking: PoolSettings,
    pub(crate) files: PoolSettings,
    pub(crate) blocking_shutdown: Shutdown,
    /// How long closing waits for operations in flight.
    pub(crate) close_within: Duration,
    pub(crate) debug: bool,
    pub(crate) slow_callback: Duration,
    /// For a simulation: observes each entry that runs.
    pub(crate) watches_entries: bool,
    pub(crate) measures_time: bool,
    pub(crate) busy_poll: Duration,
    pub(crate) precise_timers: bool,
    pub(crate) timer_slack: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            driver: driver::Settings::default(),
            blocking: PoolSettings::default(),
            files: PoolSettings::default(),
            blocking_shutdown: Shutdown::Wait,
            close_within: Duration::from_secs(5),
            debug: false,
            slow_callback: Duration::from_millis(100),
            watches_entries: false,
            measures_time: true,
            busy_poll: Duration::from_micros(50),
            precise_timers: false,
            timer_slack: Duration::from_nanos(1 << 20),
        }
    }
}

impl Builder {
    /// A builder with the default settings.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Chooses the driver. Without this call, the environment variable `WINDLASS_DRIVER` (`auto`, `proactor`,
    /// `reactor`, `null`) decides; the default is `auto`. `build` fails if that driver is unavailable.
    pub fn driver(mut self, choice: DriverChoice) -> Builder {
        self.choice = Some(choice);
        self
    }

    /// Uses a custom driver. Takes precedence over [`driver`](Builder::driver).
    pub fn with_driver(mut self, driver: Box<dyn Driver>) -> Builder {
        self.custom = Some(driver);
        self
    }

    /// See `Settings::watches_entries`.
    #[cfg(feature = "sim")]
    pub(crate) fn watch_entries(mut self, on: bool) -> Builder {
        self.settings.watches_entries = on;
        self
    }

    /// Wraps the chosen driver in a custom one, which sees every call: for fault injection and instrumentation.
    ///
    /// ```
    /// // Prints a description of the driver and returns it unchanged.
    /// let builder = windlass::Builder::new().wrap_driver(|driver| {
    ///     println!("{}", driver.describe());
    ///     driver
    /// });
    /// # drop(builder.build()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wrap_driver(mut self, wrap: impl FnOnce(Box<dyn Driver>) -> Box<dyn Driver> + 'static) -> Builder {
        self.wrap = Some(Box::new(wrap));
        self
    }

    /// Whether the driver is wrapped.
    #[cfg(feature = "sim")]
    pub(crate) fn wraps_driver(&self) -> bool {
        self.wrap.is_some()
    }

    /// The size of the io_uring submission queue: how many operations are submitted with one system call (256). Further
    /// ones cost another call, or wait. The kernel rounds up to a power of two. Other drivers have no such queue.
    pub fn ring_entries(mut self, entries: u32) -> Builder {
        self.settings.driver.ring_entries = entries;
        self
    }

    /// The size of the io_uring completion queue (by default four times `ring_entries`). Further completions overflow
    /// into kernel memory and are drained from there.
    pub fn completion_entries(mut self, entries: u32) -> Builder {
        self.settings.driver.completion_entries = Some(entries);
        self
    }

    /// The files of a loop on [`DriverChoice::Null`]: in memory, the default, or the real ones.
    ///
    /// ```
    /// use windlass::{Builder, DriverChoice, fs};
    ///
    /// let event_loop = Builder::new().driver(DriverChoice::Null).build()?;
    /// event_loop.run_until_complete(async {
    ///     let note = std::env::temp_dir().join("windlass-note");
    ///     fs::write(&note, "seen by this loop alone").await?;
    ///     assert_eq!(fs::read(&note).await?.len(), 23);
    ///     assert!(cfg!(windows) || !note.exists(), "std sees the real files");
    ///     fs::remove_file(&note).await
    /// })??;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn null_files(mut self, files: NullFiles) -> Builder {
        self.settings.driver.null_files = files;
        self
    }

    /// For tests: opens the io_uring as on old kernels, without deferred completions, buffer rings, absolute timeouts.
    pub fn plain_ring(mut self, plain: bool) -> Builder {
        self.settings.driver.plain_ring = plain;
        self
    }

    /// For tests: how long closing the loop waits for operations in flight before it leaks their memory (5 s). A
    /// cancelled socket operation completes in microseconds; the limit is for one that never completes.
    #[doc(hidden)]
    pub fn close_within(mut self, limit: Duration) -> Builder {
        self.settings.close_within = limit;
        self
    }

    /// The buffer pool for managed reads: the number of buffers (256; rounded up to a power of two) and their size in
    /// bytes (8 KiB). It is allocated when the first managed read starts. When it is empty, reads use the heap.
    ///
    /// On io_uring, a managed read that finds more data than one buffer holds may return up to 64 KiB. Buffers for that are
    /// allocated when they are first needed, with as much memory as the pool; none if the pool has less than 64 KiB.
    pub fn managed_buffers(mut self, count: u16, len: usize) -> Builder {
        self.settings.driver.managed_count = count;
        self.settings.driver.managed_len = len;
        self
    }

    /// The maximum number of kernel threads that io_uring may start for file operations that would block, and as many
    /// again for operations that may block forever. By default the kernel decides. The limit applies to the thread that
    /// runs the loop: later loops on the same thread share it.
    pub fn max_io_workers(mut self, max: u32) -> Builder {
        self.settings.driver.io_workers = Some(max);
        self
    }

    /// The cpus of the threads that work for this loop, by the numbers of the OS. For a loop whose own thread is bound
    /// to a cpu: on Linux and FreeBSD, whatever it starts would be bound to the same cpu and compete with it.
    ///
    /// Applies to the threads of [`spawn_blocking`](crate::spawn_blocking), of file operations and name look-ups, and to
    /// those of a [`Pool`](crate::blocking::Pool) and a [`LoopThread`](crate::LoopThread) that a task starts; to the
    /// kernel threads of io_uring (Linux 5.14), which later loops on the same thread share; and, on Linux and FreeBSD, to
    /// child processes. Systems without thread affinity, such as macOS, ignore it. If the OS refuses the cpus, the thread
    /// works where it is, and the error is reported, in most cases on stderr.
    ///
    /// ```
    /// let cpus = std::thread::available_parallelism()?.get();
    /// let event_loop = windlass::Builder::new().worker_cpus(0..cpus).build()?;
    /// # drop(event_loop);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn worker_cpus(mut self, cpus: impl IntoIterator<Item = usize>) -> Builder {
        self.settings.driver.worker_cpus = Some(Arc::new(cpus.into_iter().collect()));
        self
    }

    /// The maximum number of threads for [`spawn_blocking`](crate::spawn_blocking). As in asyncio, the default is the
    /// number of processors plus 4, at most 32.
    pub fn max_blocking_threads(mut self, max: usize) -> Builder {
        self.settings.blocking.threads = max;
        self
    }

    /// The maximum number of [`spawn_blocking`](crate::spawn_blocking) jobs that wait for a thread (1,024). When the
    /// queue is full, awaiting the handle of a new job waits for capacity.
    pub fn max_blocking_queue(mut self, max: usize) -> Builder {
        self.settings.blocking.queue = max;
        self
    }

    /// The maximum number of threads for the loop's own blocking work: name look-ups, and file operations that the
    /// driver cannot perform. The default is that of [`max_blocking_threads`](Builder::max_blocking_threads).
    /// [`spawn_blocking`](crate::spawn_blocking) has its own threads, so that neither starves the other.
    pub fn max_file_threads(mut self, max: usize) -> Builder {
        self.settings.files.threads = max;
        self
    }

    /// The maximum number of file operations that wait for a thread (1,024). Further ones wait in the loop.
    pub fn max_file_queue(mut self, max: usize) -> Builder {
        self.settings.files.queue = max;
        self
    }

    /// How long an idle thread of either pool stays alive (10 s).
    pub fn blocking_idle_exit(mut self, after: Duration) -> Builder {
        self.settings.blocking.idle_exit = after;
        self.settings.files.idle_exit = after;
        self
    }

    /// Whether closing the loop waits for running [`spawn_blocking`](crate::spawn_blocking) jobs (by default it does).
    /// Queued jobs are dropped in any case.
    pub fn blocking_shutdown(mut self, how: Shutdown) -> Builder {
        self.settings.blocking_shutdown = how;
        self
    }

    /// Debug mode, as in asyncio: the exception handler is called for each task or callback that blocks the loop for
    /// longer than [`slow_callback_duration`](Builder::slow_callback_duration), and for the tasks still pending when
    /// the loop closes. Without this call the variable `WINDLASS_DEBUG` decides: on unless empty or `0`. On a virtual
    /// clock nothing is reported as slow.
    ///
    /// ```
    /// use std::{cell::RefCell, rc::Rc, time::Duration};
    /// let event_loop = windlass::Builder::new().debug(true).slow_callback_duration(Duration::from_millis(10)).build()?;
    /// let report = Rc::new(RefCell::new(String::new()));
    /// event_loop.set_exception_handler({
    ///     let report = report.clone();
    ///     move |exception| report.replace(exception.to_string()).clear()
    /// });
    /// event_loop.run_until_complete(async { std::thread::sleep(Duration::from_millis(20)) })?;
    /// assert!(report.borrow().contains("task 1 'main', spawned at "));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn debug(mut self, on: bool) -> Builder {
        self.debug = Some(on);
        self
    }

    /// The threshold of [debug mode](Builder::debug): 100 ms, as in asyncio.
    pub fn slow_callback_duration(mut self, duration: Duration) -> Builder {
        self.settings.slow_callback = duration;
        self
    }

    /// Whether the loop measures [how it spends its time](crate::metrics::Times) (by default it does). Switch it off to
    /// measure its cost: these times, and those of a [dump](crate::dump()), are then meaningless.
    pub fn measure_time(mut self, on: bool) -> Builder {
        self.settings.measures_time = on;
        self
    }

    /// How long the loop busy-polls before it blocks, if recent waits were short (50 us). Events that arrive in this
    /// window cost no wake-up, which is the largest cost of a lightly loaded loop. A window that finds nothing disables
    /// busy-polling, with exponential back-off, unless recent windows succeeded. It never starts on an idle loop, with
    /// a slow peer or with many active connections. Zero disables it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::Builder::new().busy_poll(Duration::ZERO).build()?;
    /// # drop(event_loop);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn busy_poll(mut self, window: Duration) -> Builder {
        self.settings.busy_poll = window;
        self
    }

    /// How late a timer may fire in addition to the time that a wake-up takes, so that timers with neighbouring deadlines
    /// share one (1.05 ms). Zero wakes the loop for every deadline.
    ///
    /// A timer never fires early. It is late by at most 1/1024 of the time from setting it to its deadline, and by at most this
    /// duration, rounded down to a power of two of nanoseconds. With the default, timers of up to 16 ms are not delayed at all,
    /// a timer of 100 ms is late by up to 66 us, and one of a second by up to half a millisecond. A loop that is awake anyway
    /// runs a timer as soon as it is due. Timers that are due fire in the order of their deadlines, and if these are equal, in
    /// the order in which they were set. A virtual clock has no slack.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::Builder::new().timer_slack(Duration::ZERO).build()?;
    /// # drop(event_loop);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn timer_slack(mut self, largest: Duration) -> Builder {
        self.settings.timer_slack = largest;
        self
    }

    /// Makes timers fire about 1 us late instead of about 10 us: the loop wakes before each deadline and busy-polls the
    /// rest, which costs up to 120 us of processor time per timer. There is no [slack](Builder::timer_slack) then.
    pub fn precise_timers(mut self, on: bool) -> Builder {
        self.settings.precise_timers = on;
        self
    }

    /// Makes the loop. Fails if a setting is invalid or the driver cannot be opened.
    pub fn build(mut self) -> io::Result<EventLoop> {
        self.settings.driver.check()?;
        if self.settings.blocking.threads == 0 || self.settings.files.threads == 0 {
            let why = "a pool needs at least one thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.settings.debug = self.debug.unwrap_or_else(|| {
            let variable = std::env::var_os("WINDLASS_DEBUG");
            variable.is_some_and(|value| !value.is_empty() && value != "0")
        });
        let driver = match self.custom {
            Some(driver) => driver,
            None => choose(self.choice, &self.settings.driver)?,
        };
        let driver = match self.wrap {
            Some(wrap) => wrap(driver),
            None => driver,
        };
        crate::diagnostics::trace::loop_opened(&driver.describe());
        #[cfg(feature = "console")]
        if !driver.has_virtual_clock() {
            crate::console::start_from_environment();
        }
        let core = LoopCore::new(driver, self.settings);
        Ok(EventLoop { core })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("driver", &self.choice)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
