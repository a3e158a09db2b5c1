//! `shield`, `detach` and `cancel_on_drop`: what happens to a task when its handle is dropped.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::child_set::ChildSet;
use super::future_set::FutureSet;
use super::output::TaskOutput;
use super::{JoinError, JoinHandle, spawn};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};

/// Runs `future` in its own task, which continues if the wait for it is dropped: asyncio's `shield`.
///
/// A timeout or cancellation ends the wait, not the work. Await `&mut shield` to be able to wait again. If the shield
/// is dropped before it returned the result, an error or panic of the task goes to the exception handler.
///
/// Use it for work that must not stop half-way. The work must end by itself: only closing the loop cancels it.
///
/// ```
/// use std::time::Duration;
/// use windlass::{task::shield, time::{sleep, timeout}};
/// windlass::run(async {
///     let mut saving = shield(async {
///         sleep(Duration::from_millis(100)).await;
///         Ok::<_, std::io::Error>("saved")
///     });
///     assert!(timeout(Duration::from_millis(1), &mut saving).await.is_err());
///     assert_eq!(saving.await.unwrap().unwrap(), "saved");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If called outside of a loop.
#[track_caller]
pub fn shield<F>(future: F) -> Shield<F::Output>
where
    F: Future<Output: TaskOutput + 'static> + 'static,
{
    spawn(future).shield()
}

/// The future returned by [`shield`] and [`JoinHandle::shield`].
#[must_use = "await it for the result, or drop it with `drop` if only an error matters"]
pub struct Shield<T: TaskOutput + 'static> {
    /// `None` once the result was returned.
    handle: Option<JoinHandle<T>>,
}

impl<T: TaskOutput> Shield<T> {
    /// The task's plain handle. Dropping it does not report errors.
    pub fn into_handle(mut self) -> JoinHandle<T> {
        let handle = self.handle.take();
        handle.expect("into_handle called after the Shield returned its result")
    }
}

impl<T: TaskOutput> Future for Shield<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_once(&mut self.handle, cx)
    }
}

impl<T: TaskOutput> Drop for Shield<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.detach();
        }
    }
}

impl<T: TaskOutput> fmt::Debug for Shield<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shield").field("task", &self.handle).finish()
    }
}

impl<T: TaskOutput + 'static> JoinHandle<T> {
    /// Wraps the handle so that dropping it does not lose an error: see [`shield`].
    pub fn shield(self) -> Shield<T> {
        Shield { handle: Some(self) }
    }

    /// Detaches the task, as dropping the handle does, and passes an `Err` that it returns to the exception handler.
    /// Outside of a loop, this only drops the handle: errors of a task that has not finished are not reported.
    ///
    /// ```
    /// windlass::run(async {
    ///     windlass::spawn(async { Err::<(), _>("passed to the exception handler") }).detach();
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn detach(self) {
        report_failures(vec![(0, self)], "was not awaited");
    }
}

impl<T> JoinHandle<T> {
    /// Wraps the handle so that dropping it cancels the task, as cancelling an asyncio task cancels the task it awaits.
    /// The task that drops the wrapper is not finished until the cancelled task has ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{spawn, time::{sleep, timeout}};
    /// windlass::run(async {
    ///     let task = spawn(sleep(Duration::MAX)).cancel_on_drop();
    ///     assert!(timeout(Duration::from_millis(1), task).await.is_err());
    ///     // The task is being cancelled now.
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop<T>
    where
        T: 'static,
    {
        CancelOnDrop { handle: Some(self) }
    }
}

/// A [`JoinHandle`] that cancels its task when dropped: see [`JoinHandle::cancel_on_drop`].
#[must_use = "dropping it cancels the task"]
pub struct CancelOnDrop<T: 'static> {
    /// `None` once the result was returned.
    handle: Option<JoinHandle<T>>,
}

impl<T> CancelOnDrop<T> {
    /// The plain handle. Dropping it does not cancel the task.
    pub fn into_handle(mut self) -> JoinHandle<T> {
        let handle = self.handle.take();
        handle.expect("into_handle called after the CancelOnDrop returned its result")
    }
}

impl<T> Future for CancelOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_once(&mut self.handle, cx)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        handle.cancel();
        // The current task waits for the cancelled one, unless they are the same task.
        let Some(core) = LoopCore::try_current() else { return };
        let has_other_task = core.current_task().is_some_and(|current| current != handle.raw());
        if !has_other_task || handle.is_finished() {
            return;
        }
        let child_set = ChildSet::new();
        if handle.raw().has_membership() {
            // The task is a member of another set already: spawn a task that waits for it.
            let watcher = async move {
                if let Err(error) = handle.await
                    && let Ok(payload) = error.try_into_panic()
                {
                    report(Exception::panic("a task that was being cancelled", payload));
                }
            };
            let name = Some("waits for a cancelled task".into());
            drop(child_set.spawn(&core.rc(), watcher, name, Location::caller()));
        } else {
            child_set.adopt(handle.raw());
        }
        child_set.hand_over();
    }
}

impl<T> fmt::Debug for CancelOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelOnDrop").field("task", &self.handle).finish()
    }
}

/// Polls a handle, and drops it once it has returned its result.
fn poll_once<T>(handle: &mut Option<JoinHandle<T>>, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
    let running = handle.as_mut().expect("polled after it returned its result");
    let result = std::task::ready!(Pin::new(running).poll(cx));
    *handle = None;
    Poll::Ready(result)
}

/// Passes errors of tasks that will not be joined to the exception handler: at once, or when the task finishes.
pub(super) fn report_failures<T: TaskOutput + 'static>(handles: Vec<(usize, JoinHandle<T>)>, why: &'static str) {
    let mut running = Vec::new();
    for (_, mut handle) in handles {
        match Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => report_failure(&handle, result, why),
            Poll::Pending => running.push(handle),
        }
    }
    // A closed loop has cancelled them. Without a current loop, the watcher cannot be spawned.
    let is_open = LoopCore::try_current().is_some_and(|core| !core.is_closed());
    if running.is_empty() || !is_open {
        return;
    }
    let watcher = spawn(watch(running, why));
    // The watcher needs no task-locals and would keep them alive.
    watcher.raw().locals().take().drop_guarded();
}

async fn watch<T: TaskOutput + 'static>(handles: Vec<JoinHandle<T>>, why: &'static str) {
    // Returns the handle with the result: the report needs the task's name.
    let watched = handles.into_iter().map(|mut handle| {
        Box::pin(async move {
            let result = (&mut handle).await;
            (handle, result)
        })
    });
    let mut future_set = FutureSet::new(watched);
    while let Some((_, (handle, result))) = std::future::poll_fn(|cx| future_set.poll_next(cx)).await {
        report_failure(&handle, result, why);
    }
}

fn report_failure<T: TaskOutput>(handle: &JoinHandle<T>, result: Result<T, JoinError>, why: &'static str) {
    let task = handle.raw();
    match result {
        Ok(output) => guard("a result's destructor", || {
            if let Err(error) = output.into_result() {
                report(Exception::error(format!("{} failed and {why}", task.describe()), error));
            }
        }),
        Err(error) => {
            if let Ok(payload) = error.try_into_panic() {
                report(Exception::task_panic(task, payload));
            }
        }
    }
}
