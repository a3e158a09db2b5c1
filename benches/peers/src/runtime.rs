//! What a runtime must have to take part. Everything that is measured is written once over this, so that what differs is
//! the runtime and nothing else; only the echo server is each runtime's own, since how to read is what they differ in.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How much an echo server reads at once.
pub(crate) const BUFFER_LEN: usize = 8 * 1024;

pub(crate) trait Runtime: 'static {
    /// What is set, and how it is used, in one line.
    const SETTINGS: &'static str;

    /// Runs a future on a new runtime of the calling thread.
    fn run<T: 'static>(main: impl Future<Output = T> + 'static) -> io::Result<T>;

    /// Spawns a task; the future that it gives joins it. Only inside of [`run`](Runtime::run), as the rest.
    fn spawn(task: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static;

    fn sleep(length: Duration) -> impl Future<Output = ()> + 'static;

    fn yield_now() -> impl Future<Output = ()>;

    /// An echo server on a port of the kernel's choice, which it prints; serves until killed.
    async fn serve() -> io::Result<()>;

    type File: 'static;

    async fn open(path: &Path) -> io::Result<Self::File>;

    /// Overwrites the whole of the buffer from this place in the file.
    async fn read_at(file: &Rc<Self::File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>>;
}

/// Wakes itself once and is polled again: the yield of those who bring none.
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
