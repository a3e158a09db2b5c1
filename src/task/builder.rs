//! `spawn`, `spawn_eager`, and the `Builder` that names a task.

use std::future::Future;
use std::panic::Location;

use super::join::JoinHandle;
use super::raw::{create, spawn_on};
use crate::event_loop::core::LoopCore;

/// Spawns a task on the current loop. Its first poll is in the loop's next turn, after everything already scheduled.
///
/// The future stays on this thread, so it need not be `Send`.
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
/// If called outside of a loop. [`EventLoop::spawn`](crate::EventLoop::spawn) does not need a current loop.
#[track_caller]
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    Builder::new().spawn(future)
}

/// Spawns a task on the current loop and polls it once before returning, inside the caller: asyncio's eager tasks.
///
/// Use it for work that usually completes without waiting, such as a cache lookup that falls back to a server: a task
/// that completes in its first poll never enters the ready queue. Unlike with [`spawn`], the new task runs ahead of
/// tasks that are already scheduled, and before the caller's next statement.
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
/// Each eager poll counts as one of the 64 immediate results that a task may get in one poll, and eager polls nest at
/// most 16 deep. Beyond that, and in callbacks ([`call_soon`](crate::call_soon), timers), this is [`spawn`]. The limits
/// bound stack use and keep other tasks running.
///
/// # Panics
///
/// If called outside of a loop.
#[track_caller]
pub fn spawn_eager<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    Builder::new().spawn_eager(future)
}

/// Configures and spawns a task.
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
    pub(super) name: Option<Box<str>>,
}

impl Builder {
    /// Creates a builder for a task without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the task. Reports and dumps show the name.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into().into_boxed_str());
        self
    }

    /// Spawns the task on the current loop.
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn<F: Future + 'static>(self, future: F) -> JoinHandle<F::Output> {
        let core = LoopCore::current("spawn");
        spawn_on(core, future, self.name, Location::caller())
    }

    /// Spawns the task on the current loop and polls it once: see [`spawn_eager`].
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn_eager<F: Future + 'static>(self, future: F) -> JoinHandle<F::Output> {
        let core = LoopCore::current("spawn_eager");
        let handle = create(core, future, self.name, Location::caller());
        handle.raw().start_eagerly(core);
        handle
    }
}
