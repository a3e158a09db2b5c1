//! Where hyper runs what it does beside a connection: the streams of HTTP/2, for instance.

use std::future::Future;

/// Runs hyper's futures as tasks of the current loop. They need not be `Send`.
///
/// A task that was begun for a connection goes on when the connection's future is dropped, as on other runtimes, and ends when
/// hyper tells it to.
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
