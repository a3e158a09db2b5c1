//! Task results: which outputs count as failures, and the errors that a group reports.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::sync::Mutex;

use super::{RawTask, TaskId};
use crate::event_loop::exception::{BoxError, Exception, panic_message, report};

/// The output of a task whose failure is reported: a `Result`, whose `Err` is a failure, or a type that cannot fail.
///
/// Implemented for `()`, `!`, `Result`, `Option`, numbers, strings and containers. Wrap other types in [`Value`].
#[diagnostic::on_unimplemented(
    message = "it is not known whether `{Self}` can fail",
    note = "return a `Result`, or mark it as a value: `windlass::task::Value(..)`"
)]
pub trait TaskOutput: Sized {
    /// The type of a successful output.
    type Value: 'static;

    /// Converts the output into a value or an error.
    fn into_result(self) -> Result<Self::Value, Box<dyn Error + Send + Sync>>;
}

/// The output of a child of a [`group`](fn@super::group), or of its body: a [`TaskOutput`], or a `Result` whose error is
/// a `Box<dyn Error>`, which need not be `Send`. `Kind` tells these two cases apart and is always inferred.
///
/// The failure of a child with a `Box<dyn Error>` has the messages of the error and of its sources. It cannot be downcast,
/// because a [`GroupError`] can be sent to other threads and the error cannot.
///
/// ```
/// use std::error::Error;
/// use windlass::task;
///
/// async fn parse(text: &str) -> Result<u32, Box<dyn Error>> {
///     Ok(text.parse()?)
/// }
///
/// windlass::run(async {
///     let sum = task::group(async |group| {
///         let (a, b) = (group.spawn(parse("1")), group.spawn(parse("2")));
///         Ok::<_, Box<dyn Error>>(a.await? + b.await?)
///     });
///     assert_eq!(sum.await.unwrap(), 3);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "it is not known whether `{Self}` can fail",
    label = "the output of this future is a `{Self}`",
    note = "return `()`, a `Result` whose error converts to `Box<dyn Error>`, or mark the output as a value: \
            `windlass::task::Value(..)`"
)]
pub trait GroupOutput<Kind>: Sized {
    /// The type of a successful output.
    type Value: 'static;

    #[doc(hidden)]
    fn into_group_result(self) -> Result<Self::Value, Box<dyn Error + Send + Sync>>;
}

#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "a type parameter only")]
pub struct SendError;

#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "a type parameter only")]
pub struct LocalError;

#[diagnostic::do_not_recommend]
impl<T: TaskOutput> GroupOutput<SendError> for T {
    type Value = T::Value;

    fn into_group_result(self) -> Result<T::Value, BoxError> {
        self.into_result()
    }
}

#[diagnostic::do_not_recommend]
impl<T: 'static> GroupOutput<LocalError> for Result<T, Box<dyn Error>> {
    type Value = T;

    fn into_group_result(self) -> Result<T, BoxError> {
        self.map_err(|error| Rendered::of(&*error).into())
    }
}

/// The messages of an error that is not `Send`, and of its sources.
#[derive(Debug)]
pub(super) struct Rendered {
    message: String,
    source: Option<Box<Rendered>>,
}

impl Rendered {
    pub(super) fn of(error: &(dyn Error + 'static)) -> Rendered {
        Rendered {
            message: error.to_string(),
            source: error.source().map(|source| Box::new(Rendered::of(source))),
        }
    }
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Rendered {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Marks an output as a value that cannot fail: see [`TaskOutput`]. A `Result` inside of it is not reported when it is
/// never read.
///
/// ```
/// use windlass::task::{self, Value};
///
/// struct Answer(u32);
///
/// windlass::run(async {
///     let answer = task::group(async |group| {
///         let child = group.spawn(async { Value(Answer(42)) });
///         Value(child.await.unwrap())
///     });
///     assert_eq!(answer.await.unwrap().0, 42);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value<T>(pub T);

impl<T: 'static> TaskOutput for Value<T> {
    type Value = T;

    fn into_result(self) -> Result<T, BoxError> {
        Ok(self.0)
    }
}

impl<T: 'static, E: Into<BoxError>> TaskOutput for Result<T, E> {
    type Value = T;

    fn into_result(self) -> Result<T, BoxError> {
        self.map_err(Into::into)
    }
}

/// The type `!`, the output of blocks that loop forever or panic. Stable Rust cannot name it, so it is taken from a
/// function type. `Infallible` has no impl of its own because it is to become the same type.
type Never = <fn() -> ! as never::FnOutput>::Output;

mod never {
    pub trait FnOutput {
        type Output;
    }

