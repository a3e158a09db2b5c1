//! The deadline of an embedded loop: a timeout operation, whose completion signals the outer loop's eventfd.
//!
//! An earlier deadline changes the timeout in place. A later one leaves it: it completes too early, and the next flush starts
//! another. So a deadline that moves on with every message costs one submission for each time that it expires.

use io_uring::{opcode, squeue, types};

use super::{DEADLINE, DEADLINE_UPDATE, MAX_WAIT};
use crate::sys::Instant;

pub(super) struct DeadlineTimer {
    /// What the timeout is set to; `None` if there is none in flight.
    armed: Option<Instant>,
    /// The kernel reads it when it accepts the submission. Boxed: it must not move.
    time: Box<types::Timespec>,
}

impl Default for DeadlineTimer {
    fn default() -> DeadlineTimer {
        DeadlineTimer {
            armed: None,
            time: Box::new(types::Timespec::new()),
        }
    }
}

impl DeadlineTimer {
    /// The submission that starts or changes the timeout; `None` if it completes early enough already.
    ///
    /// If an earlier submission has not reached the kernel, it uses the new time as well.
    pub(super) fn set(&mut self, deadline: Instant, skip_success: bool) -> Option<squeue::Entry> {
        let before = self.armed;
        if before.is_some_and(|armed| armed <= deadline) {
            return None;
        }
        self.armed = Some(deadline);
        let deadline = deadline.min(Instant::from_origin(MAX_WAIT));
        *self.time = types::Timespec::from(deadline.since_origin());
        let (time, flags) = (&raw const *self.time, types::TimeoutFlags::ABS);
        if before.is_none() {
            let timeout = opcode::Timeout::new(time).flags(flags).build();
            return Some(timeout.user_data(DEADLINE.to_u64()));
        }
        let update = opcode::TimeoutUpdate::new(DEADLINE.to_u64(), time).flags(flags).build();
        let update = update.user_data(DEADLINE_UPDATE.to_u64());
        // A completion of the change itself would signal the outer loop for nothing.
        Some(match skip_success {
            true => update.flags(squeue::Flags::SKIP_SUCCESS),
            false => update,
        })
    }

    /// The timeout has completed.
    pub(super) fn fired(&mut self) {
        self.armed = None;
    }
}
