//! The kernel's number of a thread, to which a signal can be sent. Only Linux needs it.

#[cfg(target_os = "linux")]
pub(crate) type ThreadNumber = libc::pid_t;

#[cfg(not(target_os = "linux"))]
pub(crate) type ThreadNumber = ();

/// The number of the calling thread.
#[cfg(target_os = "linux")]
pub(crate) fn thread_number() -> ThreadNumber {
    // SAFETY: the call has no arguments and cannot fail. By its number, because old C libraries lack the function.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_number() -> ThreadNumber {}
