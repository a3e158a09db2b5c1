//! Sleeping, timeouts and intervals on the loop's clock.
//!
//! ```
//! use std::time::Duration;
//! use windlass::time::{sleep, timeout};
//! windlass::run(async {
//!     let slow = sleep(Duration::from_secs(60));
//!     assert!(timeout(Duration::from_millis(1), slow).await.is_err());
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod delay_queue;

use std::fmt;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_core::Stream;

pub use self::delay_queue::DelayQueue;
use crate::event_loop::core::LoopCore;
use crate::event_loop::loop_id::LoopId;
use crate::event_loop::timers::{Action, Timer};
pub use crate::sys::Instant;
use crate::task::{KeptLeftovers, Leftovers, RawTask};

impl Instant {
    /// The time of the current loop's clock, which may be virtual; outside of a loop, of the system's monotonic clock.
    pub fn now() -> Instant {
        match LoopCore::try_current() {
            Some(core) => core.now(),
            None => crate::sys::monotonic(),
        }
    }

    /// The time since this instant; zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        Instant::now() - self
    }
}

/// The time of day on the current loop's wall clock, which may be virtual; outside of a loop, [`SystemTime::now`].
///
/// Code that asks here instead of [`SystemTime::now`] is deterministic in a simulation. A wall clock can be set, so it may
/// go back: measure durations with [`Instant`].
///
/// ```
/// use std::time::UNIX_EPOCH;
/// windlass::run(async {
///     let now = windlass::time::wall_now();
///     println!("{} s since 1970", now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn wall_now() -> SystemTime {
    match LoopCore::try_current() {
        Some(core) => core.driver.borrow().wall_clock(),
        None => SystemTime::now(),
    }
}

/// Waits until `duration` has passed.
///
/// ```
/// use std::time::Duration;
/// windlass::run(async {
///     windlass::time::sleep(Duration::from_millis(2)).await;
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// The time counts from this call, or from the first poll if this is called outside of a loop. `Duration::MAX` waits
/// forever. A sleep never ends early, and a long one may end up to a thousandth later: see
/// [`Builder::timer_slack`](crate::Builder::timer_slack). Dropping it cancels the timer. Polling it outside of a loop panics.
#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    match LoopCore::try_current() {
        Some(core) => Sleep::new(Home::UNTIL, core.now() + duration),
        None => Sleep::new(Home::FOR, Instant::from_origin(duration)),
    }
}

/// Waits until the loop's clock reaches `deadline`.
#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    // The slack of a timer depends on its length, which counts from the last reading of the clock.
    if let Some(core) = LoopCore::try_current() {
        core.now();
    }
    Sleep::new(Home::UNTIL, deadline)
}

/// The future returned by [`sleep`] and [`sleep_until`].
///
/// It is `Send` and `Sync`, because it is plain data: a deadline and the number of a timer. The timer belongs to the loop that
/// polled the sleep first. Polled on another loop, the sleep sets a timer there, for the same deadline on that loop's clock.
/// Dropped on another thread, it sends a cancel to the loop of the timer.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    /// The deadline; before the first poll of a sleep that was made outside of a loop, the duration.
    when: Instant,
    home: Home,
    /// Initialised if `home` is a loop: its timers made it.
    timer: MaybeUninit<Timer>,
}

/// The loop of a sleep's timer, or, without a timer, what the next poll does. One word, so that the first poll tests it once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Home(i64);

impl Home {
    /// Sets a timer for the deadline.
    const UNTIL: Home = Home(0);
    /// Sets a timer for a deadline that counts from now.
    const FOR: Home = Home(-1);
    /// Nothing: the sleep has ended.
    const OVER: Home = Home(-2);

    #[inline]
    fn of(core: &LoopCore) -> Home {
        Home(core.id().to_i64())
    }

    /// The loop, if there is a timer.
    #[inline]
    fn id(self) -> Option<LoopId> {
        LoopId::from_i64(self.0)
    }
}

