//! Task-locals: asyncio's context variables.
//!
//! A context is a small list of variables and their values, shared copy-on-write. Spawning a task copies one pointer to
//! the parent's context. Setting a variable copies the list, so the change is visible neither to the parent nor to
//! children that exist already. A callback runs in the context in which it was scheduled, at the same cost.
//!
//! Polls pay nothing: the context is in the task's header, and lookups go there. Code outside of tasks (callbacks, or a
//! thread that does not run its loop yet) uses a thread-wide context, `AMBIENT`.

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
use crate::on_drop::OnDrop;

/// A variable with a separate value in each task: asyncio's `ContextVar`.
///
/// A child starts with its parent's values. Values that it sets are not visible to its parent or siblings. Callbacks
/// (`call_soon`, `call_later`, done-callbacks, readers) see the values of the code that scheduled them. Values set
/// outside of any loop are inherited by tasks spawned there.
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
    /// A variable is identified by its address. This field makes the type non-zero-sized, so that the address is
    /// unique, and makes the compiler reject a `const` in place of a `static`.
    _address: AtomicBool,
    _value: PhantomData<fn() -> T>,
}

impl<T: 'static> TaskLocal<T> {
    /// Creates a variable without a value. Store it in a `static`.
    pub const fn new() -> TaskLocal<T> {
        TaskLocal::make(None)
    }

    /// Creates a variable that has the value of `default` until it is set. Each read before that calls `default`.
    ///
    /// ```
    /// use windlass::task::TaskLocal;
    /// static LANGUAGE: TaskLocal<String> = TaskLocal::with_default(|| "en".to_owned());
    /// assert_eq!(LANGUAGE.get(), "en");
    /// ```
    pub const fn with_default(default: fn() -> T) -> TaskLocal<T> {
        TaskLocal::make(Some(default))
    }

    const fn make(default: Option<fn() -> T>) -> TaskLocal<T> {
        TaskLocal {
            default,
            _address: AtomicBool::new(false),
            _value: PhantomData,
        }
    }

    /// A clone of the current value.
    ///
    /// # Panics
    ///
    /// If the variable is not set and has no default. See [`try_get`](TaskLocal::try_get).
    #[track_caller]
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.try_get().unwrap_or_else(|| no_value())
    }

    /// A clone of the current value; `None` if the variable is not set and has no default.
    pub fn try_get(&'static self) -> Option<T>
    where
        T: Clone,
    {
        match self.value() {
            Some(value) => Some(T::clone(&value)),
            None => self.default.map(|default| default()),
        }
    }

    /// Calls `read` with the current value.
    ///
    /// # Panics
    ///
    /// If the variable is not set and has no default.
    #[track_caller]
    pub fn with<R>(&'static self, read: impl FnOnce(&T) -> R) -> R {
        match (self.value(), self.default) {
            (Some(value), _) => read(&value),
            (None, Some(default)) => read(&default()),
            (None, None) => no_value(),
        }
    }

    /// Calls `read` with the current value, or `None` if the variable is not set and has no default.
    pub fn try_with<R>(&'static self, read: impl FnOnce(Option<&T>) -> R) -> R {
        match (self.value(), self.default) {
            (Some(value), _) => read(Some(&value)),
            (None, Some(default)) => read(Some(&default())),
            (None, None) => read(None),
        }
    }

    /// Sets the value for this task and for tasks that it spawns from now on.
    pub fn set(&'static self, value: T) {
        drop(self.swap(Some(Rc::new(value))));
    }

    /// Removes the value from this task: reads return the default, if there is one.
    pub fn unset(&'static self) {
        drop(self.swap(None));
    }

    /// Runs `future` with this value: it is set during each poll of `future`, and while `future` is dropped. Tasks that
    /// `future` spawns inherit it.
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> Scope<T, F> {
        Scope {
            local: self,
            value: Some(Rc::new(value)),
            future: Some(future),
        }
    }

    /// Calls `call` with this value set.
    pub fn sync_scope<R>(&'static self, value: T, call: impl FnOnce() -> R) -> R {
        let mut value = Some(Rc::new(value));
        let _guard = self.enter(&mut value);
        call()
    }

    /// Swaps a scope's value into the context, and back when the guard is dropped.
    fn enter<'a>(&'static self, value: &'a mut Option<Rc<T>>) -> OnDrop<impl FnMut() + 'a> {
        *value = self.swap(value.take());
        OnDrop(|| *value = self.swap(value.take()))
    }

    fn value(&'static self) -> Option<Rc<T>> {
        let value = Locals::update(|locals| locals.get(self.key()))?;
        value.downcast().ok()
    }

    /// Replaces the current value and returns the old one. The caller drops it when no context is borrowed.
    fn swap(&'static self, value: Option<Rc<T>>) -> Option<Rc<T>> {
        let value = value.map(|value| value as Rc<dyn Any>);
        let old = Locals::update(|locals| locals.replace(self.key(), value));
        old.and_then(|old| old.downcast().ok())
    }

    /// A context with this value alone.
    pub(crate) fn context(&'static self, value: T) -> Locals {
        let mut locals = Locals::default();
        locals.replace(self.key(), Some(Rc::new(value)));
        locals
    }

    fn key(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cold]
#[track_caller]
fn no_value() -> ! {
    panic!("TaskLocal read without a value: set it first, or declare it with a default")
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

/// The future returned by [`TaskLocal::scope`].
#[must_use = "a scope does nothing until it is awaited"]
pub struct Scope<T: 'static, F> {
    local: &'static TaskLocal<T>,
    /// The scope's value while the scope is suspended; the outer value while it runs.
    value: Option<Rc<T>>,
    /// Structurally pinned. `None` once it is dropped.
    future: Option<F>,
}

impl<T: 'static, F: Future> Future for Scope<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is structurally pinned and never moved; the other fields are not pinned.
        let (local, value, future) = unsafe {
            let this = self.get_unchecked_mut();
            let future = this.future.as_mut().map(|future| Pin::new_unchecked(future));
            (this.local, &mut this.value, future)
        };
        let _guard = local.enter(value);
        let future = future.expect("the future is present until the scope is dropped");
        future.poll(cx)
    }
}

