//! Waiting for events by busy-polling or sleeping in the driver, with back-off when the kernel lacks memory.
//!
//! [`BusyPoll`] decides how long to poll before a sleep, and how long before a deadline to wake up.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use crate::driver::{Completion, Wait};
use crate::event_loop::builder::Settings;
use crate::event_loop::busy_poll::{BusyPoll, Found};
use crate::event_loop::core::LoopCore;
use crate::event_loop::exception::{Exception, report};
use crate::peer::PeerLink;
use crate::sys::errno;
use crate::time::Instant;

/// A loop that expects a message of another loop of its pool checks the inbox this often before anything else: for about
/// 1 us, twice the time of a message to a loop that is awake, and back.
const PEER_CHECKS: u32 = 64;

/// While busy-polling, the inbox is checked this often between two polls of the driver.
const INBOX_CHECKS_PER_POLL: u32 = 8;

/// The poll interval between an early wake-up and the deadline: the loop waits for the clock there, not for events.
const POLL_EVERY: Duration = Duration::from_micros(50);

/// A driver can make use of more slack than this: Linux delays the end of a wait by up to 50 us to share an interrupt.
const LEAST_SLACK: Duration = Duration::from_micros(100);

/// A clock that shows the same time in this many reads is taken to be virtual: it advances only in a driver's sleep.
const MAX_STALLED_READS: u32 = 1000;

/// The pause after a poll that failed for lack of memory. It doubles with each further failure, up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(64);

/// A series of such failures is reported once, and at most one series per interval.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What a loop remembers between waits.
pub(crate) struct Parker {
    busy_poll: BusyPoll,
    /// Polls that failed for lack of memory since the last success.
    shortages: Cell<u32>,
    shortage_reported: Cell<Option<Instant>>,
}

impl Parker {
    pub(super) fn new(settings: &Settings, has_virtual_clock: bool) -> Parker {
        let window = if has_virtual_clock {
            Duration::ZERO
        } else {
            settings.busy_poll
        };
        Parker {
            busy_poll: BusyPoll::new(window, settings.precise_timers),
            shortages: Cell::new(0),
            shortage_reported: Cell::new(None),
        }
    }
}

impl LoopCore {
    /// Busy-polls or sleeps until an operation completes, another thread sends an event, or the deadline passes.
    pub(super) fn park(&self, completed: &mut Vec<Completion>, deadline: Option<Instant>) -> io::Result<()> {
        if let Some(peers) = self.peers.get()
            && peers.expects_message()
            && self.spin_for_message(completed, &**peers)?
        {
            return Ok(());
        }
        let (began, busy_poll) = (self.now(), &self.parker.busy_poll);
        let ended = match busy_poll.ends_at(began) {
            None if self.peers.get().is_some_and(|peers| peers.awaits_awake_peer()) => {
                self.await_peer(completed, deadline, began)?
            }
            None => self.sleep_until(completed, deadline, began)?,
            Some(end) => {
                let due = deadline.filter(|&deadline| deadline <= end);
                let (found, now) = self.poll_until(completed, due.unwrap_or(end), Duration::ZERO, began)?;
                busy_poll.record_window(found, completed);
                match found {
                    Found::Nothing if due.is_none_or(|due| now < due) => self.sleep_until(completed, deadline, now)?,
                    _ => now,
                }
            }
        };
        self.waited(began, ended);
        Ok(())
    }

    /// Waits for a message as long as that is shorter than a look at the clock or at the kernel's events. True if there are events.
    #[inline(never)]
    fn spin_for_message(&self, completed: &mut Vec<Completion>, peers: &dyn PeerLink) -> io::Result<bool> {
        let began = self.begin_poll();
        // Submits what the turn has started.
        let result = self.driver().poll(completed, Wait::No);
        self.check_poll(result, completed, Wait::No)?;
        let mut checks = 0..PEER_CHECKS;
        while !self.has_events(completed) && checks.next().is_some() {
            std::hint::spin_loop();
        }
        self.end_spin(began);
        let is_found = self.has_events(completed);
        peers.spun_for_message(is_found);
        Ok(is_found)
    }

    /// Busy-polls for the answer of a loop that is running, then sleeps. Whether that pays is the pool's decision, and does
    /// not count for the loop's own busy-polling.
    fn await_peer(
        &self,
        completed: &mut Vec<Completion>,
        deadline: Option<Instant>,
        began: Instant,
    ) -> io::Result<Instant> {
        let end = began + self.settings.busy_poll;
        let end = deadline.map_or(end, |deadline| end.min(deadline));
        let (found, now) = self.poll_until(completed, end, Duration::ZERO, began)?;
        let is_found = !matches!(found, Found::Nothing);
        if let Some(peers) = self.peers.get() {
            peers.polled_for_peer(is_found);
        }
        match is_found || deadline.is_some_and(|deadline| now >= deadline) {
            true => Ok(now),
            false => self.sleep_until(completed, deadline, now),
        }
    }

