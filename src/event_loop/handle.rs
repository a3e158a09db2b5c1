//! Handles that control a loop from other threads.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use crate::error::{LoopClosed, forked_error};
use crate::event_loop::core::{LoopCore, RemoteEvent};
use crate::event_loop::inbox::Inbox;
use crate::event_loop::task_key::TaskKey;
use crate::sync::thread::park;
use crate::task::{JoinError, JoinHandle, ResultSlot, TaskId, WaitReason, set_wait_reason, spawn_on};

/// A handle to an event loop for other threads: `Send`, `Sync` and cheap to clone.
///
/// Once the loop has closed, sending anything to it returns [`LoopClosed`].
///
/// ```
/// windlass::run(async {
///     let handle = windlass::LoopHandle::current().unwrap();
///     let work = windlass::spawn_blocking(move || {
///         // On a thread: runs a future on the loop and waits for its result.
///         handle.spawn(async { 20 + 1 }).unwrap().wait().unwrap()
///     });
///     assert_eq!(work.await.unwrap(), 21);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct LoopHandle {
    pub(crate) inbox: Arc<Inbox<RemoteEvent>>,
}

impl LoopHandle {
    /// The handle of the loop that this thread is running.
    pub fn current() -> Option<LoopHandle> {
        let inbox = LoopCore::try_current()?.inbox.clone();
        Some(LoopHandle { inbox })
    }

    /// Whether this is a handle of that loop.
    pub(crate) fn is_of(&self, core: &LoopCore) -> bool {
        Arc::ptr_eq(&self.inbox, &core.inbox)
    }

    /// Runs `callback` on the loop's thread in its next turn, after everything that was sent before it. If the loop
    /// closes first, the callback is dropped. A burst of calls to a sleeping loop costs one system call, and calls to a
    /// running loop cost none.
    pub fn call_soon_threadsafe(&self, callback: impl FnOnce() + Send + 'static) -> Result<(), LoopClosed> {
        let call = RemoteEvent::Call(Box::new(callback));
        self.inbox.send(call).map_err(|_| LoopClosed)
    }

    /// Runs a future on the loop and returns a handle to its result, like asyncio's `run_coroutine_threadsafe`.
    ///
    /// Futures that use this crate's streams and files are not `Send`. For those, use
    /// [`spawn_with`](LoopHandle::spawn_with): `handle.spawn_with(|| async { TcpStream::connect(address).await })`.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> Result<RemoteHandle<F::Output>, LoopClosed>
    where
        F: SendOrUseSpawnWith,
        F::Output: Send + 'static,
    {
        self.spawn_with(move || future)
    }

    /// As [`spawn`](LoopHandle::spawn), for a future that is not `Send`: `make` creates it on the loop's thread.
    #[track_caller]
    pub fn spawn_with<M, F>(&self, make: M) -> Result<RemoteHandle<F::Output>, LoopClosed>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let handle = RemoteHandle {
            result: Arc::new(ResultSlot::new("a future from another thread", Location::caller())),
            task: Arc::default(),
            inbox: self.inbox.clone(),
        };
        let (resolver, started) = (Resolver(handle.result.clone()), handle.task.clone());
        self.call_soon_threadsafe(move || {
            // `make` runs inside the task, so that its panic becomes an error too.
            let task = crate::task::spawn(async move { make().await });
            // Not set before: this runs once.
            let _ = started.set((task.raw().key(), task.id()));
            drop(crate::task::spawn(Forward::new(task, resolver)));
        })?;
        Ok(handle)
    }

    /// Stops the loop after its next turn, as [`EventLoop::stop`](crate::EventLoop::stop).
    pub fn stop(&self) -> Result<(), LoopClosed> {
        self.inbox.send(RemoteEvent::Stop).map_err(|_| LoopClosed)
    }

    /// Whether the loop has closed.
    pub fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }
}

/// A future that can be sent to a loop on another thread: any that is `Send` and `'static`.
///
/// The name is advice: the compiler shows it when [`LoopHandle::spawn`] gets a future that is not `Send`, because the future
/// uses streams, files or other values that belong to one loop. [`LoopHandle::spawn_with`] creates such a future on the
/// loop's thread.
pub trait SendOrUseSpawnWith: Future + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<F: Future + Send + 'static> SendOrUseSpawnWith for F {}

impl fmt::Debug for LoopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopHandle").field("closed", &self.is_closed()).finish()
    }
}

/// A handle to a future that was sent to a loop, or [to a task](crate::JoinHandle::into_remote). Await it on any runtime, or
/// block another thread with [`wait`](RemoteHandle::wait). If the loop closes first, the result is a cancelled
/// [`JoinError`].
///
/// Dropping the handle detaches the future. If it then panics or returns an `Err`, the loop's exception handler is called: for
/// errors once per spawn location, and then with a count.
#[must_use = "use `drop` to ignore the result"]
pub struct RemoteHandle<T> {
    result: Arc<ResultSlot<T>>,
    /// The future's task, once it is spawned. A `JoinHandle` is not `Send`.
    task: Arc<OnceLock<(TaskKey, TaskId)>>,
    inbox: Arc<Inbox<RemoteEvent>>,
}

