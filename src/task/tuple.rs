//! `join`, `try_join`, `select` and `race` of a tuple: combinators for futures of different types.
//!
//! The futures are stored inline and polled with the task's own waker, so nothing is allocated. Each poll of a `join`
//! starts with a different future, so that no future can use up the task's budget in every poll.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Leftovers;
use super::join_all::Racers;
use crate::event_loop::exception::guard;

/// Runs up to 16 futures concurrently in this task and returns their outputs as a tuple.
///
/// Dropping this drops the futures that have not completed.
///
/// ```
/// use windlass::{task::join, time::sleep};
/// windlass::run(async {
///     let (number, text) = join((async { 1 }, async { "one" })).await;
///     assert_eq!((number, text), (1, "one"));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn join<M: JoinTuple>(futures: M) -> Join<M> {
    Join {
        members: futures.into_members(),
        first: 0,
        is_biased: false,
    }
}

/// Runs up to 16 futures concurrently in this task and returns their values as a tuple, or the first error. After
/// an error the other futures are dropped; `try_join` returns when the children of groups inside of them have ended.
///
/// ```
/// use windlass::task::try_join;
/// windlass::run(async {
///     let both = try_join((async { "1".parse::<u8>() }, async { "-2".parse::<i64>() })).await;
///     assert_eq!(both, Ok((1, -2)));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn try_join<M: TryJoinTuple>(futures: M) -> TryJoin<M> {
    TryJoin {
        members: Some(futures.into_members()),
        first: 0,
        is_biased: false,
        failed: None,
    }
}

/// Runs two futures concurrently in this task and returns the output of the first to complete. For more than two, use
/// [`select!`](crate::select) or, if their outputs have one type, [`race`](super::race). The left future is polled
/// first, so it wins if both are ready. The other is dropped, which cancels it; a cancelled read or accept loses no
/// data. To keep a future, pass a pinned `&mut`.
///
/// If the dropped future contains a [`group`](fn@super::group), a [`JoinSet`](super::JoinSet) or an
/// [`on_cancel`](super::on_cancel) cleanup, `select` returns when the children and the cleanup have ended. A `select`
/// that is itself dropped meanwhile drops the output.
///
/// ```
/// use std::{pin::pin, time::Duration};
/// use windlass::{task::{Either, select}, time::sleep};
/// windlass::run(async {
///     let mut work = pin!(sleep(Duration::from_millis(200)));
///     let tick = sleep(Duration::from_millis(1));
///     assert_eq!(select(work.as_mut(), tick).await, Either::Right(()));
///     work.await;
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn select<A: Future, B: Future>(left: A, right: B) -> Either<A::Output, B::Output> {
    let (mut left, mut right) = (std::pin::pin!(Some(left)), std::pin::pin!(Some(right)));
    let output = std::future::poll_fn(|cx| {
        let (Some(left), Some(right)) = (left.as_mut().as_pin_mut(), right.as_mut().as_pin_mut()) else {
            unreachable!("both are dropped after the output");
        };
        if let Poll::Ready(output) = left.poll(cx) {
            return Poll::Ready(Either::Left(output));
        }
        right.poll(cx).map(Either::Right)
    })
    .await;
    let leftovers = Leftovers::of(|| {
        left.set(None);
        right.set(None);
    });
    leftovers.ended().await;
    output
}

/// The output of [`select`].
///
/// ```
/// use windlass::task::{Either, select};
/// windlass::run(async {
///     match select(async { 1 }, async { "one" }).await {
///         Either::Left(number) => assert_eq!(number, 1),
///         Either::Right(text) => unreachable!("{text}"),
///     }
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Either<A, B> {
    /// The left future completed first.
    Left(A),
    /// The right future completed first.
    Right(B),
}

/// A tuple of futures that [`join`] accepts.
pub trait JoinTuple: sealed::Members {
    /// The tuple of the outputs.
    type Output;

    #[doc(hidden)]
    fn outputs(members: Pin<&mut Self::Members>) -> Self::Output;
}

/// A tuple of futures that [`try_join`] accepts. All return a `Result` with the same error type.
pub trait TryJoinTuple: sealed::Members {
    /// The tuple of the values.
    type Output;
    /// The common error type.
    type Error;

    #[doc(hidden)]
    fn take_error(members: Pin<&mut Self::Members>, number: usize) -> Option<Self::Error>;

    #[doc(hidden)]
    fn values(members: Pin<&mut Self::Members>) -> Option<Self::Output>;
}

/// A tuple of futures with one output type, which [`race`](super::race) accepts.
pub trait RaceTuple: sealed::Members {
    /// The common output type.
    type Output;

    #[doc(hidden)]
    fn take_output(members: Pin<&mut Self::Members>, number: usize) -> Self::Output;
}

#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "a type parameter only")]
pub struct Tuple;

#[diagnostic::do_not_recommend]
impl<M: RaceTuple> Racers<Tuple> for M {
    type Race = RaceOf<M>;

