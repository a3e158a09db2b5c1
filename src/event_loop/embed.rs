//! Running inside another loop: a GUI's, a game's, a library's.
//!
//! The outer loop waits; ours only turns. Before it waits, it tells us ([`EventLoop::flush`]), and asks how long it may
//! ([`EventLoop::next_deadline`]). When the descriptor that it watches for us ([`EventLoop::pollable`]) is readable, or
//! the time has come, it turns us without waiting ([`EventLoop::turn_nowait`]).

use std::io;

use crate::driver::Wait;
use crate::event_loop::EventLoop;
use crate::sys::{self, Borrowed};
use crate::time::Instant;

/// Inside another loop.
impl EventLoop {
    /// A descriptor that becomes readable when the loop has something to do, for an outer loop to watch with `poll`,
    /// `epoll` or whatever it has. Only watch it; reading from it is the loop's business.
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
    ///     wait_for(ours, left); // and for whatever else the outer loop waits for
    ///     event_loop.turn_nowait()?;
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// `examples/embed.rs` is a whole program around `poll(2)`.
    ///
    /// On io_uring Linux is some 15 ms late to tell that a foreign eventfd was written to. Let the other thread use
    /// [`call_soon_threadsafe`](crate::LoopHandle::call_soon_threadsafe), or choose the reactor.
    pub fn pollable(&self) -> io::Result<Borrowed<'_>> {
        self.core().driver().descriptor().map(sys::borrow)
    }

    /// To be called right before the outer loop waits, with nothing of this loop touched in between: hands what was started
    /// to the kernel, and lets calls from other threads make [`pollable`](EventLoop::pollable) readable from now on.
    pub fn flush(&self) -> io::Result<()> {
        let core = self.core();
        core.flush()?;
        if !core.inbox.fall_asleep() {
            // Something was sent before we could be woken for it.
            core.driver.borrow().notifier().notify();
        }
        Ok(())
    }

    /// When the loop must turn even if [`pollable`](EventLoop::pollable) does not become readable: now if something is
    /// ready to run, else when the first timer is due. `None` if nothing but the descriptor can give it work.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.core().next_wait() {
            Wait::No | Wait::Look => Some(self.time()),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        }
    }

    /// One turn that does not sleep: looks what has happened, and runs what is ready. An error if a loop is running on
    /// this thread already.
    pub fn turn_nowait(&self) -> io::Result<()> {
        let _entered = self.core().enter_to_run()?;
        // One look, whatever there is to run: the outer loop may hear of news only once.
        self.turn_once(|_| Wait::Look)
    }
}
