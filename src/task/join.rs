//! `JoinHandle`, which awaits or cancels a task, and `JoinError`, the error of a task without a result.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use super::TaskId;
use super::raw::{RawTask, TaskRef};
use crate::event_loop::exception::panic_message;
use crate::event_loop::handle::RemoteHandle;

/// A handle to a spawned task. Awaiting it returns `Result<T, JoinError>`.
///
/// Dropping the handle detaches the task: it keeps running, and its output is dropped. If a detached task panics, the
/// loop's exception handler is called. If it returns an `Err`, the handler is called too, as for asyncio's "exception
/// was never retrieved": for the first, tenth, hundredth, ... such error of each spawn location, with the count. To
/// report every error, or an error type that the report can only name, use [`detach`](JoinHandle::detach); to ignore
/// errors, return `()`: `spawn(async { let _ = work().await; })`.
///
/// ```
/// windlass::run(async {
///     let task = windlass::spawn(async { 6 * 7 });
///     assert_eq!(task.await.unwrap(), 42);
///
///     let task = windlass::spawn(std::future::pending::<()>());
///     task.cancel();
///     assert!(task.await.unwrap_err().is_cancelled());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinHandle<T> {
    task: RawTask,
    /// `fn() -> T` makes the handle `Unpin` for every `T`.
    output: PhantomData<fn() -> T>,
}

impl<T> JoinHandle<T> {
    pub(super) fn new(task: RawTask) -> JoinHandle<T> {
        JoinHandle {
            task,
            output: PhantomData,
        }
    }

    /// Drops the task's future at its next suspension point: in the next turn if it is waiting, after the current poll
    /// if it is running. The handle resolves to a [`JoinError`] once every operation that the task had in the kernel
    /// has completed. A task that finishes first keeps its result. Cancelling a finished task does nothing.
    #[doc(alias = "abort")]
    pub fn cancel(&self) {
        self.task.cancel();
    }

    /// Whether the task has ended and every operation that it had in the kernel has completed.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.task.id()
    }

    /// The task's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.task.name()
    }

    /// A handle that can cancel the task but not await it, with tokio's name. It does not keep the output.
    ///
    /// ```
    /// windlass::run(async {
    ///     let task = windlass::spawn(std::future::pending::<()>());
    ///     let abort = task.abort_handle();
    ///     abort.abort();
    ///     assert!(task.await.unwrap_err().is_cancelled());
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.task)
    }

    /// Turns this into a handle that is `Send`: it can be awaited on any runtime, block another thread or cancel the task
    /// from there. Results, panics and reports of errors that are never read stay the same.
    ///
    /// ```
    /// windlass::run(async {
    ///     let shared = std::rc::Rc::new(5); // the task itself need not be `Send`
    ///     let task = windlass::spawn(async move { *shared + 1 }).into_remote();
    ///     let sum = windlass::spawn_blocking(move || task.wait().unwrap() + 1);
    ///     assert_eq!(sum.await.unwrap(), 7);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If called outside of the task's loop before the task has finished.
    #[track_caller]
    pub fn into_remote(self) -> RemoteHandle<T>
    where
        T: Send + 'static,
    {
        RemoteHandle::of_task(self)
    }

    pub(crate) fn raw(&self) -> RawTask {
        self.task
    }
}

/// Cancels a task without owning its result: from [`JoinSet::spawn`](super::JoinSet::spawn) or
/// [`JoinHandle::abort_handle`]. Dropping it has no effect.
pub struct AbortHandle {
    task: TaskRef,
}

impl AbortHandle {
    pub(super) fn new(task: RawTask) -> AbortHandle {
        AbortHandle {
            task: TaskRef::new(task),
        }
    }

    /// Cancels the task, as [`JoinHandle::cancel`].
    pub fn abort(&self) {
        self.task.cancel();
    }

    /// Whether the task has ended and every operation that it had in the kernel has completed.
    pub fn is_finished(&self) -> bool {
        self.task.task().is_finished()
    }

    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.task.task().id()
    }
}

