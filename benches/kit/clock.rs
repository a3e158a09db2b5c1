//! The CPU time of a thread, and its timer slack.

use std::time::Duration;

/// The CPU time of this thread so far.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the local timespec and keeps no pointer to it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPU time of this thread so far, with the resolution of the system tick.
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

/// Sets the timer slack of this thread to 1 ns. By default Linux may end sleeps up to 50 us late to save wake-ups,
/// which would make the hand-written loops useless as a lower bound. Other systems have no such setting.
#[cfg(target_os = "linux")]
pub(crate) fn least_timer_slack() {
    // SAFETY: prctl with these arguments touches no memory; it concerns the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn least_timer_slack() {}
