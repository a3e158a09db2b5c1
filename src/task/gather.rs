//! `gather`: one task per future, with asyncio's error rules.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::child_set::ChildSet;
use super::future_set::FutureSet;
use super::join_all::{collect, outputs};
use super::shield::report_failures;
use super::{JoinError, JoinHandle};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::BoxError;

/// Spawns a task for each future and returns their values in the order of the futures.
///
/// The rules are asyncio's: **the first failure is returned immediately, and the other tasks continue.** Their later
/// failures go to the exception handler.
///
/// - To cancel the other tasks after a failure, use [`group`](fn@super::group).
/// - To get every result, use `join_all(futures.map(spawn))`.
/// - To gather tasks that are already running, pass their [`cancel_on_drop`](JoinHandle::cancel_on_drop).
///
/// ```
/// use windlass::task::gather;
/// windlass::run(async {
///     let values = gather(["1", "2"].map(|text| async { text.parse::<u8>() })).await;
///     assert_eq!(values.unwrap(), [1, 2]);
///     let error = gather(["1", "x"].map(|text| async { text.parse::<u8>() })).await.unwrap_err();
///     assert_eq!(error.to_string(), "invalid digit found in string");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cancel safety
///
/// Dropping this future early cancels all tasks. The enclosing task is not finished until they have ended.
///
/// # Panics
///
/// If called outside of a loop.
#[track_caller]
pub fn gather<I, T, E>(futures: I) -> Gather<T, E>
where
    I: IntoIterator<Item: Future<Output = Result<T, E>> + 'static>,
    T: 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let core = LoopCore::current("gather").rc();
    let (child_set, location) = (ChildSet::new(), Location::caller());
    let start = |future| child_set.spawn(&core, future, None, location);
    let future_set = FutureSet::new(futures.into_iter().map(start));
    Gather {
        outputs: outputs(future_set.len()),
        future_set,
        child_set,
    }
}

/// The future returned by [`gather`].
#[must_use = "dropping it cancels the tasks: await it"]
pub struct Gather<T: 'static, E: Into<BoxError> + 'static> {
    future_set: FutureSet<JoinHandle<Result<T, E>>>,
    outputs: Vec<Option<T>>,
    child_set: Rc<ChildSet>,
}

/// Values and errors are not pinned.
impl<T: 'static, E: Into<BoxError> + 'static> Unpin for Gather<T, E> {}

impl<T: 'static, E: Into<BoxError> + 'static> Future for Gather<T, E> {
    type Output = Result<Vec<T>, TaskError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some((number, output)) = std::task::ready!(self.future_set.poll_next(cx)) {
            let error = match output {
                Ok(Ok(value)) => {
                    self.outputs[number] = Some(value);
                    continue;
                }
                Ok(Err(error)) => TaskError::Failed(error),
                Err(error) => TaskError::Ended(error),
            };
            report_failures(self.future_set.take_rest(), "its `gather` had ended");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(collect(&mut self.outputs)))
    }
}

impl<T: 'static, E: Into<BoxError> + 'static> Drop for Gather<T, E> {
    fn drop(&mut self) {
        if self.future_set.running() > 0 {
            self.child_set.cancel_and_hand_over();
            // Tasks that have failed, or fail before they are cancelled.
            report_failures(self.future_set.take_rest(), "its `gather` had ended");
        }
    }
}

impl<T: 'static, E: Into<BoxError> + 'static> fmt::Debug for Gather<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future_set.fmt_as("Gather", f)
    }
}

/// Why a task of [`gather`] returned no value.
///
/// ```
/// use windlass::task::{TaskError, gather};
/// windlass::run(async {
///     match gather([async { Err::<(), _>("no such page") }]).await {
///         Err(TaskError::Failed(error)) => assert_eq!(error, "no such page"),
///         other => unreachable!("{other:?}"),
///     }
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub enum TaskError<E> {
    /// The task's future returned this error.
    Failed(E),
    /// The task panicked or was cancelled.
    Ended(JoinError),
}

impl<E: fmt::Display> fmt::Display for TaskError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskError::Failed(error) => error.fmt(f),
            TaskError::Ended(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for TaskError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // `Display` shows the inner error itself, so its source follows.
            TaskError::Failed(error) => error.source(),
            TaskError::Ended(_) => None,
        }
    }
}
