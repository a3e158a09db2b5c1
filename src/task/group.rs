//! Task groups: children that cannot outlive the block that started them.
//!
//! Each child's future is wrapped so that its error or panic reaches the group in the poll in which it happens, whether
//! or not the group is being awaited. The first failure cancels the others in the next turn, so that children that are
//! ready in this turn can still report their errors. The group waits for its child set: when that is empty, every child
//! has ended and has no operation in the kernel.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::child_set::ChildSet;
use super::output::{Failure, GroupError, GroupOutput};
use super::{Builder, JoinHandle};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};

/// Runs `body`, which may spawn children in its group, and waits for all of them: asyncio's `async with TaskGroup()`.
///
/// When this returns, every child has finished, failed or been cancelled, and has no operation in the kernel. The first
/// failure (an error or a panic of a child, or an error of the body) cancels the other children, and the body at its
/// next `await`. Tasks that were ready in the same turn still run, and every failure is kept: see [`GroupError`].
///
/// Returns the body's value if nothing failed.
///
/// ```
/// use std::time::Duration;
/// use windlass::{task, time::sleep};
///
/// windlass::run(async {
///     let sum = task::group(async |group| {
///         let one = group.spawn(async { 1u32 });
///         let two = group.spawn(async {
///             sleep(Duration::from_millis(1)).await;
///             Ok::<_, std::io::Error>(2)
///         });
///         Ok::<_, task::JoinError>(one.await? + two.await?)
///     });
///     assert_eq!(sum.await.unwrap(), 3);
///
///     let error = task::group(async |group| {
///         group.spawn(sleep(Duration::MAX)); // cancelled, because the next one fails
///         group.spawn(async { Err::<(), _>("no such host") });
///     });
///     assert_eq!(error.await.unwrap_err().failures().len(), 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If the body panics, after the children have ended. Failures of children then go to the exception handler.
///
/// # Cancel safety
///
/// Dropping the future drops the body and cancels the children. Nothing outlives the block: if the group loses a
/// [`select`](super::select) or [`select!`](crate::select), or a [`timeout`](crate::time::timeout) around it expires,
/// that call returns when the children have ended. The same holds for [`race`](super::race), [`try_join`](super::try_join),
/// [`try_join_all`](super::try_join_all), [`CancelToken::run_until_cancelled`](super::CancelToken::run_until_cancelled)
/// and [`ShutdownSignal::run_until_shutdown`](crate::signal::ShutdownSignal::run_until_shutdown). If the future is
/// dropped in any other way, the enclosing task is not finished until the children are.
///
/// ```
/// use std::time::Duration;
/// use windlass::{task::{self, Either}, time::sleep};
///
/// windlass::run(async {
///     let server = task::group(async |connections| {
///         connections.spawn(sleep(Duration::MAX));
///         sleep(Duration::MAX).await;
///     });
///     let stop = sleep(Duration::from_millis(1)); // in a program: `ctrl_c()`
///     assert!(matches!(task::select(stop, server).await, Either::Left(())));
///     // No child of the group runs any more.
///     assert_eq!(windlass::counters().tasks, 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn group<F, R, K>(body: F) -> Result<R::Value, GroupError>
where
    F: AsyncFnOnce(&TaskGroup) -> R,
    R: GroupOutput<K>,
{
    let group = TaskGroup::new();
    let state = &group.handle.state;
    // Declared after the group, so that it is dropped before it.
    let mut body = pin!(Some(body(&group)));
    let mut value = None;
    poll_fn(|cx| {
        if state.is_aborted.get() {
            guard("the destructor of a cancelled group's body", || body.set(None));
        }
        if let Some(running) = body.as_mut().as_pin_mut() {
            state.child_set.set_waker(cx);
            match catch_unwind(AssertUnwindSafe(|| {
                running.poll(cx).map(GroupOutput::into_group_result)
            })) {
                Ok(Poll::Pending) if !state.is_aborted.get() => return Poll::Pending,
                // A child failed while the body ran: this is the body's next suspension point.
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(Ok(output))) => value = Some(output),
                Ok(Poll::Ready(Err(error))) => state.fail(Failure::of_body(error)),
                Err(payload) => {
                    state.body_panic.set(Some(payload));
                    state.abort();
                }
            }
            guard("the destructor of a group's body", || body.set(None));
        }
        state.child_set.poll_empty(cx)
    })
    .await;
    state.child_set.close();
    if let Some(payload) = state.body_panic.take() {
        for failure in state.failures.take() {
            failure.report();
        }
        std::panic::resume_unwind(payload);
    }
    let failures = state.failures.take();
    match value {
        Some(value) if failures.is_empty() => Ok(value),
        // Failures take precedence over the body's value.
        value => {
            guard("a result's destructor", || drop(value));
            Err(GroupError::new(failures))
        }
    }
}

