//! `join_all`, `try_join_all`, `race` and `as_completed`: combinators for any number of futures of one type.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::Leftovers;
use super::future_set::FutureSet;
use super::tuple::poll_first;

/// Runs the futures concurrently in this task and returns their outputs in the order of the futures.
///
/// Accepts any futures: async blocks, [`JoinHandle`](super::JoinHandle)s, `Pin<Box<dyn Future>>`. Only futures that
/// were woken are polled. Dropping this drops the futures that have not completed. A panic in one of them propagates.
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
pub fn join_all<I: IntoIterator<Item: Future>>(futures: I) -> JoinAll<I::Item> {
    let future_set = FutureSet::new(futures);
    JoinAll {
        outputs: outputs(future_set.len()),
        future_set,
    }
}

/// The future returned by [`join_all`].
#[must_use = "nothing is joined until this is awaited"]
pub struct JoinAll<F: Future> {
    future_set: FutureSet<F>,
    outputs: Vec<Option<F::Output>>,
}

/// Outputs are not pinned, and the futures are boxed.
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
        self.future_set.fmt_as("JoinAll", f)
    }
}

/// Runs the futures concurrently in this task and returns their values in order, or the first error. After an error the
/// other futures are dropped, which cancels them. With [`gather`](fn@super::gather) they continue.
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
    I: IntoIterator<Item: Future<Output = Result<T, E>>>,
{
    let future_set = FutureSet::new(futures);
    TryJoinAll {
        outputs: outputs(future_set.len()),
        future_set,
        failed: None,
    }
}

/// The future returned by [`try_join_all`].
#[must_use = "nothing is joined until this is awaited"]
pub struct TryJoinAll<F: Future, T> {
    future_set: FutureSet<F>,
    outputs: Vec<Option<T>>,
    /// The first error, as the output, and what the dropped futures left behind.
    failed: Option<(F::Output, Leftovers)>,
}

/// Outputs are not pinned, and the futures are boxed.
impl<F: Future, T> Unpin for TryJoinAll<F, T> {}

impl<F: Future<Output = Result<T, E>>, T, E> Future for TryJoinAll<F, T> {
    type Output = Result<Vec<T>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while self.failed.is_none() {
            match std::task::ready!(self.future_set.poll_next(cx)) {
                Some((number, Ok(value))) => self.outputs[number] = Some(value),
                Some((_, Err(error))) => self.failed = Some((Err(error), self.future_set.clear())),
                None => return Poll::Ready(Ok(collect(&mut self.outputs))),
            }
        }
        match std::task::ready!(poll_first(&mut self.failed, cx)) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(_) => unreachable!("only an error is kept"),
        }
    }
}

impl<F: Future, T> fmt::Debug for TryJoinAll<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future_set.fmt_as("TryJoinAll", f)
    }
}

/// Runs the futures concurrently in this task and returns the output of the first to complete. The others are dropped,
/// which cancels them; a cancelled read or accept loses no data. If several are ready at once, the one woken first
/// wins; in the first poll, the one listed first.
///
/// Takes anything that can be iterated, or a tuple of up to 16 futures, which is polled as a whole and allocates nothing.
/// If the outputs have different types, use [`select!`](crate::select) or [`select`](fn@super::select).
///
/// ```
/// use std::time::Duration;
/// use windlass::{task::race, time::sleep};
///
/// async fn after(millis: u64) -> u64 {
///     sleep(Duration::from_millis(millis)).await;
///     millis
/// }
///
/// windlass::run(async {
///     assert_eq!(race([500, 1, 500].map(after)).await, 1);
///     // Futures of different types, but with one output type:
///     assert_eq!(race((after(100), async { 0 }, std::future::pending())).await, 0);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cancel safety
///
/// If one of the dropped futures contains a [`group`](fn@super::group), a [`JoinSet`](super::JoinSet) or an
/// [`on_cancel`](super::on_cancel) cleanup, `race` returns when the children and the cleanup have ended. A race that is
/// itself dropped meanwhile drops the winner's output.
///
/// # Panics
///
/// If there are no futures: such a race would never complete.
#[track_caller]
pub fn race<Kind, R: Racers<Kind>>(futures: R) -> R::Race {
    futures.start()
}

/// The futures that [`race`] accepts: anything that can be iterated, or a tuple. `Kind` tells these two cases apart and is
/// always inferred.
#[diagnostic::on_unimplemented(
    message = "`race` needs a tuple or an iterable of futures with one output type, and this is a `{Self}`",
    note = "if the outputs have different types, use `windlass::select!`"
)]
pub trait Racers<Kind> {
    /// The future of the first output.
    type Race: Future;

