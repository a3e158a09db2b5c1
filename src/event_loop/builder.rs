//! Making loops, and running a whole program on one.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use crate::blocking::{PoolSettings, Shutdown};
use crate::driver::select::choose;
use crate::driver::{self, Driver, DriverChoice};
use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;

/// Runs `future` to its end on a new loop, and gives its output: asyncio's `run`.
///
/// Tasks that are left when it is done are cancelled; their operations come back from the kernel before this returns.
/// The error is the loop's: it could not be made, or its driver failed.
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

/// Makes an [`EventLoop`] to order.
///
/// ```
/// use windlass::{Builder, DriverChoice};
/// let event_loop = Builder::new().driver(DriverChoice::Auto).ring_entries(512).build()?;
/// # drop(event_loop);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a builder does nothing until its build is called"]
pub struct Builder {
    choice: Option<DriverChoice>,
    custom: Option<Box<dyn Driver>>,
    wrap: Option<Box<WrapDriver>>,
    debug: Option<bool>,
    settings: Settings,
}

type WrapDriver = dyn FnOnce(Box<dyn Driver>) -> Box<dyn Driver>;

/// The settings of a loop, and of its driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) driver: driver::Settings,
    pub(crate) blocking: PoolSettings,
    pub(crate) files: PoolSettings,
    pub(crate) blocking_shutdown: Shutdown,
    pub(crate) close_within: Duration,
    pub(crate) debug: bool,
    pub(crate) slow_callback: Duration,
    pub(crate) measures_time: bool,
    pub(crate) busy_poll: Duration,
    pub(crate) precise_timers: bool,
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
            measures_time: true,
            busy_poll: Duration::from_micros(50),
            precise_timers: false,
        }
    }
}

impl Builder {
    /// Begins with the defaults.
    pub fn new() -> Builder {
        Builder {
            choice: None,
            custom: None,
            wrap: None,
            debug: None,
            settings: Settings::default(),
        }
    }

    /// Chooses the driver. Without this call the variable `WINDLASS_DRIVER` (`auto`, `proactor`, `reactor`, `null`)
    /// decides, and without that, `auto`. A driver that was asked for and cannot be had is an error.
    pub fn driver(mut self, choice: DriverChoice) -> Builder {
        self.choice = Some(choice);
        self
    }

    /// Turns the loop on a driver of your own.
    pub fn with_driver(mut self, driver: Box<dyn Driver>) -> Builder {
        self.custom = Some(driver);
        self
    }

    /// Wraps the driver that was chosen in one of your own, which sees every call: for fault injection and instrumentation.
    ///
    /// ```
    /// // Keeps the driver as it is, and prints which one it is.
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

    /// How many operations can be queued for the kernel between two system calls (256). More cost another call, or are parked; the
    /// kernel rounds up to a power of two. Only the io_uring driver has such a queue.
    pub fn ring_entries(mut self, entries: u32) -> Builder {
        self.settings.driver.ring_entries = entries;
        self
    }

    /// How many completions the kernel can queue (by default four times the ring's entries). More overflow into kernel
    /// memory, and are drained from there.
    pub fn completion_entries(mut self, entries: u32) -> Builder {
        self.settings.driver.completion_entries = Some(entries);
        self
    }

    /// Opens the io_uring as an old kernel would: without deferred completions, buffer rings or absolute
    /// timeouts. For tests, and to see what each of them is worth.
    pub fn plain_ring(mut self, plain: bool) -> Builder {
        self.settings.driver.plain_ring = plain;
        self
    }

    /// How long closing the loop waits for operations in flight before it leaks their memory (5 s). A cancelled socket operation
    /// completes in microseconds; this limit is for one that the kernel or a thread does not end. For tests.
    #[doc(hidden)]
    pub fn close_within(mut self, limit: Duration) -> Builder {
        self.settings.close_within = limit;
        self
    }

    /// The pool for managed reads: how many buffers (256; rounded up to a power of two) of how many bytes (8 KiB). It is
    /// made when the first managed read starts. When it is empty, reads go to the heap.
    pub fn managed_buffers(mut self, count: u16, len: usize) -> Builder {
        self.settings.driver.managed_count = count;
        self.settings.driver.managed_len = len;
        self
    }

    /// The most threads that io_uring may start in the kernel for file work that it cannot do in passing, and as many
    /// again for work that may wait for ever. Without this call the kernel decides. The limit belongs to the thread that
    /// runs the loop: loops that follow on the same thread share it.
    pub fn max_io_workers(mut self, most: u32) -> Builder {
        self.settings.driver.io_workers = Some(most);
        self
    }