impl Sleep {
    /// Changes the deadline. A pending sleep need not be polled again, except after a call on another thread than its
    /// loop's; one that has ended can be awaited again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::time::{Instant, sleep};
    /// windlass::run(async {
    ///     let mut nap = sleep(Duration::MAX);
    ///     nap.reset(Instant::now() + Duration::from_millis(1));
    ///     nap.await;
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.when = deadline;
        let Some((home, timer)) = self.timer() else {
            self.home = Home::UNTIL;
            return;
        };
        match home.with(|core| core.reset_timer(timer.id, deadline)) {
            Some(Some(timer)) => self.timer = MaybeUninit::new(timer),
            // A timer that has fired has woken its task; the task's next poll starts the new timer.
            Some(None) => self.home = Home::UNTIL,
            None => self.cancel(),
        }
    }

    /// When the sleep ends; `None` once it has ended, or before the first poll if it was made outside of a loop.
    pub fn deadline(&self) -> Option<Instant> {
        (self.home != Home::OVER && self.home != Home::FOR).then_some(self.when)
    }

    #[inline]
    fn new(home: Home, when: Instant) -> Sleep {
        Sleep {
            when,
            home,
            timer: MaybeUninit::uninit(),
        }
    }

    /// The timer, and the loop whose timers made it.
    #[inline(always)]
    fn timer(&self) -> Option<(LoopId, Timer)> {
        // SAFETY: it is initialised, because there is a loop.
        self.home.id().map(|home| (home, unsafe { self.timer.assume_init() }))
    }

    #[inline(always)]
    fn set_timer(&mut self, core: &LoopCore, timer: Timer) {
        self.timer = MaybeUninit::new(timer);
        self.home = Home::of(core);
    }

    /// The first poll: sets a timer. Calls nothing and saves no register in the most frequent case: in a task, a timer of more
    /// than a second, with the heap entry of a cancelled one.
    #[inline(never)]
    fn start(&mut self, core: &LoopCore, cx: &Context<'_>) -> Poll<()> {
        match self.try_start::<true>(core, cx) {
            true => Poll::Pending,
            false => self.start_short(core, cx),
        }
    }

    #[inline(never)]
    fn start_short(&mut self, core: &LoopCore, cx: &Context<'_>) -> Poll<()> {
        match self.try_start::<false>(core, cx) {
            true => Poll::Pending,
            false => self.start_on(core, cx),
        }
    }

    #[inline(always)]
    fn try_start<const LONG: bool>(&mut self, core: &LoopCore, cx: &Context<'_>) -> bool {
        if let Some(task) = core.task_polled_with(cx)
            && let Some(timer) = core.try_add_wake_timer::<LONG>(self.when, task.key())
        {
            self.set_timer(core, timer);
            return true;
        }
        false
    }

    /// Sets a timer of this loop.
    #[cold]
    #[inline(never)]
    fn start_on(&mut self, core: &LoopCore, cx: &Context<'_>) -> Poll<()> {
        let action = match core.task_polled_with(cx) {
            Some(task) => Action::WakeTask(task.key()),
            None => Action::Wake(cx.waker().clone()),
        };
        self.set_timer(core, core.add_timer(self.when, action));
        Poll::Pending
    }

    /// Sets a timer for a sleep that was made outside of a loop.
    #[cold]
    fn start_now(&mut self, core: &LoopCore, cx: &Context<'_>) -> Poll<()> {
        self.when = core.now() + self.when.since_origin();
        // A later `reset` or a poll on another loop keeps the deadline.
        self.home = Home::UNTIL;
        self.start_on(core, cx)
    }

    #[inline(always)]
    fn cancel(&mut self) {
        if let Some((home, timer)) = self.timer() {
            self.home = Home::UNTIL;
            // SAFETY: the timers of `home` made it.
            unsafe { home.cancel_timer(timer) };
        }
    }

    /// Every poll but the first.
    #[inline(never)]
    fn poll_again(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.timer() {
            Some((home, timer)) => match LoopCore::try_current() {
                // SAFETY: the timers of `home` made it.
                Some(core) if core.id() == home => unsafe { self.poll_timer(core, timer, cx) },
                _ => self.poll_elsewhere(home, timer, cx),
            },
            None if self.home == Home::OVER => Poll::Ready(()),
            None if self.home == Home::UNTIL => self.start_on(LoopCore::current("sleep"), cx),
            None => self.start_now(LoopCore::current("sleep"), cx),
        }
    }

    /// Polls a sleep that has this timer.
    ///
    /// # Safety
    ///
    /// The timers of `core` made it.
    #[inline]
    unsafe fn poll_timer(&mut self, core: &LoopCore, timer: Timer, cx: &Context<'_>) -> Poll<()> {
        // `have_fired_until` usually avoids looking at the timer, which may be cold in the CPU cache.
        // SAFETY: the caller's promise.
        if core.have_fired_until(self.when) || !unsafe { rewake(core, timer, cx) } {
            self.home = Home::OVER;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Polls a sleep that has a timer of another loop than the current one.
    #[cold]
    fn poll_elsewhere(&mut self, home: LoopId, timer: Timer, cx: &Context<'_>) -> Poll<()> {
        let Some(core) = LoopCore::try_current() else {
            return match home.on_this_thread() {
                // SAFETY: the timers of `home` made it.
                Some(core) => unsafe { self.poll_timer(&core, timer, cx) },
                None => self.start_on(LoopCore::current("sleep"), cx),
            };
        };
        self.cancel();
        self.start_on(core, cx)
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Here and in `drop`, the current loop is found by inlined code: a library accesses a thread-local as if by a call.
        match LoopCore::try_running() {
            Some(core) if self.home == Home::UNTIL => self.start(core, cx),
            _ => self.poll_again(cx),
        }
    }
}

/// Makes a timer wake the current poll's waker. False if the timer has fired.
///
/// # Safety
///
/// The timers of this loop made it.
#[inline]
unsafe fn rewake(core: &LoopCore, timer: Timer, cx: &Context<'_>) -> bool {
    let task = core.task_polled_with(cx).map(RawTask::key);
    // SAFETY: the caller's promise.
    match unsafe { core.timers.would_wake(timer, task, cx.waker()) } {
        None => return false,
        Some(true) => return true,
        Some(false) => {}
    }
    let action = match task {
        Some(task) => Action::WakeTask(task),
        None => Action::Wake(cx.waker().clone()),
    };
    // Cloning a waker is foreign code: the timer may have fired inside it and woken only the old waker.
    core.timers.replace(timer.id, action).is_ok()
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.home {
            Home::FOR => write!(f, "Sleep(for {:?})", self.when.since_origin()),
            Home::OVER => write!(f, "Sleep(over)"),
            _ => write!(f, "Sleep(until {:?})", self.when.since_origin()),
        }
    }
}

