//! Embedding the loop in another one, such as that of a GUI, a game or a library.
//! The outer loop waits, and this one runs turns without blocking: [`EventLoop::pollable`] shows how.

use std::io;
use std::task::Waker;

use crate::driver::Wait;
use crate::event_loop::EventLoop;
use crate::event_loop::current::Kind;
use crate::sys::{self, Borrowed};
use crate::time::Instant;

/// Embedding in another loop.
impl EventLoop {
    /// A descriptor that becomes readable when the loop has to turn: when operations complete, when a timer is due, and when
    /// another thread wakes the loop. An outer loop watches it with `poll`, `epoll` or the like. Do not read from it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::EventLoop::new()?;
    /// let ours = event_loop.pollable()?;
    /// let task = event_loop.spawn(windlass::time::sleep(Duration::from_millis(5)));
    /// event_loop.turn_nowait()?;
    /// while !task.is_finished() {
    ///     event_loop.flush()?;
    ///     # use std::os::fd::AsRawFd;
    ///     # fn wait_for(fd: std::os::fd::BorrowedFd<'_>) {
    ///     #     let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    ///     #     unsafe { libc::poll(&mut entry, 1, -1) };
    ///     # }
    ///     wait_for(ours); // and for the events of the outer loop
    ///     event_loop.turn_nowait()?;
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// The outer loop can [enter](EventLoop::enter) this one to spawn tasks and use streams between turns, and be woken for
    /// such uses: see [`set_host_waker`](EventLoop::set_host_waker). `examples/embed.rs` is a complete program around
    /// `poll(2)`.
    ///
    /// # Platform differences
    ///
    /// On Windows, and on a driver of your own without [`arm_deadline`](crate::driver::Driver::arm_deadline), timers do not make
    /// the descriptor readable: wait at most until [`next_deadline`](EventLoop::next_deadline).
    ///
    /// On io_uring, if this loop watches an eventfd, Linux makes the descriptor readable about 15 ms after another
    /// thread's write to that eventfd. Let the other thread call
    /// [`call_soon_threadsafe`](crate::LoopHandle::call_soon_threadsafe) instead, or choose the reactor.
    pub fn pollable(&self) -> io::Result<Borrowed<'_>> {
        self.core().driver().descriptor().map(sys::borrow)
    }

    /// Prepares for a wait of the outer loop: submits the started operations, and makes timers and calls from other threads
    /// signal [`pollable`](EventLoop::pollable). If tasks are ready already, the descriptor becomes readable at once. Call it
    /// right before the wait; what is started between the two waits for the next flush or turn.
    pub fn flush(&self) -> io::Result<()> {
        let core = self.core();
        let wait = core.next_wait();
        let deadline = match wait {
            Wait::Until(deadline) | Wait::Between(_, deadline) => Some(deadline),
            Wait::No | Wait::Poll | Wait::Forever => None,
        };
        let arms_deadlines = core.driver().arm_deadline(deadline);
        core.arms_deadlines.set(arms_deadlines);
        let result = core.driver().flush();
        if result.is_err() {
            // The exception handler is the current loop's.
            let _current = core.make_current();
            // After a shortage of memory, pauses, and then makes the descriptor readable: the outer loop retries.
            core.check_poll(result, &[], Wait::Forever)?;
            core.driver.borrow().notifier().notify();
        }
        if !core.inbox.fall_asleep() || arms_deadlines && wait == Wait::No {
            // A task is ready, or an item was sent before `ASLEEP` was set, so its sender did not notify.
            core.driver.borrow().notifier().notify();
        }
        core.host.resume();
        Ok(())
    }

    /// When the loop must turn: now if something is ready to run, else when the first timer must fire at the latest
    /// (its deadline and its [slack](crate::Builder::timer_slack)). `None` without timers: wait for the descriptor only.
    ///
    /// An outer loop needs this only where the descriptor does not become readable for timers, and to
    /// turn several times before it waits.
    pub fn next_deadline(&self) -> Option<Instant> {
        // Makes the time of the next wake-up exact.
        self.core().timers.exact_wake();
        match self.core().next_wait() {
            Wait::No | Wait::Poll => Some(self.time()),
            Wait::Until(deadline) | Wait::Between(_, deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    /// Whether [`pollable`](EventLoop::pollable) becomes readable for timers and ready tasks, too, as of the last
    /// [`flush`](EventLoop::flush). If not, the outer loop must not wait longer than until
    /// [`next_deadline`](EventLoop::next_deadline).
    pub fn arms_deadlines(&self) -> bool {
        self.core().arms_deadlines.get()
    }

    /// Runs one turn without blocking: polls the driver and runs everything that is ready. Fails if a loop is already
    /// running on this thread.
    pub fn turn_nowait(&self) -> io::Result<()> {
        let _current = self.core().enter_to_run(Kind::HostedTurn)?;
        // Poll the driver even if tasks are ready: an edge-triggered outer loop reports an event only once.
        self.turn_once(|_| Wait::Poll)
    }

    /// Sets a waker for the task or callback of the outer loop that turns this one.
    ///
    /// It is woken when something is queued on the loop's own thread between turns: a task that becomes ready, an operation
    /// that is started or cancelled, a timer that is due before all others. The outer loop must then call
    /// [`turn_nowait`](EventLoop::turn_nowait) and [`flush`](EventLoop::flush) before it waits. Without this, code that uses
    /// the loop between `flush` and the wait would have to call `flush` itself.
    ///
    /// It is woken once until the next turn or flush, and not inside of turns. Replaces an earlier waker;
    /// [`Waker::noop`] ends the waking. Events of the kernel and of other threads make
    /// [`pollable`](EventLoop::pollable) readable instead.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    /// use std::task::{Wake, Waker};
    ///
    /// struct MustTurn(AtomicBool);
    /// impl Wake for MustTurn {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.store(true, Relaxed);
    ///     }
    /// }
    ///
    /// let event_loop = windlass::EventLoop::new()?;
    /// let must_turn = Arc::new(MustTurn(AtomicBool::new(false)));
    /// event_loop.set_host_waker(Waker::from(must_turn.clone()));
    /// let _entered = event_loop.enter();
    /// windlass::spawn(async { println!("in a turn") });
    /// assert!(must_turn.0.load(Relaxed));
    /// event_loop.turn_nowait()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_host_waker(&self, waker: Waker) {
        let old = self.core().host.replace(Some(waker));
        drop(old);
        // A turn that is running handles everything that is queued.
        if self.core().is_running_here() {
            self.core().host.pause();
        }
    }
}