    impl<T> FnOutput for fn() -> T {
        type Output = T;
    }
}

impl TaskOutput for Never {
    type Value = Never;

    fn into_result(self) -> Result<Never, BoxError> {
        self
    }
}

/// Types that cannot fail. A list, because Rust cannot express "every type but `Result`".
macro_rules! values {
    ($($type:ty $(| $($T:ident)+)?;)+) => {$(
        impl$(<$($T: 'static),+>)? TaskOutput for $type {
            type Value = Self;

            fn into_result(self) -> Result<Self, BoxError> {
                Ok(self)
            }
        }
    )+};
}

values! {
    (); bool; char; String; &'static str;
    u8; u16; u32; u64; u128; usize; i8; i16; i32; i64; i128; isize; f32; f64;
    Option<T> | T; Vec<T> | T; Box<T> | T; std::rc::Rc<T> | T; std::sync::Arc<T> | T;
    (A,) | A; (A, B) | A B; (A, B, C) | A B C; (A, B, C, D) | A B C D;
    std::time::Duration; crate::time::Instant;
}

/// The failure of one child of a group, or of its body.
///
/// ```
/// windlass::run(async {
///     let group = windlass::task::TaskGroup::new();
///     group.spawn(async { Err::<(), _>("no such page") });
///     let error = group.join().await.unwrap_err();
///     let failure = &error.failures()[0];
///     assert!(failure.task().is_some());
///     assert_eq!(failure.error().unwrap().to_string(), "no such page");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Failure {
    /// `None` if the body failed.
    task: Option<FailedTask>,
    /// The error, or the payload of a panic. The mutex only makes the failure `Sync`, so that `?` can convert it to
    /// `Box<dyn Error + Send + Sync>`.
    cause: Result<BoxError, Mutex<Box<dyn Any + Send>>>,
}

struct FailedTask {
    id: TaskId,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
}

impl Failure {
    pub(super) fn of_body(error: BoxError) -> Failure {
        Failure {
            task: None,
            cause: Ok(error),
        }
    }

    pub(super) fn of_task(task: RawTask, cause: Result<BoxError, Box<dyn Any + Send>>) -> Failure {
        Failure {
            task: Some(FailedTask {
                id: task.id(),
                name: task.name().map(Into::into),
                spawned_at: task.spawned_at(),
            }),
            cause: cause.map_err(Mutex::new),
        }
    }

    /// The child's id; `None` if the body failed.
    pub fn task(&self) -> Option<TaskId> {
        self.task.as_ref().map(|task| task.id)
    }

    /// The child's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.task.as_ref()?.name.as_deref()
    }

    /// Where the child was spawned; `None` if the body failed.
    pub fn spawned_at(&self) -> Option<&'static Location<'static>> {
        self.task.as_ref().map(|task| task.spawned_at)
    }

    /// What failed, for messages.
    fn origin(&self) -> String {
        match (self.task(), self.name()) {
            (None, _) => "the body".to_owned(),
            (Some(id), None) => format!("task {id}"),
            (Some(id), Some(name)) => format!("task {id} '{name}'"),
        }
    }

    /// The error; `None` for a panic.
    pub fn error(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Ok(error) => Some(&**error),
            Err(_) => None,
        }
    }

    /// The error, if it has type `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.error()?.downcast_ref()
    }

    /// Whether it was a panic.
    pub fn is_panic(&self) -> bool {
        self.cause.is_err()
    }

    /// Returns the error; for a panic, the payload as `Err`, for [`std::panic::resume_unwind`].
    pub fn into_error(self) -> Result<Box<dyn Error + Send + Sync>, Box<dyn Any + Send>> {
        let unlock = |payload: Mutex<_>| payload.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.cause.map_err(unlock)
    }

    /// Passes the failure to the exception handler, because the group was not joined.
    pub(super) fn report(self) {
        let context = format!("{} of a group that was not joined", self.origin());
        match self.into_error() {
            Ok(error) => report(Exception::error(format!("{context} failed"), error)),
            Err(payload) => report(Exception::panic(&context, payload)),
        }
    }

    /// Writes the failure and its causes as a tree; `indent` precedes each line but the first.
    fn write_tree(&self, f: &mut fmt::Formatter<'_>, indent: &str) -> fmt::Result {
        match &self.cause {
            Ok(error) => {
                write!(f, "{}: ", self.origin())?;
                write_error(f, &**error, indent)
            }
            Err(payload) => {
                let payload = payload.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                write!(f, "{} panicked: {}", self.origin(), panic_message(&**payload))
            }
        }
    }
}

