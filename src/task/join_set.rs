//! `JoinSet`: any number of tasks of one output type, which fail independently.
//!
//! The set is a child set that keeps its finished members. A task's header has its place in the set, so a task in a set
//! costs no allocation of its own beyond the task, except when the set's arrays grow.
//!
//! The set owns the reference of each task's join handle. It keeps no `JoinHandle` object: a handle is made from the
//! member's pointer when the output is taken or given up.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::mem;
use std::panic::{Location, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::child_set::ChildSet;
use super::raw::TaskRef;
use super::{AbortHandle, Builder, JoinError, JoinHandle, TaskId};
use crate::event_loop::core::LoopCore;

/// A set of tasks that fail independently, with tokio's names: the right tool for a server's connections.
///
/// A child that returns an `Err`, panics or is cancelled does not affect the others: its result is one of the results
/// that [`join_next`](JoinSet::join_next) returns, in the order in which the tasks finish. In a
/// [`group`](fn@super::group), on the other hand, the first failure cancels every child.
///
/// ```
/// use std::time::Duration;
/// use windlass::{task::JoinSet, time::{sleep, timeout}};
///
/// windlass::run(async {
///     let mut set = JoinSet::new();
///     for millis in [5, 1, 60_000] {
///         set.spawn(async move {
///             sleep(Duration::from_millis(millis)).await;
///             if millis == 1 { Err("refused") } else { Ok(millis) }
///         });
///     }
///     assert_eq!(set.join_next().await.unwrap().unwrap(), Err("refused"));
///     assert_eq!(set.join_next().await.unwrap().unwrap(), Ok(5));
///
///     // Draining at shutdown: wait with a deadline, then cancel the rest and wait for their end.
///     let drain = async { while set.join_next().await.is_some() {} };
///     if timeout(Duration::from_millis(1), drain).await.is_err() {
///         set.shutdown().await;
///     }
///     assert!(set.is_empty());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// The set keeps the result of a finished task until it is taken. A server that does not need the results takes them
/// when it spawns, with [`try_join_next`](JoinSet::try_join_next).
///
/// Dropping the set cancels every task in it. The task that drops it is not finished until they have ended, and a
/// [`select`](super::select) or [`timeout`](crate::time::timeout) that drops it waits for them. An `Err` that was not
/// taken goes to the exception handler, as for a dropped [`JoinHandle`].
#[must_use = "dropping a JoinSet cancels its tasks"]
pub struct JoinSet<T> {
    child_set: Rc<ChildSet>,
    /// The set owns outputs on the loop's thread.
    output: PhantomData<fn() -> T>,
}

impl<T: 'static> JoinSet<T> {
    /// Creates an empty set.
    pub fn new() -> JoinSet<T> {
        JoinSet {
            child_set: ChildSet::keeping_finished(),
            output: PhantomData,
        }
    }

    /// Spawns a task on the current loop and adds it to the set. The handle can cancel it; it may be dropped.
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[doc(alias = "spawn_local")]
    #[track_caller]
    pub fn spawn<F: Future<Output = T> + 'static>(&self, future: F) -> AbortHandle {
        self.spawn_as(future, None, Location::caller())
    }

    #[track_caller]
    fn spawn_as<F: Future<Output = T> + 'static>(
        &self,
        future: F,
        name: Option<Box<str>>,
        location: &'static Location<'static>,
    ) -> AbortHandle {
        let core = LoopCore::current("JoinSet::spawn").rc();
        let handle = self.child_set.spawn(&core, future, name, location);
        let abort = handle.abort_handle();
        // The set owns the handle's reference now: `take`, `Drop` and `detach_all` give it up.
        mem::forget(handle);
        abort
    }

    /// Waits for the next task to finish and returns its output, or a [`JoinError`] if it panicked or was cancelled;
    /// `None` if the set is empty.
    ///
    /// Cancel-safe: if the future is dropped, for instance in a [`select!`](crate::select), no result is lost.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|cx| self.poll_join_next(cx)).await
    }

    /// As [`join_next`](JoinSet::join_next), with the task's id. The id of an error is [`JoinError::id`].
    pub async fn join_next_with_id(&mut self) -> Option<Result<(TaskId, T), JoinError>> {
        let member = poll_fn(|cx| self.poll_finished(cx)).await?;
        let id = member.task().id();
        Some(self.take(&member).map(|output| (id, output)))
    }

    /// The result of a task that has finished, without waiting; `None` if there is none, also if the set is empty.
    ///
    /// ```
    /// use windlass::task::{JoinSet, yield_now};
    /// windlass::run(async {
    ///     let mut set = JoinSet::new();
    ///     set.spawn(async { 7 });
    ///     assert!(set.try_join_next().is_none());
    ///     yield_now().await;
    ///     assert_eq!(set.try_join_next().unwrap().unwrap(), 7);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        let member = self.child_set.pop_finished()?;
        Some(self.take(&member))
    }

    /// [`join_next`](JoinSet::join_next) for implementations of `poll`.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        let member = std::task::ready!(self.poll_finished(cx));
        Poll::Ready(member.map(|member| self.take(&member)))
    }

    fn poll_finished(&self, cx: &mut Context<'_>) -> Poll<Option<TaskRef>> {
        if let Some(core) = LoopCore::try_current()
            && self.child_set.finished_len() > 0
            && !core.spend_budget(cx)
        {
            return Poll::Pending;
        }
        if self.is_done() {
            return Poll::Ready(self.child_set.pop_finished());
        }
        super::set_wait_reason(super::WaitReason::Named(&"a task of its JoinSet"));
        self.child_set.set_waker(cx);
        // Cloning the waker is foreign code: a member may finish inside it.
        match self.is_done() {
            true => Poll::Ready(self.child_set.pop_finished()),
            false => Poll::Pending,
        }
    }

    /// Whether `join_next` need not wait.
    fn is_done(&self) -> bool {
        self.child_set.finished_len() > 0 || self.child_set.len() == 0
    }

    /// Takes the output of a finished member, and gives up the set's join reference.
    fn take(&self, member: &TaskRef) -> Result<T, JoinError> {
        // The set owns the join reference of each member; this takes it over.
        let mut handle = JoinHandle::<T>::new(member.task());
        match Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("the member is finished"),
        }
    }

    /// Waits for all tasks and returns their outputs in the order in which they finished.
    ///
    /// # Panics
    ///
    /// If a task panicked, with its panic, or was cancelled. The other tasks are then cancelled. Call
    /// [`join_next`](JoinSet::join_next) in a loop to handle this in another way.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(result) = self.join_next().await {
            match result.map_err(JoinError::try_into_panic) {
                Ok(output) => outputs.push(output),
                Err(Ok(payload)) => resume_unwind(payload),
                Err(Err(error)) => panic!("{error}"),
            }
        }
        outputs
    }

    /// Cancels every task that has not finished. They stay in the set: [`join_next`](JoinSet::join_next) returns their
    /// results, which are [cancelled](JoinError::is_cancelled) unless a task finished first. New tasks can be spawned.
    pub fn abort_all(&self) {
        self.child_set.cancel_members();
    }

    /// Cancels every task and waits until all have ended. Results are dropped; an `Err` among them goes to the exception
    /// handler.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while let Some(member) = poll_fn(|cx| self.poll_finished(cx)).await {
            drop(JoinHandle::<T>::new(member.task()));
        }
    }

    /// Removes every task from the set without cancelling it, as dropping a [`JoinHandle`] does.
    pub fn detach_all(&mut self) {
        for (_, member) in self.child_set.release_all() {
            drop(JoinHandle::<T>::new(member.task()));
        }
        self.drop_finished();
    }

    /// The number of tasks in the set, including finished ones whose result was not taken.
    pub fn len(&self) -> usize {
        self.child_set.len() + self.child_set.finished_len()
    }

    /// Whether the set contains no task.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The results of [`join_next`](JoinSet::join_next). The stream ends when the set is empty, and continues if tasks are
