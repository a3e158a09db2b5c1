//! hyper's timer on the loop's timers.
//!
//! hyper requires its sleeps to be `Send` and `Sync`, which [`Sleep`] is.

use std::pin::Pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant as StdInstant};

use crate::time::{Instant, Sleep, sleep, sleep_until};

/// hyper's timer, on the loop's timers and clock.
///
/// Pass it to hyper's builders. Without a timer, a server has no header timeout, and setting one panics.
///
/// ```
/// use windlass::hyper::Timer;
/// let mut server = hyper::server::conn::http1::Builder::new();
/// server.timer(Timer).header_read_timeout(std::time::Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(sleep(duration))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(sleep_until(to_ours(deadline)))
    }

    fn now(&self) -> StdInstant {
        let now = Instant::now();
        origin().checked_add(now.since_origin()).unwrap_or_else(StdInstant::now)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn hyper::rt::Sleep>>, deadline: StdInstant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(sleep) => sleep.get_mut().reset(to_ours(deadline)),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

/// The origin of the loops' clocks, virtual ones included, as a std `Instant`.
fn origin() -> StdInstant {
    static ORIGIN: OnceLock<StdInstant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = StdInstant::now();
        now.checked_sub(crate::sys::monotonic().since_origin()).unwrap_or(now)
    })
}

fn to_ours(moment: StdInstant) -> Instant {
    Instant::from_origin(moment.saturating_duration_since(origin()))
}

impl hyper::rt::Sleep for Sleep {}
