//! Task-locals: what asyncio has as context variables.
//!
//! A context is a small list of variables with their values, shared until somebody changes it. A task gets its parent's
//! when it is spawned, which copies one pointer; a change makes a list of one's own, so it reaches neither the parent nor
//! children that exist already. A callback runs in the context in which it was scheduled, for the same price.
//!
//! A poll pays nothing for it: the context lies in the task's header, and whoever asks goes there. Code outside of tasks
//! (callbacks, or a thread that has yet to run its loop) has a context that belongs to the thread.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::guard;

/// A variable of which each task has a value of its own: asyncio's `ContextVar`.
///
/// A child begins with its parent's values. What it sets afterwards reaches neither its parent nor its siblings.
/// Callbacks (`call_soon`, `call_later`, done-callbacks, readers) see the values of where they were scheduled. What was set
/// outside of any loop is inherited by the tasks that are spawned there.
///
/// ```
/// use windlass::task::TaskLocal;
///
/// static REQUEST: TaskLocal<u32> = TaskLocal::new();
///
/// windlass::run(async {
///     REQUEST.set(7);
///     let child = windlass::spawn(async {
///         assert_eq!(REQUEST.get(), 7);
///         REQUEST.set(8);
///     });
///     child.await.unwrap();
///     assert_eq!(REQUEST.get(), 7);
///
///     REQUEST.scope(9, async { assert_eq!(REQUEST.get(), 9) }).await;
///     assert_eq!(REQUEST.get(), 7);
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TaskLocal<T: 'static> {
    default: Option<fn() -> T>,
    /// A variable is known by its address. This makes it have one: a type without size has none of its own, and a
    /// constant with an atomic in it is not silently made a static, but refused by the compiler.
    _place: AtomicBool,
    _value: PhantomData<fn() -> T>,
}

impl<T: 'static> TaskLocal<T> {
    /// A variable that has no value until it is set. To be put into a `static`.
    pub const fn new() -> TaskLocal<T> {
        TaskLocal {
            default: None,
            _place: AtomicBool::new(false),
            _value: PhantomData,
        }
    }

    /// A variable that has the value of `default` until it is set. `default` is called whenever somebody asks before that.
    ///
    /// ```
    /// use windlass::task::TaskLocal;
    /// static LANGUAGE: TaskLocal<String> = TaskLocal::with_default(|| "en".to_owned());
    /// assert_eq!(LANGUAGE.get(), "en");
    /// ```
    pub const fn with_default(default: fn() -> T) -> TaskLocal<T> {
        TaskLocal {
            default: Some(default),
            _place: AtomicBool::new(false),
            _value: PhantomData,
        }
    }

    /// The value here, copied.
    ///
    /// # Panics
    ///
    /// If it was never set here and has no default; [`try_get`](TaskLocal::try_get) does not.
    #[track_caller]
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.try_get().unwrap_or_else(|| no_value())
    }

    /// The value here, copied; `None` if it was never set here and has no default.
    pub fn try_get(&'static self) -> Option<T>
    where
        T: Clone,
    {
        match self.value() {
            Some(value) => Some(T::clone(&value)),
            None => self.default.map(|default| default()),
        }
    }

    /// Shows the value.
    ///
    /// # Panics
    ///
    /// If it was never set here and has no default.
    #[track_caller]
    pub fn with<R>(&'static self, look: impl FnOnce(&T) -> R) -> R {
        match (self.value(), self.default) {
            (Some(value), _) => look(&value),
            (None, Some(default)) => look(&default()),
            (None, None) => no_value(),
        }
    }

    /// Shows the value, or `None` if it was never set here and has no default.
    pub fn try_with<R>(&'static self, look: impl FnOnce(Option<&T>) -> R) -> R {
        match (self.value(), self.default) {
            (Some(value), _) => look(Some(&value)),
            (None, Some(default)) => look(Some(&default())),
            (None, None) => look(None),
        }
    }

    /// Sets the value for this task and those that it will spawn.
    pub fn set(&'static self, value: T) {
        drop(self.swap(Some(Rc::new(value))));
    }

    /// Takes the value away from this task: what follows sees the default, if there is one.
    pub fn unset(&'static self) {
        drop(self.swap(None));
    }

    /// Runs `future` with this value. Afterwards, and whenever it is suspended, the old one is back.
    ///
    /// Tasks that are spawned inside have the value for good. Dropping the future drops what it runs, under the same value.
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> Scope<T, F> {
        Scope {
            local: self,
            value: Some(Rc::new(value)),
            future: Some(future),
        }
    }

    /// Runs `call` with this value.
    pub fn sync_scope<R>(&'static self, value: T, call: impl FnOnce() -> R) -> R {
        let mut value = Some(Rc::new(value));
        let _inside = Inside::enter(self, &mut value);
        call()
    }

    fn value(&'static self) -> Option<Rc<T>> {
        let value = Locals::look(|locals| locals.get(self.key()))?;
        value.downcast().ok()
    }

    /// Puts a value in place of the one that is here, and gives that, to be dropped when nothing is open any more.
    fn swap(&'static self, value: Option<Rc<T>>) -> Option<Rc<T>> {
        let value = value.map(|value| value as Rc<dyn Any>);
        let old = Locals::change(|locals| locals.replace(self.key(), value));
        old.and_then(|old| old.downcast().ok())
    }

    fn key(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cold]
#[track_caller]
fn no_value() -> ! {
    panic!("a TaskLocal has no value here: set it first, or declare it with a default")
}

impl<T> Default for TaskLocal<T> {
    fn default() -> TaskLocal<T> {
        TaskLocal::new()
    }
}

impl<T> fmt::Debug for TaskLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskLocal")
            .field("type", &std::any::type_name::<T>())
            .field("has_default", &self.default.is_some())
            .finish()
    }
}

