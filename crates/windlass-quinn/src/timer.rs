//! quinn's timers: a connection has one, for the earliest of loss detection, pacing and idleness, and resets it with almost every
//! datagram.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

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
}

impl Timer {
    pub(crate) fn new(clock: Clock, deadline: std::time::Instant) -> Timer {
        let sleep = sleep_until(clock.convert(deadline));
        Timer { clock, sleep }
    }
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: std::time::Instant) {
        let deadline = self.clock.convert(deadline);
        self.sleep.reset(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.sleep).poll(cx)
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("sleep", &self.sleep).finish()
    }
}