    fn start(self) -> RaceOf<M> {
        RaceOf {
            members: Some(self.into_members()),
            first: 0,
            won: None,
        }
    }
}

mod sealed {
    use super::*;

    pub trait Members {
        /// The futures, each replaced by its output once it has completed.
        type Members;
        const COUNT: usize;

        fn into_members(self) -> Self::Members;

        /// Polls one future; also ready if it has completed before.
        fn poll_member(members: Pin<&mut Self::Members>, number: usize, cx: &mut Context<'_>) -> Poll<()>;
    }
}

/// The future returned by [`join`].
#[must_use = "nothing is joined until this is awaited"]
pub struct Join<M: JoinTuple> {
    members: M::Members,
    /// The index to start the next poll with.
    first: usize,
    /// Each poll starts with the first future.
    is_biased: bool,
}

impl<M: JoinTuple> Join<M> {
    /// Makes each poll start with the first future, instead of with another one each time.
    pub fn biased(mut self) -> Join<M> {
        self.is_biased = true;
        self
    }
}

impl<M: JoinTuple> Future for Join<M> {
    type Output = M::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<M::Output> {
        // SAFETY: `members` is structurally pinned and never moved; `first` is not pinned.
        let (mut members, first, is_biased) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.members), &mut this.first, this.is_biased)
        };
        let mut all_done = true;
        for number in rotation(first, M::COUNT, is_biased) {
            all_done &= M::poll_member(members.as_mut(), number, cx).is_ready();
        }
        match all_done {
            true => Poll::Ready(M::outputs(members)),
            false => Poll::Pending,
        }
    }
}

impl<M: JoinTuple> fmt::Debug for Join<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join").field("of", &M::COUNT).finish_non_exhaustive()
    }
}

/// The future returned by [`try_join`].
#[must_use = "nothing is joined until this is awaited"]
pub struct TryJoin<M: TryJoinTuple> {
    /// `None` once the result was returned.
    members: Option<M::Members>,
    /// The index to start the next poll with.
    first: usize,
    /// Each poll starts with the first future.
    is_biased: bool,
    /// The first error, and what the dropped futures left behind.
    failed: Option<(M::Error, Leftovers)>,
}

impl<M: TryJoinTuple> TryJoin<M> {
    /// Makes each poll start with the first future, instead of with another one each time.
    pub fn biased(mut self) -> TryJoin<M> {
        self.is_biased = true;
        self
    }
}

impl<M: TryJoinTuple> Future for TryJoin<M> {
    type Output = Result<M::Output, M::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the content of `members` is structurally pinned, never moved, dropped in place; `first` and `failed`
        // are not pinned.
        let (mut slot, first, is_biased, failed) = unsafe {
            let this = self.get_unchecked_mut();
            (
                Pin::new_unchecked(&mut this.members),
                &mut this.first,
                this.is_biased,
                &mut this.failed,
            )
        };
        if failed.is_some() {
            return poll_first(failed, cx).map(Err);
        }
        let Some(mut members) = slot.as_mut().as_pin_mut() else {
            panic!("TryJoin polled after it returned its result");
        };
        for number in rotation(first, M::COUNT, is_biased) {
            if M::poll_member(members.as_mut(), number, cx).is_pending() {
                continue;
            }
            if let Some(error) = M::take_error(members.as_mut(), number) {
                let leftovers = Leftovers::of(|| guard("a dropped future's destructor", || slot.set(None)));
                *failed = Some((error, leftovers));
                return poll_first(failed, cx).map(Err);
            }
        }
        match M::values(members) {
            Some(values) => {
                guard("a finished future's destructor", || slot.set(None));
                Poll::Ready(Ok(values))
            }
            None => Poll::Pending,
        }
    }
}

impl<M: TryJoinTuple> fmt::Debug for TryJoin<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryJoin").field("of", &M::COUNT).finish_non_exhaustive()
    }
}

/// The future returned by [`race`](super::race) for a tuple.
#[must_use = "nothing runs until this is awaited"]
pub struct RaceOf<M: RaceTuple> {
    /// `None` once there is an output.
    members: Option<M::Members>,
    /// The index to start the next poll with.
    first: usize,
    /// The first output, and what the dropped futures left behind.
    won: Option<(M::Output, Leftovers)>,
}

impl<M: RaceTuple> Future for RaceOf<M> {
    type Output = M::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<M::Output> {
        // SAFETY: the content of `members` is structurally pinned, never moved, dropped in place; `first` and `won` are
        // not pinned.
        let (mut slot, first, won) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.members), &mut this.first, &mut this.won)
        };
        if won.is_some() {
            return poll_first(won, cx);
        }
        let Some(mut members) = slot.as_mut().as_pin_mut() else {
            panic!("a race was polled after it returned its result");
        };
        for number in rotation(first, M::COUNT, false) {
            if M::poll_member(members.as_mut(), number, cx).is_ready() {
                let output = M::take_output(members, number);
                let leftovers = Leftovers::of(|| guard("a dropped future's destructor", || slot.set(None)));
                *won = Some((output, leftovers));
                return poll_first(won, cx);
            }
        }
        Poll::Pending
    }
}

