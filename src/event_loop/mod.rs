//! `EventLoop`, the public API of a loop. `turn.rs` runs one turn, `park.rs` waits for events, `shutdown.rs` closes.

pub(crate) mod builder;
mod busy_poll;
pub(crate) mod callback;
pub(crate) mod core;
pub(crate) mod current;
mod embed;
pub(crate) mod exception;
pub(crate) mod handle;
pub(crate) mod host;
pub(crate) mod inbox;
pub(crate) mod loop_id;
mod park;
pub(crate) mod ready;
pub(crate) mod remote_event;
mod shutdown;
#[cfg(feature = "sim")]
pub(crate) mod simulated;
pub(crate) mod task_key;
pub(crate) mod task_list;
pub(crate) mod timers;
mod turn;

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::diagnostics::metrics::Counters;
use crate::driver::Description;
use crate::event_loop::builder::Builder;
use crate::event_loop::callback::{Handle, TimerHandle};
use crate::event_loop::core::LoopCore;
use crate::event_loop::current::Kind;
use crate::event_loop::exception::Exception;
use crate::event_loop::handle::LoopHandle;
use crate::on_drop::OnDrop;
use crate::task::{JoinHandle, spawn_on, spawn_unchecked};
use crate::time::Instant;

/// A single-threaded event loop.
///
/// [`windlass::run`](crate::run) creates one for a whole program. To run one yourself:
///
/// ```
/// use std::time::Duration;
/// let event_loop = windlass::EventLoop::new()?;
/// event_loop.call_soon(|| println!("first"));
/// event_loop.call_later(Duration::from_millis(5), {
///     let handle = event_loop.handle();
///     move || handle.stop().unwrap()
/// });
/// event_loop.run_forever()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Dropping the loop [closes](EventLoop::close) it.
///
/// # Platform differences
///
/// Linux tears an io_uring down about 20 ms after it is closed, which interrupts a system call that its thread is then
/// blocked in. std retries almost everywhere, but a `std` read with a read timeout returns `Interrupted`.
///
/// # Forking
///
/// A loop belongs to the process that made it. In a forked child, these return an error: running the loop or one turn,
/// starting an operation on one of its streams, calling its [`LoopHandle`], and awaiting a job of a pool. Dropping the
/// loop, its streams and its tasks there has no effect on the parent: the child's copies of descriptors are closed, and
/// memory of operations in flight is leaked. A child may make a new loop, even inside a task of the old one. Create the
/// child with libc's `fork` or a function built on it; a bare `clone(2)` is not detected.
pub struct EventLoop {
    core: Rc<LoopCore>,
}

impl EventLoop {
    /// Makes a loop with the default settings of [`Builder`], on the best driver that this machine supports.
    pub fn new() -> io::Result<EventLoop> {
        Builder::new().build()
    }

    pub(crate) fn core(&self) -> &LoopCore {
        &self.core
    }

    /// Runs one turn: waits until there is something to run, then runs everything that is ready.
    ///
    /// Most programs use [`run_until_complete`](EventLoop::run_until_complete). Fails if a loop is already running on
    /// this thread, or if the driver fails.
    pub fn turn(&self) -> io::Result<()> {
        let _entered = self.core.enter_to_run(Kind::Run)?;
        self.turn_once(LoopCore::next_wait)
    }

