//! Windows has no fork.

/// Always 0.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    0
}

/// The count for a new object to store.
#[inline(always)]
pub(crate) fn count_forks() -> u32 {
    0
}
