//! Groups: children that cannot outlive the block that started them.
//!
//! A child is a task whose future is wrapped, so that its error or panic reaches the group in the very poll in which it
//! happens, whether or not anybody is awaiting the group. The first failure cancels the others, at the beginning of the
//! next turn, so that no error is cut off that was about to be told. The wait is the crew's: when it is empty, every child
//! has ended and has nothing in the kernel any more.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::child_set::ChildSet;
use super::outcome::{Failure, GroupError, Outcome};
use super::{Builder, JoinHandle};
use crate::event_loop::callback::CallbackCell;
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, guard, report};

/// Runs `body`, which may start children in the group that it gets, and waits for all of them: asyncio's
/// `async with TaskGroup()`.
///
/// When this returns, every child has finished, failed or been cancelled, and the kernel has given back everything that
/// was lent to it. The first failure (an error or a panic of a child, or an error of the body) cancels the other children,
/// and the body at its next `await`. Who was ready in the same turn still runs, and every failure is kept: see
/// [`GroupError`].
///
/// The group gives the body's value if nothing failed. If the body panics, so does this, once the children have ended; what
/// failed besides is told to the exception handler.
///
/// Dropping the future, by a timeout for instance, or by cancelling the task, drops the body and cancels the children at
/// once. The enclosing task inherits the wait: its handle resolves only when the children have ended.
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
///         group.spawn(sleep(Duration::MAX)); // cancelled, because of
///         group.spawn(async { Err::<(), _>("no such host") });
///     });
///     assert_eq!(error.await.unwrap_err().failures().len(), 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn group<F, R>(body: F) -> Result<R::Value, GroupError>
where
    F: AsyncFnOnce(&TaskGroup) -> R,
    R: Outcome,
{
    let group = TaskGroup::new();
    let state = &group.handle.state;
    // Dropped before the group, if this future is.
    let mut body = pin!(Some(body(&group)));
    let (mut value, mut panic) = (None, BodyPanic(None));
    poll_fn(|cx| {
        if state.is_aborted.get() {
            guard("the destructor of a cancelled group's body", || body.set(None));
        }
        if let Some(running) = body.as_mut().as_pin_mut() {
            state.child_set.watch(cx);
            match catch_unwind(AssertUnwindSafe(|| running.poll(cx).map(Outcome::into_result))) {
                Ok(Poll::Pending) if !state.is_aborted.get() => return Poll::Pending,
                // Somebody failed while the body ran: this is its next suspension point.
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(Ok(output))) => value = Some(output),
                Ok(Poll::Ready(Err(error))) => state.fail(Failure::of_body(error)),
                Err(payload) => {
                    panic.0 = Some(payload);
                    state.abort();
                }
            }
            guard("the destructor of a group's body", || body.set(None));
        }
        state.child_set.poll_empty(cx)
    })
    .await;
    state.child_set.close();
    if let Some(payload) = panic.0.take() {
        for failure in state.failures.take() {
            failure.report();
        }
        std::panic::resume_unwind(payload);
    }
    let failures = state.failures.take();
    match value {
        Some(value) if failures.is_empty() => Ok(value),
        // The failures matter more than what the body made of it.
        value => {
            guard("a result's destructor", || drop(value));
            Err(GroupError::new(failures))
        }
    }
}

/// What the body panicked with. If the group is dropped while its children end, nobody else tells of it.
struct BodyPanic(Option<Box<dyn Any + Send>>);

impl Drop for BodyPanic {
    fn drop(&mut self) {
        if let Some(payload) = self.0.take() {
            report(Exception::panic("the body of a group that nobody awaited", payload));
        }
    }
}

/// Children that are waited for, and cancelled, together. [`group`] is the way to have one around a block; this is the
/// group as a value, for when there is no block.
///
/// Children are `'static`; what they share is in `Rc`s. They may spawn further children through a
/// [`handle`](TaskGroup::handle). Dropping the group without [`join`](TaskGroup::join) cancels the children; the task that
/// does so counts as unfinished until they have ended, and the exception handler is told of what had failed.
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

struct State {
    child_set: Rc<ChildSet>,
    failures: RefCell<Vec<Failure>>,
    /// Something failed, or the group was cancelled: everybody is to end.
    is_aborted: Cell<bool>,
    /// Nobody will ask what failed.
    is_dropped: Cell<bool>,
}

impl TaskGroup {
    /// Makes a group without children.
    pub fn new() -> TaskGroup {
        let state = Rc::new(State {
            child_set: ChildSet::new(),
            failures: RefCell::default(),
            is_aborted: Cell::new(false),
            is_dropped: Cell::new(false),
        });
        let handle = GroupHandle { state };
        TaskGroup { handle }
    }

