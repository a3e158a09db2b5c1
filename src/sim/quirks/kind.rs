//! The kinds of quirks, which are counted and logged by their number.

/// A deviation from what the inner driver would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Kind {
    /// An operation reaches the inner driver some polls later.
    LateStart,
    /// An operation waits because the submission queue is full.
    ParkedStart,
    /// An operation is done when it is started.
    DoneAtOnce,
    AttemptRefused,
    AttemptServed,
    LateCompletion,
    /// A poll reports only a part of the completions.
    SplitPoll,
    /// A poll reports completions in another order.
    Permuted,
    /// A cancel reaches the inner driver some polls later.
    LateCancel,
    /// A cancel waits because the submission queue is full.
    ParkedCancel,
    /// A cancel comes before its operation was started, which never is.
    CancelWon,
    /// A cancel comes before its operation was started, which still is.
    CancelLost,
    /// A cancel comes when a send is half done.
    CancelHalfway,
    ShortCount,
    ContinuedSend,
    EmptyPoll,
    /// A poll fails for lack of memory.
    FailedPoll,
    EmptyPool,
    AbortedAccept,
    NoDescriptor,
    /// A read that failed has overwritten its buffer.
    Scribble,
}

/// The names of the kinds, by number.
pub(in crate::sim) const NAMES: [&str; Kind::Scribble as usize + 1] = [
    "late start",
    "parked start",
    "done at once",
    "attempt refused",
    "attempt served",
    "late completion",
    "split poll",
    "permuted",
    "late cancel",
    "parked cancel",
    "cancel won",
    "cancel lost",
    "cancel halfway",
    "short count",
    "continued send",
    "empty poll",
    "failed poll",
    "empty pool",
    "aborted accept",
    "no descriptor",
    "scribble",
];
