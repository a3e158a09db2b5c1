//! hyper's executor: runs its background work, such as HTTP/2 streams.

use std::future::Future;

/// Runs hyper's futures as tasks of the current loop. They need not be `Send`.
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
