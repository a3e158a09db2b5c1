//! Adaptive busy-polling and early wake-up: the policy that `Parker` follows.
//!
//! Blocking in the kernel and being woken costs tens of microseconds on a virtual machine, often more than the next
//! completion takes to arrive. When recent sleeps were short, the loop polls the driver and the inbox for a window of
//! time before it blocks. Events within the window cost no wake-up, and senders on other threads make no system call.
//!
//! Busy-polling must cost nothing where it does not help:
//! - It starts after `FIRST` short sleeps; a long one halves the count. An idle loop or a slow peer never starts it.
//! - A window that finds nothing stops it, unless `WORTH` earlier windows succeeded. Each stop doubles the number of
//!   short sleeps required to start again, up to `MOST`: exponential back-off.
//! - It stays off while completions come from more than `FEW` operations: one wake-up then serves several of them, and
//!   polling would handle them one at a time.
//!
//! Timers: the kernel wakes a thread late, by a fairly stable amount. The loop asks to be woken earlier by the 10th
//! percentile of recent lateness: nine of ten sleeps then end less late at no cost; after the tenth, which ends early,
//! the loop polls until the deadline. [`precise_timers`](crate::Builder::precise_timers) always wakes well before it.

use std::cell::Cell;
use std::time::Duration;

use crate::driver::Completion;
use crate::time::Instant;

/// A sleep shorter than this is worth avoiding: most of it is the cost of the wake-up itself.
const SHORT: Duration = Duration::from_micros(150);

/// A sleep shorter than this did not block: the events were already there.
const IMMEDIATE: Duration = Duration::from_micros(3);

/// Completions from more than this many operations share wake-ups, so busy-polling stays off. Measured: with 4
/// connections it takes less processor time than sleeping, with 8 the same, with 50 more.
const FEW: u32 = 8;

/// Short sleeps that start busy-polling the first time.
const FIRST: u32 = 4;

/// The longest back-off: short sleeps required after many failed windows.
const MOST: u32 = 1024;

/// Successful windows that make up for one that found nothing, which costs the processor time of one or two sleeps.
const WORTH: u32 = 4;

/// The maximum credit for successful windows. A further successful window resets the back-off.
const MAX_CREDIT: u32 = 16;

/// The most by which a sleep is ended early.
const MAX_WAKE_AHEAD: Duration = Duration::from_micros(150);

/// How early precise timers wake: more than the lateness of most sleeps, even on a virtual machine.
const PRECISE_WAKE_AHEAD: Duration = Duration::from_micros(120);

#[derive(Default)]
pub(crate) struct BusyPoll {
    /// How long to poll before a sleep; zero disables busy-polling.
    window: Duration,
    is_on: Cell<bool>,
    /// Short sleeps required to start.
    needed: Cell<u32>,
    /// Short sleeps so far; a long one halves it.
    streak: Cell<u32>,
    /// Successful windows, less `WORTH` for each window that found nothing.
    credit: Cell<u32>,
    sources: Sources,
    has_precise_timers: bool,
    /// An estimate of the 10th percentile of how late the kernel ends sleeps, in nanoseconds.
    lateness_ns: Cell<u64>,
    /// The number of samples of that, up to the number at which the step no longer shrinks.
    samples: Cell<u32>,
}

/// Estimates how many operations recent completions came from. Operations are distinguished by their index in the
/// table: a task that keeps receiving on one connection reuses the same few.
#[derive(Default)]
struct Sources {
    /// One bit per table index modulo 64.
    seen: Cell<u64>,
    results: Cell<u32>,
    are_many: Cell<bool>,
}

/// When polling found events.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// In the first poll: they had arrived before it.
    Immediately,
    Later,
    Nothing,
}

impl BusyPoll {
    pub(crate) fn new(window: Duration, has_precise_timers: bool) -> BusyPoll {
        BusyPoll {
            window,
            needed: Cell::new(FIRST),
            has_precise_timers,
            ..BusyPoll::default()
        }
    }

    /// When to stop polling before the next sleep; `None` if busy-polling is off.
    #[inline]
    pub(crate) fn ends_at(&self, now: Instant) -> Option<Instant> {
        self.is_on.get().then(|| now + self.window)
    }

    pub(crate) fn record_window(&self, found: Found, completed: &[Completion]) {
        let credit = self.credit.get();
        self.sources.count(completed, !matches!(found, Found::Nothing));
        match found {
            _ if self.sources.are_many.get() => self.is_on.set(false),
            // A sleep would not have blocked either, so this window neither helped nor cost anything.
            Found::Immediately => {}
            Found::Later if credit == MAX_CREDIT => self.needed.set(FIRST),
            Found::Later => self.credit.set(credit + 1),
            // The sleep that follows decides whether busy-polling stays on.
            Found::Nothing if credit >= WORTH => self.credit.set(credit - WORTH),
            Found::Nothing => {
                self.is_on.set(false);
                self.needed.set((self.needed.get() * 2).min(MOST));
            }
        }
    }

