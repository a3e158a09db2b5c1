//! `wait`: waits for some of several futures and returns the rest, as in asyncio.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::future_set::FutureSet;
use crate::time::{Instant, Sleep, sleep, sleep_until};

/// The condition that ends a [`wait`].
///
/// ```
/// use windlass::{spawn, task::{WaitFor, wait}};
/// windlass::run(async {
///     let tasks = [spawn(std::future::pending()), spawn(async { 7 })];
///     let mut waited = wait(tasks, WaitFor::First).await;
///     let (place, result) = waited.done.pop().unwrap();
///     assert_eq!((place, result.unwrap()), (1, 7));
///     assert_eq!(waited.pending.len(), 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitFor {
    /// One future has completed.
    First,
    /// One future has returned an `Err`, or all have completed. For task handles, `Err` means that the task panicked or
    /// was cancelled; to include errors in a task's output, use [`wait_until`].
    FirstError,
    /// All futures have completed.
    All,
}

/// Waits for some of the futures; returns the outputs and the unfinished futures: asyncio's `wait`. Cancels nothing.
///
/// The futures must be `Unpin`: task handles, or `Pin<Box<_>>`. Dropping this future drops them all, which detaches
/// tasks, and loses outputs received so far. For a time limit, use [`Wait::within`], which keeps both.
///
/// ```
/// use std::time::Duration;
/// use windlass::{spawn, task::{WaitFor, wait}, time::sleep};
/// windlass::run(async {
///     let tasks = [1, 3600].map(|seconds| spawn(sleep(Duration::from_secs(seconds))));
///     let waited = wait(tasks, WaitFor::All).within(Duration::from_millis(5)).await;
///     assert_eq!((waited.done.len(), waited.pending.len()), (0, 2));
///     for (_, task) in waited.pending {
///         task.cancel();
///     }
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn wait<I, T, E>(futures: I, until: WaitFor) -> Wait<I::Item>
where
    I: IntoIterator<Item: Future<Output = Result<T, E>> + Unpin>,
{
    wait_until(futures, move |result: &Result<T, E>| match until {
        WaitFor::First => true,
        WaitFor::FirstError => result.is_err(),
        WaitFor::All => false,
    })
}

/// Waits until an output satisfies `is_enough`, or all futures have completed: the general form of [`wait`].
///
/// ```
/// use windlass::{spawn, task::wait_until};
/// windlass::run(async {
///     let tasks = ["1", "x"].map(|text| spawn(async { text.parse::<u8>() }));
///     // Ends at the first panic, cancellation or `Err` output.
///     let waited = wait_until(tasks, |result| !matches!(result, Ok(Ok(_)))).await;
///     assert_eq!(waited.done.last().unwrap().0, 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn wait_until<I, P>(futures: I, is_enough: P) -> Wait<I::Item>
where
    I: IntoIterator<Item: Future + Unpin>,
    P: FnMut(&<I::Item as Future>::Output) -> bool + 'static,
{
    Wait {
        future_set: FutureSet::new(futures),
        is_enough: Box::new(is_enough),
        enough: false,
        done: Vec::new(),
        deadline: None,
    }
}

/// The future returned by [`wait`] and [`wait_until`].
#[must_use = "futures do nothing unless awaited"]
pub struct Wait<F: Future> {
    future_set: FutureSet<F>,
    is_enough: Predicate<F::Output>,
    enough: bool,
    done: Vec<(usize, F::Output)>,
    deadline: Option<Sleep>,
}

type Predicate<T> = Box<dyn FnMut(&T) -> bool>;

/// Outputs are not pinned, and the futures are boxed.
impl<F: Future> Unpin for Wait<F> {}

impl<F: Future> Wait<F> {
    /// Waits for at most `duration`, then returns the outputs so far.
    pub fn within(mut self, duration: Duration) -> Wait<F> {
        self.deadline = Some(sleep(duration));
        self
    }

    /// Waits until `deadline` at the latest, then returns the outputs so far.
    pub fn until(mut self, deadline: Instant) -> Wait<F> {
        self.deadline = Some(sleep_until(deadline));
        self
    }
}

impl<F: Future + Unpin> Future for Wait<F> {
    type Output = Waited<F>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Waited<F>> {
        let this = &mut *self;
        // Takes everything that is ready, even if the first output is enough.
        while let Poll::Ready(next) = this.future_set.poll_next(cx) {
            let Some((number, output)) = next else {
                this.enough = true;
                break;
            };
            this.enough |= (this.is_enough)(&output);
            this.done.push((number, output));
        }
        let is_late = |sleep: &mut Sleep| Pin::new(sleep).poll(cx).is_ready();
        if !this.enough && !this.deadline.as_mut().is_some_and(is_late) {
            return Poll::Pending;
        }
        Poll::Ready(Waited {
            done: std::mem::take(&mut this.done),
            pending: this.future_set.take_rest(),
        })
    }
}

impl<F: Future> fmt::Debug for Wait<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future_set.fmt_as("Wait", f)
    }
}

/// The result of [`wait`]: outputs and unfinished futures, each with its index in the input.
///
/// ```
/// use windlass::{spawn, task::{WaitFor, wait}};
/// windlass::run(async {
///     let waited = wait([spawn(async { 1 }), spawn(async { 2 })], WaitFor::All).await;
///     assert_eq!(waited.done.len(), 2);
///     assert!(waited.pending.is_empty());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "contains the unfinished tasks; dropping it detaches them"]
pub struct Waited<F: Future> {
    /// Outputs in the order of completion.
    pub done: Vec<(usize, F::Output)>,
    /// Unfinished futures in the order of the input. They can be awaited again.
    pub pending: Vec<(usize, F)>,
}

impl<F: Future> fmt::Debug for Waited<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waited")
            .field("done", &self.done.len())
            .field("pending", &self.pending.len())
            .finish()
    }
}
