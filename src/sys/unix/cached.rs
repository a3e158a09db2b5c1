//! Reads that the page cache can serve.
//!
//! A read of cached bytes is a copy. Asking for it with `RWF_NOWAIT` before anything is queued makes it one system call, and
//! no trip through a ring or to a thread; if the bytes are not there, the kernel says so at once and the read is queued.

use super::{Fd, IoVec};
use crate::sys::OsResult;

/// Reads what is in the page cache; `None` if that is nothing, or cannot be said.
///
/// # Safety
///
/// `len` bytes from `ptr` on may be written until this returns.
pub(crate) unsafe fn read_cached(fd: Fd, ptr: *mut u8, len: usize, offset: u64) -> Option<OsResult> {
    let slice = IoVec { base: ptr, len };
    let slice = (&raw const slice).cast::<libc::iovec>();
    // SAFETY: the one slice is a local, and the caller vouches for what it points to.
    let count = unsafe { libc::preadv2(fd, slice, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    // Whatever is wrong, the queued read will tell. It also tells whether nothing means the end of the file: Linux 5.9 and
    // 5.10 say 0 here for bytes that are not in the cache.
    (count > 0).then_some(Ok(count as u32))
}
