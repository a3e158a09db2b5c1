//! Before and after a sleep: looking out for what keeps coming soon, and waking in time.
//!
//! Going to sleep and being woken is the dearest thing that a loop with little to do pays for: tens of microseconds on a
//! virtual machine, for an answer that would have come within ten. So a loop whose sleeps keep ending soon looks out
//! instead: it goes on asking the driver, and the letterbox, for a while before it sleeps. What comes in that time costs no
//! wake-up, and senders on other threads need no system call. A loop whose news do not come soon must pay nothing for
//! this, so it is a bet that stops when it is lost: a vain lookout ends it, unless four before it were not in vain, and it
//! takes twice as many short sleeps as the last time before the next is tried. A loop that is idle, or that hears from a
//! slow peer, has long sleeps and never begins; one whose news always come a little too late tries once in a thousand sleeps.
//! Nor does one begin where it comes from many: there a wake-up is shared, and who looks out would take one by one what a sleep
//! brings together.
//!
//! Waking takes time too, and always about the same. So the kernel is asked to end a sleep a little before the deadline:
//! by as much as nine of ten sleeps have lately overslept. Those nine come less late by that much and cost nothing; the tenth
//! comes too early and looks out for the rest. Who needs it exact has the loop wake well before the deadline each time
//! ([`precise`](crate::Builder::precise_timers)).

use std::cell::Cell;
use std::time::Duration;

use crate::driver::Completion;
use crate::time::Instant;

/// A sleep that ended sooner than this might have been spared: the waking itself is the larger part of it.
const SHORT: Duration = Duration::from_micros(150);

/// And one that ended sooner than this was none: what came was there.
const AT_ONCE: Duration = Duration::from_micros(3);

/// Where news come from more than so many operations, a wake-up is shared: a loop that serves so many sleeps, and finds yet more
/// when it wakes. With four connections looking out still takes less processor time, with eight the same, with fifty more.
const FEW: u32 = 8;

/// So many short sleeps in a row begin the first lookout.
const FIRST: u32 = 4;

/// After many vain lookouts, the next begins after so many short sleeps in a row.
const MOST: u32 = 1024;

/// So many successful lookouts are worth a vain one, which takes the processor time of one sleep or two.
const WORTH: u32 = 4;

/// The most that count. With so many in store, earlier vain ones are forgotten.
const STORE: u32 = 16;

/// The most by which a sleep is ended early.
const MAX_WAKE_AHEAD: Duration = Duration::from_micros(150);

/// The same where timers are to be precise: more than most sleeps oversleep, even on a virtual machine.
const PRECISE_WAKE_AHEAD: Duration = Duration::from_micros(120);

pub(crate) struct BusyPoll {
    /// How long to look out; zero if never.
    window: Duration,
    is_on: Cell<bool>,
    /// Short sleeps in a row that begin it.
    needed: Cell<u32>,
    /// Short sleeps in a row.
    streak: Cell<u32>,
    /// Successful lookouts that no vain one has used up.
    store: Cell<u32>,
    sources: Sources,
    wakes: Wakes,
}

/// From how many operations news have lately come. They are counted by their places in the table of flights: who goes on
/// receiving on one connection always gets the same few.
#[derive(Default)]
struct Sources {
    /// A bit for each place; those that are 64 apart share one.
    seen: Cell<u64>,
    results: Cell<u32>,
    are_many: Cell<bool>,
}

/// What came of a lookout.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// Something was there to begin with.
    AtOnce,
    Later,
    Nothing,
}

/// When to be woken.
enum Wakes {
    /// The clock is not the system's: it jumps to where it is to be.
    AtOnce,
    /// Earlier by what nine of ten sleeps oversleep.
    Learnt(WakeAhead),
    Precisely,
}

/// What nine of ten sleeps oversleep.
#[derive(Default)]
struct WakeAhead {
    nanos: Cell<u64>,
    /// The sleeps that it was learnt from, as far as it matters.
    sleeps: Cell<u32>,
}

impl BusyPoll {
    pub(crate) fn new(window: Duration, precise: bool) -> BusyPoll {
        BusyPoll {
            window,
            is_on: Cell::new(false),
            needed: Cell::new(FIRST),
            streak: Cell::new(0),
            store: Cell::new(0),
            sources: Sources::default(),
            wakes: match precise {
                true => Wakes::Precisely,
                false => Wakes::Learnt(WakeAhead::default()),
            },
        }
    }

    /// For a clock of the driver's own.
    pub(crate) fn none() -> BusyPoll {
        BusyPoll {
            wakes: Wakes::AtOnce,
            ..BusyPoll::new(Duration::ZERO, false)
        }
    }

    /// Until when to look out before the sleep that is about to begin; `None` if it is not worth it.
    #[inline]
    pub(crate) fn ends_at(&self, now: Instant) -> Option<Instant> {
        self.is_on.get().then(|| now + self.window)
    }

