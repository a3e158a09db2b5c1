//! quinn's timers: a sleep that is moved lazily.
//!
//! A connection has one timer, for the earliest of loss detection, pacing and idleness, and resets it with almost every datagram,
//! nearly always to a later time. Moving the loop's timer each time costs two heap operations. So a later deadline is only
//! remembered, and the loop's timer moves when it fires.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use quinn::AsyncTimer;
use windlass::time::{Instant, Sleep, sleep_until};

/// Converts std's instants, which quinn uses, to the loop's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The same point in time on both clocks.
    std: std::time::Instant,
    own: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock {
            std: std::time::Instant::now(),
            own: Instant::now(),
        }
    }

    /// Times before this clock was made are in the past in any case.
    fn convert(&self, instant: std::time::Instant) -> Instant {
        self.own + instant.saturating_duration_since(self.std)
    }
}

pub(crate) struct Timer {
    clock: Clock,
    sleep: Sleep,
    /// When `sleep` ends: never after `deadline`.
    armed: Instant,
    deadline: Instant,
}

impl Timer {
    pub(crate) fn new(clock: Clock, deadline: std::time::Instant) -> Timer {
        let deadline = clock.convert(deadline);
        Timer {
            clock,
            sleep: sleep_until(deadline),
            armed: deadline,
            deadline,
        }
    }
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: std::time::Instant) {
        let deadline = self.clock.convert(deadline);
        self.deadline = deadline;
        if deadline < self.armed {
            self.armed = deadline;
            self.sleep.reset(deadline);
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(cx));
            if self.armed >= self.deadline {
                return Poll::Ready(());
            }
            let deadline = self.deadline;
            self.armed = deadline;
            self.sleep.reset(deadline);
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("deadline", &self.deadline).finish()
    }
}
