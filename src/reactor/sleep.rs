//! Waiting with microsecond precision, where timers need it.
//!
//! epoll counts milliseconds. So epoll waits for the whole milliseconds, and ppoll(2) of
//! the epoll descriptor, which takes nanoseconds, for the rest. An event that arrives before the last millisecond costs
//! one system call; the rest costs four more: ppoll, and three to lower and restore the timer slack. If the next timers have
//! slack of their own, the thread's need not be lowered; and if a whole number of milliseconds ends within it, epoll alone
//! suffices. kqueue takes nanoseconds. On Windows a wait is rounded up to milliseconds and to the clock's tick.

use std::io;
use std::time::Duration;

use mio::Poll;

use super::events::{self, Events};
use crate::driver::Wait;
use crate::sys::{self, Instant};

/// The longest single wait; the loop then waits again. epoll counts milliseconds in 31 bits.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Waits for events. Returns the number of system calls made, without those for the timer slack.
pub(super) fn wait(poll: &mut Poll, events: &mut Events, wait: Wait) -> io::Result<u64> {
    match wait {
        Wait::No | Wait::Poll => poll_once(poll, events, Some(Duration::ZERO)),
        Wait::Forever => poll_once(poll, events, None),
        Wait::Until(deadline) => wait_until(poll, events, deadline, deadline),
        Wait::Between(earliest, latest) => wait_until(poll, events, earliest, latest),
    }
}

/// One call to the kernel. A signal may end it early; the loop then polls again.
fn poll_once(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<u64> {
    match events::poll(poll, events, timeout) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(1),
    }
}

/// Waits until the deadline, or until some time between `earliest` and the deadline.
#[cfg(target_os = "linux")]
fn wait_until(poll: &mut Poll, events: &mut Events, earliest: Instant, deadline: Instant) -> io::Result<u64> {
    let now = sys::monotonic();
    let left = (deadline - now).min(MAX_WAIT);
    let whole = Duration::from_millis(left.as_millis() as u64);
    if now + whole >= earliest && earliest < deadline {
        return poll_once(poll, events, Some(whole));
    }
    let mut calls = 0;
    if left.is_zero() || !whole.is_zero() {
        calls += poll_once(poll, events, Some(whole))?;
    } else {
        events.clear();
    }
    let rest = deadline - sys::monotonic();
    if left.is_zero() || !events.is_empty() || rest.is_zero() || rest >= Duration::from_millis(1) {
        return Ok(calls);
    }
    calls += 1;
    if wait_readable(poll, rest, earliest < deadline) {
        calls += poll_once(poll, events, Some(Duration::ZERO))?;
    }
    Ok(calls)
}

/// Waits until the epoll descriptor is readable. False if the time is up first.
#[cfg(target_os = "linux")]
fn wait_readable(poll: &Poll, timeout: Duration, has_slack: bool) -> bool {
    use std::os::fd::AsRawFd;
    let mut epoll = libc::pollfd {
        fd: poll.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: timeout.subsec_nanos() as _,
    };
    // By default the kernel may delay a wake-up by 50 us to coalesce it with others: the thread's timer slack. It is 1 ns
    // for this wait only, because new threads and processes inherit it.
    // SAFETY: the kernel reads and writes the two locals and keeps no pointer to them; there is no signal mask. The
    // other calls touch no memory.
    unsafe {
        let slack = if has_slack {
            0
        } else {
            libc::prctl(libc::PR_GET_TIMERSLACK)
        };
        if slack > 1 {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
        }
        let is_readable = libc::ppoll(&mut epoll, 1, &timeout, std::ptr::null()) > 0;
        if slack > 1 {
            libc::prctl(libc::PR_SET_TIMERSLACK, slack as libc::c_ulong);
        }
        is_readable
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_until(poll: &mut Poll, events: &mut Events, _: Instant, deadline: Instant) -> io::Result<u64> {
    poll_once(poll, events, Some((deadline - sys::monotonic()).min(MAX_WAIT)))
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_with_a_millisecond_of_slack_is_one_system_call() {
        let mut poll = Poll::new().expect("an epoll instance");
        let mut events = Events::with_capacity(1);
        for extra_us in [1, 333, 999] {
            let earliest = sys::monotonic() + Duration::from_micros(2_000 + extra_us);
            let between = Wait::Between(earliest, earliest + Duration::from_micros(1_001));
            assert_eq!(wait(&mut poll, &mut events, between).expect("a wait"), 1);
            assert!(sys::monotonic() >= earliest, "not before the first deadline");
        }
    }
}