/// The future of [`TaskLocal::scope`].
#[must_use = "a scope does nothing until it is awaited"]
pub struct Scope<T: 'static, F> {
    local: &'static TaskLocal<T>,
    /// The value of the inside while that is suspended.
    value: Option<Rc<T>>,
    /// Pinned with the whole. `None` once it is dropped.
    future: Option<F>,
}

impl<T: 'static, F: Future> Future for Scope<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with the whole and never moved; the other fields are not pinned.
        let (this, future) = unsafe {
            let this = self.get_unchecked_mut();
            let future = this.future.as_mut().map(|future| Pin::new_unchecked(future));
            ((this.local, &mut this.value), future)
        };
        let _inside = Inside::enter(this.0, this.1);
        future.expect("a scope keeps its future until it is dropped").poll(cx)
    }
}

impl<T: 'static, F> Drop for Scope<T, F> {
    fn drop(&mut self) {
        let _inside = Inside::enter(self.local, &mut self.value);
        // In place: it is pinned.
        self.future = None;
    }
}

impl<T: 'static, F> fmt::Debug for Scope<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("local", self.local)
            .finish_non_exhaustive()
    }
}

/// While it lives, the value of a scope stands in the context, and the outer one in the scope.
struct Inside<'a, T: 'static> {
    local: &'static TaskLocal<T>,
    other: &'a mut Option<Rc<T>>,
}

impl<'a, T> Inside<'a, T> {
    fn enter(local: &'static TaskLocal<T>, value: &'a mut Option<Rc<T>>) -> Inside<'a, T> {
        *value = local.swap(value.take());
        Inside { local, other: value }
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        *self.other = self.local.swap(self.other.take());
    }
}

/// A context: variables by their addresses. Without any it allocates nothing.
#[derive(Clone, Default)]
pub(crate) struct Locals(Option<Rc<Vec<Variable>>>);

#[derive(Clone)]
struct Variable {
    key: usize,
    value: Rc<dyn Any>,
}

