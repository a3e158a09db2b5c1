//! Precise timeouts for waits on the port.
//!
//! The port's own timeout is in milliseconds and expires on a tick of the system clock, up to 15.6 ms late. So the
//! port's timeout covers all but the last milliseconds of a long wait, and a high-resolution waitable timer (Windows 10
//! 1803) the rest: its APC interrupts an alertable wait. Without such a timer only the port's timeout is used.

use std::ffi::c_void;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::time::Duration;

use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer, TIMER_ALL_ACCESS,
};

use super::port::Dequeued;
use crate::driver::Wait;
use crate::sys::{self, Instant};

/// For deadlines further off than this, wait with the port's timeout first, to one tick before the deadline.
const LONG_WAIT: Duration = Duration::from_millis(40);
const TICK: Duration = Duration::from_millis(16);

/// The longest single wait; the loop then waits again.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Timer {
    timer: Option<OwnedHandle>,
    /// The deadline that the timer is set to.
    set_to: Option<Instant>,
}

impl Timer {
    pub(super) fn new() -> Timer {
        let flags = CREATE_WAITABLE_TIMER_HIGH_RESOLUTION;
        // SAFETY: nothing is passed in; the returned handle is new and ours.
        let timer = unsafe { CreateWaitableTimerExW(std::ptr::null(), std::ptr::null(), flags, TIMER_ALL_ACCESS) };
        Timer {
            // SAFETY: as above.
            timer: (!timer.is_null()).then(|| unsafe { OwnedHandle::from_raw_handle(timer) }),
            set_to: None,
        }
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        match self.timer {
            Some(_) => vec!["high-resolution timer"],
            None => vec!["no high-resolution timer"],
        }
    }

    /// Prepares a wait. Returns the port's timeout in milliseconds, and whether the wait is alertable.
    pub(super) fn set(&mut self, wait: Wait) -> (u32, bool) {
        let deadline = match wait {
            Wait::No | Wait::Poll => return (0, false),
            Wait::Forever => return (INFINITE, false),
            Wait::Until(deadline) | Wait::Between(_, deadline) => deadline,
        };
        let left = (deadline - sys::monotonic()).min(MAX_WAIT);
        if left.is_zero() {
            return (0, false);
        }
        if left > LONG_WAIT {
            return ((left - TICK).as_millis() as u32, false);
        }
        // Rounded up: waking before the deadline would mean waking twice.
        let milliseconds = left.as_micros().div_ceil(1000) as u32;
        let Some(timer) = &self.timer else {
            return (milliseconds, false);
        };
        if self.set_to != Some(deadline) {
            // A negative due time is relative, in units of 100 ns.
            let due = -(left.as_nanos().div_ceil(100) as i64);
            // SAFETY: the timer is open; the system reads the local, and the callback is a static function.
            let result =
                unsafe { SetWaitableTimer(timer.as_raw_handle(), &due, 0, Some(timer_apc), std::ptr::null(), 0) };
            if result == 0 {
                self.timer = None;
                return (milliseconds, false);
            }
            self.set_to = Some(deadline);
        }
        // The port's timeout is one tick later, in case the timer does not fire.
        (milliseconds + TICK.as_millis() as u32, true)
    }

    /// A wait that the timer was set for has ended.
    pub(super) fn on_wait_end(&mut self, dequeued: Dequeued) {
        match dequeued {
            // It must be set again if it fired slightly early.
            Dequeued::TimerFired => self.set_to = None,
            // It should have fired a tick ago. On this system it does not: use the port's timeout from now on.
            Dequeued::TimedOut => (self.timer, self.set_to) = (None, None),
            Dequeued::All | Dequeued::Full => {}
        }
    }
}

/// The timer's APC. Running it ends the alertable wait; there is nothing else to do.
unsafe extern "system" fn timer_apc(_argument: *const c_void, _low: u32, _high: u32) {}
