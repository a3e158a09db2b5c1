//! The processor time of one thread, and how exactly its sleeps end.

use std::time::Duration;

/// The processor time that this thread has used so far.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the local timespec and keeps no pointer to it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The processor time that this thread has used so far, as coarse as the system's tick.
#[cfg(windows)]
pub(crate) fn thread_time() -> Duration {
    use windows_sys::Win32::Foundation::FILETIME;
    use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};

    const NONE: FILETIME = FILETIME {
        dwLowDateTime: 0,
        dwHighDateTime: 0,
    };
    let (mut born, mut died, mut kernel, mut user) = (NONE, NONE, NONE, NONE);
    // SAFETY: the call writes to four local variables; the pseudo handle of this thread needs no closing.
    unsafe { GetThreadTimes(GetCurrentThread(), &mut born, &mut died, &mut kernel, &mut user) };
    let nanos = |time: FILETIME| (u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)) * 100;
    Duration::from_nanos(nanos(kernel) + nanos(user))
}

/// Has the sleeps of this thread end when they are due. Otherwise Linux may end them up to 50 us later, so as to wake less
/// often, and a loop by hand that is late by its setting alone would be no limit. Elsewhere there is nothing to set.
#[cfg(target_os = "linux")]
pub(crate) fn least_timer_slack() {
    // SAFETY: prctl with these arguments touches no memory; it concerns the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn least_timer_slack() {}