thread_local! {
    /// The context of code that is in no task: of the callback that runs, or of the thread.
    static OUTSIDE: Cell<Locals> = const { Cell::new(Locals(None)) };
    /// Whether there is anything in it. Most programs have nothing there, and find out by one look.
    static HAS_OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Locals {
    /// A copy of the context here.
    #[inline]
    pub(crate) fn current() -> Locals {
        let is_empty = match LoopCore::try_current().and_then(LoopCore::current_task) {
            Some(task) => Locals::is_empty(task.locals()),
            None => !HAS_OUTSIDE.get(),
        };
        match is_empty {
            true => Locals(None),
            false => Locals::look(Locals::clone),
        }
    }

    #[inline]
    pub(super) fn is_empty(cell: &Cell<Locals>) -> bool {
        // SAFETY: the cell is this thread's, and nobody borrows what is in it: everybody else takes it out.
        unsafe { (*cell.as_ptr()).0.is_none() }
    }

    /// Runs `call` in this context, outside of any task.
    #[inline]
    pub(crate) fn run<R>(self, call: impl FnOnce() -> R) -> R {
        let outer = match self.0.is_none() && !HAS_OUTSIDE.get() {
            true => Locals(None),
            false => Locals::swap_outside(self),
        };
        let _back = Back(outer);
        call()
    }

    /// The values may be anybody's, and whoever lets go of them is in the middle of something.
    #[inline]
    pub(crate) fn drop_guarded(self) {
        if self.0.is_some() {
            guard("a task-local's destructor", || drop(self));
        }
    }

    /// Shows the context here. `look` runs no foreign code.
    #[inline]
    fn look<R>(look: impl FnOnce(&Locals) -> R) -> R {
        Locals::change(|locals| look(locals))
    }

    /// Lets `change` have the context here. It runs no foreign code.
    #[inline]
    fn change<R>(change: impl FnOnce(&mut Locals) -> R) -> R {
        match LoopCore::try_current().and_then(LoopCore::current_task) {
            Some(task) => change_in(task.locals(), change),
            None => {
                let mut change = Some(change);
                let mut give = || change.take().expect("it is called once");
                let changed = OUTSIDE.try_with(|cell| {
                    let result = change_in(cell, give());
                    HAS_OUTSIDE.set(!Locals::is_empty(cell));
                    result
                });
                match changed {
                    Ok(result) => result,
                    // A thread that is ending has no context any more.
                    Err(_) => give()(&mut Locals(None)),
                }
            }
        }
    }

    #[cold]
    fn swap_outside(locals: Locals) -> Locals {
        let swapped = OUTSIDE.try_with(|cell| {
            HAS_OUTSIDE.set(locals.0.is_some());
            cell.replace(locals)
        });
        // A thread that is ending has no context any more.
        swapped.unwrap_or_default()
    }

    fn get(&self, key: usize) -> Option<Rc<dyn Any>> {
        let variable = self.0.as_ref()?.iter().find(|variable| variable.key == key)?;
        Some(variable.value.clone())
    }

    fn replace(&mut self, key: usize, value: Option<Rc<dyn Any>>) -> Option<Rc<dyn Any>> {
        if value.is_none() && self.0.is_none() {
            return None;
        }
        let variables = Rc::make_mut(self.0.get_or_insert_default());
        let found = variables.iter().position(|variable| variable.key == key);
        match (found, value) {
            (Some(place), Some(value)) => Some(std::mem::replace(&mut variables[place].value, value)),
            (Some(place), None) => Some(variables.swap_remove(place).value),
            (None, Some(value)) => {
                variables.push(Variable { key, value });
                None
            }
            (None, None) => None,
        }
    }
}

#[inline]
fn change_in<R>(cell: &Cell<Locals>, change: impl FnOnce(&mut Locals) -> R) -> R {
    let mut locals = cell.take();
    let result = change(&mut locals);
    cell.set(locals);
    result
}

/// Puts the outer context back.
struct Back(Locals);

impl Drop for Back {
    #[inline]
    fn drop(&mut self) {
        // A callback may have left something there, wherever it began.
        if self.0.0.is_some() || HAS_OUTSIDE.get() {
            Locals::swap_outside(std::mem::take(&mut self.0)).drop_guarded();
        }
    }
}
