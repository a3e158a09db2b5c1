//! A value that is resolved once, with done-callbacks: asyncio's `Future`.
//!
//! asyncio's future is split in two: the [`Promise`] resolves, the [`Placeholder`] is awaited. As in asyncio, the loop
//! calls the done-callbacks, not `resolve` itself. They borrow the value, so they run before the awaiting task gets it.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{guard, wake_all};
use crate::task::Locals;

/// Creates a promise and its placeholder on the current loop.
///
/// ```
/// windlass::run(async {
///     let (promise, placeholder) = windlass::promise();
///     placeholder.add_done_callback(|value| println!("resolved to {value:?}"));
///     windlass::call_soon(move || promise.resolve("done").unwrap());
///     assert_eq!(placeholder.await, Ok("done"));
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If called outside of a loop.
#[track_caller]
pub fn promise<T: 'static>() -> (Promise<T>, Placeholder<T>) {
    let core = Rc::downgrade(&LoopCore::current("promise").rc());
    let state = Rc::new(RefCell::new(State {
        core,
        value: Slot::Empty,
        callbacks: Vec::new(),
        waker: None,
    }));
    let promise = Promise(Rc::new(Resolver { state: state.clone() }));
    (promise, Placeholder { state })
}

struct State<T> {
    core: Weak<LoopCore>,
    value: Slot<T>,
    /// Each with the context in which it was added.
    callbacks: Vec<(DoneCallback<T>, Locals)>,
    waker: Option<Waker>,
}

type DoneCallback<T> = Box<dyn FnOnce(Result<&T, Abandoned>)>;

enum Slot<T> {
    Empty,
    /// Resolved; the done-callbacks have not run.
    Resolved(Result<T, Abandoned>),
    /// The done-callbacks are running and borrow the value.
    InCallbacks,
    /// The done-callbacks have run: the placeholder may take the value.
    Ready(Result<T, Abandoned>),
    Taken,
}

/// The resolving side of [`promise`]. Clones share one placeholder, and the first to resolve it wins. If all clones are
/// dropped without resolving, the placeholder returns [`Abandoned`].
pub struct Promise<T: 'static>(Rc<Resolver<T>>);

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Promise<T> {
        Promise(self.0.clone())
    }
}

struct Resolver<T: 'static> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Promise<T> {
    /// Resolves the placeholder. Returns the value if it is already resolved.
    pub fn resolve(&self, value: T) -> Result<(), T> {
        if self.is_resolved() {
            return Err(value);
        }
        self.0.finish(Ok(value));
        Ok(())
    }

    /// Whether the placeholder is resolved.
    pub fn is_resolved(&self) -> bool {
        !matches!(self.0.state.borrow().value, Slot::Empty)
    }
}

impl<T> Resolver<T> {
    /// Stores the result and schedules the done-callbacks.
    fn finish(&self, result: Result<T, Abandoned>) {
        self.state.borrow_mut().value = Slot::Resolved(result);
        schedule_callbacks(&self.state);
    }
}

/// Calls the done-callbacks in the order of registration, then wakes the awaiting task.
fn run_callbacks<T: 'static>(state: &Rc<RefCell<State<T>>>) {
    let (result, callbacks) = {
        let mut state = state.borrow_mut();
        match std::mem::replace(&mut state.value, Slot::InCallbacks) {
            Slot::Resolved(result) => (result, std::mem::take(&mut state.callbacks)),
            other => {
                state.value = other;
                return;
            }
        }
    };
    for (callback, locals) in callbacks {
        let view = result.as_ref().map_err(|&abandoned| abandoned);
        guard("a done-callback", || locals.run(|| callback(view)));
    }
    let mut borrowed = state.borrow_mut();
    if !borrowed.callbacks.is_empty() {
        // Callbacks were added meanwhile; they run before the awaiting task gets the value.
        borrowed.value = Slot::Resolved(result);
        drop(borrowed);
        return schedule_callbacks(state);
    }
    borrowed.value = Slot::Ready(result);
    let waker = borrowed.waker.take();
    drop(borrowed);
    // A panicking waker must not unwind: if the loop is closed, this may run in a destructor.
    wake_all(waker);
}

/// Runs the done-callbacks in the loop's next turn; immediately if the loop is closed, since the placeholder may be
/// awaited by another executor.
fn schedule_callbacks<T: 'static>(state: &Rc<RefCell<State<T>>>) {
    let core = state.borrow().core.upgrade();
    match core.filter(|core| !core.is_closed()) {
        Some(core) => {
            let state = state.clone();
            core.call_soon(move || run_callbacks(&state));
        }
        None => run_callbacks(state),
    }
}

impl<T> Drop for Resolver<T> {
    fn drop(&mut self) {
        if matches!(self.state.borrow().value, Slot::Empty) {
            self.finish(Err(Abandoned));
        }
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise")
            .field("resolved", &self.is_resolved())
            .finish()
    }
}

/// The awaiting side of [`promise`]. Resolves to the value, or to [`Abandoned`] if every [`Promise`] was dropped.
#[must_use = "futures do nothing unless awaited"]
pub struct Placeholder<T: 'static> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Placeholder<T> {
    /// Whether the placeholder is resolved.
    pub fn is_done(&self) -> bool {
        !matches!(self.state.borrow().value, Slot::Empty)
    }

    /// Registers a callback that the loop calls once the placeholder is resolved; in the next turn if it is resolved
    /// already. Callbacks run in the order of registration and before the awaiting task gets the value. Once the value
    /// is taken, callbacks are not called any more.
    pub fn add_done_callback(&self, callback: impl FnOnce(Result<&T, Abandoned>) + 'static) {
        let locals = Locals::current();
        let mut state = self.state.borrow_mut();
        state.callbacks.push((Box::new(callback), locals));
        match std::mem::replace(&mut state.value, Slot::InCallbacks) {
            // Back to `Resolved`, so that the value is not taken before this callback has run.
            Slot::Ready(result) => state.value = Slot::Resolved(result),
            other => {
                state.value = other;
                return;
            }
        }
        drop(state);
        schedule_callbacks(&self.state);
    }
}

impl<T> Future for Placeholder<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone();
        let mut state = self.state.borrow_mut();
        match std::mem::replace(&mut state.value, Slot::Taken) {
            Slot::Ready(result) => return Poll::Ready(result),
            Slot::Taken => panic!("Placeholder polled after it returned its value"),
            waiting => state.value = waiting,
        }
        let old = state.waker.replace(waker);
        drop(state);
        drop(old);
        crate::task::set_wait_reason(crate::task::WaitReason::Named(&"a promise"));
        Poll::Pending
    }
}

impl<T> fmt::Debug for Placeholder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placeholder").field("done", &self.is_done()).finish()
    }
}

/// Error: every [`Promise`] of a [`Placeholder`] was dropped without resolving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every promise was dropped without resolving its placeholder")
    }
}

impl std::error::Error for Abandoned {}