    /// The most threads for [`spawn_blocking`](crate::spawn_blocking): by default four more than there are processors, and
    /// 32 at most, as in asyncio.
    pub fn max_blocking_threads(mut self, most: usize) -> Builder {
        self.settings.blocking.threads = most;
        self
    }

    /// The most jobs of [`spawn_blocking`](crate::spawn_blocking) that may wait for a thread (1,024) before whoever asks
    /// for another waits too.
    pub fn max_blocking_queue(mut self, most: usize) -> Builder {
        self.settings.blocking.queue = most;
        self
    }

    /// The most threads for the loop's own blocking work: files where the driver cannot do them, and name look-ups. They
    /// are apart from those of [`spawn_blocking`](crate::spawn_blocking), so that neither can starve the other.
    pub fn max_file_threads(mut self, most: usize) -> Builder {
        self.settings.files.threads = most;
        self
    }

    /// The most operations on files that may wait for a thread (1,024). More wait in the loop until there is room.
    pub fn max_file_queue(mut self, most: usize) -> Builder {
        self.settings.files.queue = most;
        self
    }

    /// How long a thread of either pool stays when there is nothing to do (10 s).
    pub fn blocking_idle_exit(mut self, after: Duration) -> Builder {
        self.settings.blocking.idle_exit = after;
        self.settings.files.idle_exit = after;
        self
    }

    /// Whether closing the loop waits for jobs of [`spawn_blocking`](crate::spawn_blocking) that have begun (it does).
    /// Those that have not are dropped either way.
    pub fn blocking_shutdown(mut self, how: Shutdown) -> Builder {
        self.settings.blocking_shutdown = how;
        self
    }

    /// Debug mode, as asyncio's: the exception handler is told of each task or callback that runs for longer than
    /// [`slow_callback_duration`](Builder::slow_callback_duration) without a pause, and of the tasks that are left when the
    /// loop closes. Without this call the variable `WINDLASS_DEBUG` decides: on unless it is empty or `0`.
    ///
    /// ```
    /// use std::{cell::RefCell, rc::Rc, time::Duration};
    /// let event_loop = windlass::Builder::new().debug(true).slow_callback_duration(Duration::from_millis(10)).build()?;
    /// let told = Rc::new(RefCell::new(String::new()));
    /// event_loop.set_exception_handler({
    ///     let told = told.clone();
    ///     move |exception| told.replace(exception.to_string()).clear()
    /// });
    /// event_loop.run_until_complete(async { std::thread::sleep(Duration::from_millis(20)) })?;
    /// assert!(told.borrow().contains("task 1 'main', spawned at "));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn debug(mut self, on: bool) -> Builder {
        self.debug = Some(on);
        self
    }

    /// What is slow in [debug mode](Builder::debug): 100 ms, as in asyncio.
    pub fn slow_callback_duration(mut self, duration: Duration) -> Builder {
        self.settings.slow_callback = duration;
        self
    }

    /// Whether the loop measures [where its time goes](crate::diagnostics::metrics::Times); it does. For measuring what that costs: without
    /// it those times, and how long a task of a [dump](crate::dump()) has waited, mean nothing.
    pub fn measure_time(mut self, on: bool) -> Builder {
        self.settings.measures_time = on;
        self
    }

    /// For how long the loop looks out for news before it sleeps, while they keep coming that soon (50 us): they are then
    /// served without a sleep and a wake-up, which are the largest cost where there is little to do. A vain lookout ends it,
    /// unless some before it were not, and it is tried again ever more seldom; an idle loop, or one with a slow peer, never
    /// does, nor one that serves many connections. Zero switches it off.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::Builder::new().busy_poll(Duration::ZERO).build()?;
    /// # drop(event_loop);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn busy_poll(mut self, longest: Duration) -> Builder {
        self.settings.busy_poll = longest;
        self
    }

    /// Has timers fire about a microsecond late instead of some ten: for each, the loop wakes a little before the time and
    /// looks out for the rest, which costs up to 120 us of processor time.
    pub fn precise_timers(mut self, on: bool) -> Builder {
        self.settings.precise_timers = on;
        self
    }

    /// Makes the loop.
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
        Ok(EventLoop::from_core(LoopCore::new(driver, &self.settings)))
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
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