/// Runs `future` for at most `duration`.
///
/// Each poll polls the future before the timer, so an output that is ready is returned even if the time is up. When the
/// time is up, the future is dropped; a cancelled read or accept loses no data. If the future contains a
/// [`group`](fn@crate::task::group), a [`JoinSet`](crate::task::JoinSet) or an [`on_cancel`](crate::task::on_cancel)
/// cleanup, `timeout` returns when the children and the cleanup have ended. If nested timeouts expire in the same poll,
/// the inner one returns [`Elapsed`].
///
/// ```
/// use std::time::Duration;
/// use windlass::time::timeout;
/// windlass::run(async {
///     assert_eq!(timeout(Duration::from_secs(1), async { 7 }).await.unwrap(), 7);
///     assert!(timeout(Duration::from_millis(1), std::future::pending::<()>()).await.is_err());
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[inline]
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout::new(future, sleep(duration))
}

/// As [`timeout`], with a deadline on the loop's clock.
#[inline]
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    Timeout::new(future, sleep_until(deadline))
}

/// The future returned by [`timeout`] and [`timeout_at`]. It is `Send` if the future is, as [`Sleep`].
#[must_use = "a timeout does nothing until it is awaited"]
pub struct Timeout<F> {
    state: TimeoutState<F>,
}

enum TimeoutState<F> {
    /// The future is structurally pinned: it is never moved, and dropped in place.
    Running { future: F, sleep: Sleep },
    /// The future is dropped; what it left behind must end first.
    Expired(Option<KeptLeftovers>),
}