    /// Records a sleep that had no poll window before it, or one that found nothing.
    pub(crate) fn record_sleep(&self, took: Duration, found_events: bool, completed: &[Completion]) {
        if self.window.is_zero() {
            return;
        }
        self.sources.count(completed, found_events);
        if took < IMMEDIATE {
            return;
        }
        if !found_events || took > SHORT || self.sources.are_many.get() {
            self.is_on.set(false);
            return self.streak.set(self.streak.get() / 2);
        }
        if self.is_on.get() {
            return;
        }
        let streak = self.streak.get() + 1;
        self.streak.set(streak);
        if streak >= self.needed.get() {
            self.is_on.set(true);
            self.streak.set(0);
            self.credit.set(0);
        }
    }

    /// When the kernel should end a sleep until `deadline`. If that would be before the sleep begins, the sleep ends at
    /// the deadline: otherwise dense timers would make the loop poll all the time, which only precise timers do.
    #[inline]
    pub(crate) fn wake_at(&self, deadline: Instant, now: Instant) -> Instant {
        if self.has_precise_timers {
            return deadline - PRECISE_WAKE_AHEAD;
        }
        match deadline - Duration::from_nanos(self.lateness_ns.get()) {
            wake_at if wake_at > now => wake_at,
            _ => deadline,
        }
    }

    /// Records how late a sleep without events ended. Moves the estimate by one step up if this sleep was later, by
    /// nine steps down otherwise: it settles where nine of ten are later. The first steps are larger: a few dozen
    /// samples suffice, but an outlier moves it little.
    pub(crate) fn record_lateness(&self, lateness: Duration) {
        const MIN_STEP: u64 = 400;
        const HALVINGS: u32 = 3;
        const SAMPLES_PER_HALVING: u32 = 16;
        const FIRST: u64 = 25_000;
        let (now, lateness, samples) = (self.lateness_ns.get(), lateness.as_nanos() as u64, self.samples.get());
        let step = MIN_STEP << (HALVINGS - samples / SAMPLES_PER_HALVING);
        self.samples.set((samples + 1).min(HALVINGS * SAMPLES_PER_HALVING));
        let next = match lateness > now {
            // From zero, jump instead of stepping.
            true if now < MIN_STEP => (lateness / 2).min(FIRST),
            true => now + step,
            false => now.saturating_sub(9 * step),
        };
        self.lateness_ns.set(next.min(MAX_WAKE_AHEAD.as_nanos() as u64));
    }
}

impl Sources {
    /// Counts completions and their operations. Events from other threads count as one result without a source.
    #[inline]
    fn count(&self, completed: &[Completion], found_events: bool) {
        for completion in completed {
            self.seen.set(self.seen.get() | 1 << (completion.id.index() % 64));
        }
        let results = self.results.get() + (completed.len() as u32).max(found_events.into());
        self.results.set(results);
        if results >= 64 {
            self.are_many.set(self.seen.replace(0).count_ones() > FEW);
            self.results.set(0);
        }
    }
}

