//! `on_cancel`: asynchronous cleanup after cancellation.
//!
//! A cancelled future is dropped, and destructors cannot await. So the cleanup is registered in advance; if its guard
//! is dropped while armed, the loop runs the cleanup in a task of its own.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use super::child_set::ChildSet;
use super::output::TaskOutput;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::on_drop::OnDrop;
use crate::time::timeout;

/// Registers a future to be awaited if the current work is cancelled: the counterpart of asyncio's `except
/// CancelledError` and `finally`.
///
/// If the returned guard is dropped while armed, because the task is cancelled, a timeout expires or a panic unwinds,
/// the loop runs `cleanup` for at most `within`. The task that drops the guard is not finished until the cleanup has
/// ended: its handle, its group and the loop's shutdown wait for it.
///
/// - [`disarm`](OnCancel::disarm) the guard when the work is done.
/// - [`run`](OnCancel::run) it to clean up in place.
/// - [`during`](OnCancel::during) runs the work and then disarms the guard.
///
/// If the loop runs `cleanup` and it fails, panics or exceeds `within`, the exception handler is called.
///
/// ```
/// use std::{cell::Cell, rc::Rc, time::Duration};
/// use windlass::{spawn, task::{on_cancel, yield_now}, time::sleep};
///
/// windlass::run(async {
///     let undone = Rc::new(Cell::new(false));
///     let task = spawn({
///         let undone = undone.clone();
///         async move {
///             let rollback = on_cancel(Duration::from_secs(1), async move {
///                 sleep(Duration::from_millis(1)).await; // for example, notify a server
///                 undone.set(true);
///             });
///             sleep(Duration::from_secs(3600)).await;
///             rollback.disarm();
///         }
///     });
///     yield_now().await;
///     task.cancel();
///     assert!(task.await.unwrap_err().is_cancelled());
///     assert!(undone.get());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If called outside of a loop.
#[track_caller]
pub fn on_cancel<F>(within: Duration, cleanup: F) -> OnCancel<F>
where
    F: Future<Output: TaskOutput> + 'static,
{
    let core = LoopCore::current("on_cancel").rc();
    core.cleanups.armed.set(core.cleanups.armed.get() + 1);
    OnCancel {
        cleanup: Some(Box::pin(cleanup)),
        within,
        core,
        location: Location::caller(),
    }
}

/// A guard that runs its cleanup when dropped: see [`on_cancel`].
#[must_use = "dropping the guard runs the cleanup: hold it while the work runs"]
pub struct OnCancel<F: Future<Output: TaskOutput> + 'static> {
    /// `None` once it has run or was disarmed. Boxed, so that a cleanup that `run` has polled can move into a task.
    cleanup: Option<Pin<Box<F>>>,
    within: Duration,
    core: Rc<LoopCore>,
    location: &'static Location<'static>,
}

impl<F: Future<Output: TaskOutput> + 'static> OnCancel<F> {
    /// Drops the cleanup without running it.
    pub fn disarm(mut self) {
        drop(self.cleanup.take());
    }

    /// Runs the cleanup in place, without the time limit. If this future is dropped early, the loop continues it.
    pub async fn run(mut self) -> F::Output {
        let output = poll_fn(|cx| {
            let cleanup = self
                .cleanup
                .as_mut()
                .expect("the cleanup is present until it completes");
            catch_unwind(AssertUnwindSafe(|| cleanup.as_mut().poll(cx))).unwrap_or_else(|payload| {
                // A future that panicked must not be polled again.
                let failed = self.cleanup.take();
                guard("a cleanup's destructor", || drop(failed));
                resume_unwind(payload)
            })
        })
        .await;
        self.cleanup = None;
        output
    }

    /// Runs `work`, and cleans up only if `work` does not complete: it is dropped early, or panics.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{task::on_cancel, time::{sleep, timeout}};
    /// windlass::run(async {
    ///     let work = async { 5 };
    ///     let cleanup = on_cancel(Duration::from_secs(1), async { unreachable!("the work completed") });
    ///     assert_eq!(cleanup.during(work).await, 5);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn during<W: Future>(self, work: W) -> W::Output {
        // Declared before `work`, so that it is dropped after it.
        let armed = self;
        let work = pin!(work);
        let output = work.await;
        armed.disarm();
        output
    }
}

impl<F: Future<Output: TaskOutput> + 'static> Drop for OnCancel<F> {
    fn drop(&mut self) {
        let cleanups = &self.core.cleanups;
        cleanups.armed.set(cleanups.armed.get() - 1);
        let Some(cleanup) = self.cleanup.take() else { return };
        if self.core.is_closed() {
            drop(cleanup);
            // In a forked child the cleanup is left to the parent. A crash runs none.
            if !self.core.is_forked() && !self.core.crashed.get() {
                report(not_done(self.location, "its loop is closed"));
            }
            return;
        }
        let (within, location) = (self.within, self.location);
        cleanups.running.set(cleanups.running.get() + 1);
        let core = self.core.clone();
        let running = OnDrop(move || core.cleanups.running.set(core.cleanups.running.get() - 1));
        let future = async move {
            let _running = running;
            match timeout(within, cleanup).await.map(TaskOutput::into_result) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    let context = format!("the cleanup registered at {location} failed");
                    report(Exception::error(context, error));
                }
                Err(_) => report(not_done(location, &format!("it took longer than {within:?}"))),
            }
        };
        let name = Some("cleanup".into());
        // Detached: the exception handler gets a panic.
        drop(ChildSet::for_cleanup(&self.core).spawn(&self.core, future, name, location));
    }
}

fn not_done(location: &Location<'_>, why: &str) -> Exception {
    let error = io::Error::new(io::ErrorKind::TimedOut, why.to_owned());
    Exception::error(format!("the cleanup registered at {location} did not complete"), error)
}

impl<F: Future<Output: TaskOutput> + 'static> fmt::Debug for OnCancel<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCancel")
            .field("within", &self.within)
            .field("registered_at", &self.location)
            .finish_non_exhaustive()
    }
}

/// Counts of a loop's cleanups. If either is above zero, closing the loop cancels the tasks and waits for `running`.
#[derive(Default)]
pub(crate) struct Cleanups {
    /// Registered, neither run nor disarmed.
    pub(crate) armed: std::cell::Cell<usize>,
    /// Running in a task.
    pub(crate) running: std::cell::Cell<usize>,
}
