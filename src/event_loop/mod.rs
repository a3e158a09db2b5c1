//! The event loop: asyncio's `_run_once` on one screen.

pub(crate) mod builder;
pub(crate) mod callback;
pub(crate) mod core;
mod embed;
pub(crate) mod exception;
pub(crate) mod handle;
pub(crate) mod inbox;
pub(crate) mod park;
pub(crate) mod ready;
pub(crate) mod timers;

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use crate::diagnostics::metrics::Counters;
use crate::driver::{Description, Wait};
use crate::event_loop::builder::Builder;
use crate::event_loop::callback::{Callback, CallbackCell, Handle, TimerHandle};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::Exception;
use crate::event_loop::handle::LoopHandle;
use crate::event_loop::ready::Ready;
use crate::event_loop::timers::Action;
use crate::task::{JoinHandle, RawTask, spawn_unchecked};
use crate::time::Instant;

/// A single-threaded event loop.
///
/// [`windlass::run`](crate::run) makes one for a whole program. By hand:
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
/// Dropping it cancels its tasks, waits until the kernel has given back everything that was lent to it, and closes the
/// driver. On Linux the kernel takes an io_uring apart some 20 ms later, and that interrupts a system call in which the
/// thread may be sleeping then: std retries almost everywhere, but a `std` read with a read timeout gives `Interrupted`.
///
/// # Forking
///
/// A loop belongs to the process that made it. In a forked child, running it, turning it, starting an operation on one of its
/// streams, calling its [`LoopHandle`] or awaiting a job of a pool gives an error. Dropping the loop, its streams and its tasks
/// is silent: the child's copies of descriptors are closed, memory of operations in flight is leaked, and the parent does not
/// notice. A child may make a new loop, also while it is inside of a task of the old one. Make the process with `fork(3)` or
/// what is built on it; a bare `clone(2)` is not detected.
pub struct EventLoop {
    core: Rc<LoopCore>,
}

impl EventLoop {
    /// Makes a loop on the best driver that this machine offers. [`Builder`] chooses.
    pub fn new() -> io::Result<EventLoop> {
        Builder::new().build()
    }

    pub(crate) fn from_core(core: Rc<LoopCore>) -> EventLoop {
        EventLoop { core }
    }

    pub(crate) fn core(&self) -> &LoopCore {
        &self.core
    }

    /// One turn. Nothing else runs tasks or callbacks.
    ///
    /// Sleeps until there is something to run: see [`run_until_complete`](EventLoop::run_until_complete) for the usual
    /// way to use a loop. It is an error if a loop is running on this thread already.
    pub fn turn(&self) -> io::Result<()> {
        let _entered = self.core.enter_to_run()?;
        self.turn_once(LoopCore::next_wait)
    }

    #[inline]
    pub(crate) fn turn_once(&self, next_wait: impl FnOnce(&LoopCore) -> Wait) -> io::Result<()> {
        let core = &*self.core;
        core.counters.turns.set(core.counters.turns.get() + 1);
        // 1. Not at all if something is ready, else until the first deadline, else until woken.
        let wait = next_wait(core);
        // 2. The driver hands over what was started, sleeps, and reaps. A turn is not a system call: with nothing to
        //    hand over, to reap or to wait for, the driver makes none.
        let completed = core.drive(wait)?;
        // 3. Landed completions put their tasks on the ready deque, and so does what other threads sent.
        core.complete_and_collect(completed);
        // 4. Due timers join them, in the order of their deadlines.
        core.fire_due_timers();
        // 5. The batch is fixed: what runs now may schedule more, but that waits for the next turn, so that nobody
        //    starves the driver.
        let batch = core.ready.borrow().len();
        // 6. It runs, in the order in which it became ready.
        for _ in 0..batch {
            core.run_next();
            // A task may have forked, and the others are the parent's.
            if core.is_forked() {
                return Err(crate::error::forked_error());
            }
        }
        core.counters.ran.set(core.counters.ran.get() + batch as u64);
        Ok(())
    }