    /// A lookout is over.
    pub(crate) fn looked(&self, seen: Seen, completed: &[Completion]) {
        let store = self.store.get();
        self.sources.count(completed, !matches!(seen, Seen::Nothing));
        match seen {
            _ if self.sources.are_many.get() => self.is_on.set(false),
            // It would not have slept either.
            Seen::AtOnce => {}
            Seen::Later if store == STORE => self.needed.set(FIRST),
            Seen::Later => self.store.set(store + 1),
            // What is slept now tells whether it goes on.
            Seen::Nothing if store >= WORTH => self.store.set(store - WORTH),
            Seen::Nothing => {
                self.is_on.set(false);
                self.needed.set((self.needed.get() * 2).min(MOST));
            }
        }
    }

    /// A sleep is over, for which there was no lookout or a vain one. Something came, or its time was up.
    pub(crate) fn slept(&self, took: Duration, has_come: bool, completed: &[Completion]) {
        if self.window.is_zero() {
            return;
        }
        self.sources.count(completed, has_come);
        if took < AT_ONCE {
            return;
        }
        if !has_come || took > SHORT || self.sources.are_many.get() {
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
            self.store.set(0);
        }
    }

    /// When the kernel is to end a sleep until `deadline`. Where timers are so dense that it would have to be before the sleep
    /// begins, they are as late as they are: only who asked for precise ones pays for looking out all the time.
    #[inline]
    pub(crate) fn wake_at(&self, deadline: Instant, now: Instant) -> Instant {
        match &self.wakes {
            Wakes::AtOnce => deadline,
            Wakes::Learnt(wake_ahead) => match deadline - Duration::from_nanos(wake_ahead.nanos.get()) {
                wake_at if wake_at > now => wake_at,
                _ => deadline,
            },
            Wakes::Precisely => deadline - PRECISE_WAKE_AHEAD,
        }
    }

    /// A sleep lasted until its time was up, and this much longer.
    pub(crate) fn overslept(&self, by: Duration) {
        if let Wakes::Learnt(wake_ahead) = &self.wakes {
            wake_ahead.learn(by);
        }
    }
}

impl WakeAhead {
    /// Step by step it comes to where nine of ten oversleep more: each of them adds a step, and one that oversleeps less takes
    /// nine away. The first steps are long, so that a few dozen sleeps will do; but not so long that one says much.
    fn learn(&self, by: Duration) {
        const SHORTEST: u64 = 400;
        const DOUBLINGS: u32 = 3;
        const SLEEPS_EACH: u32 = 16;
        const FIRST: u64 = 25_000;
        let (now, by, sleeps) = (self.nanos.get(), by.as_nanos() as u64, self.sleeps.get());
        let step = SHORTEST << (DOUBLINGS - sleeps / SLEEPS_EACH);
        self.sleeps.set((sleeps + 1).min(DOUBLINGS * SLEEPS_EACH));
        let next = match by > now {
            // The way up from nothing need not be walked.
            true if now < SHORTEST => (by / 2).min(FIRST),
            true => now + step,
            false => now.saturating_sub(9 * step),
        };
        self.nanos.set(next.min(MAX_WAKE_AHEAD.as_nanos() as u64));
    }
}

impl Sources {
    /// What other threads have sent counts as one, from nowhere: it has no place.
    #[inline]
    fn count(&self, completed: &[Completion], has_come: bool) {
        for completion in completed {
            self.seen.set(self.seen.get() | 1 << (completion.id.index % 64));
        }
        let results = self.results.get() + (completed.len() as u32).max(has_come.into());
        self.results.set(results);
        if results >= 64 {
            self.are_many.set(self.seen.replace(0).count_ones() > FEW);
            self.results.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{OpId, OpResult};

    const WINDOW: Duration = Duration::from_micros(50);

    fn is_on(busy_poll: &BusyPoll) -> bool {
        busy_poll.ends_at(Instant::NEVER - WINDOW - WINDOW).is_some()
    }

    /// News from these operations.
    fn completed(fds: std::ops::Range<u32>) -> Vec<Completion> {
        let completion = |index| Completion {
            id: OpId { index, generation: 0 },
            result: OpResult::last(Ok(1)),
        };
        fds.map(completion).collect()
    }

    /// Short sleeps until it begins.
    fn sleeps_until_on(busy_poll: &BusyPoll) -> u32 {
        (1..=10_000)
            .find(|_| {
                busy_poll.slept(Duration::from_micros(60), true, &completed(0..1));
                is_on(busy_poll)
            })
            .expect("it begins some time")
    }

    #[test]
    fn it_begins_when_sleeps_keep_ending_soon_and_backs_off_when_it_is_in_vain() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        assert!(!is_on(&busy_poll));
        let mut needed = Vec::new();
        for _ in 0..12 {
            needed.push(sleeps_until_on(&busy_poll));
            busy_poll.looked(Seen::Nothing, &[]);
            assert!(!is_on(&busy_poll), "a vain lookout ends it");
        }
        assert_eq!(needed[..5], [4, 8, 16, 32, 64]);
        assert_eq!(needed[11], 1024, "at the worst one vain lookout in a thousand sleeps");
        // Many good ones, and the vain ones are forgotten.
        sleeps_until_on(&busy_poll);
        for _ in 0..=STORE {
            busy_poll.looked(Seen::Later, &completed(0..1));
        }
        busy_poll.slept(Duration::from_millis(5), true, &completed(0..1));
        assert!(!is_on(&busy_poll), "a long sleep ends it");
        assert!(sleeps_until_on(&busy_poll) <= FIRST, "as soon as at first");
    }

    #[test]
    fn a_loop_that_is_idle_or_slow_or_has_much_to_do_never_begins() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        for _ in 0..10_000 {
            busy_poll.slept(Duration::from_millis(1), true, &completed(0..1));
            busy_poll.slept(Duration::from_micros(60), false, &[]);
            // What was there already says nothing.
            busy_poll.slept(Duration::from_micros(1), true, &completed(0..1));
            assert!(!is_on(&busy_poll));
        }
        let never = BusyPoll::new(Duration::ZERO, false);
        for _ in 0..10_000 {
            never.slept(Duration::from_micros(60), true, &completed(0..1));
            assert!(!is_on(&never));
        }
    }

