//! How often this thread has waited in the kernel.

use std::mem::MaybeUninit;

/// The number of voluntary context switches of this thread. `None` if it is not known.
pub(crate) fn voluntary_switches() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, during the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeroes are a valid `rusage`, and so is what the kernel writes.
    let usage = unsafe { usage.assume_init() };
    (result == 0).then_some(usage.ru_nvcsw as u64)
}