/// A group of child tasks as a value, which fail together: see [`JoinSet`](super::JoinSet) for children that fail
/// independently, such as the connections of a server. Prefer [`group`](fn@group) where the group can enclose a block.
///
/// Children are `'static` and can spawn further children through a [`handle`](TaskGroup::handle). Dropping the group
/// without [`join`](TaskGroup::join) cancels the children; the task that drops it is not finished until they have
/// ended, and earlier failures go to the exception handler.
///
/// ```
/// use windlass::task::TaskGroup;
/// windlass::run(async {
///     let group = TaskGroup::new();
///     for number in 0..3 {
///         let inside = group.handle();
///         group.spawn(async move {
///             inside.spawn(async move { println!("a grandchild of {number}") });
///         });
///     }
///     group.join().await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping a group cancels its children: await its `join`"]
pub struct TaskGroup {
    handle: GroupHandle,
}

#[derive(Default)]
struct State {
    child_set: Rc<ChildSet>,
    failures: RefCell<Vec<Failure>>,
    /// Resumed when the children have ended; reported if the group is dropped before that.
    body_panic: Cell<Option<Box<dyn Any + Send>>>,
    /// Something failed, or the group was cancelled: children and body must end.
    is_aborted: Cell<bool>,
    /// The group was dropped: failures go to the exception handler.
    is_dropped: Cell<bool>,
    /// A child or the body has failed.
    has_failed: Cell<bool>,
    /// A child that was spawned after the failure was reported.
    has_reported_spawn: Cell<bool>,
}

impl TaskGroup {
    /// Creates a group without children.
    pub fn new() -> TaskGroup {
        let handle = GroupHandle { state: Rc::default() };
        TaskGroup { handle }
    }

    /// Spawns a child. Its handle resolves to its value. If the child fails, the group has the error and the handle
    /// resolves to a [`JoinError`](super::JoinError) with [`is_failed`](super::JoinError::is_failed). The handle may be
    /// dropped: the child belongs to the group.
    ///
    /// If the group has failed, was cancelled or has ended, the child is not started: its handle resolves to a
    /// `JoinError` with [`is_refused`](super::JoinError::is_refused). For a group that has failed, the first such child
    /// is also reported to the exception handler: it usually means that the children should be independent of each
    /// other, as in a [`JoinSet`](super::JoinSet).
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn<F, K: 'static>(&self, future: F) -> JoinHandle<<F::Output as GroupOutput<K>>::Value>
    where
        F: Future<Output: GroupOutput<K>> + 'static,
    {
        self.handle.state.spawn(future, None, Location::caller())
    }

    /// Waits until every child has ended. Returns the failures, if there are any.
    ///
    /// Dropping the future drops the group, which cancels the children.
    pub async fn join(self) -> Result<(), GroupError> {
        poll_fn(|cx| self.handle.state.child_set.poll_empty(cx)).await;
        self.handle.state.child_set.close();
        let failures = self.handle.state.failures.take();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(GroupError::new(failures)),
        }
    }

    /// Cancels the children, and the body of a [`group`](fn@group), at their next suspension point. This is not a
    /// failure: `join` returns `Ok`. If the body was cancelled, `group` has no value to return, and its error is
    /// [`is_cancelled`](GroupError::is_cancelled).
    pub fn cancel(&self) {
        self.handle.state.abort();
    }

    /// A cloneable handle that can spawn children, for example from inside a child.
    pub fn handle(&self) -> GroupHandle {
        self.handle.clone()
    }

    /// The number of children that have not ended.
    pub fn len(&self) -> usize {
        self.handle.state.child_set.len()
    }

    /// Whether every child has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for TaskGroup {
    fn default() -> TaskGroup {
        TaskGroup::new()
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        let state = &self.handle.state;
        state.is_dropped.set(true);
        state.is_aborted.set(true);
        state.child_set.cancel_and_hand_over();
        if let Some(payload) = state.body_panic.take() {
            report(Exception::panic("the body of a dropped group", payload));
        }
        for failure in state.failures.take() {
            failure.report();
        }
    }
}

impl fmt::Debug for TaskGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.state.fmt_as("TaskGroup", f)
    }
}

/// Spawns children of a [`TaskGroup`] from anywhere on its thread. It does not keep the group open: once the group has
/// ended, new children are cancelled without being polled.
///
/// ```
/// use windlass::task::{GroupHandle, group};
///
/// fn count_down(group: &GroupHandle, from: u32) {
///     let inside = group.clone();
///     group.spawn(async move {
///         if from > 0 {
///             count_down(&inside, from - 1);
///         }
///     });
/// }
///
/// windlass::run(async {
///     group(async |group| count_down(&group.handle(), 3)).await.unwrap();
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct GroupHandle {
    state: Rc<State>,
}

