//! Embedding the loop in another one, such as that of a GUI, a game or a library.
//! The outer loop waits, and this one runs turns without blocking: [`EventLoop::pollable`] shows how.

use std::io;

use crate::driver::Wait;
use crate::event_loop::EventLoop;
use crate::sys::{self, Borrowed};
use crate::time::Instant;

/// Embedding in another loop.
impl EventLoop {
    /// A descriptor that becomes readable when operations complete or another thread wakes the loop, for an outer loop
    /// to watch with `poll`, `epoll` or the like. Do not read from it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::EventLoop::new()?;
    /// let ours = event_loop.pollable()?;
    /// let task = event_loop.spawn(windlass::time::sleep(Duration::from_millis(5)));
    /// event_loop.turn_nowait()?;
    /// while !task.is_finished() {
    ///     event_loop.flush()?;
    ///     let left = event_loop.next_deadline().map(|deadline| deadline - event_loop.time());
    ///     # fn wait_for(_: std::os::fd::BorrowedFd<'_>, left: Option<Duration>) { std::thread::sleep(left.unwrap()) }
    ///     wait_for(ours, left); // and for the events of the outer loop
    ///     event_loop.turn_nowait()?;
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// `examples/embed.rs` is a complete program around `poll(2)`.
    ///
    /// # Platform differences
    ///
    /// On io_uring, if this loop watches an eventfd, Linux makes the descriptor readable about 15 ms after another
    /// thread's write to that eventfd. Let the other thread call
    /// [`call_soon_threadsafe`](crate::LoopHandle::call_soon_threadsafe) instead, or choose the reactor.
    pub fn pollable(&self) -> io::Result<Borrowed<'_>> {
        self.core().driver().descriptor().map(sys::borrow)
    }

    /// Prepares for a wait of the outer loop: submits the started operations, and makes calls from other threads signal
    /// [`pollable`](EventLoop::pollable). Call it right before the wait, and do not use this loop in between.
    pub fn flush(&self) -> io::Result<()> {
        let core = self.core();
        let result = core.driver().flush();
        if result.is_err() {
            // The exception handler is the current loop's.
            let _entered = core.enter();
            // After a shortage of memory, pauses, and then makes the descriptor readable: the outer loop retries.
            core.check_poll(result, &[], Wait::Forever)?;
            core.driver.borrow().notifier().notify();
        }
        if !core.inbox.fall_asleep() {
            // An item was sent before `ASLEEP` was set, so its sender did not notify.
            core.driver.borrow().notifier().notify();
        }
        Ok(())
    }

    /// When the loop must turn even if [`pollable`](EventLoop::pollable) does not become readable: now if something is
    /// ready to run, else when the first timer must fire at the latest
    /// (its deadline and its [slack](crate::Builder::timer_slack)). `None` without timers: wait for the descriptor only.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.core().next_wait() {
            Wait::No | Wait::Poll => Some(self.time()),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    /// Runs one turn without blocking: polls the driver and runs everything that is ready. Fails if a loop is already
    /// running on this thread.
    pub fn turn_nowait(&self) -> io::Result<()> {
        let _entered = self.core().enter_to_run()?;
        // Poll the driver even if tasks are ready: an edge-triggered outer loop reports an event only once.
        self.turn_once(|_| Wait::Poll)
    }
}
