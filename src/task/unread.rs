//! Reports of errors that were never read: a task, or a job of a thread pool, returned an `Err`, and its handle was dropped.
//!
//! `spawn` accepts any output, and stable Rust has no way to ask a generic type whether it is a `Result`. So the check
//! compares the name of the type, which is a constant that the compiler folds: for other outputs nothing is left of it.
//! The variant comes from the value's discriminant, read through its `Hash`. Should either change in a later version of
//! Rust, errors are no longer reported; nothing else depends on it. Alternatives do not work: specialization is not
//! stable, a choice between two trait impls needs the concrete type at the call of `spawn`, and a bound on the output
//! would refuse types of the user. An output in a [`Value`](super::Value) is no `Result`: nothing is reported.
//!
//! The error itself is passed on if the output is one of the usual types, such as `io::Result<()>`. For others, the report has
//! the type's name. [`JoinHandle::detach`](super::JoinHandle::detach) passes on every error type.

use std::any::{Any, type_name};
use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::io;
use std::mem;
use std::panic::Location;

use super::output::Rendered;
use super::{GroupError, JoinError, RawTask};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{BoxError, Exception, report};

/// An `Err` that no code has read.
pub(super) struct UnreadError {
    /// `None` if the type of the error is not one of those in [`UnreadError::of`].
    error: Option<BoxError>,
    output_type: &'static str,
}

/// The number of unread errors by spawn location, of one loop.
pub(crate) type UnreadCounts = HashMap<&'static Location<'static>, u64>;

impl UnreadError {
    /// Drops an output. Returns the error if it is a `Result` with an `Err`.
    #[inline]
    pub(super) fn of<T: 'static>(output: T) -> Option<UnreadError> {
        match is_result::<T>() && is_err(&output) {
            true => Some(UnreadError::new(output)),
            false => None,
        }
    }

    #[cold]
    fn new<T: 'static>(output: T) -> UnreadError {
        let mut output = Some(output);
        let output: &mut dyn Any = &mut output;
        let error = take_error::<io::Error>(output)
            .map(BoxError::from)
            .or_else(|| take_error::<BoxError>(output))
            .or_else(|| take_error::<Box<dyn Error>>(output).map(|error| Rendered::of(&*error).into()))
            .or_else(|| take_error::<String>(output).map(BoxError::from))
            .or_else(|| take_error::<&'static str>(output).map(BoxError::from))
            .or_else(|| take_error::<JoinError>(output).map(BoxError::from))
            .or_else(|| take_error::<GroupError>(output).map(BoxError::from));
        UnreadError {
            error,
            output_type: type_name::<T>(),
        }
    }

    /// Passes the error to the exception handler: the first, tenth, hundredth, ... of each spawn location.
    pub(super) fn report_of_task(self, task: RawTask) {
        self.report(task.spawned_at(), || task.describe());
    }

    /// As [`report_of_task`](UnreadError::report_of_task); `describe` says what returned the error.
    pub(super) fn report(self, spawned_at: &'static Location<'static>, describe: impl FnOnce() -> String) {
        let count = match LoopCore::try_current() {
            Some(core) => {
                let mut counts = core.unread_errors.borrow_mut();
                let count = counts.entry(spawned_at).or_default();
                *count += 1;
                *count
            }
            None => 1,
        };
        if !is_reported(count) {
            return;
        }
        let place = match count {
            1 => String::new(),
            count => format!(" (number {count} of the tasks spawned there)"),
        };
        let context = format!("{} returned an error that was never read{place}", describe());
        report(match self.error {
            Some(error) => Exception::error(context, error),
            None => Exception::note(format!(
                "{context}: a `{}`. Await the handle; `JoinHandle::detach` reports the error itself",
                self.output_type
            )),
        });
    }
}

/// Reports how many errors were counted since the last report of each location.
pub(crate) fn report_totals(core: &LoopCore) {
    let counts = mem::take(&mut *core.unread_errors.borrow_mut());
    for (spawned_at, count) in counts.into_iter().filter(|&(_, count)| !is_reported(count)) {
        report(Exception::note(format!(
            "{count} tasks spawned at {spawned_at} returned errors that were never read"
        )));
    }
}

/// Whether `count` is a power of ten.
fn is_reported(count: u64) -> bool {
    count == 10u64.pow(count.max(1).ilog10())
}

fn is_result<T>() -> bool {
    type_name::<T>().starts_with("core::result::Result<")
}

/// Whether a `Result`, the type of which is not known here, is an `Err`.
fn is_err<T>(result: &T) -> bool {
    #[derive(Default)]
    struct Variant(Option<isize>);

    impl Hasher for Variant {
        fn write(&mut self, _: &[u8]) {}

        fn write_isize(&mut self, variant: isize) {
            self.0 = Some(variant);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    let mut variant = Variant::default();
    mem::discriminant(result).hash(&mut variant);
    variant.0 == Some(1)
}

/// Takes the error out of an `Option<Result<_, E>>` of the usual types.
fn take_error<E: 'static>(output: &mut dyn Any) -> Option<E> {
    fn take<T: 'static, E: 'static>(output: &mut dyn Any) -> Option<E> {
        output.downcast_mut::<Option<Result<T, E>>>()?.take()?.err()
    }
    take::<(), E>(output)
        .or_else(|| take::<Infallible, E>(output))
        .or_else(|| take::<usize, E>(output))
        .or_else(|| take::<u64, E>(output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_recognized() {
        assert!(is_result::<Result<(), io::Error>>());
        assert!(is_result::<io::Result<u8>>());
        assert!(!is_result::<Option<Result<(), ()>>>());
        assert!(!is_result::<()>());
    }

    #[test]
    fn errors_are_recognized_in_every_layout() {
        assert!(is_err(&Err::<(), ()>(())));
        assert!(!is_err(&Ok::<(), ()>(())));
        assert!(is_err(&Err::<Box<u8>, ()>(())));
        assert!(!is_err(&Ok::<Box<u8>, ()>(Box::new(1))));
        assert!(is_err(&Err::<u64, String>(String::new())));
        assert!(!is_err(&Ok::<(), io::Error>(())));
        assert!(is_err(&Err::<Infallible, u8>(3)));
        assert!(!is_err(&Ok::<bool, bool>(true)));
    }

    #[test]
    fn an_error_of_any_type_is_found() {
        assert!(UnreadError::of(Ok::<u8, String>(1)).is_none());
        let known = UnreadError::of(Err::<(), _>(io::Error::other("known"))).unwrap();
        assert_eq!(known.error.unwrap().to_string(), "known");
        let unknown = UnreadError::of(Err::<(), _>(7u8)).unwrap();
        assert!(unknown.error.is_none() && unknown.output_type.contains("u8"));
    }

    #[test]
    fn powers_of_ten_are_reported() {
        let reported: Vec<u64> = (1..=1000).filter(|&count| is_reported(count)).collect();
        assert_eq!(reported, [1, 10, 100, 1000]);
    }
}
