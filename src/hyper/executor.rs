//! hyper's executors: they run its background work, such as HTTP/2 streams.

use std::future::Future;

use crate::LoopHandle;
use crate::event_loop::core::LoopCore;

/// Runs hyper's futures as tasks of the current loop. They need not be `Send`. If the executor itself may be called on other
/// threads, use a [`LoopHandle`], which runs `Send` futures on its own loop.
///
/// As on other runtimes, a task started for a connection continues after the connection's future is dropped, until
/// hyper ends it.
///
/// ```
/// use windlass::hyper::Executor;
/// let server = hyper::server::conn::http2::Builder::new(Executor);
/// # let _ = server;
/// ```
///
/// # Panics
///
/// [`execute`](hyper::rt::Executor::execute) panics outside of a loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(crate::spawn(future));
    }
}

/// Runs futures as tasks of the handle's loop: directly on that loop, and sent to it from other threads. If the loop has
/// closed, the future is dropped.
///
/// ```
/// use hyper::rt::Executor;
/// use windlass::LoopHandle;
/// windlass::run(async {
///     let (done, wait) = windlass::sync::thread::oneshot();
///     LoopHandle::current().unwrap().execute(async move { done.send(5).unwrap() });
///     assert_eq!(wait.await.unwrap(), 5);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
impl<F> hyper::rt::Executor<F> for LoopHandle
where
    F: Future + Send + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        match LoopCore::try_current() {
            Some(core) if self.is_of(core) => drop(crate::spawn(future)),
            // An error returns and drops the future: the loop has closed.
            _ => drop(self.call_soon_threadsafe(move || drop(crate::spawn(future)))),
        }
    }
}