/// Guarantees that the handle gets a result: if it is dropped before there is one, the result is `Cancelled`.
struct Resolver<T: Send + 'static>(Arc<ResultSlot<T>>);

impl<T: Send + 'static> Resolver<T> {
    /// Sets the result, unless there is one.
    fn resolve(&self, result: Result<T, JoinError>) {
        if let Some(unclaimed) = self.0.resolve(result) {
            unclaimed.report();
        }
    }
}

impl<T: Send + 'static> Drop for Resolver<T> {
    fn drop(&mut self) {
        self.resolve(Err(JoinError::cancelled(TaskId(0))));
    }
}

/// Passes a task's result to its remote handle: the future of a task of its own.
struct Forward<T: Send + 'static> {
    /// `None` once it has returned its result.
    task: Option<JoinHandle<T>>,
    resolver: Resolver<T>,
}

impl<T: Send + 'static> Forward<T> {
    fn new(task: JoinHandle<T>, resolver: Resolver<T>) -> Forward<T> {
        let task = Some(task);
        Forward { task, resolver }
    }

    fn poll_task(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        let result = ready!(Pin::new(task).poll(cx));
        self.task = None;
        self.resolver.resolve(result);
        Poll::Ready(())
    }
}

impl<T: Send + 'static> Future for Forward<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().poll_task(cx)
    }
}

/// If the loop closes between the end of the task and the next poll of this one, the result still arrives.
impl<T: Send + 'static> Drop for Forward<T> {
    fn drop(&mut self) {
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            let _ = self.poll_task(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl<T: Send + 'static> RemoteHandle<T> {
    /// The remote handle of a task: see [`JoinHandle::into_remote`].
    #[track_caller]
    pub(crate) fn of_task(task: JoinHandle<T>) -> RemoteHandle<T> {
        let raw = task.raw();
        let handle = RemoteHandle {
            result: Arc::new(ResultSlot::new(raw.title(), raw.spawned_at())),
            task: Arc::new(OnceLock::from((raw.key(), raw.id()))),
            inbox: raw.inbox().clone(),
        };
        let is_finished = task.is_finished();
        let spawned_at = raw.spawned_at();
        let forward = Forward::new(task, Resolver(handle.result.clone()));
        match LoopCore::try_current().filter(|core| handle.is_of(core)) {
            // Its destructor takes the result.
            _ if is_finished => drop(forward),
            Some(core) => drop(spawn_on(core, forward, None, spawned_at)),
            None => panic!("windlass: `JoinHandle::into_remote` was called outside of the task's event loop"),
        }
        handle
    }
}

impl<T> RemoteHandle<T> {
    /// Whether the future runs on that loop.
    fn is_of(&self, core: &LoopCore) -> bool {
        Arc::ptr_eq(&core.inbox, &self.inbox)
    }

    /// Blocks this thread until the future has completed.
    ///
    /// # Panics
    ///
    /// On the loop's own thread, which would deadlock: await the handle there.
    pub fn wait(self) -> Result<T, JoinError> {
        self.wait_timeout(Duration::MAX).expect("there is no deadline")
    }

    /// Blocks this thread until the future has completed, or returns the handle after `timeout`.
    ///
    /// # Panics
    ///
    /// On the loop's own thread, which would deadlock: await the handle there.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, JoinError>, RemoteHandle<T>> {
        let is_own = LoopCore::try_current().is_some_and(|core| self.is_of(core));
        assert!(
            !is_own,
            "blocking here would deadlock: this thread runs the loop that must run the future; await the handle instead"
        );
        // A deadline beyond the range of the clock means forever.
        let deadline = Instant::now().checked_add(timeout);
        park::wait_until(deadline, poll_fn(|cx| self.poll_result(cx))).ok_or(self)
    }

    fn poll_result(&self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        match self.inbox.is_forked() {
            true => Poll::Ready(Err(JoinError::not_started(forked_error()))),
            false => self.result.poll(cx),
        }
    }

    /// Cancels the future on the loop's thread, as [`JoinHandle::cancel`](crate::JoinHandle::cancel). Does not wait.
    pub fn cancel(&self) {
        let task = self.task.clone();
        // Sent after the future, so that the task is spawned when this runs. A key alone has only half of the id.
        let cancel = move || {
            if let Some(&(key, id)) = task.get()
                && let Some(core) = LoopCore::try_current()
                && let Some(task) = core.task_of(key).filter(|task| task.id() == id)
            {
                task.cancel();
            }
        };
        // A loop that has closed has cancelled the task.
        drop(self.inbox.send(RemoteEvent::Call(Box::new(cancel))));
    }

    /// Whether the result is available.
    pub fn is_finished(&self) -> bool {
        self.inbox.is_forked() || self.result.is_finished()
    }
}

impl<T> Future for RemoteHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_result(cx);
        if polled.is_pending() {
            set_wait_reason(WaitReason::Named(&"another thread"));
        }
        polled
    }
}

impl<T> Drop for RemoteHandle<T> {
    fn drop(&mut self) {
        // In a forked child, the loop's thread may have held the lock at the time of the fork.
        if self.inbox.is_forked() {
            return;
        }
        if let Some(unclaimed) = self.result.abandon() {
            unclaimed.report_to(&self.inbox);
        }
    }
}

impl<T> fmt::Debug for RemoteHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}