impl Clone for AbortHandle {
    fn clone(&self) -> AbortHandle {
        AbortHandle::new(self.task.task())
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle")
            .field("id", &self.id())
            .field("finished", &self.is_finished())
            .finish()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll_join(cx)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        self.task.detach();
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Why a task or blocking job returned no result: it was cancelled, it panicked, it failed in a group, or it could not
/// be started. In the last case, conversion to [`io::Error`] returns the cause.
pub struct JoinError {
    /// Boxed, because every task result reserves space for it and it is rare.
    inner: Box<Inner>,
}

struct Inner {
    id: TaskId,
    cause: Cause,
}

enum Cause {
    Cancelled,
    /// A child of a group failed; the group has the error.
    Failed,
    /// Spawned in a group that had failed or ended: it was never polled.
    Refused,
    /// The mutex only makes the error `Sync`, so that `?` can convert it to `Box<dyn Error + Send + Sync>`.
    Panicked(Mutex<Box<dyn Any + Send>>),
    NotStarted(io::Error),
}

impl JoinError {
    #[cold]
    fn new(id: TaskId, cause: Cause) -> JoinError {
        JoinError {
            inner: Box::new(Inner { id, cause }),
        }
    }

    pub(crate) fn cancelled(id: TaskId) -> JoinError {
        JoinError::new(id, Cause::Cancelled)
    }

    pub(crate) fn failed(id: TaskId) -> JoinError {
        JoinError::new(id, Cause::Failed)
    }

    pub(crate) fn refused(id: TaskId) -> JoinError {
        JoinError::new(id, Cause::Refused)
    }

    pub(crate) fn panicked(id: TaskId, payload: Box<dyn Any + Send>) -> JoinError {
        JoinError::new(id, Cause::Panicked(Mutex::new(payload)))
    }

    pub(crate) fn not_started(error: io::Error) -> JoinError {
        JoinError::new(TaskId(0), Cause::NotStarted(error))
    }

    /// Whether the task was cancelled; also true if it was [refused](JoinError::is_refused).
    pub fn is_cancelled(&self) -> bool {
        matches!(self.inner.cause, Cause::Cancelled | Cause::Refused)
    }

    /// Whether the task was never polled, because its [`TaskGroup`](super::TaskGroup) had failed, was cancelled or had
    /// ended when the task was spawned.
    pub fn is_refused(&self) -> bool {
        matches!(self.inner.cause, Cause::Refused)
    }

    /// Whether the task is a child of a [`TaskGroup`](super::TaskGroup) and failed or panicked: the group has the
    /// error.
    pub fn is_failed(&self) -> bool {
        matches!(self.inner.cause, Cause::Failed)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.inner.cause, Cause::Panicked(_))
    }

    /// The panic's payload, for [`std::panic::resume_unwind`]. Returns `self` if the task did not panic.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        let Inner { id, cause } = *self.inner;
        match cause {
            Cause::Panicked(payload) => Ok(payload.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())),
            cause => Err(JoinError::new(id, cause)),
        }
    }

    /// The task's id; 0 for a blocking job, or if the loop closed before the future of a `RemoteHandle` completed.
    pub fn id(&self) -> TaskId {
        self.inner.id
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.inner.id.0 {
            0 => "the work".to_owned(),
            id => format!("task {id}"),
        };
        match &self.inner.cause {
            Cause::Cancelled => write!(f, "{subject} was cancelled"),
            Cause::Failed => write!(f, "{subject} failed: its group has the error"),
            Cause::Refused => write!(f, "{subject} was not started: its group had failed or ended"),
            Cause::Panicked(payload) => {
                let payload = payload.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                write!(f, "{subject} panicked: {}", panic_message(&**payload))
            }
            Cause::NotStarted(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        match error.inner.cause {
            Cause::NotStarted(error) => error,
            _ => io::Error::other(error.to_string()),
        }
    }
}
