//! A tokio runtime beside the loops: it has a thread of its own, and windlass tasks enter its context while they are polled.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// The runtime of this process.
static BESIDE: OnceLock<Beside> = OnceLock::new();

enum Beside {
    /// Made on first use, and never shut down.
    Own(Runtime),
    /// The program's.
    Given(Handle),
}

impl Beside {
    fn handle(&self) -> &Handle {
        match self {
            Beside::Own(runtime) => runtime.handle(),
            Beside::Given(handle) => handle,
        }
    }
}

fn beside() -> &'static Handle {
    let make = || {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tokio-beside")
            .enable_all()
            .build();
        Beside::Own(runtime.expect("windlass-tokio: cannot start tokio's runtime"))
    };
    BESIDE.get_or_init(make).handle()
}

/// The handle of the process's tokio runtime. The first call starts the runtime, with one worker thread, unless
/// [`set_handle`] was called before.
///
/// # Panics
///
/// If the runtime cannot be started: no thread or descriptor is left.
pub fn handle() -> Handle {
    beside().clone()
}

/// Uses this runtime for [`with_tokio`](WithTokio::with_tokio), [`spawn`] and [`handle`], instead of starting one. It must be
/// driven by threads of its own: a `multi_thread` runtime, or a `current_thread` runtime that another thread blocks on.
///
/// Returns the handle if there is a runtime already: call this at the start of the program.
pub fn set_handle(handle: Handle) -> Result<(), Handle> {
    match BESIDE.set(Beside::Given(handle)) {
        Ok(()) => Ok(()),
        Err(Beside::Given(handle)) => Err(handle),
        Err(Beside::Own(_)) => unreachable!("a handle was passed"),
    }
}

/// Spawns a task on the tokio runtime. It runs on tokio's thread, so it must be `Send`. The handle can be awaited
/// in windlass tasks; dropping it detaches the task.
///
/// ```
/// windlass::run(async {
///     let task = windlass_tokio::spawn(async { std::thread::current().name().map(str::to_owned) });
///     assert_eq!(task.await.unwrap().as_deref(), Some("tokio-beside"));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// As [`handle`].
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    beside().spawn(future)
}

/// Gives futures a tokio runtime.
///
/// ```
/// use std::time::Duration;
/// use windlass_tokio::WithTokio;
/// windlass::run(async {
///     let answer = async {
///         tokio::time::sleep(Duration::from_millis(1)).await; // tokio's timer
///         windlass::time::sleep(Duration::from_millis(1)).await; // and windlass's
///         42
///     };
///     assert_eq!(answer.with_tokio().await, 42);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait WithTokio: Future + Sized {
    /// Polls and drops this future inside of the process's tokio runtime: see [`handle`].
    ///
    /// The future stays on this thread and need not be `Send`. Tasks that it spawns through tokio run on tokio's thread.
    ///
    /// Values that leave the future, such as a connection pool, are dropped outside. Most libraries allow that; for one whose
    /// destructors need the runtime, keep the value inside of the future, or call `handle().enter()` before the drop.
    ///
    /// # Panics
    ///
    /// As [`handle`].
    fn with_tokio(self) -> InTokio<Self> {
        self.with_tokio_on(handle())
    }

    /// As [`with_tokio`](WithTokio::with_tokio), on another runtime.
    fn with_tokio_on(self, handle: Handle) -> InTokio<Self> {
        InTokio {
            future: Some(self),
            handle,
        }
    }
}

impl<F: Future> WithTokio for F {}

pin_project! {
    /// The future of [`WithTokio::with_tokio`].
    #[derive(Debug)]
    #[must_use = "futures do nothing until they are awaited"]
    pub struct InTokio<F> {
        // `None` once it has completed.
        #[pin]
        future: Option<F>,
        handle: Handle,
    }

    impl<F> PinnedDrop for InTokio<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let _entered = this.handle.enter();
            this.future.set(None);
        }
    }
}

impl<F: Future> Future for InTokio<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _entered = this.handle.enter();
        let future = this.future.as_mut().as_pin_mut();
        let polled = future.expect("polled after completion").poll(cx);
        if polled.is_ready() {
            this.future.set(None);
        }
        polled
    }
}
