//! Starting tasks.

use std::future::Future;
use std::panic::Location;

use super::join::JoinHandle;
use super::raw::{spawn_eagerly, spawn_unchecked};
use crate::event_loop::core::LoopCore;

/// Starts a task on the current loop. It is first polled in the loop's next turn, after what was scheduled before it.
///
/// The future stays on this thread, so it need not be `Send`; it must own what it uses.
///
/// ```
/// use std::rc::Rc;
/// windlass::run(async {
///     let shared = Rc::new(5);
///     let task = windlass::spawn({
///         let shared = shared.clone();
///         async move { *shared + 1 }
///     });
///     assert_eq!(task.await.unwrap(), 6);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Outside of a loop. [`EventLoop::spawn`](crate::EventLoop::spawn) needs no current one.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    Builder::new().spawn(future)
}

/// Starts a task on the current loop, and polls it for the first time before this returns: it runs at once as far as it can,
/// inside of the task that starts it. What asyncio calls an eager task.
///
/// That spares the way through the loop for work that seldom has to wait, such as a look into a cache that may have to ask a
/// server. It also changes the order of things, which is why [`spawn`] does otherwise: the new task runs before what was
/// scheduled before it, and before the caller's next line.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// windlass::run(async {
///     let begun = Rc::new(Cell::new(false));
///     let task = windlass::task::spawn_eager({
///         let begun = begun.clone();
///         async move { begun.set(true) }
///     });
///     assert!(begun.get() && task.is_finished());
///     task.await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// At the most sixty-four start so in one poll of a task, and sixteen inside of each other; from there on it is as for [`spawn`], so
/// that the others get their turn and the stack has an end. In a callback of [`call_soon`](crate::call_soon) or a timer, outside
/// of tasks, it always is.
///
/// # Panics
///
/// Outside of a loop.
#[track_caller]
pub fn spawn_eager<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    Builder::new().spawn_eager(future)
}

/// Starts a task that has a name.
///
/// ```
/// windlass::run(async {
///     let task = windlass::task::Builder::new().name("counter").spawn(async { 1 });
///     assert_eq!(task.name(), Some("counter"));
///     task.await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until its spawn is called"]
pub struct Builder {
    name: Option<Box<str>>,
}

impl Builder {
    /// Begins a task without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the task, for reports and dumps.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into().into_boxed_str());
        self
    }

    pub(super) fn into_name(self) -> Option<Box<str>> {
        self.name
    }

    /// Starts the task on the current loop.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        let core = LoopCore::current("spawn");
        // SAFETY: the future is `'static`: it borrows nothing that could end.
        unsafe { spawn_unchecked(core, future, self.name, Location::caller()) }
    }

    /// Starts the task on the current loop, and polls it at once: see [`spawn_eager`].
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn_eager<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
    {
        spawn_eagerly(LoopCore::current("spawn_eager"), future, self.name, Location::caller())
    }
}
