//! Waiting for many futures of one type: all, the first, or one after the other.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::future_set::FutureSet;

/// Runs the futures side by side in this task and gives their outputs in the order of the futures.
///
/// They may be anything: async blocks, [`JoinHandle`](super::JoinHandle)s, `Pin<Box<dyn Future>>`. Only those that were
/// woken are polled. Dropping this drops those that are not done. A panic of one goes on to whoever awaits this.
///
/// ```
/// use windlass::{spawn, task::join_all};
/// windlass::run(async {
///     assert_eq!(join_all((1..4).map(|n| async move { n * n })).await, [1, 4, 9]);
///     let tasks = (1..4).map(|n| spawn(async move { n }));
///     let sum: i32 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
///     assert_eq!(sum, 6);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn join_all<I>(futures: I) -> JoinAll<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    let future_set = FutureSet::new(futures);
    JoinAll {
        outputs: outputs(future_set.len()),
        future_set,
    }
}

/// The future of [`join_all`].
#[must_use = "nothing is joined until this is awaited"]
pub struct JoinAll<F: Future> {
    future_set: FutureSet<F>,
    outputs: Vec<Option<F::Output>>,
}

/// Outputs are not pinned, and futures lie in a box.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        while let Some((number, output)) = std::task::ready!(self.future_set.poll_next(cx)) {
            self.outputs[number] = Some(output);
        }
        Poll::Ready(collect(&mut self.outputs))
    }
}

impl<F: Future> fmt::Debug for JoinAll<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_future_set("JoinAll", &self.future_set, f)
    }
}

/// As [`join_all`] for futures that may fail: gives the values in order, or the first error. The others are dropped then,
/// which cancels them; what they would have given is lost. [`gather`](super::gather) lets them go on.
///
/// ```
/// use windlass::task::try_join_all;
/// windlass::run(async {
///     let parsed = try_join_all(["1", "2", "x"].map(|text| async { text.parse::<i32>() })).await;
///     assert!(parsed.is_err());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn try_join_all<I, T, E>(futures: I) -> TryJoinAll<I::Item, T>
where
    I: IntoIterator,
    I::Item: Future<Output = Result<T, E>>,
{
    let future_set = FutureSet::new(futures);
    TryJoinAll {
        outputs: outputs(future_set.len()),
        future_set,
    }
}

/// The future of [`try_join_all`].
#[must_use = "nothing is joined until this is awaited"]
pub struct TryJoinAll<F: Future, T> {
    future_set: FutureSet<F>,
    outputs: Vec<Option<T>>,
}

/// Outputs are not pinned, and futures lie in a box.
impl<F: Future, T> Unpin for TryJoinAll<F, T> {}

impl<F, T, E> Future for TryJoinAll<F, T>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<Vec<T>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some((number, output)) = std::task::ready!(self.future_set.poll_next(cx)) {
            match output {
                Ok(value) => self.outputs[number] = Some(value),
                Err(error) => {
                    self.future_set.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(collect(&mut self.outputs)))
    }
}

impl<F: Future, T> fmt::Debug for TryJoinAll<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_future_set("TryJoinAll", &self.future_set, f)
    }
}

/// Runs the futures side by side in this task until the first is done, and gives its output. The others are dropped, which
/// cancels them: a read or an accept among them loses nothing. If several are done at once, the one that was woken first
/// wins, and at the very beginning the one that stands first.
///
/// ```
/// use std::{future::Future, pin::Pin, time::Duration};
/// use windlass::{task::race, time::sleep};
///
/// async fn after(millis: u64) -> u64 {
///     sleep(Duration::from_millis(millis)).await;
///     millis
/// }
///
/// windlass::run(async {
///     assert_eq!(race([500, 1, 500].map(after)).await, 1);
///     // Futures of different types:
///     let runners: [Pin<Box<dyn Future<Output = u64>>>; 2] = [Box::pin(after(100)), Box::pin(async { 0 })];
///     assert_eq!(race(runners).await, 0);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If there are no futures: such a race would never end.
#[track_caller]
pub fn race<I>(futures: I) -> Race<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    let future_set = FutureSet::new(futures);
    assert!(future_set.len() > 0, "a race without runners would never end");
    Race { future_set }
}

/// The future of [`race`].
#[must_use = "nothing runs until this is awaited"]
pub struct Race<F: Future> {
    future_set: FutureSet<F>,
}

impl<F: Future> Future for Race<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match std::task::ready!(self.future_set.poll_next(cx)) {
            Some((_, output)) => {
                self.future_set.clear();
                Poll::Ready(output)
            }
            None => panic!("a Race was polled after it had given its result"),
        }
    }
}

impl<F: Future> fmt::Debug for Race<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_future_set("Race", &self.future_set, f)
    }
}

/// Runs the futures side by side and gives their outputs one by one, in the order in which they are done.
///
/// ```
/// use std::time::Duration;
/// use windlass::{task::as_completed, time::sleep};
///
/// windlass::run(async {
///     let mut sleeps = as_completed([90, 1, 45].map(|millis| async move {
///         sleep(Duration::from_millis(millis)).await;
///         millis
///     }));
///     let mut order = Vec::new();
///     while let Some(millis) = sleeps.next().await {
///         order.push(millis);
///     }
///     assert_eq!(order, [1, 45, 90]);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn as_completed<I>(futures: I) -> AsCompleted<I::Item>
where
    I: IntoIterator,
    I::Item: Future,
{
    AsCompleted {
        future_set: FutureSet::new(futures),
    }
}

/// Made by [`as_completed`]. The futures make progress while one of its methods is awaited; dropping it drops those that
/// are not done.
#[must_use = "nothing runs until `next` is awaited"]
pub struct AsCompleted<F: Future> {
    future_set: FutureSet<F>,
}

impl<F: Future> AsCompleted<F> {
    /// The next output; `None` when there is none left. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Option<F::Output> {
        let (_, output) = self.next_numbered().await?;
        Some(output)
    }

    /// The same, with the place that its future had among the others.
    pub async fn next_numbered(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|cx| self.future_set.poll_next(cx)).await
    }

    /// How many are not done.
    pub fn len(&self) -> usize {
        self.future_set.running()
    }

    /// Whether all are done.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<F: Future> fmt::Debug for AsCompleted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_future_set("AsCompleted", &self.future_set, f)
    }
}

pub(super) fn outputs<T>(count: usize) -> Vec<Option<T>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

/// Every place is filled.
pub(super) fn collect<T>(outputs: &mut Vec<Option<T>>) -> Vec<T> {
    let outputs = std::mem::take(outputs).into_iter();
    outputs
        .map(|output| output.expect("polled after it had given its result, or after a panic"))
        .collect()
}

pub(super) fn fmt_future_set<F: Future>(
    name: &str,
    future_set: &FutureSet<F>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    f.debug_struct(name)
        .field("running", &future_set.running())
        .field("of", &future_set.len())
        .finish()
}
