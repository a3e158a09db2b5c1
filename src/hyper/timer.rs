//! hyper's timer on the loop's timers.
//!
//! hyper requires its sleeps to be `Send` and `Sync`, although a single-threaded runtime never moves them. So a
//! [`Sleep`] is plain data: a timer id and the identity of its loop. On that loop it finds its timer; on any other, a
//! poll creates a new one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant as StdInstant};

use crate::event_loop::core::LoopCore;
use crate::event_loop::inbox::Inbox;
use crate::event_loop::timers::{Action, TimerId};
use crate::time::{Instant, rewake};

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
        Box::pin(Sleep::until(Instant::now() + duration))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep::until(to_ours(deadline)))
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

/// The future of [`Timer`]'s sleeps. Polling it outside of a loop panics.
pub struct Sleep {
    deadline: Instant,
    timer: Option<(Arc<Inbox<crate::event_loop::core::RemoteEvent>>, TimerId)>,
}

impl Sleep {
    fn until(deadline: Instant) -> Sleep {
        Sleep { deadline, timer: None }
    }

    fn reset(&mut self, deadline: Instant) {
        // An early timer wakes the task, which sees time left and waits again. So a later deadline does not need a new
        // timer.
        if deadline < self.deadline {
            self.cancel();
        }
        self.deadline = deadline;
    }

    /// The timer of this sleep, if it belongs to this loop.
    fn timer_on(&self, core: &LoopCore) -> Option<TimerId> {
        let (inbox, id) = self.timer.as_ref()?;
        Arc::ptr_eq(inbox, &core.inbox).then_some(*id)
    }

    fn cancel(&mut self) {
        if let Some(core) = LoopCore::try_current()
            && let Some(id) = self.timer_on(core)
        {
            core.cancel_timer(id);
        }
        self.timer = None;
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.get_mut();
        let core = LoopCore::current("hyper's sleep");
        if let Some(id) = sleep.timer_on(core)
            && rewake(core, id, cx)
        {
            return Poll::Pending;
        }
        if sleep.timer.is_some() && core.now() >= sleep.deadline {
            return Poll::Ready(());
        }
        let id = core.add_timer(sleep.deadline, Action::Wake(cx.waker().clone()));
        sleep.timer = Some((core.inbox.clone(), id));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl hyper::rt::Sleep for Sleep {}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sleep(until {:?})", self.deadline.since_origin())
    }
}