    #[doc(hidden)]
    fn start(self) -> Self::Race;
}

#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "a type parameter only")]
pub struct Iterated;

#[diagnostic::do_not_recommend]
impl<I: IntoIterator<Item: Future>> Racers<Iterated> for I {
    type Race = Race<I::Item>;

    #[track_caller]
    fn start(self) -> Race<I::Item> {
        let future_set = FutureSet::new(self);
        assert!(future_set.len() > 0, "`race` needs at least one future");
        Race { future_set, won: None }
    }
}

/// The future returned by [`race`].
#[must_use = "nothing runs until this is awaited"]
pub struct Race<F: Future> {
    future_set: FutureSet<F>,
    /// The first output, and what the dropped futures left behind.
    won: Option<(F::Output, Leftovers)>,
}

/// Outputs are not pinned, and the futures are boxed.
impl<F: Future> Unpin for Race<F> {}

impl<F: Future> Future for Race<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.won.is_none() {
            match std::task::ready!(self.future_set.poll_next(cx)) {
                Some((_, output)) => self.won = Some((output, self.future_set.clear())),
                None => panic!("Race polled after it returned its result"),
            }
        }
        poll_first(&mut self.won, cx)
    }
}

impl<F: Future> fmt::Debug for Race<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future_set.fmt_as("Race", f)
    }
}

/// Runs the futures concurrently in this task and yields their outputs in the order in which they complete.
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
pub fn as_completed<I: IntoIterator<Item: Future>>(futures: I) -> AsCompleted<I::Item> {
    AsCompleted {
        future_set: FutureSet::new(futures),
    }
}

/// The outputs of [`as_completed`]. The futures only make progress while `next` or `next_numbered` is awaited, or the
/// [`Stream`] is polled. Dropping this drops the futures that have not completed.
///
/// Futures can be added at any time, as to `FuturesUnordered` of futures-util:
///
/// ```
/// use windlass::task::AsCompleted;
///
/// async fn links(page: u32) -> Vec<u32> {
///     if page < 4 { vec![2 * page, 2 * page + 1] } else { vec![] }
/// }
///
/// windlass::run(async {
///     let mut crawl = AsCompleted::new();
///     crawl.push(links(1));
///     let mut pages = 0;
///     while let Some(found) = crawl.next().await {
///         pages += 1;
///         crawl.extend(found.into_iter().map(links));
///     }
///     assert_eq!(pages, 7);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// When all futures have completed, `next` returns `None`; if one is added then, `next` returns its output.
#[must_use = "nothing runs until `next` is awaited"]
pub struct AsCompleted<F: Future> {
    future_set: FutureSet<F>,
}

impl<F: Future> AsCompleted<F> {
    /// An empty set, for futures added by [`push`](AsCompleted::push).
    pub fn new() -> AsCompleted<F> {
        as_completed([])
    }

    /// Adds a future and returns its number. The next call of `next` polls it first.
    pub fn push(&mut self, future: F) -> usize {
        self.future_set.push(future)
    }

    /// The next output; `None` when all futures have completed. Cancel-safe.
    pub async fn next(&mut self) -> Option<F::Output> {
        let (_, output) = self.next_numbered().await?;
        Some(output)
    }

    /// As [`next`](AsCompleted::next), with the number of the future: its index in the input, or what
    /// [`push`](AsCompleted::push) returned.
    pub async fn next_numbered(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|cx| self.future_set.poll_next(cx)).await
    }

    /// The number of futures that have not completed.
    pub fn len(&self) -> usize {
        self.future_set.running()
    }

    /// Whether all futures have completed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<F: Future> Default for AsCompleted<F> {
    fn default() -> AsCompleted<F> {
        AsCompleted::new()
    }
}

impl<F: Future> Extend<F> for AsCompleted<F> {
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.push(future);
        }
    }
}

impl<F: Future> FromIterator<F> for AsCompleted<F> {
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> AsCompleted<F> {
        as_completed(futures)
    }
}

impl<F: Future> Stream for AsCompleted<F> {
    type Item = F::Output;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let next = std::task::ready!(self.future_set.poll_next(cx));
        Poll::Ready(next.map(|(_, output)| output))
    }
}

impl<F: Future> fmt::Debug for AsCompleted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.future_set.fmt_as("AsCompleted", f)
    }
}

pub(super) fn outputs<T>(count: usize) -> Vec<Option<T>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

/// Unwraps the outputs; all futures have completed.
pub(super) fn collect<T>(outputs: &mut Vec<Option<T>>) -> Vec<T> {
    let outputs = std::mem::take(outputs).into_iter();
    outputs
        .map(|output| output.expect("polled after it returned its result, or after a panic"))
        .collect()
}