impl<F> Timeout<F> {
    #[inline]
    fn new(future: F, sleep: Sleep) -> Timeout<F> {
        Timeout {
            state: TimeoutState::Running { future, sleep },
        }
    }

    /// Changes the deadline, as [`Sleep::reset`]: asyncio's `Timeout.reschedule`. Does nothing after the timeout has
    /// expired.
    ///
    /// ```
    /// use std::{pin::pin, time::Duration};
    /// use windlass::{task::join, time::{Instant, sleep, timeout}};
    /// windlass::run(async {
    ///     let mut work = pin!(timeout(Duration::from_millis(1), sleep(Duration::from_millis(20))));
    ///     work.as_mut().reschedule(Instant::now() + Duration::from_secs(60));
    ///     assert!(work.await.is_ok());
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reschedule(self: Pin<&mut Self>, deadline: Instant) {
        // SAFETY: only `sleep` is accessed, which is `Unpin`.
        if let TimeoutState::Running { sleep, .. } = unsafe { &mut self.get_unchecked_mut().state } {
            sleep.reset(deadline);
        }
    }

    /// When the timeout expires; `None` in the same cases as [`Sleep::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            TimeoutState::Running { sleep, .. } => sleep.deadline(),
            TimeoutState::Expired(_) => None,
        }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is never moved, and dropped in place by `poll_expired`; the rest is `Unpin`.
        let this = unsafe { self.get_unchecked_mut() };
        if let TimeoutState::Running { future, sleep } = &mut this.state {
            // SAFETY: as above.
            if let Poll::Ready(output) = unsafe { Pin::new_unchecked(future) }.poll(cx) {
                return Poll::Ready(Ok(output));
            }
            std::task::ready!(Pin::new(sleep).poll(cx));
        }
        this.poll_expired(cx).map(|()| Err(Elapsed))
    }
}

impl<F> Timeout<F> {
    /// Drops the future if that was not done before, and waits for what it left behind.
    #[cold]
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut self.state;
        if let TimeoutState::Running { .. } = state {
            let leftovers = Leftovers::of(|| *state = TimeoutState::Expired(None));
            *state = TimeoutState::Expired(leftovers.poll_or_keep(cx));
        } else if let TimeoutState::Expired(Some(leftovers)) = state {
            std::task::ready!(leftovers.poll(cx));
            *state = TimeoutState::Expired(None);
        }
        match state {
            TimeoutState::Expired(None) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

/// The error of a [`timeout`] that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the timeout expired")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}

/// What an [`Interval`] does about ticks that were missed because `tick` was called too late.
///
/// With a period of 10 ms, ticks due at 0, 10, 20, ... and a caller that is busy from 0 to 35 after the first tick:
///
/// | | next ticks at | then |
/// |---|---|---|
/// | `Burst` | 35 35 35 | 40 50: one tick per period, on the original schedule |
/// | `Delay` | 35 | 45 55: one period after the late tick |
/// | `Skip` | 35 | 40 50: missed ticks are skipped, on the original schedule |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTicks {
    /// Returns all missed ticks without waiting. The default.
    #[default]
    Burst,
    /// Returns one missed tick; the next is due one period later.
    Delay,
    /// Returns one missed tick and skips the others; the next is due on the original schedule.
    Skip,
}

/// tokio's name of [`MissedTicks`].
pub type MissedTickBehavior = MissedTicks;

/// Creates an interval whose first tick is due now, and the following ones every `period`.
///
/// ```
/// use std::time::Duration;
/// windlass::run(async {
///     let mut interval = windlass::time::interval(Duration::from_millis(1));
///     for _ in 0..3 {
///         interval.tick().await;
///     }
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If the period is zero.
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Creates an interval that ticks first at `start` and then every `period`.
///
/// # Panics
///
/// If the period is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval must not be zero");
    Interval {
        next: start,
        period,
        missed: MissedTicks::default(),
        sleep: None,
    }
}

/// Periodic ticks: created by [`interval`] and [`interval_at`]. It is an endless [`Stream`] of the times at which the
/// ticks were due. It is `Send`, as [`Sleep`].
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
    missed: MissedTicks,
    /// The wait of `poll_tick` for `next`.
    sleep: Option<Sleep>,
}

