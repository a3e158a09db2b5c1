//! A flag that tasks wait for.

use std::cell::RefCell;
use std::fmt;
use std::task::Waker;

use super::wait::{Calls, Kept, Request, Waiting};
use super::wait_queue::WaitQueue;

/// A flag that is down until somebody sets it, and that tasks wait for: asyncio's `Event`.
///
/// [`set`](Event::set) wakes everybody who waits, even if [`clear`](Event::clear) follows before they run. For a signal
/// that is used up by who gets it, see [`Notify`](super::Notify).
///
/// ```
/// use std::rc::Rc;
/// use windlass::sync::Event;
/// windlass::run(async {
///     let started = Rc::new(Event::new());
///     let task = windlass::spawn({
///         let started = started.clone();
///         async move { started.wait().await }
///     });
///     started.set();
///     task.await.unwrap();
///     started.wait().await; // it stays set
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Event {
    state: RefCell<State>,
}

struct State {
    is_set: bool,
    wait_queue: WaitQueue<(), ()>,
}

impl Event {
    /// Makes an event that is not set.
    pub const fn new() -> Event {
        Event {
            state: RefCell::new(State {
                is_set: false,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.state.with(|state| state.is_set)
    }

    /// Sets it and wakes everybody who waits, in the order of coming.
    pub fn set(&self) {
        self.state.act(|state| {
            state.is_set = true;
            state.wait_queue.call_all(|| ());
        });
    }

    /// Takes the flag down: who comes from now on waits again.
    pub fn clear(&self) {
        self.state.with(|state| state.is_set = false);
    }

    /// Waits until it is set; not at all if it is. Dropping the future changes nothing for others.
    pub async fn wait(&self) {
        Waiting::new(&self.state, Set).await;
    }
}

impl Default for Event {
    fn default() -> Event {
        Event::new()
    }
}

impl Calls for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

/// That the event be set.
struct Set;

impl Request<State> for Set {
    type Want = ();
    type Grant = ();
    type Output = ();

    fn wait_queue(state: &mut State) -> &mut WaitQueue<(), ()> {
        &mut state.wait_queue
    }

    fn name(&self) -> &'static str {
        "an event"
    }

    fn want(&self) {}

    fn try_now(&mut self, state: &mut State) -> Option<()> {
        state.is_set.then_some(())
    }

    fn settle(state: &mut State) {
        if state.is_set {
            state.wait_queue.call_all(|| ());
        }
    }

    fn take(&mut self, _state: &mut State, (): ()) {}

    fn give_back(&mut self, _state: &mut State, (): ()) {}
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("set", &self.is_set())
            .field("waiting", &self.state.with(|state| state.wait_queue.len()))
            .finish()
    }
}