impl<T: 'static, F> Drop for Scope<T, F> {
    fn drop(&mut self) {
        let _guard = self.local.enter(&mut self.value);
        // In place: the future is pinned.
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

/// A context: values by the address of their variable. An empty one allocates nothing.
#[derive(Clone, Default)]
pub(crate) struct Locals(Option<Rc<Vec<Variable>>>);

#[derive(Clone)]
struct Variable {
    key: usize,
    value: Rc<dyn Any>,
}

thread_local! {
    /// The context of code outside of tasks: of the running callback, or of the thread.
    static AMBIENT: Cell<Locals> = const { Cell::new(Locals(None)) };
    /// Whether `AMBIENT` has any value. Most programs set none, and check only this flag.
    static HAS_AMBIENT: Cell<bool> = const { Cell::new(false) };
}

impl Locals {
    /// A copy of the current context.
    #[inline]
    pub(crate) fn current() -> Locals {
        match LoopCore::running_task() {
            None if !HAS_AMBIENT.get() => Locals(None),
            None => Locals::update(|locals| locals.clone()),
            Some(task) => update_in(task.locals(), |locals| locals.clone()),
        }
    }

    /// Runs `call` in this context, outside of any task.
    #[inline]
    pub(crate) fn run<R>(self, call: impl FnOnce() -> R) -> R {
        let mut outer = match self.0.is_none() && !HAS_AMBIENT.get() {
            true => Locals(None),
            false => Locals::swap_ambient(self),
        };
        let _restore = OnDrop(|| {
            // A callback may have set values even if it started without any.
            if outer.0.is_some() || HAS_AMBIENT.get() {
                Locals::swap_ambient(std::mem::take(&mut outer)).drop_guarded();
            }
        });
        call()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Drops the values; a panic in one of their destructors is reported and does not propagate.
    #[inline]
    pub(crate) fn drop_guarded(self) {
        if self.0.is_some() {
            guard("a task-local's destructor", || drop(self));
        }
    }

    /// Calls `update` with the current context. It must not run the user's code.
    #[inline]
    fn update<R>(update: impl FnOnce(&mut Locals) -> R) -> R {
        match LoopCore::running_task() {
            Some(task) => update_in(task.locals(), update),
            // The thread is exiting and its thread-locals are gone.
            None if AMBIENT.try_with(|_| ()).is_err() => update(&mut Locals(None)),
            None => AMBIENT.with(|cell| {
                update_in(cell, |locals| {
                    let result = update(locals);
                    HAS_AMBIENT.set(locals.0.is_some());
                    result
                })
            }),
        }
    }

    #[cold]
    fn swap_ambient(locals: Locals) -> Locals {
        let swapped = AMBIENT.try_with(|cell| {
            HAS_AMBIENT.set(locals.0.is_some());
            cell.replace(locals)
        });
        // The thread is exiting and its thread-locals are gone.
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
            (Some(index), Some(value)) => Some(std::mem::replace(&mut variables[index].value, value)),
            (Some(index), None) => Some(variables.swap_remove(index).value),
            (None, Some(value)) => {
                variables.push(Variable { key, value });
                None
            }
            (None, None) => None,
        }
    }
}

#[inline]
fn update_in<R>(cell: &Cell<Locals>, update: impl FnOnce(&mut Locals) -> R) -> R {
    let mut locals = cell.take();
    let result = update(&mut locals);
    cell.set(locals);
    result
}
