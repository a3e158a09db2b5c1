//! The id of an operation, its result, and the completion that carries both from a driver to the loop.

use std::fmt;

use super::PoolBuffer;
use crate::sys::OsResult;

/// The id of an operation: the index of its slot, and how often that slot was used before. The count (the generation)
/// tells a late completion of an earlier operation from one of the present operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Less than 2^24.
    pub(crate) index: u32,
    /// Less than 2^40: at a million operations a second in one slot it wraps around after twelve days.
    pub(crate) generation: u64,
}

impl OpId {
    /// The loop never uses this index, so that drivers have ids for submissions of their own.
    pub(crate) const MAX_INDEX: u32 = (1 << 24) - 1;

    /// The id as one number, to be passed through the kernel. The loop never uses a number whose lower 24 bits are all
    /// set: these are for a driver's own submissions.
    pub fn to_u64(self) -> u64 {
        (self.generation << 24) | u64::from(self.index)
    }

    /// The reverse of [`to_u64`](OpId::to_u64).
    pub fn from_u64(number: u64) -> OpId {
        OpId {
            index: number as u32 & OpId::MAX_INDEX,
            generation: number >> 24,
        }
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}v{}", self.index, self.generation)
    }
}

/// The result of an operation, with the buffer that a managed receive filled.
#[derive(Debug)]
pub struct OpResult {
    /// The count or the error code.
    pub res: OsResult,
    /// The pool's buffer that a managed receive filled.
    pub buffer: Option<PoolBuffer>,
}

impl OpResult {
    /// A result without a pool buffer.
    #[inline]
    pub fn last(res: OsResult) -> OpResult {
        OpResult { res, buffer: None }
    }

    /// The result of a receive, with its buffer if it was a managed one. An empty buffer adds nothing to the count and
    /// returns to its pool here.
    ///
    /// # Safety
    ///
    /// On success, as many bytes of the buffer as `res` says are initialised.
    #[inline(always)]
    pub(crate) unsafe fn with_buffer(res: OsResult, mut buffer: Option<PoolBuffer>) -> OpResult {
        if let Some(buffer) = &mut buffer {
            // SAFETY: the caller's promise.
            unsafe { buffer.set_filled(res.unwrap_or(0) as usize) };
        }
        OpResult {
            res,
            buffer: buffer.filter(|buffer| !buffer.filled().is_empty()),
        }
    }
}

/// The completion of an operation: its id and its result.
#[derive(Debug)]
pub struct Completion {
    /// The id given to [`Driver::start`](super::Driver::start).
    pub id: OpId,
    /// The operation's result.
    pub result: OpResult,
}
