//! The exception handler, for panics and errors that no caller receives: of detached tasks, callbacks, wakers,
//! destructors and the loop itself. As in asyncio, the loop calls the handler and continues.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::task::Waker;

use crate::event_loop::core::LoopCore;
use crate::task::RawTask;

/// A panic or error that no caller receives, as passed to the [exception
/// handler](crate::EventLoop::set_exception_handler).
///
/// `Display` writes one line for a log.
pub struct Exception {
    context: String,
    cause: Cause,
}

enum Cause {
    Panic(Box<dyn Any + Send>),
    Error(BoxError),
    /// The context is the whole message.
    Nothing,
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Exception {
    pub(crate) fn task_panic(task: RawTask, payload: Box<dyn Any + Send>) -> Exception {
        let context = format!("{} panicked and was never awaited", task.describe());
        Exception::new(context, Cause::Panic(payload))
    }

    pub(crate) fn callback_panic(scheduled_at: &Location<'_>, payload: Box<dyn Any + Send>) -> Exception {
        Exception::panic(&format!("a callback scheduled at {scheduled_at}"), payload)
    }

    pub(crate) fn panic(source: &str, payload: Box<dyn Any + Send>) -> Exception {
        Exception::new(format!("{source} panicked"), Cause::Panic(payload))
    }

    pub(crate) fn error(context: impl Into<String>, error: impl Into<BoxError>) -> Exception {
        Exception::new(context, Cause::Error(error.into()))
    }

    pub(crate) fn note(context: impl Into<String>) -> Exception {
        Exception::new(context, Cause::Nothing)
    }

    fn new(context: impl Into<String>, cause: Cause) -> Exception {
        let context = context.into();
        Exception { context, cause }
    }

    /// What failed, and where.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// The payload, if this is a panic.
    pub fn panic_payload(&self) -> Option<&(dyn Any + Send)> {
        match &self.cause {
            Cause::Panic(payload) => Some(&**payload),
            Cause::Error(_) | Cause::Nothing => None,
        }
    }

    /// The I/O error, if this is one.
    pub fn io_error(&self) -> Option<&io::Error> {
        self.error_ref()?.downcast_ref()
    }

    /// The error, if this is one, of any type: for example, the `Err` that a detached task returned.
    pub fn error_ref(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Panic(_) | Cause::Nothing => None,
            Cause::Error(error) => Some(&**error),
        }
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Panic(payload) => write!(f, "{}: {}", self.context, panic_message(&**payload)),
            Cause::Error(error) => write!(f, "{}: {error}", self.context),
            Cause::Nothing => f.write_str(&self.context),
        }
    }
}

impl fmt::Debug for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exception({self})")
    }
}

/// The message of a panic, if the payload is a string.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a payload that is not a string")
}

/// Runs foreign code; a panic is reported and does not propagate.
pub(crate) fn guard(source: &str, call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        report(Exception::panic(source, payload));
    }
}

/// Wakes each waker. A panic of one is reported and does not propagate.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        guard("a waker", || waker.wake());
    }
}

/// Passes an exception to the current loop's handler, or prints it. Never unwinds: callers are in the middle of an
/// update.
pub(crate) fn report(exception: Exception) {
    let handler = LoopCore::try_current().and_then(|core| core.exception_handler.borrow().clone());
    let handled = catch_unwind(AssertUnwindSafe(|| {
        crate::diagnostics::trace::exception(&exception);
        match &handler {
            Some(handler) => handler(&exception),
            None => print(&exception),
        }
    }));
    if let Err(payload) = handled {
        print(&exception);
        let second = Exception::panic("the exception handler", payload);
        print(&second);
        drop_guarded(second);
    }
    drop_guarded((exception, handler));
}

/// Drops a value whose destructor may panic, then that panic's payload, and so on. After eight rounds the rest is
/// leaked.
fn drop_guarded(value: impl Sized) {
    let mut dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    for _ in 0..8 {
        match dropped {
            Ok(()) => return,
            Err(payload) => dropped = catch_unwind(AssertUnwindSafe(|| drop(payload))),
        }
    }
    std::mem::forget(dropped);
}

/// Prints to standard error. Not with `eprintln`, which panics if standard error is closed, as in a daemon.
fn print(exception: &Exception) {
    let _ = writeln!(io::stderr(), "windlass: {exception}");
}