/// spawned later.
///
/// ```
/// use futures_util::TryStreamExt;
/// use windlass::task::JoinSet;
/// windlass::run(async {
///     let set: JoinSet<u32> = (1..4).map(|n| async move { n * n }).collect();
///     assert_eq!(set.try_collect::<Vec<_>>().await.unwrap(), [1, 4, 9]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
impl<T: 'static> Stream for JoinSet<T> {
    type Item = Result<T, JoinError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_join_next(cx)
    }
}

impl<T> JoinSet<T> {
    fn drop_finished(&self) {
        while let Some(member) = self.child_set.pop_finished() {
            drop(JoinHandle::<T>::new(member.task()));
        }
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.child_set.stop_keeping();
        // Dropping a handle runs no code of the user while its task runs, but may drop the output of a task that waits
        // for its operations.
        for member in self.child_set.running() {
            member.cancel();
            drop(JoinHandle::<T>::new(member.task()));
        }
        self.drop_finished();
        self.child_set.cancel_and_hand_over();
    }
}

impl<T: 'static> Default for JoinSet<T> {
    fn default() -> JoinSet<T> {
        JoinSet::new()
    }
}

impl<F> Extend<F> for JoinSet<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    #[track_caller]
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}

/// Spawns every future.
///
/// ```
/// use windlass::task::JoinSet;
/// windlass::run(async {
///     let set: JoinSet<u32> = (1..4).map(|n| async move { n * n }).collect();
///     assert_eq!(set.join_all().await, [1, 4, 9]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
impl<F> FromIterator<F> for JoinSet<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    #[track_caller]
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> JoinSet<F::Output> {
        let mut set = JoinSet::new();
        set.extend(futures);
        set
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinSet")
            .field("running", &self.child_set.len())
            .field("finished", &self.child_set.finished_len())
            .finish()
    }
}

impl Builder {
    /// Spawns a task in a [`JoinSet`]: see [`JoinSet::spawn`].
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn_in_set<T: 'static>(self, set: &JoinSet<T>, future: impl Future<Output = T> + 'static) -> AbortHandle {
        set.spawn_as(future, self.name, Location::caller())
    }
}