    /// Runs the loop until `future` is done, and gives its output. Other tasks go on when the loop is run again.
    ///
    /// The future may borrow. If it panics, the panic goes on to the caller, and the loop can be used again. It is an
    /// error if a loop is running on this thread already, or if [`stop`](EventLoop::stop) ends the loop first.
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
        let _entered = self.core.enter_to_run()?;
        let name = Some("main".into());
        // SAFETY: `EndTask` ends the task before this function returns or unwinds, so the future's borrows outlive it;
        // the output is taken, or dropped with the handle, here too.
        let handle = unsafe { spawn_unchecked(&self.core, future, name, Location::caller()) };
        // Dropped before the handle, whose reference keeps the task's memory.
        let _guard = EndTask(&self.core, handle.raw());
        loop {
            self.turn_once(LoopCore::next_wait)?;
            if handle.is_finished() {
                break;
            }
            if self.core.stopping.get() {
                return Err(io::Error::other(
                    "the event loop was stopped before the future was done",
                ));
            }
        }
        match take_output(&handle) {
            Ok(output) => Ok(output),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => std::panic::resume_unwind(payload),
                Err(cancelled) => Err(io::Error::other(cancelled.to_string())),
            },
        }
    }

    /// Runs the loop until [`stop`](EventLoop::stop) is called.
    pub fn run_forever(&self) -> io::Result<()> {
        let _entered = self.core.enter_to_run()?;
        loop {
            self.turn_once(LoopCore::next_wait)?;
            if self.core.stopping.replace(false) {
                return Ok(());
            }
        }
    }

    /// Ends [`run_forever`](EventLoop::run_forever), or [`run_until_complete`](EventLoop::run_until_complete) with an
    /// error, after the current turn; if neither has begun, the next one after one turn.
    pub fn stop(&self) {
        self.core.stopping.set(true);
        // An entry in the deque keeps the next turn from sleeping.
        self.core.call_soon(Rc::new(CallbackCell::new(|| {})));
    }

    /// Runs `callback` in the next turn, after what was scheduled before it.
    #[track_caller]
    pub fn call_soon(&self, callback: impl FnOnce() + 'static) -> Handle {
        self.core.call_soon(Rc::new(CallbackCell::new(callback)))
    }

    /// Runs `callback` once `delay` has passed. Any delay is legal: `Duration::MAX` never comes.
    #[track_caller]
    pub fn call_later(&self, delay: Duration, callback: impl FnOnce() + 'static) -> TimerHandle {
        let when = self.core.now() + delay;
        self.core.call_at(when, Rc::new(CallbackCell::new(callback)))
    }

    /// Runs `callback` when the loop's clock shows `when`. Equal times keep the order of the calls.
    #[track_caller]
    pub fn call_at(&self, when: Instant, callback: impl FnOnce() + 'static) -> TimerHandle {
        self.core.call_at(when, Rc::new(CallbackCell::new(callback)))
    }

    /// Starts a task. It runs when the loop does.
    #[track_caller]
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        // SAFETY: the future is `'static`: it borrows nothing that could end.
        unsafe { spawn_unchecked(&self.core, future, None, Location::caller()) }
    }

    /// Reads the loop's clock.
    pub fn time(&self) -> Instant {
        self.core.now()
    }

    /// A handle to this loop that other threads may use.
    pub fn handle(&self) -> LoopHandle {
        LoopHandle::new(self.core.inbox.clone())
    }

    /// Sets who is told of panics that nobody else takes, and of troubles of the loop itself. Without a handler they are
    /// written to standard error.
    ///
    /// ```
    /// let event_loop = windlass::EventLoop::new()?;
    /// event_loop.set_exception_handler(|exception| eprintln!("my log: {exception}"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_exception_handler(&self, handler: impl Fn(&Exception) + 'static) {
        let old = self.core.exception_handler.replace(Some(Rc::new(handler)));
        drop(old);
    }

    /// Which driver the loop turns on, with which kernel features, and why.
    pub fn describe(&self) -> Description {
        self.core.driver.borrow().describe()
    }

    /// What has been counted so far.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Cancels every task, waits until the kernel has given everything back and what was written down with
    /// [`on_cancel`](crate::task::on_cancel) is done, and closes the driver; dropping the loop does the same. Afterwards its
    /// handles give errors.
    pub fn close(self) {
        drop(self);
    }
}

