//! The interface of a runtime under test. The workloads are written once over this trait, so that only the runtime
//! differs. The echo server is specific to each runtime, because their read APIs differ.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The read size of an echo server.
pub(crate) const BUFFER_LEN: usize = 8 * 1024;

pub(crate) trait Runtime: 'static {
    /// The settings and APIs used, in one line.
    const SETTINGS: &'static str;

    /// Runs a future on a new runtime of the calling thread.
    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T>;

    /// Spawns a task, and returns a future that joins it. Like the rest, only inside [`run`](Runtime::run).
    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static;

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static;

    fn yield_now() -> impl Future<Output = ()>;

    /// An echo server on an ephemeral port, which it prints; serves until killed.
    async fn serve() -> io::Result<()>;

    type File: 'static;

    async fn open(path: &Path) -> io::Result<Self::File>;

    /// Fills the buffer from this offset of the file.
    async fn read_at(file: &Rc<Self::File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>>;
}

/// Wakes itself once and is polled again: a yield for runtimes without one.
#[derive(Default)]
pub(crate) struct PlainYield {
    is_over: bool,
}

impl Future for PlainYield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_over {
            return Poll::Ready(());
        }
        self.is_over = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