    /// Sleeps until shortly before the deadline, then polls until the deadline. Returns the time.
    fn sleep_until(
        &self,
        completed: &mut Vec<Completion>,
        deadline: Option<Instant>,
        began: Instant,
    ) -> io::Result<Instant> {
        let busy_poll = &self.parker.busy_poll;
        let wake_at = deadline.map(|deadline| match self.has_virtual_clock {
            true => deadline,
            false => busy_poll.wake_at(deadline, began),
        });
        let mut now = began;
        // With precise timers, a near deadline leaves no time to sleep.
        if wake_at.is_none_or(|wake_at| wake_at > began) {
            let wait = wake_at.map_or(Wait::Forever, |wake_at| self.with_slack(wake_at));
            self.sleep(completed, wait)?;
            now = self.now();
            let found_events = self.has_events(completed);
            busy_poll.record_sleep(now - began, found_events, completed);
            match wake_at {
                // A driver does not aim at the end of a wait with slack, so its end says nothing about the kernel's lateness.
                Some(_) if matches!(wait, Wait::Between(..)) => return Ok(now),
                Some(wake_at) if !found_events && now >= wake_at => busy_poll.record_lateness(now - wake_at),
                // Events arrived, or a signal interrupted the sleep and the loop turns again.
                _ => return Ok(now),
            }
        }
        // Within a timer's slack there is nothing to wait for.
        let due = self.timers.next_deadline().or(deadline);
        let Some(deadline) = due.filter(|&due| now < due) else {
            return Ok(now);
        };
        let (found, now) = self.poll_until(completed, deadline, POLL_EVERY, now)?;
        if matches!(found, Found::Nothing) && now < deadline {
            // A virtual clock advances only while the driver sleeps.
            self.sleep(completed, Wait::Until(deadline))?;
        }
        Ok(now)
    }

    /// A wait until `wake_at`, or until any time from the first deadline on if the slack of timers allows that.
    fn with_slack(&self, wake_at: Instant) -> Wait {
        match self.timers.earliest() {
            Some(earliest) if earliest + LEAST_SLACK <= wake_at => Wait::Between(earliest, wake_at),
            _ => Wait::Until(wake_at),
        }
    }

    /// Blocks in the driver. The loop's thread blocks only here and, as back-off, in `check_poll`.
    fn sleep(&self, completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let asleep = self.inbox.fall_asleep();
        let wait = if asleep { wait } else { Wait::Poll };
        let result = self.driver().poll(completed, wait);
        if asleep {
            self.inbox.wake_up();
        }
        self.check_poll(result, completed, wait)
    }

    /// Polls the inbox, and the driver at intervals of `every`, until events or `end`. Also returns the last time read.
    fn poll_until(
        &self,
        completed: &mut Vec<Completion>,
        end: Instant,
        every: Duration,
        mut now: Instant,
    ) -> io::Result<(Found, Instant)> {
        let mut found = Found::Immediately;
        let mut stalled_reads = 0;
        let mut next_poll = now + every;
        loop {
            if now >= next_poll {
                let result = self.driver().poll(completed, Wait::Poll);
                self.check_poll(result, completed, Wait::Poll)?;
                next_poll = now + every;
            }
            if self.has_events(completed) {
                return Ok((found, now));
            }
            if now >= end || stalled_reads > MAX_STALLED_READS {
                return Ok((Found::Nothing, now));
            }
            found = Found::Later;
            // Checking the inbox is one load; polling the driver may be a system call.
            for _ in 0..INBOX_CHECKS_PER_POLL {
                if self.inbox.has_events() {
                    return Ok((found, now));
                }
                std::hint::spin_loop();
            }
            let later = self.now();
            stalled_reads = if later > now { 0 } else { stalled_reads + 1 };
            now = later;
        }
    }

    fn has_events(&self, completed: &[Completion]) -> bool {
        !completed.is_empty() || self.inbox.has_events()
    }

    /// Treats a failure for lack of memory as a poll that found nothing, so that it does not end the loop. If the poll
    /// was to block, sleeps first, since the next poll may fail immediately too.
    #[inline]
    pub(super) fn check_poll(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        match result {
            Ok(()) if self.parker.shortages.get() == 0 => Ok(()),
            result => self.check_in_shortage(result, completed, wait),
        }
    }

    #[cold]
    fn check_in_shortage(&self, result: io::Result<()>, completed: &[Completion], wait: Wait) -> io::Result<()> {
        let parker = &self.parker;
        let blocks = !matches!(wait, Wait::No | Wait::Poll);
        let failures = parker.shortages.get();
        let error = match result {
            Err(error) if is_shortage(&error) => error,
            // Without anything to submit, a non-blocking poll makes no system call: its success proves nothing.
            Ok(()) if !blocks && completed.is_empty() => return Ok(()),
            result => {
                parker.shortages.set(0);
                return result;
            }
        };
        parker.shortages.set(failures.saturating_add(1));
        let now = self.now();
        let is_recent = |at: Instant| now < at + REPORT_EVERY;
        if failures == 0 && !parker.shortage_reported.get().is_some_and(is_recent) {
            parker.shortage_reported.set(Some(now));
            let context = "the kernel is short of memory; the loop retries";
            report(Exception::error(context, error));
        }
        if blocks && !self.has_events(completed) {
            let pause = (FIRST_RETRY * (1 << failures.min(16))).min(LONGEST_RETRY);
            let left = match wait {
                Wait::Until(deadline) | Wait::Between(_, deadline) => deadline - now,
                Wait::No | Wait::Poll | Wait::Forever => LONGEST_RETRY,
            };
            std::thread::sleep(pause.min(left));
        }
        Ok(())
    }
}

/// Whether an error means that the kernel is short of memory, which is usually temporary.
fn is_shortage(error: &io::Error) -> bool {
    let code = crate::sys::os_code(error);
    matches!(code, Some(errno::NO_MEMORY | errno::NO_BUFFERS | errno::AGAIN))
}
