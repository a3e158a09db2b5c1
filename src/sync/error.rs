//! What can go wrong: somebody closed it, or it would have to wait.

use std::fmt;

/// Nothing more will come: the queue, channel or semaphore was closed, or everybody on the other side is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed, and nothing more will come")
    }
}

impl std::error::Error for Closed {}

/// Nobody will take this any more: the queue or channel was closed, or every receiver is gone. Gives the value back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendError(..)")
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed: nobody will take this any more")
    }
}

impl<T> std::error::Error for SendError<T> {}

/// Why a value could not be put or sent without waiting. Gives it back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no room now, or others wait for it already.
    Full(T),
    /// Nobody will take it any more.
    Closed(T),
}

impl<T> TrySendError<T> {
    /// The value.
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(value) | TrySendError::Closed(value) => value,
        }
    }

    /// Whether it would be worth waiting.
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, TrySendError::Closed(_))
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full(..)",
            TrySendError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "there is no room: await the method that waits, or try later",
            TrySendError::Closed(_) => "closed: nobody will take this any more",
        })
    }
}

impl<T> std::error::Error for TrySendError<T> {}

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(error: SendError<T>) -> TrySendError<T> {
        TrySendError::Closed(error.0)
    }
}

/// Why nothing could be taken without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is nothing now.
    Empty,
    /// Nothing more will come.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryRecvError::Empty => "there is nothing now: await the method that waits, or try later",
            TryRecvError::Closed => "closed, and nothing more will come",
        })
    }
}

impl std::error::Error for TryRecvError {}

impl From<Closed> for TryRecvError {
    fn from(_: Closed) -> TryRecvError {
        TryRecvError::Closed
    }
}