impl Interval {
    /// Sets the behavior after missed ticks.
    pub fn missed_ticks(mut self, missed: MissedTicks) -> Interval {
        self.missed = missed;
        self
    }

    /// Sets the behavior after missed ticks, with tokio's name.
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }

    /// The behavior after missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Makes the next tick due one period from now.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::time::{Instant, MissedTickBehavior, interval};
    /// windlass::run(async {
    ///     let mut interval = interval(Duration::from_millis(2));
    ///     interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ///     interval.tick().await;
    ///     interval.reset();
    ///     let reset = Instant::now();
    ///     interval.tick().await;
    ///     assert!(reset.elapsed() >= Duration::from_millis(1));
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reset(&mut self) {
        self.reset_after(self.period);
    }

    /// Makes the next tick due now.
    pub fn reset_immediately(&mut self) {
        self.reset_at(Instant::now());
    }

    /// Makes the next tick due after `delay`.
    pub fn reset_after(&mut self, delay: Duration) {
        self.reset_at(Instant::now() + delay);
    }

    /// Makes the next tick due at `deadline`. The following ones are due every period from there.
    pub fn reset_at(&mut self, deadline: Instant) {
        self.next = deadline;
        if let Some(sleep) = &mut self.sleep {
            sleep.reset(deadline);
        }
    }

    /// Waits for the next tick and returns when it was due, which may be in the past. Cancel-safe: no tick is lost.
    pub async fn tick(&mut self) -> Instant {
        let interval = DropSleep(self);
        std::future::poll_fn(|cx| interval.0.poll_tick(cx)).await
    }

    /// [`tick`](Interval::tick) for implementations of `poll`. Only the waker of the last call is woken.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let due = self.next;
        match &mut self.sleep {
            Some(sleep) => {
                std::task::ready!(Pin::new(sleep).poll(cx));
                self.sleep = None;
            }
            // An interval that is always late must still yield to other tasks.
            None if due <= Instant::now() => std::task::ready!(crate::io::poll_coop(cx)),
            None => {
                let sleep = self.sleep.insert(sleep_until(due));
                std::task::ready!(Pin::new(sleep).poll(cx));
                self.sleep = None;
            }
        }
        self.next = self.after(due, Instant::now());
        Poll::Ready(due)
    }

    /// The period.
    pub fn period(&self) -> Duration {
        self.period
    }

    fn after(&self, due: Instant, now: Instant) -> Instant {
        let on_time = due + self.period;
        match self.missed {
            _ if now < on_time => on_time,
            MissedTicks::Burst => on_time,
            MissedTicks::Delay => now + self.period,
            MissedTicks::Skip => {
                let period_ns = self.period.as_nanos();
                let behind = (now - due).as_nanos() / period_ns + 1;
                let ns = u64::try_from(behind * period_ns).unwrap_or(u64::MAX);
                due + Duration::from_nanos(ns)
            }
        }
    }
}

/// Ends the wait of a `tick` that is dropped, so that its task is not woken.
struct DropSleep<'a>(&'a mut Interval);

impl Drop for DropSleep<'_> {
    fn drop(&mut self) {
        self.0.sleep = None;
    }
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.poll_tick(cx).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    fn every_ten(missed: MissedTicks) -> Interval {
        interval_at(at(0), Duration::from_millis(10)).missed_ticks(missed)
    }

    #[test]
    fn missed_ticks_follow_the_table() {
        assert_eq!(every_ten(MissedTicks::Burst).after(at(0), at(35)), at(10));
        assert_eq!(every_ten(MissedTicks::Delay).after(at(0), at(35)), at(45));
        assert_eq!(every_ten(MissedTicks::Skip).after(at(0), at(35)), at(40));
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            assert_eq!(every_ten(missed).after(at(20), at(21)), at(30), "on time: {missed:?}");
        }
    }

    #[test]
    fn instants_saturate() {
        let last = at(1) + Duration::MAX;
        assert_eq!(last + Duration::from_secs(1), last);
        assert_eq!(at(1) - at(5), Duration::ZERO);
        assert_eq!(Instant::from_origin(Duration::MAX), last);
    }
}
