//! Plain callbacks: what `call_soon` and `call_later` schedule, and the handles that cancel them.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::{Rc, Weak};

use crate::event_loop::core::LoopCore;
use crate::event_loop::timers::TimerId;
use crate::task::Locals;
use crate::time::Instant;

/// A callback of any type, in the ready deque or the timer heap.
pub(crate) trait Callback {
    /// Runs it, the first time; a cancelled one is skipped.
    fn run(&self);
    /// Drops what it would have run.
    fn cancel(&self);
    /// Where it was scheduled.
    fn location(&self) -> &'static Location<'static>;
}

/// The one allocation of a scheduled callback.
pub(crate) struct CallbackCell<F> {
    function: Cell<Option<F>>,
    location: &'static Location<'static>,
    /// As in asyncio, a callback runs in the context in which it was scheduled.
    locals: Cell<Locals>,
}

impl<F: FnOnce()> CallbackCell<F> {
    #[track_caller]
    pub(crate) fn new(function: F) -> CallbackCell<F> {
        CallbackCell {
            function: Cell::new(Some(function)),
            location: Location::caller(),
            locals: Cell::new(Locals::current()),
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

/// A callback that was scheduled with [`call_soon`](crate::EventLoop::call_soon).
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
    pub(crate) fn new(callback: &Rc<dyn Callback>) -> Handle {
        Handle {
            callback: Rc::downgrade(callback),
            cancelled: Cell::new(false),
        }
    }

    /// Makes sure that the callback does not run any more. What it captured is dropped now. Without effect if it has
    /// run already.
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

/// A callback that was scheduled with [`call_later`](crate::EventLoop::call_later) or
/// [`call_at`](crate::EventLoop::call_at).
///
/// Dropping the handle does not cancel the callback.
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
    /// For the moment between the timer coming due and its callback running.
    callback: Handle,
    when: Instant,
}

impl TimerHandle {
    pub(crate) fn new(core: &Rc<LoopCore>, id: TimerId, callback: &Rc<dyn Callback>, when: Instant) -> TimerHandle {
        TimerHandle {
            core: Rc::downgrade(core),
            id,
            callback: Handle::new(callback),
            when,
        }
    }

    /// Makes sure that the callback does not run any more. What it captured is dropped now. Takes the same short time
    /// however many timers there are. Without effect if it has run already.
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
