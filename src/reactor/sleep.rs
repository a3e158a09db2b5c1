//! Sleeping to the microsecond.
//!
//! mio hands epoll whole milliseconds, rounded up. So the whole ones are slept there, and the rest with ppoll(2) on the
//! epoll descriptor, which takes nanoseconds. A server whose deadlines are far off thus makes one system call per sleep,
//! and a sleep of less than a millisecond makes that one and three more, for the timer to be fine. kqueue takes nanoseconds by
//! itself. On Windows a sleep takes whole milliseconds, rounded up, and as long as the system's clock tick makes it.

use std::io;
use std::time::Duration;

use mio::{Events, Poll};

use crate::driver::Wait;
use crate::sys::{self, Instant};

/// A sleep ends by then at the latest, and the loop sleeps again: epoll counts milliseconds in 31 bits.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Asks the kernel what is ready, sleeping as told. Gives how many system calls that took.
pub(super) fn wait(poll: &mut Poll, events: &mut Events, wait: Wait) -> io::Result<u64> {
    match wait {
        Wait::No | Wait::Look => ask(poll, events, Some(Duration::ZERO)),
        Wait::Forever => ask(poll, events, None),
        Wait::Until(deadline) => wait_until(poll, events, deadline),
    }
}

/// A signal ends a sleep early; the loop comes again.
fn ask(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<u64> {
    match poll.poll(events, timeout) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(1),
    }
}

#[cfg(target_os = "linux")]
fn wait_until(poll: &mut Poll, events: &mut Events, deadline: Instant) -> io::Result<u64> {
    let left = (deadline - sys::monotonic()).min(LONGEST);
    let whole = Duration::from_millis(left.as_millis() as u64);
    let mut calls = 0;
    if left.is_zero() || !whole.is_zero() {
        calls += ask(poll, events, Some(whole))?;
    } else {
        events.clear();
    }
    let rest = deadline - sys::monotonic();
    if left.is_zero() || !events.is_empty() || rest.is_zero() || rest >= Duration::from_millis(1) {
        return Ok(calls);
    }
    calls += 1;
    if something_comes(poll, rest) {
        calls += ask(poll, events, Some(Duration::ZERO))?;
    }
    Ok(calls)
}

/// Sleeps until the epoll has something, or the time is up.
#[cfg(target_os = "linux")]
fn something_comes(poll: &Poll, within: Duration) -> bool {
    use std::os::fd::AsRawFd;
    let mut epoll = libc::pollfd {
        fd: poll.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: within.subsec_nanos() as _,
    };
    let _fine = FineTimer::set();
    // SAFETY: the kernel reads and writes the two locals and keeps no pointer to them; there is no signal mask.
    unsafe { libc::ppoll(&mut epoll, 1, &timeout, std::ptr::null()) > 0 }
}

/// While it lives, the kernel does not put off the end of this thread's sleeps to join it with others': by default it may, by
/// 50 us. Not for longer than a sleep: threads and processes that are started meanwhile would inherit it.
#[cfg(target_os = "linux")]
struct FineTimer {
    before: libc::c_int,
}

#[cfg(target_os = "linux")]
impl FineTimer {
    fn set() -> FineTimer {
        // SAFETY: these calls touch no memory.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        if before > 1 {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
        }
        FineTimer { before }
    }
}

#[cfg(target_os = "linux")]
impl Drop for FineTimer {
    fn drop(&mut self) {
        if self.before > 1 {
            // SAFETY: as above.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.before as libc::c_ulong) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_until(poll: &mut Poll, events: &mut Events, deadline: Instant) -> io::Result<u64> {
    ask(poll, events, Some((deadline - sys::monotonic()).min(LONGEST)))
}
