//! Cleaning up after a cancel, where that has to await something.
//!
//! In Rust a cancelled future is dropped, and destructors cannot await. So what is to be awaited is written down beforehand
//! and, should it come to that, run by the loop, in a task of its own. The task that was cancelled counts as unfinished
//! until the cleanup is over, and so does everybody who waits for it: groups, and the end of the loop.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use super::child_set::ChildSet;
use super::outcome::Outcome;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};
use crate::time::timeout;

/// Says what is to be awaited if the work here is cut off: what asyncio's `except CancelledError` and `finally` are for.
///
/// If what this gives is dropped, because the task is cancelled, a timeout is over, or a panic unwinds, the loop runs
/// `cleanup`, for at most `within`. The current task counts as unfinished until then: its handle, its group, and the end of
/// the loop wait for it. [`disarm`](OnCancel::disarm) it when the work is done, [`run`](OnCancel::run) it to clean up right
/// here, or let [`during`](OnCancel::during) see to it.
///
/// If `cleanup` fails, panics or takes too long, the exception handler is told.
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
///                 sleep(Duration::from_millis(1)).await; // a server is told, say
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
/// Outside of a loop.
#[track_caller]
pub fn on_cancel<F>(within: Duration, cleanup: F) -> OnCancel<F>
where
    F: Future + 'static,
    F::Output: Outcome,
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

/// A cleanup that runs if this is dropped: see [`on_cancel`].
#[must_use = "dropping it runs the cleanup: hold it while the work is done"]
pub struct OnCancel<F>
where
    F: Future + 'static,
    F::Output: Outcome,
{
    /// `None` once it is done or not needed. In a box, so that the loop can go on with what was begun.
    cleanup: Option<Pin<Box<F>>>,
    within: Duration,
    core: Rc<LoopCore>,
    location: &'static Location<'static>,
}

impl<F> OnCancel<F>
where
    F: Future + 'static,
    F::Output: Outcome,
{
    /// The work is done, and nothing need be cleaned up.
    pub fn disarm(mut self) {
        drop(self.cleanup.take());
    }

    /// Cleans up here and now, and gives the result. If this is dropped before it is done, the loop goes on with it.
    pub async fn run(mut self) -> F::Output {
        let output = poll_fn(|cx| match &mut self.cleanup {
            Some(cleanup) => match catch_unwind(AssertUnwindSafe(|| cleanup.as_mut().poll(cx))) {
                Ok(polled) => polled,
                // It must not be polled again.
                Err(payload) => {
                    let gone = self.cleanup.take();
                    guard("a cleanup's destructor", || drop(gone));
                    resume_unwind(payload)
                }
            },
            None => unreachable!("it is there until it is done"),
        })
        .await;
        self.cleanup = None;
        output
    }

    /// Runs `work`, and cleans up only if it is not finished: dropped before its end, or panicked.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{task::on_cancel, time::{sleep, timeout}};
    /// windlass::run(async {
    ///     let work = async { 5 };
    ///     let cleanup = on_cancel(Duration::from_secs(1), async { unreachable!("it was finished") });
    ///     assert_eq!(cleanup.during(work).await, 5);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn during<W: Future>(self, work: W) -> W::Output {
        // Dropped after the work, if this future is.
        let armed = self;
        let work = pin!(work);
        let output = work.await;
        armed.disarm();
        output
    }
}

impl<F> Drop for OnCancel<F>
where
    F: Future + 'static,
    F::Output: Outcome,
{
    fn drop(&mut self) {
        let cleanups = &self.core.cleanups;
        cleanups.armed.set(cleanups.armed.get() - 1);
        let Some(cleanup) = self.cleanup.take() else { return };
        if self.core.is_closed() {
            drop(cleanup);
            // In a forked child it is the parent's to do.
            if !self.core.is_forked() {
                report(not_done(self.location, "its loop is closed"));
            }
            return;
        }
        let (within, location) = (self.within, self.location);
        let running = Running::new(&self.core);
        let future = async move {
            let _running = running;
            match timeout(within, cleanup).await.map(Outcome::into_result) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => report(Exception::failure(
                    format!("the cleanup written down at {location} failed"),
                    error,
                )),
                Err(_) => report(not_done(location, &format!("it took longer than {within:?}"))),
            }
        };
        let name = Some("cleanup".into());
        // Detached: a panic is told.
        drop(ChildSet::for_cleanup(&self.core).spawn(&self.core, future, name, location));
    }
}

fn not_done(location: &Location<'_>, why: &str) -> Exception {
    let error = io::Error::new(io::ErrorKind::TimedOut, why.to_owned());
    Exception::error(format!("the cleanup written down at {location} was not done"), error)
}

impl<F> fmt::Debug for OnCancel<F>
where
    F: Future + 'static,
    F::Output: Outcome,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnCancel")
            .field("within", &self.within)
            .field("written_down_at", &self.location)
            .finish_non_exhaustive()
    }
}

/// How many cleanups a loop has, so that its end knows whether to wait.
#[derive(Default)]
pub(crate) struct Cleanups {
    /// Written down, and not decided.
    pub(crate) armed: std::cell::Cell<usize>,
    /// Under way.
    pub(crate) running: std::cell::Cell<usize>,
}

/// One that is under way.
struct Running(Rc<LoopCore>);

impl Running {
    fn new(core: &Rc<LoopCore>) -> Running {
        core.cleanups.running.set(core.cleanups.running.get() + 1);
        Running(core.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let running = &self.0.cleanups.running;
        running.set(running.get() - 1);
    }
}