    /// Starts a child. Its handle gives its value; if it fails, the handle says so
    /// ([`JoinError::is_failed`](super::JoinError::is_failed)) and the group has the error. The handle may be dropped: the
    /// child belongs to the group.
    ///
    /// In a group where something has failed the child is dropped unpolled, and its handle says that it was cancelled.
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<<F::Output as Outcome>::Value>
    where
        F: Future + 'static,
        F::Output: Outcome,
    {
        self.handle.state.spawn(future, None, Location::caller())
    }

    /// Waits until every child has ended, and gives what failed, if anything did.
    ///
    /// Dropping the wait drops the group: the children are cancelled.
    pub async fn join(self) -> Result<(), GroupError> {
        poll_fn(|cx| self.handle.state.child_set.poll_empty(cx)).await;
        self.handle.state.child_set.close();
        let failures = self.handle.state.failures.take();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(GroupError::new(failures)),
        }
    }

    /// Ends the children, and the body if this is the group of a [`group`], at their next suspension point. That is no
    /// failure: `join` gives `Ok`, and [`group`] an error that [says so](GroupError::is_cancelled), for want of a value.
    pub fn cancel(&self) {
        self.handle.state.abort();
    }

    /// A handle through which children, or anybody, can start children.
    pub fn handle(&self) -> GroupHandle {
        self.handle.clone()
    }

    /// How many children have not ended.
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
        state.child_set.fd_closed();
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

/// Starts children of a [`TaskGroup`] from anywhere on its thread. Holding it keeps nothing alive: once the group has
/// ended, what is spawned is dropped unpolled.
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
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<<F::Output as Outcome>::Value>
    where
        F: Future + 'static,
        F::Output: Outcome,
    {
        self.state.spawn(future, None, Location::caller())
    }

    /// As [`TaskGroup::cancel`].
    pub fn cancel(&self) {
        self.state.abort();
    }

    /// How many children have not ended.
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

/// What [`Builder::spawn_in`] takes.
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
    /// Starts a child of a group: see [`TaskGroup::spawn`].
    ///
    /// # Panics
    ///
    /// Outside of a loop.
    #[track_caller]
    pub fn spawn_in<F>(self, group: &impl AsRef<GroupHandle>, future: F) -> JoinHandle<<F::Output as Outcome>::Value>
    where
        F: Future + 'static,
        F::Output: Outcome,
    {
        let state = &group.as_ref().state;
        state.spawn(future, self.into_name(), Location::caller())
    }
}

impl State {
    fn spawn<F>(
        self: &Rc<State>,
        future: F,
        name: Option<Box<str>>,
        location: &'static Location<'static>,
    ) -> JoinHandle<<F::Output as Outcome>::Value>
    where
        F: Future + 'static,
        F::Output: Outcome,
    {
        let core = LoopCore::current("TaskGroup::spawn").rc();
        let child = Child {
            future,
            state: self.clone(),
        };
        self.child_set.spawn(&core, child, name, location)
    }

    fn fail(self: &Rc<State>, failure: Failure) {
        if self.is_dropped.get() {
            failure.report();
            return;
        }
        let is_first = self.failures.borrow().is_empty();
        self.failures.borrow_mut().push(failure);
        if !is_first || self.is_aborted.get() {
            return;
        }
        // In the next turn, as in asyncio: who is ready in this one has perhaps an error to tell too.
        let state = self.clone();
        match LoopCore::try_current() {
            Some(core) if !core.is_closed() => {
                core.call_soon(Rc::new(CallbackCell::new(move || state.abort())));
            }
            _ => self.abort(),
        }
    }

    fn abort(&self) {
        if self.is_aborted.replace(true) {
            return;
        }
        self.child_set.close();
        self.child_set.cancel_all();
        // The body is to end too.
        self.child_set.ring();
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("children", &self.child_set.len())
            .field("failures", &self.failures.borrow().len())
            .field("cancelled", &self.is_aborted.get())
            .finish()
    }
}

/// A child's future, which tells the group how it failed.
struct Child<F> {
    future: F,
    state: Rc<State>,
}

impl<F> Future for Child<F>
where
    F: Future,
    F::Output: Outcome,
{
    type Output = <F::Output as Outcome>::Value;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is pinned with the whole and never moved out of it; `state` is not pinned.
        let (future, state) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.state)
        };
        let cause = match catch_unwind(AssertUnwindSafe(|| future.poll(cx).map(Outcome::into_result))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(value))) => return Poll::Ready(value),
            Ok(Poll::Ready(Err(error))) => Ok(error),
            Err(payload) => Err(payload),
        };
        let task = LoopCore::try_current().and_then(LoopCore::current_task);
        let task = task.expect("a child is polled as a task");
        // It has no output to give. This poll is its last: it ends as soon as it suspends.
        task.fail();
        state.fail(Failure::of_task(task.id(), task.name(), task.spawned_at(), cause));
        Poll::Pending
    }
}
