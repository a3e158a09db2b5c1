//! The handle of a task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use openraft_rt::OptionalSend;
use windlass::JoinError;

#[cfg(feature = "single-threaded")]
type Inner<T> = windlass::JoinHandle<Output<T>>;
#[cfg(not(feature = "single-threaded"))]
type Inner<T> = windlass::RemoteHandle<Output<T>>;

/// A handle to a task. Dropping it detaches the task, whose output is then dropped without a report, also if it is an `Err`:
/// openraft detaches tasks and learns of their errors in other ways. A panic of a detached task is reported.
///
/// Without the feature `single-threaded`, the handle is `Send`.
pub struct JoinHandle<T>(Inner<T>);

/// The output in a type of its own: windlass reports unread outputs that are a `Result` with an `Err`.
struct Output<T>(T);

impl<T: OptionalSend + 'static> JoinHandle<T> {
    #[track_caller]
    pub(crate) fn spawn<F>(future: F) -> JoinHandle<T>
    where
        F: Future<Output = T> + OptionalSend + 'static,
    {
        let task = windlass::spawn(async { Output(future.await) });
        #[cfg(not(feature = "single-threaded"))]
        let task = task.into_remote();
        JoinHandle(task)
    }
}

impl<T> JoinHandle<T> {
    /// Cancels the task, as [`windlass::JoinHandle::cancel`].
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(cx);
        polled.map(|result| result.map(|Output(output)| output))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
