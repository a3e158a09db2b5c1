//! Windows has no fork.

/// Always the same number.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    0
}

/// The number for something new.
#[inline(always)]
pub(crate) fn count_forks() -> u32 {
    0
}
