//! A place where tasks meet.

use std::cell::RefCell;
use std::fmt;
use std::task::Waker;

use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// Lets tasks through once so many of them are there, again and again: asyncio's `Barrier`.
///
/// A task that is cancelled while it waits has not come: another is needed in its place.
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Barrier;
/// windlass::run(async {
///     let barrier = Rc::new(Barrier::new(3));
///     let tasks: Vec<_> = (0..3)
///         .map(|_| {
///             let barrier = barrier.clone();
///             windlass::spawn(async move { barrier.wait().await.unwrap().is_leader() })
///         })
///         .collect();
///     let mut leaders = 0;
///     for task in tasks {
///         leaders += task.await.unwrap() as u32;
///     }
///     assert_eq!(leaders, 1);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Barrier {
    state: RefCell<State>,
}

struct State {
    parties: usize,
    is_broken: bool,
    wait_queue: WaitQueue<(), Passed>,
}

/// A place among those who met, or nothing if the barrier broke.
type Passed = Result<usize, BrokenBarrier>;

impl Barrier {
    /// Makes a barrier for so many tasks.
    ///
    /// # Panics
    ///
    /// If that is none.
    #[track_caller]
    pub const fn new(parties: usize) -> Barrier {
        assert!(parties > 0, "a barrier is for at least one task");
        Barrier {
            state: RefCell::new(State {
                parties,
                is_broken: false,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Waits until everybody is there. Fails if somebody calls [`abort`](Barrier::abort) or [`reset`](Barrier::reset)
    /// meanwhile, or has aborted the barrier before.
    ///
    /// Dropping the future before everybody was there takes this one out of the count.
    pub async fn wait(&self) -> Result<BarrierWaitResult, BrokenBarrier> {
        let index = Waiting::new(&self.state, Pass).await?;
        Ok(BarrierWaitResult { index })
    }

    /// Breaks the barrier: who waits fails, and who comes, until [`reset`](Barrier::reset).
    pub fn abort(&self) {
        self.state.act(|state| {
            state.is_broken = true;
            state.wait_queue.call_all(|| Err(BrokenBarrier));
        });
    }

    /// Makes the barrier new: who waits fails, and who comes from now on waits for everybody.
    pub fn reset(&self) {
        self.state.act(|state| {
            state.is_broken = false;
            state.wait_queue.call_all(|| Err(BrokenBarrier));
        });
    }

    /// How many it takes.
    pub fn parties(&self) -> usize {
        self.state.with(|state| state.parties)
    }

    /// How many are there and wait for the others.
    pub fn waiting(&self) -> usize {
        self.state.with(|state| state.wait_queue.len())
    }

    /// Whether it was aborted.
    pub fn is_broken(&self) -> bool {
        self.state.with(|state| state.is_broken)
    }
}

impl State {
    fn let_through(&mut self) {
        let mut index = 0;
        self.wait_queue.call_all(|| {
            index += 1;
            Ok(index - 1)
        });
    }
}

impl Calls for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

struct Pass;

impl Request<State> for Pass {
    type Want = ();
    type Grant = Passed;
    type Output = Passed;

    fn wait_queue(state: &mut State) -> &mut WaitQueue<(), Passed> {
        &mut state.wait_queue
    }

    fn name(&self) -> &'static str {
        "a barrier"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State) -> Option<Passed> {
        if state.is_broken {
            return Some(Err(BrokenBarrier));
        }
        if state.wait_queue.len() + 1 < state.parties {
            return None;
        }
        state.let_through();
        Some(Ok(state.parties - 1))
    }

    fn settle(state: &mut State) {
        if state.is_broken {
            state.wait_queue.call_all(|| Err(BrokenBarrier));
        } else if state.wait_queue.len() == state.parties {
            state.let_through();
        }
    }

    fn take(&mut self, _state: &mut State, passed: Passed) -> Passed {
        passed
    }

    fn give_back(&mut self, _state: &mut State, _passed: Passed) {}
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("parties", &self.parties())
            .field("waiting", &self.waiting())
            .field("broken", &self.is_broken())
            .finish()
    }
}

/// What [`Barrier::wait`] gives to each of those who met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult {
    index: usize,
}

impl BarrierWaitResult {
    /// The how-manieth this one came, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// True for one of those who met: the first who came.
    pub fn is_leader(&self) -> bool {
        self.index == 0
    }
}

/// The barrier was aborted, or reset while this one waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenBarrier;

impl fmt::Display for BrokenBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the barrier was aborted, or reset while a task waited at it")
    }
}

impl std::error::Error for BrokenBarrier {}
