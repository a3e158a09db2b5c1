//! The current loop of a thread, which `windlass::spawn`, timers and new streams use.
//!
//! A thread-local holds the innermost scope: a loop that runs or closes ([`CurrentGuard`]), or a loop that is only entered
//! ([`Entered`]). Scopes nest, and each has a number, so that guards that are dropped in the wrong order are recognised.
//!
//! The thread-locals of a scope have no destructor, so that a loop stored in another thread-local still works while the
//! thread exits.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;

use crate::event_loop::EventLoop;
use crate::event_loop::core::LoopCore;
use crate::on_drop::OnDrop;

/// A scope in which a loop is current.
#[derive(Clone, Copy)]
struct Scope {
    /// The loop, or null.
    core: *const LoopCore,
    /// Whether the loop runs or closes, as opposed to being entered only.
    is_running: bool,
    /// Higher than that of every scope that was opened earlier on this thread.
    number: u64,
}

const OUTSIDE: Scope = Scope {
    core: ptr::null(),
    is_running: false,
    number: 0,
};

thread_local! {
    /// The innermost scope's loop if it is running, else null: all that code inside of turns has to look at.
    static RUNNING: Cell<*const LoopCore> = const { Cell::new(ptr::null()) };
    /// The innermost scope. Its loop is alive: a `CurrentGuard` holds it, or it is in `ENTERED`.
    static SCOPE: Cell<Scope> = const { Cell::new(OUTSIDE) };
    static LAST_NUMBER: Cell<u64> = const { Cell::new(0) };
    /// Every loop that was entered on this thread. Unlike a run, an [`Entered`] can be dropped, and then its loop, by user
    /// code that this crate calls (the clone of a waker, say) while it still uses the current loop. So their memory is kept
    /// until the thread ends; closing a loop has released everything else.
    static ENTERED: EnteredLoops = const { EnteredLoops(RefCell::new(Vec::new())) };
}

struct EnteredLoops(RefCell<Vec<Rc<LoopCore>>>);

impl Drop for EnteredLoops {
    /// The thread exits. A leaked [`Entered`] may have left a loop of the list current, and destructors of other thread-locals
    /// still run. No guard restores an older scope: their numbers are all higher than that of `OUTSIDE`.
    fn drop(&mut self) {
        change_to(OUTSIDE);
    }
}

/// Opens a scope. Returns its number and the outer scope.
fn open(core: *const LoopCore, is_running: bool) -> (u64, Scope) {
    let number = LAST_NUMBER.get() + 1;
    LAST_NUMBER.set(number);
    let scope = Scope {
        core,
        is_running,
        number,
    };
    (number, change_to(scope))
}

/// Returns the scope before.
fn change_to(scope: Scope) -> Scope {
    RUNNING.set(if scope.is_running { scope.core } else { ptr::null() });
    SCOPE.replace(scope)
}

#[cold]
#[track_caller]
fn outside_of_a_loop(call: &str) -> ! {
    panic!(
        "windlass: `{call}` was called outside of an event loop: call it inside `windlass::run` or under `EventLoop::enter`, or from another thread through a `LoopHandle`"
    )
}

#[cold]
fn already_running() -> io::Error {
    io::Error::other("an event loop is already running on this thread: spawn a task instead, or use another thread")
}

impl LoopCore {
    /// The current loop of this thread.
    #[inline]
    pub(crate) fn try_current<'a>() -> Option<&'a LoopCore> {
        match LoopCore::try_running() {
            Some(core) => Some(core),
            None => LoopCore::try_entered(),
        }
    }

    /// The current loop of this thread, if it runs or closes.
    #[inline]
    pub(crate) fn try_running<'a>() -> Option<&'a LoopCore> {
        // SAFETY: the `CurrentGuard` keeps its loop alive while the pointer is set, and resets the pointer before it drops
        // its `Rc`; `run_as_current` resets it before its borrow of the loop ends. The guard is dropped in the frame that made
        // it, so the reference, which every caller in this crate uses at once or within the call into user code during which
        // the loop is current, does not outlive it.
        unsafe { RUNNING.get().as_ref() }
    }

    /// The current loop of this thread, if it is only entered.
    #[cold]
    pub(crate) fn try_entered<'a>() -> Option<&'a LoopCore> {
        let scope = SCOPE.get();
        // SAFETY: a loop that is only entered is in `ENTERED`, which changes the scope before it is dropped.
        unsafe { scope.core.as_ref() }.filter(|_| !scope.is_running)
    }

    /// As `try_current`, for functions that need a loop: panics with the name of the `call` if there is none.
    #[track_caller]
    #[inline]
    pub(crate) fn current<'a>(call: &str) -> &'a LoopCore {
        match LoopCore::try_current() {
            Some(core) => core,
            None => outside_of_a_loop(call),
        }
    }

