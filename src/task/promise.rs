//! A placeholder that anybody can resolve once: asyncio's `Future`.
//!
//! What asyncio calls a future is two things in Rust: the [`Promise`], which resolves, and the [`Placeholder`], which is
//! awaited. As in asyncio, done-callbacks run through the loop, never inside `resolve`; they run before whoever awaits
//! gets the value, because they only look at it.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use crate::event_loop::callback::CallbackCell;
use crate::event_loop::core::LoopCore;
use crate::task::Locals;

/// Makes a promise and its placeholder on the current loop.
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
/// Outside of a loop.
#[track_caller]
pub fn promise<T: 'static>() -> (Promise<T>, Placeholder<T>) {
    let core = Rc::downgrade(&LoopCore::current("promise").rc());
    let state = Rc::new(RefCell::new(State {
        core,
        value: Value::Unset,
        callbacks: Vec::new(),
        waker: None,
    }));
    let promise = Promise(Rc::new(PromiseShare { state: state.clone() }));
    (promise, Placeholder { state })
}

struct State<T> {
    core: Weak<LoopCore>,
    value: Value<T>,
    /// With the context in which each was added.
    callbacks: Vec<(DoneCallback<T>, Locals)>,
    waker: Option<Waker>,
}

type DoneCallback<T> = Box<dyn FnOnce(Result<&T, Abandoned>)>;

enum Value<T> {
    Unset,
    /// Resolved; the done-callbacks have not run yet.
    Set(Result<T, Abandoned>),
    /// Shown to the done-callbacks right now.
    Lent,
    /// Resolved, and the done-callbacks have run.
    Told(Result<T, Abandoned>),
    Taken,
}

/// The resolving side. Clones resolve the same placeholder; the first to do so wins. When the last clone is dropped
/// without having resolved it, the placeholder gives [`Abandoned`].
pub struct Promise<T: 'static>(Rc<PromiseShare<T>>);

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Promise<T> {
        Promise(self.0.clone())
    }
}

struct PromiseShare<T: 'static> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Promise<T> {
    /// Resolves the placeholder. Gives the value back if it was resolved before.
    pub fn resolve(&self, value: T) -> Result<(), T> {
        if self.is_resolved() {
            return Err(value);
        }
        self.0.settle(Ok(value));
        Ok(())
    }

    /// Whether the placeholder is resolved.
    pub fn is_resolved(&self) -> bool {
        !matches!(self.0.state.borrow().value, Value::Unset)
    }
}

impl<T> PromiseShare<T> {
    /// Stores the value and has the loop tell of it.
    fn settle(&self, result: Result<T, Abandoned>) {
        self.state.borrow_mut().value = Value::Set(result);
        tell_soon(&self.state);
    }
}

/// Runs the done-callbacks in the order in which they were added, then lets the awaiter have the value.
fn tell<T: 'static>(state: &Rc<RefCell<State<T>>>) {
    let (result, callbacks) = {
        let mut state = state.borrow_mut();
        match std::mem::replace(&mut state.value, Value::Lent) {
            Value::Set(result) => (result, std::mem::take(&mut state.callbacks)),
            other => {
                state.value = other;
                return;
            }
        }
    };
    for (callback, locals) in callbacks {
        let view = result.as_ref().map_err(|&abandoned| abandoned);
        crate::event_loop::exception::guard("a done-callback", || locals.run(|| callback(view)));
    }
    let (waker, late) = {
        let mut state = state.borrow_mut();
        match state.callbacks.is_empty() {
            true => {
                state.value = Value::Told(result);
                (state.waker.take(), false)
            }
            // They were added meanwhile, and the awaiter waits for them too.
            false => {
                state.value = Value::Set(result);
                (None, true)
            }
        }
    };
    if late {
        tell_soon(state);
    }
    if let Some(waker) = waker {
        // This may be a destructor, if the loop is closed.
        crate::event_loop::exception::guard("a waker", || waker.wake());
    }
}

/// Has the loop tell in its next turn. A loop that is gone has no turns; whoever still awaits does so elsewhere.
fn tell_soon<T: 'static>(state: &Rc<RefCell<State<T>>>) {
    let core = state.borrow().core.upgrade();
    match core.filter(|core| !core.is_closed()) {
        Some(core) => {
            let state = state.clone();
            core.call_soon(Rc::new(CallbackCell::new(move || tell(&state))));
        }
        None => tell(state),
    }
}

impl<T> Drop for PromiseShare<T> {
    fn drop(&mut self) {
        if matches!(self.state.borrow().value, Value::Unset) {
            self.settle(Err(Abandoned));
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

/// The awaiting side: resolves to the value, or to [`Abandoned`] if every [`Promise`] was dropped.
#[must_use = "a placeholder gives its value when it is awaited"]
pub struct Placeholder<T: 'static> {
    state: Rc<RefCell<State<T>>>,
}

impl<T> Placeholder<T> {
    /// Whether the value is there.
    pub fn is_done(&self) -> bool {
        !matches!(self.state.borrow().value, Value::Unset)
    }

    /// Has the loop call `callback` once the value is there, in the order of adding; at its next turn if it is there
    /// already. It sees the value before whoever awaits the placeholder takes it; once the value is taken, no callback is
    /// called any more.
    pub fn add_done_callback(&self, callback: impl FnOnce(Result<&T, Abandoned>) + 'static) {
        let locals = Locals::current();
        let told = {
            let mut state = self.state.borrow_mut();
            state.callbacks.push((Box::new(callback), locals));
            match std::mem::replace(&mut state.value, Value::Lent) {
                // Back to where the awaiter waits, so that it does not take the value before this callback has seen it.
                Value::Told(result) => {
                    state.value = Value::Set(result);
                    true
                }
                other => {
                    state.value = other;
                    false
                }
            }
        };
        if told {
            tell_soon(&self.state);
        }
    }
}

impl<T> Future for Placeholder<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone();
        let old;
        {
            let mut state = self.state.borrow_mut();
            match std::mem::replace(&mut state.value, Value::Taken) {
                Value::Told(result) => return Poll::Ready(result),
                Value::Taken => panic!("a Placeholder was polled after it had given its value"),
                waiting => state.value = waiting,
            }
            old = state.waker.replace(waker);
        }
        drop(old);
        crate::task::waits_for(crate::task::Reason::Named("a promise"));
        Poll::Pending
    }
}

impl<T> fmt::Debug for Placeholder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placeholder").field("done", &self.is_done()).finish()
    }
}

/// Every [`Promise`] of a [`Placeholder`] was dropped without resolving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

impl fmt::Display for Abandoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every promise was dropped without resolving its placeholder")
    }
}

impl std::error::Error for Abandoned {}