    /// Runs the loop until `future` completes and returns its output. Other tasks continue when the loop runs again.
    ///
    /// The future may borrow. If it panics, the panic propagates to the caller, and the loop stays usable. Fails as
    /// [`turn`](EventLoop::turn), or if [`stop`](EventLoop::stop) ends the run first; the future is then dropped.
    ///
    /// ```
    /// let event_loop = windlass::EventLoop::new()?;
    /// let mut greeting = String::new();
    /// event_loop.run_until_complete(async { greeting.push_str("hello") })?;
    /// assert_eq!(greeting, "hello");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn run_until_complete<F: Future>(&self, future: F) -> io::Result<F::Output> {
        let _entered = self.core.enter_to_run(Kind::Run)?;
        let name = Some("main".into());
        // SAFETY: the guard ends the task before this function returns or unwinds, so the future's borrows outlive it;
        // the output is taken, or dropped with the handle, here too.
        let handle = unsafe { spawn_unchecked(&self.core, future, name, Location::caller()) };
        // Declared after the handle, so dropped before it: the handle's reference keeps the task's memory alive.
        let _guard = OnDrop(|| {
            handle.raw().cancel_now(&self.core);
            if !handle.raw().is_done() {
                // A bug in this crate: the task runs outside of a turn. Abort, since its borrows end when this returns.
                std::process::abort();
            }
            // For the next run.
            self.core.stopping.set(false);
        });
        loop {
            self.turn_once(LoopCore::next_wait)?;
            if handle.is_finished() {
                break;
            }
            if self.core.stopping.get() {
                return Err(io::Error::other(
                    "the event loop was stopped before the future completed",
                ));
            }
        }
        let Poll::Ready(result) = handle.raw().poll_join(&mut Context::from_waker(Waker::noop())) else {
            unreachable!("the task is finished")
        };
        match result {
            Ok(output) => Ok(output),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => std::panic::resume_unwind(payload),
                Err(cancelled) => Err(io::Error::other(cancelled.to_string())),
            },
        }
    }

    /// Runs the loop until [`stop`](EventLoop::stop) is called. Fails as [`turn`](EventLoop::turn).
    pub fn run_forever(&self) -> io::Result<()> {
        let _entered = self.core.enter_to_run(Kind::Run)?;
        loop {
            self.turn_once(LoopCore::next_wait)?;
            if self.core.stopping.replace(false) {
                return Ok(());
            }
        }
    }

    /// Ends [`run_forever`](EventLoop::run_forever), or [`run_until_complete`](EventLoop::run_until_complete) with an
    /// error, after the current turn. If neither is running, the next one ends after one turn.
    pub fn stop(&self) {
        self.core.stopping.set(true);
        // An entry in the ready queue keeps the next turn from blocking.
        self.core.call_soon(|| {});
    }

    /// Runs `callback` in the next turn, after everything that was scheduled before it.
    #[track_caller]
    pub fn call_soon(&self, callback: impl FnOnce() + 'static) -> Handle {
        self.core.call_soon(callback)
    }

    /// Runs `callback` after `delay`; `Duration::MAX` means never.
    #[track_caller]
    pub fn call_later(&self, delay: Duration, callback: impl FnOnce() + 'static) -> TimerHandle {
        self.core.call_at(self.core.now() + delay, callback)
    }

    /// Runs `callback` when the loop's clock reaches `when`. Callbacks with equal times run in the order of the calls.
    #[track_caller]
    pub fn call_at(&self, when: Instant, callback: impl FnOnce() + 'static) -> TimerHandle {
        // The slack of a timer depends on its length, which counts from the last reading of the clock.
        self.core.now();
        self.core.call_at(when, callback)
    }

    /// Spawns a task, which runs while the loop runs. Unlike [`spawn`](crate::spawn()), it needs no current loop.
    #[track_caller]
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        spawn_on(&self.core, future, None, Location::caller())
    }

    /// Reads the loop's clock.
    pub fn time(&self) -> Instant {
        self.core.now()
    }

    /// A handle to this loop for other threads.
    pub fn handle(&self) -> LoopHandle {
        LoopHandle {
            inbox: self.core.inbox.clone(),
        }
    }

    /// Sets the handler for panics and errors that no caller receives. Without one, they are printed to standard error.
    ///
    /// ```
    /// let event_loop = windlass::EventLoop::new()?;
    /// event_loop.set_exception_handler(|exception| eprintln!("my log: {exception}"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_exception_handler(&self, handler: impl Fn(&Exception) + 'static) {
        drop(self.core.exception_handler.replace(Some(Rc::new(handler))));
    }

    /// The driver that the loop uses, the kernel features it found, and the reason for the choice.
    pub fn describe(&self) -> Description {
        self.core.driver.borrow().describe()
    }

    /// A snapshot of the loop's counters.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Cancels every task, runs their [`on_cancel`](crate::task::on_cancel) cleanups, waits until every operation has
    /// completed (at most 5 s, then its memory is leaked) and closes the driver. Waits for running blocking jobs too:
    /// see [`Builder::blocking_shutdown`]. Afterwards the loop's handles return errors.
    pub fn close(self) {
        drop(self);
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.core;
        f.debug_struct("EventLoop")
            .field("driver", &core.driver.borrow().describe().name)
            .field("tasks", &core.tasks.len())
            .field("ready", &core.ready.len())
            .field("timers", &core.timers.live())
            .field("in_flight", &core.ops.in_flight())
            .field("closed", &core.closed.get())
            .finish()
    }
}

impl LoopCore {
    pub(crate) fn counters(&self) -> Counters {
        let timers = &self.timers;
        Counters {
            turns: self.counters.turns.get(),
            ran: self.counters.ran.get(),
            stale_completions: self.counters.stale_completions.get(),
            in_flight: self.ops.in_flight(),
            ops: self.ops.taken(),
            tasks: self.tasks.len(),
            ready: self.ready.len(),
            timers: timers.live(),
            timer_heap: timers.heap_len(),
            timers_cancelled: timers.heap_len() - timers.live(),
            blocking: self.blocking.counters(),
            files: self.files.counters(),
            driver: self.driver.borrow().counters(),
        }
    }
}

/// Runs `callback` in the next turn of the current loop, after everything that was scheduled before it.
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::call_soon`] works anywhere.
#[track_caller]
pub fn call_soon(callback: impl FnOnce() + 'static) -> Handle {
    LoopCore::current("call_soon").call_soon(callback)
}

/// Runs `callback` on the current loop after `delay`.
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::call_later`] works anywhere.
#[track_caller]
pub fn call_later(delay: Duration, callback: impl FnOnce() + 'static) -> TimerHandle {
    let core = LoopCore::current("call_later");
    core.call_at(core.now() + delay, callback)
}

/// Runs `callback` when the current loop's clock reaches `when`.
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::call_at`] works anywhere.
#[track_caller]
pub fn call_at(when: Instant, callback: impl FnOnce() + 'static) -> TimerHandle {
    let core = LoopCore::current("call_at");
    // As in `EventLoop::call_at`.
    core.now();
    core.call_at(when, callback)
}

/// A snapshot of the current loop's counters.
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::counters`] works anywhere.
#[track_caller]
pub fn counters() -> Counters {
    LoopCore::current("counters").counters()
}