    #[test]
    fn a_loop_that_hears_from_many_does_not_look_out() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        sleeps_until_on(&busy_poll);
        for place in 0..100 {
            // Two connections among a thousand that are idle.
            let place = 500 + place % 2;
            busy_poll.looked(Seen::Later, &completed(place..place + 1));
            assert!(is_on(&busy_poll));
        }
        for place in 0..100 {
            busy_poll.looked(Seen::Later, &completed(place..place + 1));
        }
        assert!(!is_on(&busy_poll), "one by one, from a hundred");
        for _ in 0..1_000 {
            busy_poll.slept(Duration::from_micros(60), true, &completed(0..50));
            assert!(!is_on(&busy_poll));
        }
        assert!(sleeps_until_on(&busy_poll) <= 64 + FIRST, "those are gone");
        for _ in 0..100 {
            busy_poll.slept(Duration::from_micros(60), true, &completed(0..50));
        }
        for _ in 0..128 {
            // And here all that comes is sent by other threads.
            busy_poll.slept(Duration::from_micros(60), true, &[]);
        }
        assert!(is_on(&busy_poll));
    }

    #[test]
    fn one_vain_lookout_among_many_good_ones_is_borne() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        sleeps_until_on(&busy_poll);
        for _ in 0..10 {
            for _ in 0..WORTH {
                busy_poll.looked(Seen::Later, &completed(0..1));
            }
            busy_poll.looked(Seen::Nothing, &[]);
            busy_poll.slept(Duration::from_micros(90), true, &completed(0..1));
            assert!(is_on(&busy_poll));
        }
        busy_poll.looked(Seen::Nothing, &[]);
        assert!(!is_on(&busy_poll), "but not two in a row");
        // Whatever was before, there is an end to it soon.
        sleeps_until_on(&busy_poll);
        for _ in 0..1_000 {
            busy_poll.looked(Seen::Later, &completed(0..1));
        }
        let vain = (1..100).find(|_| {
            busy_poll.looked(Seen::Nothing, &[]);
            !is_on(&busy_poll)
        });
        assert_eq!(vain, Some(STORE / WORTH + 1));
    }

    #[test]
    fn sleeps_end_earlier_by_what_nine_of_ten_oversleep() {
        let busy_poll = BusyPoll::new(WINDOW, false);
        let deadline = Instant::from_origin(Duration::from_secs(1));
        let began = Instant::from_origin(Duration::ZERO);
        assert_eq!(busy_poll.wake_at(deadline, began), deadline);
        let wake_ahead = || deadline - busy_poll.wake_at(deadline, began);
        // All by 75 us: some dozens are enough to know it.
        for _ in 0..40 {
            busy_poll.overslept(Duration::from_micros(75));
        }
        assert!(wake_ahead() > Duration::from_micros(45), "{:?}", wake_ahead());
        // From 30 to 129 us, in no order.
        for round in 0..3_000u64 {
            busy_poll.overslept(Duration::from_micros(30 + round * 37 % 100));
        }
        let wake_ahead = wake_ahead();
        assert!(
            (Duration::from_micros(30)..Duration::from_micros(52)).contains(&wake_ahead),
            "{wake_ahead:?}, of which a tenth of the sleeps should oversleep less"
        );
        // One that is much too long says little.
        busy_poll.overslept(Duration::from_secs(1));
        assert!(deadline - busy_poll.wake_at(deadline, began) < wake_ahead + Duration::from_micros(1));
        // A deadline that is nearer than that is slept until.
        let near = began + Duration::from_micros(10);
        assert_eq!(busy_poll.wake_at(near, began), near);
    }
}