impl EventLoop {
    /// Cancels every task, as closing does, while there is still a loop to run what is to be awaited then.
    fn clean_up(&self) {
        // Inside of another loop there is nobody to run this one; who is dropped then tells the exception handler.
        let Ok(_entered) = self.core.enter_to_run() else { return };
        self.core.report_pending_tasks();
        self.core.cancel_for_cleanup();
        while self.core.cleanups.running.get() > 0 {
            if let Err(error) = self.turn_once(LoopCore::next_wait) {
                crate::event_loop::exception::report(Exception::error(
                    "the loop ended before everything was cleaned up",
                    error,
                ));
                return;
            }
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let cleanups = &self.core.cleanups;
        if cleanups.armed.get() + cleanups.running.get() > 0 {
            self.clean_up();
        }
        self.core.close();
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// Ends the main task when `run_until_complete` is left, whichever way. A stop that came meanwhile is spent: it must not
/// end the next run.
struct EndTask<'a>(&'a LoopCore, RawTask);

impl Drop for EndTask<'_> {
    fn drop(&mut self) {
        self.1.cancel_now(self.0);
        if !self.1.is_done() {
            // It counts as running although no turn is under way: an error in this crate. The future's borrows end when this
            // returns, so there is no way on.
            std::process::abort();
        }
        self.0.stopping.set(false);
    }
}

fn take_output<T>(handle: &JoinHandle<T>) -> Result<T, crate::task::JoinError> {
    use std::task::{Context, Poll, Waker};
    match handle.raw().poll_join(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the task is finished"),
    }
}

impl LoopCore {
    pub(crate) fn call_soon(&self, callback: Rc<dyn Callback>) -> Handle {
        let handle = Handle::new(&callback);
        if !self.is_closed() {
            self.ready.borrow_mut().push(Ready::Call(callback));
        }
        handle
    }

    pub(crate) fn call_at(&self, when: Instant, callback: Rc<dyn Callback>) -> TimerHandle {
        let id = self.add_timer(when, Action::Call(callback.clone()));
        if self.is_closed() {
            self.cancel_timer(id);
            callback.cancel();
        }
        TimerHandle::new(&self.rc(), id, &callback, when)
    }

    pub(crate) fn counters(&self) -> Counters {
        let timers = self.timers.borrow();
        Counters {
            turns: self.counters.turns.get(),
            ran: self.counters.ran.get(),
            stale_completions: self.counters.stale_completions.get(),
            in_flight: self.ops.borrow().in_flight(),
            ops: self.ops.borrow().taken(),
            tasks: self.tasks.borrow().len(),
            ready: self.ready.borrow().len(),
            timers: timers.live(),
            timer_heap: timers.heap_len(),
            timers_cancelled: timers.heap_len() - timers.live(),
            blocking: self.blocking.counters(),
            files: self.files.counters(),
            driver: self.driver.borrow().counters(),
        }
    }
}

/// Runs `callback` in the current loop's next turn, after what was scheduled before it.
///
/// # Panics
///
/// Outside of a loop; [`EventLoop::call_soon`] needs no current one.
#[track_caller]
pub fn call_soon(callback: impl FnOnce() + 'static) -> Handle {
    LoopCore::current("call_soon").call_soon(Rc::new(CallbackCell::new(callback)))
}

/// Runs `callback` on the current loop once `delay` has passed.
///
/// # Panics
///
/// Outside of a loop; [`EventLoop::call_later`] needs no current one.
#[track_caller]
pub fn call_later(delay: Duration, callback: impl FnOnce() + 'static) -> TimerHandle {
    let core = LoopCore::current("call_later");
    core.call_at(core.now() + delay, Rc::new(CallbackCell::new(callback)))
}

/// Runs `callback` when the current loop's clock shows `when`.
///
/// # Panics
///
/// Outside of a loop; [`EventLoop::call_at`] needs no current one.
#[track_caller]
pub fn call_at(when: Instant, callback: impl FnOnce() + 'static) -> TimerHandle {
    LoopCore::current("call_at").call_at(when, Rc::new(CallbackCell::new(callback)))
}

/// The current loop's counters.
///
/// # Panics
///
/// Outside of a loop; [`EventLoop::counters`] needs no current one.
#[track_caller]
pub fn counters() -> Counters {
    LoopCore::current("counters").counters()
}
