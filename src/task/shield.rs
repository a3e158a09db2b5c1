//! Tasks and those who wait for them: letting one end without the other, and ending both.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::child_set::ChildSet;
use super::future_set::FutureSet;
use super::outcome::Outcome;
use super::{JoinError, JoinHandle, spawn};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};

/// Runs `future` in a task of its own, which goes on if the wait for it is dropped: asyncio's `shield`.
///
/// A timeout or a cancel ends the wait, not the work. Await `&mut shield` to be able to ask again. If the shield is dropped
/// before it has given the result, the exception handler is told of an error or a panic.
///
/// Use it for what must not stop half-way, and see that it ends: nobody else will see to it.
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
/// Outside of a loop.
#[track_caller]
pub fn shield<F>(future: F) -> Shield<F::Output>
where
    F: Future + 'static,
    F::Output: Outcome + 'static,
{
    spawn(future).shield()
}

/// The future of [`shield`] and [`JoinHandle::shield`].
#[must_use = "await it for the result, or drop it with `drop` if only an error matters"]
pub struct Shield<T: Outcome + 'static> {
    /// `None` once it has given the result.
    handle: Option<JoinHandle<T>>,
}

impl<T: Outcome> Shield<T> {
    /// The task's handle. From here on nobody is told of an error but who awaits that.
    pub fn into_handle(mut self) -> JoinHandle<T> {
        self.handle
            .take()
            .expect("a Shield was asked after it had given its result")
    }
}

impl<T: Outcome> Future for Shield<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(handle) = &mut self.handle else {
            panic!("a Shield was polled after it had given its result");
        };
        let result = std::task::ready!(Pin::new(handle).poll(cx));
        self.handle = None;
        Poll::Ready(result)
    }
}

impl<T: Outcome> Drop for Shield<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.detach();
        }
    }
}

impl<T: Outcome> fmt::Debug for Shield<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shield").field("task", &self.handle).finish()
    }
}

impl<T: Outcome + 'static> JoinHandle<T> {
    /// A wait for this task that can be dropped without losing an error: see [`shield`].
    pub fn shield(self) -> Shield<T> {
        Shield { handle: Some(self) }
    }

    /// Lets the task run on without anybody waiting for it, as dropping the handle does, but has the exception handler told
    /// if it ends with an error.
    ///
    /// ```
    /// windlass::run(async {
    ///     windlass::spawn(async { Err::<(), _>("told to the exception handler") }).detach();
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn detach(self) {
        report_failures(vec![(0, self)], "nobody awaited it");
    }
}

impl<T> JoinHandle<T> {
    /// A handle whose loss cancels the task, as a task that awaits another one does in asyncio. Whoever drops it counts as
    /// unfinished until the task has ended.
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

/// Made by [`JoinHandle::cancel_on_drop`].
#[must_use = "dropping it cancels the task"]
pub struct CancelOnDrop<T: 'static> {
    /// `None` once it has given the result.
    handle: Option<JoinHandle<T>>,
}

impl<T> CancelOnDrop<T> {
    /// The plain handle: dropping that lets the task run on.
    pub fn into_handle(mut self) -> JoinHandle<T> {
        let handle = self.handle.take();
        handle.expect("a CancelOnDrop was asked after it had given its result")
    }
}

impl<T> Future for CancelOnDrop<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(handle) = &mut self.handle else {
            panic!("a CancelOnDrop was polled after it had given its result");
        };
        let result = std::task::ready!(Pin::new(handle).poll(cx));
        self.handle = None;
        Poll::Ready(result)
    }
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        handle.cancel();
        let Some(core) = LoopCore::try_current().filter(|core| core.current_task().is_some() && !handle.is_finished())
        else {
            return;
        };
        // Whoever drops this waits for it, unless it is the task itself.
        let child_set = ChildSet::new();
        if core.current_task() == Some(handle.raw()) {
            return;
        }
        if !handle.raw().has_membership() {
            child_set.adopt(handle.raw());
            child_set.hand_over();
            return;
        }
        // Somebody else waits for it already: a task that waits too.
        let watcher = async move {
            if let Err(error) = handle.await
                && let Ok(payload) = error.try_into_panic()
            {
                report(Exception::panic("a task that was being cancelled", payload));
            }
        };
        let name = Some("waits for a cancelled task".into());
        drop(child_set.spawn(&core.rc(), watcher, name, Location::caller()));
        child_set.hand_over();
    }
}

impl<T> fmt::Debug for CancelOnDrop<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelOnDrop").field("task", &self.handle).finish()
    }
}

/// Tells the exception handler of errors of tasks that nobody will join: at once of those that have ended, and of the
/// others when they end.
pub(super) fn report_failures<T: Outcome + 'static>(handles: Vec<(usize, JoinHandle<T>)>, why: &'static str) {
    let mut running = Vec::new();
    for (_, mut handle) in handles {
        match Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => report_failure(&handle, result, why),
            Poll::Pending => running.push(handle),
        }
    }
    // A loop that is closed or not there has cancelled them, or runs no more.
    let is_open = LoopCore::try_current().is_some_and(|core| !core.is_closed());
    if running.is_empty() || !is_open {
        return;
    }
    let watcher = spawn(watch(running, why));
    // It asks for no task-locals, and would keep them for as long as it lives.
    watcher.raw().locals().take().drop_guarded();
}

async fn watch<T: Outcome + 'static>(handles: Vec<JoinHandle<T>>, why: &'static str) {
    // The handle comes with its result, for the name.
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

fn report_failure<T: Outcome>(handle: &JoinHandle<T>, result: Result<T, JoinError>, why: &'static str) {
    let task = handle.raw();
    let name = task.name().map(|name| format!(" '{name}'")).unwrap_or_default();
    let who = format!("task {}{name}, spawned at {},", task.id(), task.spawned_at());
    match result {
        Ok(output) => crate::event_loop::exception::guard("a result's destructor", || {
            if let Err(error) = output.into_result() {
                report(Exception::failure(format!("{who} failed and {why}"), error));
            }
        }),
        Err(error) => {
            if let Ok(payload) = error.try_into_panic() {
                report(Exception::task_panic(
                    task.id(),
                    task.name(),
                    task.spawned_at(),
                    payload,
                ));
            }
        }
    }
}
