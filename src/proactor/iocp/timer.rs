//! How long the port waits.
//!
//! The port's own timeout counts milliseconds and ends with a tick of the system's clock, up to 15.6 ms late. So it is used
//! for what is far off, and the last stretch is left to a waitable timer of high resolution (Windows 10 1803), whose APC
//! interrupts an alertable wait. Without such a timer the port's timeout is all there is.

use std::ffi::c_void;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::time::Duration;

use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer, TIMER_ALL_ACCESS,
};

use super::port::Fetched;
use crate::driver::Wait;
use crate::sys::{self, Instant};

/// Further off than this the port's timeout is used first, and ends a tick early.
const FAR: Duration = Duration::from_millis(40);
const TICK: Duration = Duration::from_millis(16);

/// A sleep ends by then at the latest, and the loop sleeps again.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Timer {
    timer: Option<OwnedHandle>,
    /// What it is set to.
    set_to: Option<Instant>,
}

impl Timer {
    pub(super) fn new() -> Timer {
        let flags = CREATE_WAITABLE_TIMER_HIGH_RESOLUTION;
        // SAFETY: nothing is passed in; what comes out is new and ours.
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

    /// Sees to it that a wait ends in time. Gives the port's timeout, and whether an APC may interrupt it.
    pub(super) fn set(&mut self, wait: Wait) -> (u32, bool) {
        let deadline = match wait {
            Wait::No | Wait::Look => return (0, false),
            Wait::Forever => return (INFINITE, false),
            Wait::Until(deadline) => deadline,
        };
        let left = (deadline - sys::monotonic()).min(LONGEST);
        if left.is_zero() {
            return (0, false);
        }
        if left > FAR {
            return ((left - TICK).as_millis() as u32, false);
        }
        // Rounded up: to wake before it is time would be to wake twice.
        let milliseconds = left.as_micros().div_ceil(1000) as u32;
        let Some(timer) = &self.timer else {
            return (milliseconds, false);
        };
        if self.set_to != Some(deadline) {
            // Less than nothing means from now on, in steps of 100 ns.
            let due = -(left.as_nanos().div_ceil(100) as i64);
            // SAFETY: the timer is open; the system reads the local, and calls a function that stays.
            let result =
                unsafe { SetWaitableTimer(timer.as_raw_handle(), &due, 0, Some(time_is_up), std::ptr::null(), 0) };
            if result == 0 {
                self.timer = None;
                return (milliseconds, false);
            }
            self.set_to = Some(deadline);
        }
        // If the timer should fail us, the port's own timeout is a tick behind it.
        (milliseconds + TICK.as_millis() as u32, true)
    }

    /// How a wait has ended that the timer was set for.
    pub(super) fn heard(&mut self, fetched: Fetched) {
        match fetched {
            // It must be set again if that was a little too early.
            Fetched::TimerRan => self.set_to = None,
            // It should have run long before: this system's does not, and the port's own timeout does better.
            Fetched::TimeIsUp => (self.timer, self.set_to) = (None, None),
            Fetched::All | Fetched::Full => {}
        }
    }
}

/// Being called is all: the wait has ended.
unsafe extern "system" fn time_is_up(_argument: *const c_void, _low: u32, _high: u32) {}
