//! What nobody else takes: panics of detached tasks, callbacks, wakers and destructors, and troubles of the loop itself.
//!
//! As in asyncio, such a thing reaches the loop's exception handler and the loop goes on. Without a handler it is
//! written to standard error.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

use crate::event_loop::core::LoopCore;
use crate::task::TaskId;

/// Something that went wrong and that nobody was waiting for.
///
/// Its `Display` is one line for a log.
pub struct Exception {
    context: String,
    cause: Cause,
}

enum Cause {
    Panic(Box<dyn Any + Send>),
    Error(io::Error),
    /// The context says it all.
    Nothing,
    Failure(BoxError),
}

/// Any error that somebody may carry elsewhere.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Exception {
    pub(crate) fn task_panic(
        id: TaskId,
        name: Option<&str>,
        spawned_at: &Location<'_>,
        payload: Box<dyn Any + Send>,
    ) -> Exception {
        let name = name.map(|name| format!(" '{name}'")).unwrap_or_default();
        Exception {
            context: format!("task {id}{name}, spawned at {spawned_at}, panicked and nobody awaited it"),
            cause: Cause::Panic(payload),
        }
    }

    pub(crate) fn callback_panic(scheduled_at: &Location<'_>, payload: Box<dyn Any + Send>) -> Exception {
        Exception {
            context: format!("a callback scheduled at {scheduled_at} panicked"),
            cause: Cause::Panic(payload),
        }
    }

    pub(crate) fn panic(what: &str, payload: Box<dyn Any + Send>) -> Exception {
        Exception {
            context: format!("{what} panicked"),
            cause: Cause::Panic(payload),
        }
    }

    pub(crate) fn error(context: impl Into<String>, error: io::Error) -> Exception {
        Exception {
            context: context.into(),
            cause: Cause::Error(error),
        }
    }

    pub(crate) fn note(context: impl Into<String>) -> Exception {
        Exception {
            context: context.into(),
            cause: Cause::Nothing,
        }
    }

    pub(crate) fn failure(context: impl Into<String>, error: BoxError) -> Exception {
        Exception {
            context: context.into(),
            cause: Cause::Failure(error),
        }
    }

    /// What happened to whom.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// The panic's payload, if it was a panic.
    pub fn panic_payload(&self) -> Option<&(dyn Any + Send)> {
        match &self.cause {
            Cause::Panic(payload) => Some(&**payload),
            Cause::Error(_) | Cause::Failure(_) | Cause::Nothing => None,
        }
    }

    /// The error, if it was one.
    pub fn io_error(&self) -> Option<&io::Error> {
        match &self.cause {
            Cause::Panic(_) | Cause::Nothing => None,
            Cause::Error(error) => Some(error),
            Cause::Failure(error) => error.downcast_ref(),
        }
    }

    /// The error of whatever type, if it was one: that of a task which nobody joined, for instance.
    pub fn error_ref(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Panic(_) | Cause::Nothing => None,
            Cause::Error(error) => Some(error),
            Cause::Failure(error) => Some(&**error),
        }
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Panic(payload) => write!(f, "{}: {}", self.context, panic_message(&**payload)),
            Cause::Error(error) => write!(f, "{}: {error}", self.context),
            Cause::Nothing => f.write_str(&self.context),
            Cause::Failure(error) => write!(f, "{}: {error}", self.context),
        }
    }
}

impl fmt::Debug for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exception({self})")
    }
}

/// The text of a panic, which is a string unless somebody went to lengths.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a payload that is not a string")
}

/// Runs foreign code that may panic; a panic is reported and goes no further.
pub(crate) fn guard(what: &str, call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        report(Exception::panic(what, payload));
    }
}

/// Gives an exception to the current loop's handler, or prints it. Never unwinds: whoever reports is in the middle of
/// something.
pub(crate) fn report(exception: Exception) {
    let handler = LoopCore::try_current().and_then(|core| core.exception_handler.borrow().clone());
    let told = catch_unwind(AssertUnwindSafe(|| {
        crate::diagnostics::trace::exception(&exception);
        match &handler {
            Some(handler) => handler(&exception),
            None => print(&exception),
        }
    }));
    if let Err(payload) = told {
        print(&exception);
        let second = Exception::panic("the exception handler itself", payload);
        print(&second);
        drop_guarded(second);
    }
    drop_guarded((exception, handler));
}

/// Drops what may panic while it is dropped, a panic's payload for instance, and then what that panicked with. Whoever
/// goes to such lengths that this does not end keeps their memory.
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

/// To standard error, where there is one: a daemon's may be closed, and `eprintln` would panic.
fn print(exception: &Exception) {
    let _ = writeln!(io::stderr(), "windlass: {exception}");
}
