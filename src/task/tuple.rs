//! Waiting for a few futures of different types.
//!
//! There are eight at most, and they lie in the future that waits: all that are not done are polled with its own waker,
//! beginning with another one each time, so that none of them uses up the poll's budget for ever. That allocates nothing.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::event_loop::exception::guard;

/// Runs two to eight futures side by side in this task and gives their outputs as a tuple.
///
/// Dropping this drops those that are not done.
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
    }
}

/// As [`join`] for futures that may fail: gives the values, or the first error. The others are dropped then.
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
    }
}

/// Runs two futures side by side and gives the output of the first that is done, the left one if both are. The other is
/// dropped, which cancels it: a read or an accept loses nothing. To go on with it, pass `&mut` of a pinned one.
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
    let (mut left, mut right) = (std::pin::pin!(left), std::pin::pin!(right));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(output));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}

/// What [`select`] gives.
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
    /// The left one was first.
    Left(A),
    /// The right one was first.
    Right(B),
}

/// A tuple of futures: what [`join`] takes.
pub trait JoinTuple: sealed::Members {
    /// The tuple of their outputs.
    type Output;

    #[doc(hidden)]
    fn outputs(members: Pin<&mut Self::Members>) -> Self::Output;
}

/// A tuple of futures that give a `Result` with the same error: what [`try_join`] takes.
pub trait TryJoinTuple: sealed::Members {
    /// The tuple of their values.
    type Output;
    /// Their error.
    type Error;

    #[doc(hidden)]
    fn take_error(members: Pin<&mut Self::Members>, number: usize) -> Option<Self::Error>;

    #[doc(hidden)]
    fn values(members: Pin<&mut Self::Members>) -> Option<Self::Output>;
}

mod sealed {
    use super::*;

    pub trait Members {
        /// The futures, or what became of them.
        type Members;
        const COUNT: usize;

        fn into_members(self) -> Self::Members;

        /// Polls one of them; ready also if it was before.
        fn poll_member(members: Pin<&mut Self::Members>, number: usize, cx: &mut Context<'_>) -> Poll<()>;
    }
}

/// The future of [`join`].
#[must_use = "nothing is joined until this is awaited"]
pub struct Join<M: JoinTuple> {
    members: M::Members,
    /// Who is polled first.
    first: usize,
}

impl<M: JoinTuple> Future for Join<M> {
    type Output = M::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<M::Output> {
        // SAFETY: `members` is pinned with the whole and never moved; `first` is not pinned.
        let (mut members, first) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.members), &mut this.first)
        };
        let mut all_done = true;
        for number in round(first, M::COUNT) {
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

/// The future of [`try_join`].
#[must_use = "nothing is joined until this is awaited"]
pub struct TryJoin<M: TryJoinTuple> {
    /// `None` once it is over.
    members: Option<M::Members>,
    /// Who is polled first.
    first: usize,
}

impl<M: TryJoinTuple> Future for TryJoin<M> {
    type Output = Result<M::Output, M::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: what is in `members` is pinned with the whole, never moved, and dropped in place; `first` is not pinned.
        let (mut place, first) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.members), &mut this.first)
        };
        let Some(mut members) = place.as_mut().as_pin_mut() else {
            panic!("a TryJoin was polled after it had given its result");
        };
        for number in round(first, M::COUNT) {
            if M::poll_member(members.as_mut(), number, cx).is_pending() {
                continue;
            }
            if let Some(error) = M::take_error(members.as_mut(), number) {
                guard("a dropped future's destructor", || place.set(None));
                return Poll::Ready(Err(error));
            }
        }
        match M::values(members) {
            Some(values) => {
                guard("a finished future's destructor", || place.set(None));
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

/// All numbers once, from `first` on; the next round begins one further.
fn round(first: &mut usize, count: usize) -> impl Iterator<Item = usize> + use<> {
    let start = *first;
    *first = (start + 1) % count;
    (start..count).chain(0..start)
}

/// A future, or what became of it.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "nobody sees one")]
pub enum Member<F: Future> {
    Running(F),
    Done(F::Output),
    Taken,
}

impl<F: Future> Member<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole, and is dropped in place when it is done. An output is not pinned.
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
        // Looked at before it is moved: a future stays where it is.
        assert!(self.is_done(), "polled after it had given its result");
        match std::mem::replace(self, Member::Taken) {
            Member::Done(output) => output,
            _ => unreachable!("it is done"),
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

    fn take_value(&mut self) -> Option<T> {
        self.take().ok()
    }
}

/// One impl per length: Rust has no way to say "a tuple of any length".
macro_rules! tuples {
    ($(($($F:ident $T:ident $n:tt),+))+) => {$(
        impl<$($F: Future),+> sealed::Members for ($($F,)+) {
            type Members = ($(Member<$F>,)+);
            const COUNT: usize = [$($n),+].len();

            fn into_members(self) -> Self::Members {
                ($(Member::Running(self.$n),)+)
            }

            fn poll_member(members: Pin<&mut Self::Members>, number: usize, cx: &mut Context<'_>) -> Poll<()> {
                // SAFETY: every member is pinned with the tuple.
                let members = unsafe { members.get_unchecked_mut() };
                match number {
                    // SAFETY: as above.
                    $($n => unsafe { Pin::new_unchecked(&mut members.$n) }.poll(cx),)+
                    _ => unreachable!("there is no such member"),
                }
            }
        }

        impl<$($F: Future),+> JoinTuple for ($($F,)+) {
            type Output = ($($F::Output,)+);

            fn outputs(members: Pin<&mut Self::Members>) -> Self::Output {
                // SAFETY: all are done, and outputs are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                ($(members.$n.take(),)+)
            }
        }

        impl<Error, $($T, $F: Future<Output = Result<$T, Error>>),+> TryJoinTuple for ($($F,)+) {
            type Output = ($($T,)+);
            type Error = Error;

            fn take_error(members: Pin<&mut Self::Members>, number: usize) -> Option<Error> {
                // SAFETY: `take_error` moves only outputs, and those are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                match number {
                    $($n => members.$n.take_error(),)+
                    _ => unreachable!("there is no such member"),
                }
            }

            fn values(members: Pin<&mut Self::Members>) -> Option<Self::Output> {
                // SAFETY: values are taken only when all are done, and outputs are not pinned.
                let members = unsafe { members.get_unchecked_mut() };
                let all_done = $(members.$n.is_done())&&+;
                all_done.then(|| ($(members.$n.take_value().expect("errors were taken before"),)+))
            }
        }
    )+};
}

tuples! {
    (A TA 0, B TB 1)
    (A TA 0, B TB 1, C TC 2)
    (A TA 0, B TB 1, C TC 2, D TD 3)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6)
    (A TA 0, B TB 1, C TC 2, D TD 3, E TE 4, F TF 5, G TG 6, H TH 7)
}