/// Writes an error, its chain of sources, and the branches of a group error anywhere in that chain.
fn write_error(f: &mut fmt::Formatter<'_>, error: &(dyn Error + 'static), indent: &str) -> fmt::Result {
    if let Some(group) = error.downcast_ref::<GroupError>() {
        return group.write_tree(f, indent);
    }
    // Keeps multi-line messages in their column.
    let text = error.to_string();
    for (line, part) in text.lines().enumerate() {
        if line > 0 {
            write!(f, "\n{indent}")?;
        }
        f.write_str(part)?;
    }
    match error.source() {
        Some(source) => {
            write!(f, "\n{indent}└─ because: ")?;
            write_error(f, source, &format!("{indent}   "))
        }
        None => Ok(()),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tree(f, "")
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

/// All failures of a group, in the order in which they happened: asyncio's `ExceptionGroup`.
///
/// `Display` prints a tree, with nested groups as branches:
///
/// ```
/// use windlass::task;
/// windlass::run(async {
///     let error = task::group(async |group| {
///         task::Builder::new().name("mirrors").spawn_in(group, task::group(async |mirrors| {
///             mirrors.spawn(async { Err::<(), _>("no route to host") });
///         }));
///     });
///     let text = error.await.unwrap_err().to_string();
///     assert_eq!(text, "1 task of the group failed\n\
///                       └─ task 2 'mirrors': 1 task of the group failed\n   \
///                          └─ task 3: no route to host");
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct GroupError {
    failures: Vec<Failure>,
}

impl GroupError {
    pub(super) fn new(failures: Vec<Failure>) -> GroupError {
        GroupError { failures }
    }

    /// Whether nothing failed, but [`TaskGroup::cancel`](super::TaskGroup::cancel) ended the body without a result.
    pub fn is_cancelled(&self) -> bool {
        self.failures.is_empty()
    }

    /// The failures. The first one caused the others to be cancelled.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Iterates over the failures.
    pub fn iter(&self) -> std::slice::Iter<'_, Failure> {
        self.failures.iter()
    }

    /// All failures, with each nested [`GroupError`] replaced by its own failures.
    pub fn leaves(&self) -> Vec<&Failure> {
        let mut leaves = Vec::new();
        for failure in &self.failures {
            match failure.downcast_ref::<GroupError>() {
                Some(group) => leaves.extend(group.leaves()),
                None => leaves.push(failure),
            }
        }
        leaves
    }

    fn write_tree(&self, f: &mut fmt::Formatter<'_>, indent: &str) -> fmt::Result {
        let body = self.failures.iter().any(|failure| failure.task.is_none());
        match (self.failures.len() - usize::from(body), body) {
            (0, false) => f.write_str("the group was cancelled")?,
            (0, true) => f.write_str("the body of the group failed")?,
            (1, false) => f.write_str("1 task of the group failed")?,
            (1, true) => f.write_str("the body of the group and 1 task failed")?,
            (tasks, false) => write!(f, "{tasks} tasks of the group failed")?,
            (tasks, true) => write!(f, "the body of the group and {tasks} tasks failed")?,
        }
        for (place, failure) in self.failures.iter().enumerate() {
            let (branch, below) = match place + 1 == self.failures.len() {
                true => ("└─ ", "   "),
                false => ("├─ ", "│  "),
            };
            write!(f, "\n{indent}{branch}")?;
            failure.write_tree(f, &format!("{indent}{below}"))?;
        }
        Ok(())
    }
}

impl IntoIterator for GroupError {
    type Item = Failure;
    type IntoIter = std::vec::IntoIter<Failure>;

    fn into_iter(self) -> Self::IntoIter {
        self.failures.into_iter()
    }
}

impl<'a> IntoIterator for &'a GroupError {
    type Item = &'a Failure;
    type IntoIter = std::slice::Iter<'a, Failure>;

    fn into_iter(self) -> Self::IntoIter {
        self.failures.iter()
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tree(f, "")
    }
}

/// As `Display`, so that `unwrap`, and `main` returning the error, print the tree.
impl fmt::Debug for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tree(f, "")
    }
}

/// No `source`: the failures are printed by `Display`.
impl Error for GroupError {}

impl From<GroupError> for std::io::Error {
    fn from(error: GroupError) -> std::io::Error {
        std::io::Error::other(error)
    }
}