// Arithmetic in long loops, without unsafe code: Miri would take five minutes.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::driver::{OpId, OpResult};

    const WINDOW: Duration = Duration::from_micros(50);

    fn is_on(busy_poll: &BusyPoll) -> bool {
        busy_poll.ends_at(Instant::NEVER - WINDOW - WINDOW).is_some()
    }

    /// Completions of the operations with these indices.
    fn completed(indices: std::ops::Range<u32>) -> Vec<Completion> {
        let completion = |index| Completion {
            id: OpId::new(index, 0),
            result: OpResult::new(Ok(1)),
        };
        indices.map(completion).collect()
    }

    /// The number of short sleeps until busy-polling starts.
    fn sleeps_until_on(busy_poll: &BusyPoll) -> u32 {
        (1..=10_000)
            .find(|_| {
                busy_poll.record_sleep(Duration::from_micros(60), true, &completed(0..1));
                is_on(busy_poll)
            })
            .expect("busy-polling starts")
    }

    #[test]
    fn short_sleeps_start_it_and_failed_windows_back_it_off() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        assert!(!is_on(&busy_poll));
        let mut needed = Vec::new();
        for _ in 0..12 {
            needed.push(sleeps_until_on(&busy_poll));
            busy_poll.record_window(Found::Nothing, &[]);
            assert!(!is_on(&busy_poll), "a window without events stops it");
        }
        assert_eq!(needed[..5], [4, 8, 16, 32, 64]);
        assert_eq!(needed[11], 1024, "at worst one failed window per thousand sleeps");
        // Many successful windows reset the back-off.
        sleeps_until_on(&busy_poll);
        for _ in 0..=MAX_CREDIT {
            busy_poll.record_window(Found::Later, &completed(0..1));
        }
        busy_poll.record_sleep(Duration::from_millis(5), true, &completed(0..1));
        assert!(!is_on(&busy_poll), "a long sleep stops it");
        assert!(sleeps_until_on(&busy_poll) <= FIRST, "no back-off left");
    }

    #[test]
    fn an_idle_slow_or_busy_loop_never_starts() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        for _ in 0..10_000 {
            busy_poll.record_sleep(Duration::from_millis(1), true, &completed(0..1));
            busy_poll.record_sleep(Duration::from_micros(60), false, &[]);
            // A sleep that did not block counts for nothing.
            busy_poll.record_sleep(Duration::from_micros(1), true, &completed(0..1));
            assert!(!is_on(&busy_poll));
        }
        let never = BusyPoll::new(Duration::ZERO, false);
        for _ in 0..10_000 {
            never.record_sleep(Duration::from_micros(60), true, &completed(0..1));
            assert!(!is_on(&never));
        }
    }

    #[test]
    fn completions_from_many_operations_keep_it_off() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        sleeps_until_on(&busy_poll);
        for index in 0..100 {
            // Two active connections among a thousand.
            let index = 500 + index % 2;
            busy_poll.record_window(Found::Later, &completed(index..index + 1));
            assert!(is_on(&busy_poll));
        }
        for index in 0..100 {
            busy_poll.record_window(Found::Later, &completed(index..index + 1));
        }
        assert!(
            !is_on(&busy_poll),
            "one completion at a time, from a hundred operations"
        );
        for _ in 0..1_000 {
            busy_poll.record_sleep(Duration::from_micros(60), true, &completed(0..50));
            assert!(!is_on(&busy_poll));
        }
        assert!(sleeps_until_on(&busy_poll) <= 64 + FIRST, "the many are gone");
        for _ in 0..100 {
            busy_poll.record_sleep(Duration::from_micros(60), true, &completed(0..50));
        }
        for _ in 0..128 {
            // All events come from other threads.
            busy_poll.record_sleep(Duration::from_micros(60), true, &[]);
        }
        assert!(is_on(&busy_poll));
    }

    #[test]
    fn one_failed_window_among_many_good_ones_is_tolerated() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        sleeps_until_on(&busy_poll);
        for _ in 0..10 {
            for _ in 0..WORTH {
                busy_poll.record_window(Found::Later, &completed(0..1));
            }
            busy_poll.record_window(Found::Nothing, &[]);
            busy_poll.record_sleep(Duration::from_micros(90), true, &completed(0..1));
            assert!(is_on(&busy_poll));
        }
        busy_poll.record_window(Found::Nothing, &[]);
        assert!(!is_on(&busy_poll), "two in a row stop it");
        // Any amount of success is used up soon.
        sleeps_until_on(&busy_poll);
        for _ in 0..1_000 {
            busy_poll.record_window(Found::Later, &completed(0..1));
        }
        let failed = (1..100).find(|_| {
            busy_poll.record_window(Found::Nothing, &[]);
            !is_on(&busy_poll)
        });
        assert_eq!(failed, Some(MAX_CREDIT / WORTH + 1));
    }

    #[test]
    fn sleeps_end_earlier_by_the_tenth_percentile_of_lateness() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        let deadline = Instant::from_origin(Duration::from_secs(1));
        let began = Instant::from_origin(Duration::ZERO);
        assert_eq!(busy_poll.wake_at(deadline, began), deadline);
        let wake_ahead = || deadline - busy_poll.wake_at(deadline, began);
        // Always 75 us late: a few dozen samples suffice.
        for _ in 0..40 {
            busy_poll.record_lateness(Duration::from_micros(75));
        }
        assert!(wake_ahead() > Duration::from_micros(45), "{:?}", wake_ahead());
        // 30 to 129 us late, in mixed order.
        for round in 0..3_000u64 {
            busy_poll.record_lateness(Duration::from_micros(30 + round * 37 % 100));
        }
        let wake_ahead = wake_ahead();
        assert!(
            (Duration::from_micros(30)..Duration::from_micros(52)).contains(&wake_ahead),
            "{wake_ahead:?}: a tenth of the samples should be below"
        );
        // A single outlier changes little.
        busy_poll.record_lateness(Duration::from_secs(1));
        assert!(deadline - busy_poll.wake_at(deadline, began) < wake_ahead + Duration::from_micros(1));
        // A deadline nearer than the estimate is not shortened.
        let near = began + Duration::from_micros(10);
        assert_eq!(busy_poll.wake_at(near, began), near);
    }
}