    /// Whether this is the thread's current loop.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.is_running_here() || LoopCore::try_entered().is_some_and(|core| ptr::eq(core, self))
    }

    /// Whether this is the thread's current loop, and it runs or closes.
    #[inline]
    pub(crate) fn is_running_here(&self) -> bool {
        ptr::eq(RUNNING.get(), self)
    }

    /// Makes this the thread's current loop until the guard is dropped. No other loop can run meanwhile.
    pub(crate) fn make_current(&self) -> CurrentGuard {
        let core = self.rc();
        let (_, outer) = open(&raw const *core, true);
        CurrentGuard {
            core,
            outer,
            kind: Kind::Call,
        }
    }

    /// Enters the loop in order to run it. An error if a loop is running on this thread already.
    pub(crate) fn enter_to_run(&self, kind: Kind) -> io::Result<CurrentGuard> {
        if self.is_forked() {
            return Err(crate::error::forked_error());
        }
        if let Some(_running) = running() {
            return Err(already_running());
        }
        if self.is_closed() {
            return Err(crate::error::LoopClosed.into());
        }
        // An embedding loop may have put this one to sleep with `flush`. From here on, senders need not notify.
        self.inbox.wake_up();
        self.begin_run();
        self.host.pause();
        let mut guard = self.make_current();
        guard.kind = kind;
        Ok(guard)
    }

    /// Runs `call` with this loop as the current and running one: as under the guard of `enter_to_run`, but the caller's
    /// borrow keeps the loop alive. An error if a loop is running on this thread already.
    #[cfg(feature = "sim")]
    #[inline]
    pub(super) fn run_as_current<R>(&self, call: impl FnOnce() -> R) -> io::Result<R> {
        if !RUNNING.get().is_null() {
            return Err(already_running());
        }
        let (_, outer) = open(self, true);
        let _restore = OnDrop(|| {
            change_to(outer);
        });
        Ok(call())
    }

    /// Runs `call` as if this thread were running no loop.
    pub(crate) fn outside<R>(call: impl FnOnce() -> R) -> R {
        let (_, outer) = open(ptr::null(), false);
        let _restore = OnDrop(|| {
            change_to(outer);
        });
        call()
    }
}

/// The loop that runs or closes on this thread. In a forked child, the current loop may be the parent's, which does not run
/// there.
fn running<'a>() -> Option<&'a LoopCore> {
    LoopCore::try_running().filter(|running| !running.is_forked())
}

/// Why a loop is current.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For a call into user code outside of a run.
    Call,
    /// For a turn that an outer loop asked for.
    HostedTurn,
    /// For one or more turns in which the loop itself waits.
    Run,
}

/// While this guard lives, its loop is the thread's current loop, and running.
pub(crate) struct CurrentGuard {
    core: Rc<LoopCore>,
    outer: Scope,
    kind: Kind,
}

impl Drop for CurrentGuard {
    fn drop(&mut self) {
        debug_assert!(self.core.is_current());
        change_to(self.outer);
        if self.kind == Kind::Call {
            return;
        }
        self.core.end_run();
        self.core.host.resume();
        if self.kind == Kind::Run {
            // The last turn may have started operations, and the outer loop does not know of it.
            self.core.wake_host();
        }
    }
}

/// The guard of [`EventLoop::enter`]: while it lives, its loop is the current loop of this thread.
///
/// Guards must be dropped in the reverse order of their creation, and cannot leave their thread.
#[must_use = "the loop is left when the guard is dropped"]
pub struct Entered<'a> {
    number: u64,
    outer: Scope,
    event_loop: &'a EventLoop,
    /// Neither `Send` nor `Sync`.
    thread_bound: PhantomData<*const ()>,
}

impl EventLoop {
    /// Makes this the current loop of the thread until the guard is dropped, without running it.
    ///
    /// Functions that need a current loop then work outside of a turn: [`spawn`](crate::spawn()), timers, connecting, reading
    /// and writing, and dropping streams. Nothing makes progress before the loop turns. An outer loop that
    /// [embeds](EventLoop::pollable) this one can keep it entered all the time; its own turns and runs work meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// let event_loop = windlass::EventLoop::new()?;
    /// let entered = event_loop.enter();
    /// let task = windlass::spawn(windlass::time::sleep(Duration::from_millis(1)));
    /// while !task.is_finished() {
    ///     event_loop.turn()?;
    /// }
    /// drop(entered);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// Loops can be entered inside of one another, and a loop several times. The guards must be dropped in reverse order. Do
    /// not keep one across an `.await`: other code runs meanwhile, with this loop as the current one.
    ///
    /// A loop that was entered keeps a few kilobytes of memory until its thread ends, even if it is closed before.
    ///
    /// # Panics
    ///
    /// If another loop is running on this thread. The guard's destructor panics if a guard that was made later on this thread
    /// still exists; then all loops that are entered on this thread are left.
    #[track_caller]
    pub fn enter(&self) -> Entered<'_> {
        let core = self.core();
        assert!(
            running().is_none_or(|running| ptr::eq(running, core)),
            "windlass: a loop cannot be entered while another one is running on this thread"
        );
        if !core.was_entered.replace(true) {
            let mut kept = Some(core.rc());
            // While the thread exits, the list may be gone. The loop is leaked then.
            let _ = ENTERED.try_with(|entered| entered.0.borrow_mut().extend(kept.take()));
            std::mem::forget(kept);
        }
        let (number, outer) = open(core, core.is_running_here());
        Entered {
            number,
            outer,
            event_loop: self,
            thread_bound: PhantomData,
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let innermost = SCOPE.get();
        if innermost.number == self.number {
            change_to(self.outer);
            return;
        }
        // Lower: a run that has ended, or a guard that was dropped too early, has left this scope already.
        if innermost.number < self.number {
            return;
        }
        // Which of the outer scopes still exist is not known. A run restores its own outer scope.
        if !innermost.is_running {
            change_to(OUTSIDE);
        }
        assert!(
            std::thread::panicking(),
            "windlass: the guards of `EventLoop::enter` were not dropped in the reverse order of their creation"
        );
    }
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entered").field(self.event_loop).finish()
    }
}
