//! Why a pool or a call failed.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::event_loop::exception::BoxError;

/// Why a cross-shard [`Call`](super::Call) has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// It did not start within the time given with [`start_within`](super::Call::start_within). It has not run.
    Late,
    /// Its task was cancelled on the target shard.
    Cancelled,
    /// It panicked with this message.
    Panicked(String),
    /// It was made while serving a chain of calls that is longer than [`MAX_HOPS`](super::MAX_HOPS).
    TooDeep,
    /// The target shard has ended, or the pool is stopping and no longer accepts calls.
    Gone,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Late => f.write_str("the call did not start in time"),
            CallError::Cancelled => f.write_str("the call was cancelled on its shard"),
            CallError::Panicked(message) => write!(f, "the call panicked: {message}"),
            CallError::TooDeep => f.write_str(
                "the chain of calls is too long: each call serves another one; for a task that outlives its call, use `shards::rooted`",
            ),
            CallError::Gone => f.write_str("the shard has ended"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> io::Error {
        io::Error::other(error)
    }
}

/// All calls that the caller may have in flight to this shard are in use. Contains the closure.
pub struct Busy<M>(pub M);

impl<M> fmt::Debug for Busy<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}

impl<M> fmt::Display for Busy<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many calls to this shard are in flight")
    }
}

impl<M> std::error::Error for Busy<M> {}

/// Why a pool ended with an error: its first failure, and those that followed.
#[derive(Debug)]
pub struct Error {
    /// The shard that failed first.
    pub shard: usize,
    /// Why it failed.
    pub cause: Cause,
    /// The failures after it, each with its shard.
    pub others: Vec<(usize, Cause)>,
}

/// Why a shard failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Its thread or its event loop could not be started.
    Start(io::Error),
    /// Its main future, or a service, returned this error.
    Failed(BoxError),
    /// Its main future, or a service, panicked with this message.
    Panicked(String),
    /// Its event loop failed.
    Loop(io::Error),
    /// Its main future did not end within the grace period and was cancelled.
    Cancelled(Duration),
    /// Its thread did not end after its tasks were cancelled: something blocks it. The thread is left running. Never shard 0,
    /// which runs on the thread that called [`Pool::run`](super::Pool::run): if that one is blocked, `run` does not return.
    Stuck,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Start(error) => write!(f, "could not start: {error}"),
            Cause::Failed(error) => write!(f, "failed: {error}"),
            Cause::Panicked(message) => write!(f, "panicked: {message}"),
            Cause::Loop(error) => write!(f, "its event loop failed: {error}"),
            Cause::Cancelled(grace) => write!(f, "did not end within the grace period of {grace:?}"),
            Cause::Stuck => f.write_str("is stuck: its thread does not return to the event loop"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} {}", self.shard, self.cause)?;
        for (shard, cause) in &self.others {
            write!(f, "; shard {shard} {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Start(error) | Cause::Loop(error) => Some(error),
            Cause::Failed(error) => Some(&**error),
            Cause::Panicked(_) | Cause::Cancelled(_) | Cause::Stuck => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::other(error)
    }
}

impl From<io::Error> for Error {
    /// An error before the pool runs, such as an address in use.
    fn from(error: io::Error) -> Error {
        Error {
            shard: 0,
            cause: Cause::Start(error),
            others: Vec::new(),
        }
    }
}