impl<M: RaceTuple> fmt::Debug for RaceOf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaceOf").field("of", &M::COUNT).finish_non_exhaustive()
    }
}

/// Returns the output that decided once everything that the dropped futures left behind has ended.
pub(super) fn poll_first<T>(first: &mut Option<(T, Leftovers)>, cx: &mut Context<'_>) -> Poll<T> {
    let (_, leftovers) = first.as_mut().expect("there is an output");
    std::task::ready!(leftovers.poll(cx));
    let (output, _) = first.take().expect("there is an output");
    Poll::Ready(output)
}

/// All indices once, starting at `first`; advances `first` by one, unless biased.
fn rotation(first: &mut usize, count: usize, is_biased: bool) -> impl Iterator<Item = usize> + use<> {
    let start = *first;
    if !is_biased {
        *first = (start + 1) % count;
    }
    (start..count).chain(0..start)
}

/// A future, or its output.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "not part of the public API")]
pub enum Member<F: Future> {
    Running(F),
    Done(F::Output),
    Taken,
}

impl<F: Future> Member<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is structurally pinned and dropped in place once it completes. Outputs are not pinned.
        let this = unsafe { self.get_unchecked_mut() };
        let Member::Running(future) = this else {
            return Poll::Ready(());
        };
        // SAFETY: as above.
        let output = std::task::ready!(unsafe { Pin::new_unchecked(future) }.poll(cx));
        *this = Member::Done(output);
        Poll::Ready(())
    }

    fn is_done(&self) -> bool {
        matches!(self, Member::Done(_))
    }

    fn take(&mut self) -> F::Output {
        // Checked before the move: a future that has not completed must stay in place.
        assert!(self.is_done(), "polled after it returned its result");
        match std::mem::replace(self, Member::Taken) {
            Member::Done(output) => output,
            _ => unreachable!("checked above"),
        }
    }
}

impl<T, E, F: Future<Output = Result<T, E>>> Member<F> {
    fn take_error(&mut self) -> Option<E> {
        match self {
            Member::Done(Err(_)) => self.take().err(),
            _ => None,
        }
    }
}

/// One impl per length: Rust cannot express "a tuple of any length".
macro_rules! tuples {
    ($(($($F:ident $T:ident $n:tt),+))+) => {$(
        impl<$($F: Future),+> sealed::Members for ($($F,)+) {
            type Members = ($(Member<$F>,)+);
            const COUNT: usize = [$($n),+].len();

            fn into_members(self) -> Self::Members {
                ($(Member::Running(self.$n),)+)
            }

            fn poll_member(members: Pin<&mut Self::Members>, number: usize, cx: &mut Context<'_>) -> Poll<()> {
                // SAFETY: every member is structurally pinned.
                let members = unsafe { members.get_unchecked_mut() };
                match number {
                    // SAFETY: as above.
                    $($n => unsafe { Pin::new_unchecked(&mut members.$n) }.poll(cx),)+
                    _ => unreachable!("index out of range"),
                }
            }
        }

        impl<$($F: Future),+> JoinTuple for ($($F,)+) {
            type Output = ($($F::Output,)+);

            fn outputs(members: Pin<&mut Self::Members>) -> Self::Output {
                // SAFETY: all have completed, and outputs are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                ($(members.$n.take(),)+)
            }
        }

        impl<Output, $($F: Future<Output = Output>),+> RaceTuple for ($($F,)+) {
            type Output = Output;

            fn take_output(members: Pin<&mut Self::Members>, number: usize) -> Output {
                // SAFETY: `take` moves only an output, which is not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                match number {
                    $($n => members.$n.take(),)+
                    _ => unreachable!("index out of range"),
                }
            }
        }

        impl<Error, $($T, $F: Future<Output = Result<$T, Error>>),+> TryJoinTuple for ($($F,)+) {
            type Output = ($($T,)+);
            type Error = Error;

            fn take_error(members: Pin<&mut Self::Members>, number: usize) -> Option<Error> {
                // SAFETY: `take_error` moves only outputs, which are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                match number {
                    $($n => members.$n.take_error(),)+
                    _ => unreachable!("index out of range"),
                }
            }

            fn values(members: Pin<&mut Self::Members>) -> Option<Self::Output> {
                // SAFETY: values are taken only when all have completed, and outputs are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                let all_done = $(members.$n.is_done())&&+;
                all_done.then(|| ($(members.$n.take().ok().expect("an error returns early"),)+))
            }
        }
    )+};
}

tuples! {
    (A TA 0)
    (A TA 0, B TB 1)
    (A TA 0, B TB 1, C TC 2)
    (A TA 0, B TB 1, C TC 2, D TD 3)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10, L TL 11)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10, L TL 11, M TM 12)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10, L TL 11, M TM 12, N TN 13)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10, L TL 11, M TM 12, N TN 13, O TO 14)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7, I TI 8, J TJ 9, K TK 10, L TL 11, M TM 12, N TN 13, O TO 14, P TP 15)
}
