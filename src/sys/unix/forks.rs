//! Detecting that this process is a fork of the one that made an object.
//!
//! A child handler of `pthread_atfork` adds one to a counter in the child's memory. What must not be used in a child notes
//! the count when it is made and compares it later: one load from a line that nothing else writes, and no system call.
//! `getpid` would be a system call per check, and a child can have the number of an earlier process. `MADV_WIPEONFORK` would
//! also see a child made by a bare `clone(2)`, but only Linux has it. `posix_spawn` and `vfork` run no such handlers: their
//! child shares the parent's memory until it calls `exec`, so the counter must not change there.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process was forked from another since the library was first used. The same number as before means the same
/// process.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    // Relaxed: the only write happens in a new process, before the fork returns there, on the only thread.
    FORKS.load(Ordering::Relaxed)
}

/// The count for something new, which is to be compared later. The first call registers the handler.
pub(crate) fn count_forks() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler stores to an atomic, which is all that a child of a process with threads may do there. The
        // library is linked into the program, so the handler stays as long as the process does. The only error is a lack
        // of memory; the process is then without detection, as it was before.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
    forks()
}

unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
