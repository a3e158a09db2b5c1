//! A hint to the processor that memory is about to be read.

/// Asks for the cache line at an address and the next one. Any address may be given: nothing is read.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn prefetch(address: *const ()) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let address = address.cast::<i8>();
    // SAFETY: the instruction is part of SSE, which every x86-64 processor has, and never faults.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address);
        _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(64));
    }
}

/// Does nothing: there is no stable intrinsic for other processors.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(crate) fn prefetch(_: *const ()) {}
