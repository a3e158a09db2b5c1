//! The id of an operation, its result, and the completion that carries both from a driver to the loop.

use std::fmt;
use std::num::NonZeroU64;

use crate::sys::OsResult;

/// The id of an operation: the index of its slot in the lower 24 bits, and above it how often that slot was used before.
/// The count (the generation) tells a late completion of an earlier operation from one of the present operation. At a
/// million operations a second in one slot it wraps around after six days. The highest bit is always set, so that an
/// `Option<OpId>` is one word too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(NonZeroU64);

impl OpId {
    const INDEX_BITS: u32 = 24;
    const HIGHEST_BIT: u64 = 1 << 63;

    /// The loop never uses this index, so that drivers have ids for submissions of their own.
    pub(crate) const MAX_INDEX: u32 = (1 << OpId::INDEX_BITS) - 1;

    pub(crate) const fn new(index: u32, generation: u64) -> OpId {
        OpId::from_u64(generation << OpId::INDEX_BITS | index as u64)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.to_u64() & u64::from(OpId::MAX_INDEX)) as usize
    }

    /// The id of the next operation in this slot.
    #[inline]
    pub(crate) fn next(self) -> OpId {
        OpId::from_u64(self.to_u64().wrapping_add(1 << OpId::INDEX_BITS))
    }

    /// Whether the loop never uses this id.
    #[cfg(all(target_os = "linux", feature = "proactor"))]
    #[inline]
    pub(crate) fn is_reserved(self) -> bool {
        self.index() == OpId::MAX_INDEX as usize
    }

    /// The id as one number, to be passed through the kernel. The loop never uses a number whose lower 24 bits are all
    /// set: these are for a driver's own submissions.
    #[inline]
    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// The reverse of [`to_u64`](OpId::to_u64), for numbers that it returned.
    #[inline]
    pub const fn from_u64(number: u64) -> OpId {
        match NonZeroU64::new(number | OpId::HIGHEST_BIT) {
            Some(number) => OpId(number),
            None => unreachable!(),
        }
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = (self.to_u64() & !OpId::HIGHEST_BIT) >> OpId::INDEX_BITS;
        write!(f, "{}v{generation}", self.index())
    }
}

/// The result of an operation: a count or an error code, and the buffer that a managed receive filled.
///
/// One word, so that it is passed in a register: the count or the negated error code in the lower half; `BUFFER`,
/// `NONEMPTY` and in the upper 16 bits the buffer's index in the upper half. These are the two fields of an io_uring
/// completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpResult(u64);

impl OpResult {
    /// `IORING_CQE_F_BUFFER`: the upper half is the index of a pool buffer.
    const BUFFER: u64 = 1 << 32;
    /// `IORING_CQE_F_SOCK_NONEMPTY`: the socket has more data.
    const NONEMPTY: u64 = 4 << 32;

    /// A result without a pool buffer. Counts and descriptor numbers are at most `i32::MAX`, error codes positive.
    #[inline]
    pub const fn new(res: OsResult) -> OpResult {
        let res = match res {
            Ok(count) => {
                debug_assert!(count <= i32::MAX as u32);
                count as i32
            }
            Err(code) => {
                debug_assert!(code > 0);
                -code
            }
        };
        OpResult(res as u32 as u64)
    }

    /// Whether a receive from a TCP socket took everything that the socket had, as far as the driver knows.
    #[inline]
    pub(crate) const fn is_drained(self) -> bool {
        self.0 as i32 > 0 && self.0 & OpResult::NONEMPTY == 0
    }

    /// Whether the socket has more data than a receive took. False if the driver does not know.
    #[inline]
    pub(crate) const fn has_more(self) -> bool {
        self.0 & OpResult::NONEMPTY != 0
    }

    /// The result of a managed receive that filled this buffer of the pool.
    #[inline]
    pub const fn with_buffer(self, index: u16) -> OpResult {
        OpResult(self.0 & u32::MAX as u64 | OpResult::BUFFER | (index as u64) << 48)
    }

    /// The second word of an io_uring completion: the result, and behind it in memory the flags.
    #[cfg(all(target_os = "linux", feature = "proactor"))]
    #[inline]
    pub(crate) const fn from_kernel(word: u64) -> OpResult {
        match cfg!(target_endian = "little") {
            true => OpResult(word),
            false => OpResult(word.rotate_left(32)),
        }
    }

    /// Whether it is an error.
    #[cfg(all(target_os = "linux", feature = "proactor"))]
    #[inline]
    pub(crate) const fn is_error(self) -> bool {
        (self.0 as i32) < 0
    }

    /// The count or the error code.
    #[inline]
    pub const fn res(self) -> OsResult {
        match self.0 as i32 {
            code if code < 0 => Err(-code),
            count => Ok(count as u32),
        }
    }

    /// The pool buffer that a managed receive filled, and the number of bytes, at least one.
    #[inline]
    pub(crate) fn received_in_pool(self) -> Option<(u16, usize)> {
        match (self.buffer(), self.0 as i32) {
            (Some(index), count @ 1..) => Some((index, count as usize)),
            _ => None,
        }
    }

    /// The index of the pool buffer that a managed receive filled.
    #[inline]
    pub const fn buffer(self) -> Option<u16> {
        match self.0 & OpResult::BUFFER {
            0 => None,
            _ => Some((self.0 >> 48) as u16),
        }
    }
}

impl fmt::Debug for OpResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.res())?;
        match self.buffer() {
            Some(index) => write!(f, " in buffer {index}"),
            None => Ok(()),
        }
    }
}

/// The completion of an operation: its id and its result.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The id given to [`Driver::start`](super::Driver::start).
    pub id: OpId,
    /// The operation's result.
    pub result: OpResult,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::errno;

    #[test]
    fn a_result_names_the_last_buffer() {
        let result = OpResult::new(Ok(7)).with_buffer(1).with_buffer(2);
        assert_eq!((result.res(), result.buffer()), (Ok(7), Some(2)));
        assert_eq!(result.received_in_pool(), Some((2, 7)));
        let failed = OpResult::new(Err(errno::CANCELED)).with_buffer(3);
        assert_eq!((failed.res(), failed.buffer()), (Err(errno::CANCELED), Some(3)));
        assert_eq!(failed.received_in_pool(), None);
    }
}