impl GroupHandle {
    /// As [`TaskGroup::spawn`].
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn<F, K: 'static>(&self, future: F) -> JoinHandle<<F::Output as GroupOutput<K>>::Value>
    where
        F: Future<Output: GroupOutput<K>> + 'static,
    {
        self.state.spawn(future, None, Location::caller())
    }

    /// As [`TaskGroup::cancel`].
    pub fn cancel(&self) {
        self.state.abort();
    }

    /// The number of children that have not ended.
    pub fn len(&self) -> usize {
        self.state.child_set.len()
    }

    /// Whether every child has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for GroupHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt_as("GroupHandle", f)
    }
}

/// For [`Builder::spawn_in`].
impl AsRef<GroupHandle> for GroupHandle {
    fn as_ref(&self) -> &GroupHandle {
        self
    }
}

impl AsRef<GroupHandle> for TaskGroup {
    fn as_ref(&self) -> &GroupHandle {
        &self.handle
    }
}

impl Builder {
    /// Spawns a child of a group: see [`TaskGroup::spawn`].
    ///
    /// # Panics
    ///
    /// If called outside of a loop.
    #[track_caller]
    pub fn spawn_in<F, K: 'static>(
        self,
        group: &impl AsRef<GroupHandle>,
        future: F,
    ) -> JoinHandle<<F::Output as GroupOutput<K>>::Value>
    where
        F: Future<Output: GroupOutput<K>> + 'static,
    {
        let state = &group.as_ref().state;
        state.spawn(future, self.name, Location::caller())
    }
}

impl State {
    fn spawn<F, K: 'static>(
        self: &Rc<State>,
        future: F,
        name: Option<Box<str>>,
        location: &'static Location<'static>,
    ) -> JoinHandle<<F::Output as GroupOutput<K>>::Value>
    where
        F: Future<Output: GroupOutput<K>> + 'static,
    {
        let core = LoopCore::current("TaskGroup::spawn").rc();
        let child = Child {
            future,
            state: self.clone(),
            kind: PhantomData,
        };
        let handle = self.child_set.spawn(&core, child, name, location);
        if self.has_failed.get() && !self.has_reported_spawn.replace(true) {
            report(Exception::note(format!(
                "{} was not started, because its group has failed: the first failure cancels all children of a group, \
                 and later ones are refused. Children of a `task::JoinSet` fail independently",
                handle.raw().describe()
            )));
        }
        handle
    }

    fn fail(self: &Rc<State>, failure: Failure) {
        self.has_failed.set(true);
        self.child_set.close();
        if self.is_dropped.get() {
            failure.report();
            return;
        }
        let is_first = self.failures.borrow().is_empty();
        self.failures.borrow_mut().push(failure);
        if !is_first || self.is_aborted.get() {
            return;
        }
        // In the next turn, as in asyncio: other children that are ready in this turn may fail too.
        let state = self.clone();
        match LoopCore::try_current() {
            Some(core) if !core.is_closed() => {
                core.call_soon(move || state.abort());
            }
            _ => self.abort(),
        }
    }

    fn abort(&self) {
        if self.is_aborted.replace(true) {
            return;
        }
        self.child_set.cancel_all();
        // Wakes the body, which must end too.
        self.child_set.wake();
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("children", &self.child_set.len())
            .field("failures", &self.failures.borrow().len())
            .field("cancelled", &self.is_aborted.get())
            .finish()
    }
}

/// A child's future; reports its failure to the group.
struct Child<F, K> {
    future: F,
    state: Rc<State>,
    kind: PhantomData<K>,
}

impl<F: Future<Output: GroupOutput<K>>, K> Future for Child<F, K> {
    type Output = <F::Output as GroupOutput<K>>::Value;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is pinned with `self` and never moved out of it; `state` is not pinned.
        let (future, state) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.state)
        };
        let cause = match catch_unwind(AssertUnwindSafe(|| future.poll(cx).map(GroupOutput::into_group_result))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(value))) => return Poll::Ready(value),
            Ok(Poll::Ready(Err(error))) => Ok(error),
            Err(payload) => Err(payload),
        };
        let task = LoopCore::running_task().expect("a child is polled as a task");
        // A failed child has no output to return: `fail` ends the task once this poll returns `Pending`.
        task.fail();
        state.fail(Failure::of_task(task, cause));
        Poll::Pending
    }
}
