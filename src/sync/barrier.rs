//! A barrier for tasks.

use std::cell::RefCell;
use std::fmt;
use std::task::Waker;

use super::wait::{Request, StateCell, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// Makes tasks wait until a given number of them have arrived, then releases them: asyncio's `Barrier`. Reusable.
///
/// A task that is cancelled while it waits no longer counts as arrived.
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
    wait_queue: WaitQueue<PassResult>,
}

/// The position in the order of arrival, or an error if the barrier was broken.
type PassResult = Result<usize, BrokenBarrier>;

impl Barrier {
    /// Creates a barrier for `parties` tasks.
    ///
    /// # Panics
    ///
    /// If `parties` is zero.
    #[track_caller]
    pub const fn new(parties: usize) -> Barrier {
        assert!(parties > 0, "a barrier needs at least one party");
        Barrier {
            state: RefCell::new(State {
                parties,
                is_broken: false,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Waits until all parties have arrived. Fails after [`abort`](Barrier::abort), or on a [`reset`](Barrier::reset)
    /// during the wait.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before all parties have arrived is removed from the count.
    pub async fn wait(&self) -> Result<BarrierWaitResult, BrokenBarrier> {
        let index = WaitFuture::new(&self.state, &"a barrier", Arrive).await?;
        Ok(BarrierWaitResult { index })
    }

    /// Breaks the barrier: current and future waits fail until [`reset`](Barrier::reset).
    pub fn abort(&self) {
        self.state.update(|state| state.fail_waits(true));
    }

    /// Resets the barrier: current waits fail, and the count starts again at zero.
    pub fn reset(&self) {
        self.state.update(|state| state.fail_waits(false));
    }

    /// The number of tasks that must arrive.
    pub fn parties(&self) -> usize {
        self.state.with(|state| state.parties)
    }

    /// The number of tasks that are waiting.
    pub fn waiting(&self) -> usize {
        self.state.with(|state| state.wait_queue.len())
    }

    /// Whether the barrier was aborted.
    pub fn is_broken(&self) -> bool {
        self.state.with(|state| state.is_broken)
    }
}

impl State {
    fn fail_waits(&mut self, is_broken: bool) {
        self.is_broken = is_broken;
        self.wait_queue.grant_all(|| Err(BrokenBarrier));
    }

    fn release_all(&mut self) {
        let mut index = 0;
        self.wait_queue.grant_all(|| {
            index += 1;
            Ok(index - 1)
        });
    }
}

impl WaitState for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

struct Arrive;

impl Request<State> for Arrive {
    type Grant = PassResult;
    type Output = PassResult;

    fn wait_queue<'s>(&self, state: &'s mut State) -> &'s mut WaitQueue<PassResult> {
        &mut state.wait_queue
    }

    fn try_now(&mut self, state: &mut State) -> Option<PassResult> {
        if state.is_broken {
            return Some(Err(BrokenBarrier));
        }
        if state.wait_queue.len() + 1 < state.parties {
            return None;
        }
        state.release_all();
        Some(Ok(state.parties - 1))
    }

    fn enqueued(&mut self, state: &mut State) {
        if state.is_broken {
            state.wait_queue.grant_all(|| Err(BrokenBarrier));
        } else if state.wait_queue.len() == state.parties {
            state.release_all();
        }
    }

    fn take_grant(&mut self, _state: &mut State, passed: PassResult) -> PassResult {
        passed
    }
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

/// The result of [`Barrier::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult {
    index: usize,
}

impl BarrierWaitResult {
    /// This task's position in the order of arrival, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// True for exactly one of the released tasks: the first to arrive.
    pub fn is_leader(&self) -> bool {
        self.index == 0
    }
}

/// Error: the barrier was aborted, or was reset while the task waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenBarrier;

impl fmt::Display for BrokenBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the barrier was aborted, or reset while the task waited")
    }
}

impl std::error::Error for BrokenBarrier {}
