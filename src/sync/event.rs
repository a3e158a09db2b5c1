//! `Event`: a flag that tasks can wait for.

use std::cell::RefCell;
use std::fmt;
use std::task::Waker;

use super::wait::{StateCell, Until, WaitFuture, WaitState};
use super::wait_queue::WaitQueue;

/// A flag that tasks can wait for, initially not set: asyncio's `Event`.
///
/// [`set`](Event::set) wakes all waiters, even if [`clear`](Event::clear) follows before they run. For a signal that
/// one waiter consumes, see [`Notify`](super::Notify).
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
    wait_queue: WaitQueue<()>,
}

impl Event {
    /// Creates an event that is not set.
    pub const fn new() -> Event {
        Event {
            state: RefCell::new(State {
                is_set: false,
                wait_queue: WaitQueue::new(),
            }),
        }
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.state.with(|state| state.is_set)
    }

    /// Sets the flag and wakes all waiters in FIFO order.
    pub fn set(&self) {
        self.state.update(|state| {
            state.is_set = true;
            state.wait_queue.grant_all(|| ());
        });
    }

    /// Clears the flag: later calls of [`wait`](Event::wait) wait again.
    pub fn clear(&self) {
        self.state.with(|state| state.is_set = false);
    }

    /// Waits until the flag is set; returns immediately if it is. Cancel-safe.
    pub async fn wait(&self) {
        let until_set = Until {
            queue: |state: &mut State| &mut state.wait_queue,
            condition: |state, ()| state.is_set,
            arg: (),
        };
        WaitFuture::new(&self.state, &"an event", until_set).await;
    }
}

impl Default for Event {
    fn default() -> Event {
        Event::new()
    }
}

impl WaitState for State {
    fn next_waker(&mut self) -> Option<Waker> {
        self.wait_queue.next_waker()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("set", &self.is_set())
            .field("waiting", &self.state.with(|state| state.wait_queue.len()))
            .finish()
    }
}
