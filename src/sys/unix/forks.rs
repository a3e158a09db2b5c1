//! Fork detection: is this process a fork of the one that created an object?
//!
//! A child handler of `pthread_atfork` increments a counter in the child's memory. An object that must not be used in a
//! child stores the count when it is created and compares it later: one load from a cache line that is never written,
//! and no system call. `getpid` would be a system call per check, and process ids are reused. `MADV_WIPEONFORK` would
//! also detect a bare `clone(2)`, but only Linux has it. `posix_spawn` and `vfork` run no such handlers, as they must
//! not: their child shares the parent's memory until it calls `exec`.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// The number of forks between the process that first used the library and this one. An unchanged count means the same
/// process.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    // Relaxed: the only write is in a new process, on its only thread, before `fork` returns.
    FORKS.load(Ordering::Relaxed)
}

/// The count for a new object to store. The first call registers the handler.
pub(crate) fn count_forks() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler only increments an atomic, which is async-signal-safe, as the child of a multithreaded
        // process requires. It is linked into the program, so it is valid until the process ends. The only error is a
        // lack of memory; forks then go undetected.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    forks()
}

unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
