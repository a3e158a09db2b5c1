//! A windlass loop as a guest of tokio's `current_thread` runtime: tokio waits, and a future of tokio turns the loop.
//!
//! The loop is entered for as long as it is driven, so code of tokio's tasks can spawn windlass tasks and use its streams. What
//! they queue between turns wakes the driving future (`EventLoop::set_host_waker`); tokio polls what is ready before it waits, so
//! operations are submitted in time. Completions, timers and other threads make the loop's descriptor readable, which tokio
//! watches.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;
use windlass::EventLoop;

use crate::gate::Gate;

/// Runs a future on a new tokio `current_thread` runtime, with a new windlass loop on the same thread, and returns its output.
///
/// The future, its tokio tasks and its windlass tasks can use both: [`windlass::spawn`] and `tokio::spawn`, streams and timers of
/// each kind.
///
/// ```
/// use std::time::Duration;
/// windlass_tokio::run(async {
///     let ours = windlass::spawn(async {
///         tokio::time::sleep(Duration::from_millis(1)).await; // tokio's timer in a windlass task
///     });
///     let theirs = tokio::spawn(async {
///         windlass::time::sleep(Duration::from_millis(1)).await; // windlass's timer in a tokio task
///     });
///     ours.await.unwrap();
///     theirs.await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If the loop or the runtime cannot be made, or if the loop fails. For settings of the loop, see [`Guest::block_on`]; for a runtime
/// of your own, [`Guest::run`].
pub fn run<F: Future>(future: F) -> io::Result<F::Output> {
    Guest::new(EventLoop::new()?)?.block_on(future)
}

/// A windlass loop that is driven by a tokio runtime on the same thread.
///
/// ```
/// use windlass_tokio::Guest;
///
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?; // or `#[tokio::main]`
/// runtime.block_on(async {
///     let guest = Guest::new(windlass::Builder::new().precise_timers(true).build()?)?;
///     let answer = guest.run(async { windlass::spawn(async { 42 }).await.unwrap() }).await?;
///     assert_eq!(answer, 42);
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Guest {
    event_loop: EventLoop,
}

impl Guest {
    /// Makes a guest of a loop.
    ///
    /// # Errors
    ///
    /// If the loop's driver has no descriptor that tokio could watch, as the null driver.
    pub fn new(event_loop: EventLoop) -> io::Result<Guest> {
        event_loop.pollable()?;
        Ok(Guest { event_loop })
    }

    /// The loop.
    pub fn event_loop(&self) -> &EventLoop {
        &self.event_loop
    }

    /// Runs a future on a new `current_thread` runtime, with this loop on the same thread. Afterwards the loop closes, inside of the
    /// runtime's context, so that values of tokio's libraries in windlass tasks can be dropped.
    ///
    /// # Errors
    ///
    /// If the runtime cannot be made, or if the loop fails.
    pub fn block_on<F: Future>(self, future: F) -> io::Result<F::Output> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move { self.run(future).await })
    }

    /// Drives the loop until `future` completes, and returns its output. Must be awaited in a tokio runtime, in its `block_on` or
    /// in a `LocalSet`. Other windlass tasks continue when the loop is driven again; dropping the guest cancels them.
    ///
    /// Meanwhile the loop is the current one of this thread. On a `current_thread` runtime that includes all tokio tasks.
    ///
    /// # Errors
    ///
    /// If the loop fails; the future is then dropped.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, or if it has no I/O driver (`enable_io`).
    pub async fn run<F: Future>(&self, future: F) -> io::Result<F::Output> {
        // Entered before everything that is dropped inside of the loop.
        let _entered = self.event_loop.enter();
        let (mut future, mut driving) = (pin!(future), pin!(self.turn_forever()));
        // Each is polled only if it was woken itself.
        let (future_gate, driving_gate) = (Gate::new(), Gate::new());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future_gate.poll(future.as_mut(), cx) {
                return Poll::Ready(Ok(output));
            }
            driving_gate.poll(driving.as_mut(), cx).map(Err)
        })
        .await
    }

    /// Drives the loop until it fails: a future to be raced with others, or for `tokio::task::spawn_local`. Meanwhile the loop
    /// is the current one of this thread, as in [`run`](Guest::run).
    ///
    /// # Panics
    ///
    /// As [`run`](Guest::run).
    pub async fn drive(&self) -> io::Error {
        let _entered = self.event_loop.enter();
        self.turn_forever().await
    }

    /// Turns the loop whenever it has something to do. tokio's task budget does not apply: it would delay turns.
    async fn turn_forever(&self) -> io::Error {
        let turning = async {
            let event_loop = &self.event_loop;
            let pollable = event_loop.pollable()?;
            // SAFETY: the loop owns the descriptor, and closes it when it is dropped itself. `Turning` borrows the loop, so the
            // registration ends before.
            let descriptor = unsafe { AsyncFd::register_with_interest(pollable, Interest::READABLE) }?;
            let mut turning = Turning {
                event_loop,
                descriptor,
                waker: Waker::noop().clone(),
                timer: None,
            };
            poll_fn(|cx| turning.poll(cx)).await
        };
        match tokio::task::unconstrained(turning).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("event_loop", &self.event_loop).finish()
    }
}

enum Never {}

/// The state of [`Guest::turn_forever`].
struct Turning<'a> {
    event_loop: &'a EventLoop,
    descriptor: AsyncFd<std::os::fd::BorrowedFd<'a>>,
    /// The loop's host waker.
    waker: Waker,
    /// For drivers that do not arm deadlines.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Turning<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Never>> {
        if !self.waker.will_wake(cx.waker()) {
            self.waker.clone_from(cx.waker());
            self.event_loop.set_host_waker(self.waker.clone());
        }
        // Cleared before the turn, which handles all events so far: later ones make the descriptor readable again.
        while let Poll::Ready(readable) = self.descriptor.poll_read_ready(cx) {
            readable?.clear_ready();
        }
        self.event_loop.turn_nowait()?;
        let left = self.left();
        if left == Some(Duration::ZERO) {
            // tokio's tasks run before the next turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.event_loop.flush()?;
        match left {
            Some(left) if !self.event_loop.arms_deadlines() => self.poll_timer(left, cx),
            _ => Poll::Pending,
        }
    }

    /// The time until the loop must turn.
    fn left(&self) -> Option<Duration> {
        let deadline = self.event_loop.next_deadline()?;
        Some(deadline - self.event_loop.time())
    }

    /// Wakes this future after `left`, by tokio's timer, which counts in milliseconds.
    #[cold]
    fn poll_timer(&mut self, left: Duration, cx: &mut Context<'_>) -> Poll<io::Result<Never>> {
        let timer = self.timer.insert(Box::pin(tokio::time::sleep(left)));
        ready!(timer.as_mut().poll(cx));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.event_loop.set_host_waker(Waker::noop().clone());
    }
}
