//! The callbacks that `call_soon` and `call_later` schedule, and the handles that cancel them.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::{Rc, Weak};

use crate::event_loop::core::LoopCore;
use crate::event_loop::timers::{Action, TimerId};
use crate::task::Locals;
use crate::time::Instant;

/// A type-erased callback in the ready queue or the timer heap.
pub(crate) trait Callback {
    /// Runs the callback, unless it has run or was cancelled.
    fn run(&self);
    /// Drops the closure without running it.
    fn cancel(&self);
    /// Where it was scheduled.
    fn location(&self) -> &'static Location<'static>;
}

/// The single allocation of a scheduled callback.
struct CallbackCell<F> {
    function: Cell<Option<F>>,
    location: &'static Location<'static>,
    /// As in asyncio, a callback runs in the context of the code that scheduled it.
    locals: Cell<Locals>,
}

#[track_caller]
fn callback(function: impl FnOnce() + 'static) -> Rc<dyn Callback> {
    Rc::new(CallbackCell {
        function: Cell::new(Some(function)),
        location: Location::caller(),
        locals: Cell::new(Locals::current()),
    })
}

impl LoopCore {
    #[track_caller]
    pub(crate) fn call_soon(&self, function: impl FnOnce() + 'static) -> Handle {
        let callback = callback(function);
        let handle = Handle::new(&callback);
        if !self.is_closed() {
            self.ready.push_callback(callback);
            self.queued();
        }
        handle
    }

    #[track_caller]
    pub(crate) fn call_at(&self, when: Instant, function: impl FnOnce() + 'static) -> TimerHandle {
        let callback = callback(function);
        let id = self.add_timer(when, Action::Call(callback.clone())).id;
        if self.is_closed() {
            self.cancel_timer(id);
            callback.cancel();
        }
        TimerHandle {
            core: Rc::downgrade(&self.rc()),
            id,
            callback: Handle::new(&callback),
            when,
        }
    }
}

impl<F: FnOnce()> Callback for CallbackCell<F> {
    fn run(&self) {
        if let Some(function) = self.function.take() {
            self.locals.take().run(function);
        }
    }

    fn cancel(&self) {
        drop(self.function.take());
        self.locals.take().drop_guarded();
    }

    fn location(&self) -> &'static Location<'static> {
        self.location
    }
}

/// A handle to a callback that was scheduled with [`call_soon`](crate::EventLoop::call_soon).
///
/// Dropping the handle does not cancel the callback.
///
/// ```
/// let event_loop = windlass::EventLoop::new()?;
/// let handle = event_loop.call_soon(|| unreachable!("it was cancelled"));
/// handle.cancel();
/// assert!(handle.cancelled());
/// event_loop.turn()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Handle {
    callback: Weak<dyn Callback>,
    cancelled: Cell<bool>,
}

impl Handle {
    fn new(callback: &Rc<dyn Callback>) -> Handle {
        Handle {
            callback: Rc::downgrade(callback),
            cancelled: Cell::new(false),
        }
    }

    /// Cancels the callback and drops its captures. Has no effect if it has already run.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        if let Some(callback) = self.callback.upgrade() {
            callback.cancel();
        }
    }

    /// Whether [`cancel`](Handle::cancel) was called.
    pub fn cancelled(&self) -> bool {
        self.cancelled.get()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("cancelled", &self.cancelled())
            .finish_non_exhaustive()
    }
}

/// A handle to a callback that was scheduled with [`call_later`](crate::EventLoop::call_later) or
/// [`call_at`](crate::EventLoop::call_at).
///
/// Dropping the handle does not cancel the callback, as in asyncio: most callers ignore the handle. A timer that ends when
/// it is dropped is a task: `spawn(async { sleep(d).await; ... }).cancel_on_drop()`.
///
/// ```
/// use std::time::Duration;
/// let event_loop = windlass::EventLoop::new()?;
/// let timer = event_loop.call_later(Duration::from_secs(3600), || println!("an hour later"));
/// assert!(timer.when() > event_loop.time());
/// timer.cancel();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TimerHandle {
    core: Weak<LoopCore>,
    id: TimerId,
    /// Cancels the callback if it is in the ready queue, between its deadline and its run.
    callback: Handle,
    when: Instant,
}

impl TimerHandle {
    /// Cancels the callback and drops its captures, in constant time. Has no effect if it has already run.
    pub fn cancel(&self) {
        self.callback.cancel();
        if let Some(core) = self.core.upgrade() {
            core.cancel_timer(self.id);
        }
    }

    /// Whether [`cancel`](TimerHandle::cancel) was called.
    pub fn cancelled(&self) -> bool {
        self.callback.cancelled()
    }

    /// When the callback is due, on the loop's clock.
    pub fn when(&self) -> Instant {
        self.when
    }
}

impl fmt::Debug for TimerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHandle")
            .field("when", &self.when)
            .field("cancelled", &self.cancelled())
            .finish_non_exhaustive()
    }
}
