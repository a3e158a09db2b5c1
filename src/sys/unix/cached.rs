//! Reads from the page cache.
//!
//! A read of cached bytes is only a copy. So a read is first tried with `RWF_NOWAIT`: if the bytes are cached, it is
//! one system call, without the ring or a thread; if not, the kernel reports that at once, and the read is queued.

use super::{Fd, IoVec, calls};
use crate::sys::OsResult;

/// Reads bytes that are in the page cache. `None` if there are none, at the end of the file, and on any error.
///
/// # Safety
///
/// `ptr` must be valid for writes of `len` bytes until this returns.
pub(crate) unsafe fn read_cached(fd: Fd, ptr: *mut u8, len: usize, offset: u64) -> Option<OsResult> {
    let slice = IoVec { base: ptr, len };
    let slice = (&raw const slice).cast::<libc::iovec>();
    // SAFETY: the `iovec` is a local, and the caller guarantees the memory that it points to.
    let count = unsafe { calls::preadv2(fd, slice, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    // The queued read reports any error, and the end of the file: 0 is ambiguous here, because Linux 5.9 and 5.10 also
    // return it for bytes that are not cached.
    (count > 0).then_some(Ok(count as u32))
}
