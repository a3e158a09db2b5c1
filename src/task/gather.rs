//! Tasks whose results are wanted together, by asyncio's rule for `gather`.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::child_set::ChildSet;
use super::future_set::FutureSet;
use super::join_all::{collect, fmt_future_set, outputs};
use super::shield::report_failures;
use super::{JoinError, JoinHandle};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::BoxError;

/// Starts a task for each future, at once, and gives their values in the order of the futures.
///
/// The rule is asyncio's: **the first failure is told at once, and the other tasks go on**; nobody waits for them any more,
/// and what fails among them later is told to the exception handler. Dropping this while it waits, by a timeout or by
/// cancelling the task, cancels all of them, and the enclosing task counts as unfinished until they have ended.
///
/// Where the others should be cancelled instead, use [`group`](super::group), and where every result is wanted,
/// `join_all(futures.map(spawn))`. To gather tasks that run already, gather their
/// [`cancel_on_drop`](JoinHandle::cancel_on_drop).
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
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn gather<I, T, E>(futures: I) -> Gather<T, E>
where
    I: IntoIterator,
    I::Item: Future<Output = Result<T, E>> + 'static,
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
        is_waiting: true,
    }
}

/// The future of [`gather`].
#[must_use = "dropping it cancels what it gathers: await it"]
pub struct Gather<T: 'static, E: Into<BoxError> + 'static> {
    future_set: FutureSet<JoinHandle<Result<T, E>>>,
    outputs: Vec<Option<T>>,
    child_set: Rc<ChildSet>,
    is_waiting: bool,
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
            self.is_waiting = false;
            report_failures(self.future_set.take_rest(), "nobody gathers it any more");
            return Poll::Ready(Err(error));
        }
        self.is_waiting = false;
        Poll::Ready(Ok(collect(&mut self.outputs)))
    }
}

impl<T: 'static, E: Into<BoxError> + 'static> Drop for Gather<T, E> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.child_set.fd_closed();
            // What had failed by now, and what fails before it can be cancelled.
            report_failures(self.future_set.take_rest(), "nobody gathers it any more");
        }
    }
}

impl<T: 'static, E: Into<BoxError> + 'static> fmt::Debug for Gather<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_future_set("Gather", &self.future_set, f)
    }
}

/// Why a task gave no value: its future gave an error, or it ended otherwise.
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
    /// Its future gave this error.
    Failed(E),
    /// It panicked, or was cancelled.
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
            // It is the error itself that is shown.
            TaskError::Failed(error) => error.source(),
            TaskError::Ended(_) => None,
        }
    }
}
