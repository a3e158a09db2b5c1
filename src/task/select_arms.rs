//! The branches of `select!`: a list of futures, each with a check whether its output matches the branch's pattern.
//!
//! The list is a nested type, `Arm<F2, C2, Arm<F1, C1, NoArm>>`, so that the macro needs no enum of its own, and none of its
//! code is unsafe. The output is nested in the same way, as a [`Choice`].

use std::convert::Infallible;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use super::Leftovers;
use crate::event_loop::core::LoopCore;

/// The empty list.
#[allow(missing_debug_implementations, reason = "not part of the public API")]
pub struct NoArm;

/// The last branch of a list, and the branches before it.
#[allow(missing_debug_implementations, reason = "not part of the public API")]
pub struct Arm<F, C, E> {
    future: F,
    is_match: C,
    earlier: E,
}

/// The output of the last branch of a list, or of an earlier one.
#[allow(missing_debug_implementations, reason = "not part of the public API")]
pub enum Choice<T, E> {
    /// The last branch won.
    This(T),
    /// An earlier branch won.
    Earlier(E),
}

impl NoArm {
    /// Adds a branch.
    pub fn and<F, C>(self, future: F, is_match: C) -> Arm<F::IntoFuture, C, NoArm>
    where
        F: IntoFuture,
        C: Fn(&F::Output) -> bool,
    {
        Arm {
            future: future.into_future(),
            is_match,
            earlier: self,
        }
    }
}

impl<F0, C0, E0> Arm<F0, C0, E0> {
    /// Adds a branch.
    pub fn and<F, C>(self, future: F, is_match: C) -> Arm<F::IntoFuture, C, Arm<F0, C0, E0>>
    where
        F: IntoFuture,
        C: Fn(&F::Output) -> bool,
    {
        Arm {
            future: future.into_future(),
            is_match,
            earlier: self,
        }
    }
}

/// A list of branches.
pub trait Arms {
    /// The output of one of the branches.
    type Choice;
    /// The number of branches.
    const COUNT: usize;

    /// Polls a branch by its index. `None` if its output does not match its pattern.
    fn poll_arm(self: Pin<&mut Self>, index: usize, cx: &mut Context<'_>) -> Poll<Option<Self::Choice>>;
}

impl Arms for NoArm {
    type Choice = Infallible;
    const COUNT: usize = 0;

    fn poll_arm(self: Pin<&mut Self>, _: usize, _: &mut Context<'_>) -> Poll<Option<Infallible>> {
        unreachable!("index out of range")
    }
}

impl<F: Future, C: Fn(&F::Output) -> bool, E: Arms> Arms for Arm<F, C, E> {
    type Choice = Choice<F::Output, E::Choice>;
    const COUNT: usize = E::COUNT + 1;

    fn poll_arm(self: Pin<&mut Self>, index: usize, cx: &mut Context<'_>) -> Poll<Option<Self::Choice>> {
        // SAFETY: `future` and `earlier` are structurally pinned, never moved and dropped in place; `is_match` is not
        // pinned.
        let (future, is_match, earlier) = unsafe {
            let this = self.get_unchecked_mut();
            (
                Pin::new_unchecked(&mut this.future),
                &this.is_match,
                Pin::new_unchecked(&mut this.earlier),
            )
        };
        if index < E::COUNT {
            return earlier.poll_arm(index, cx).map(|choice| choice.map(Choice::Earlier));
        }
        let output = std::task::ready!(future.poll(cx));
        Poll::Ready(is_match(&output).then_some(Choice::This(output)))
    }
}

/// Waits for the first enabled branch whose output matches. `None` if there is no such branch.
pub async fn select_arms<A: Arms, const COUNT: usize>(
    arms: A,
    mut enabled: [bool; COUNT],
    biased: bool,
) -> Option<A::Choice> {
    assert_eq!(A::COUNT, COUNT, "one condition for each branch");
    let mut arms = pin!(Some(arms));
    let choice = poll_fn(|cx| {
        let start = if biased { 0 } else { random_branch(COUNT) };
        let mut is_pending = false;
        for index in (start..COUNT).chain(0..start) {
            if !enabled[index] {
                continue;
            }
            let running = arms.as_mut().as_pin_mut().expect("dropped after the choice");
            match running.poll_arm(index, cx) {
                Poll::Pending => is_pending = true,
                Poll::Ready(None) => enabled[index] = false,
                Poll::Ready(choice) => return Poll::Ready(choice),
            }
        }
        match is_pending {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    })
    .await;
    Leftovers::of(|| arms.set(None)).ended().await;
    choice
}

/// The branch to poll first. Pseudo-random, and the same in each run of a deterministic program.
fn random_branch(count: usize) -> usize {
    LoopCore::try_current().map_or(0, |core| {
        // xorshift
        let mut seed = core.branch_seed.get();
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        core.branch_seed.set(seed);
        seed as usize % count
    })
}
