//! Before and after a sleep: looking out for what keeps coming soon, and waking in time.
//!
//! Going to sleep and being woken is the dearest thing that a loop with little to do pays for: tens of microseconds on a
//! virtual machine, for an answer that would have come within ten. So a loop whose sleeps keep ending soon looks out
//! instead: it goes on asking the driver, and the letterbox, for a while before it sleeps. What comes in that time costs no
//! wake-up, and senders on other threads need no system call. A loop whose news do not come soon must pay nothing for
//! this, so it is a bet that stops when it is lost: a vain lookout ends it, unless many before it were not in vain, and it
//! takes twice as many short sleeps as the last time before the next is tried. A loop that is idle, or that hears from a
//! slow peer, has long sleeps and never begins; one whose news always come a little too late tries once in a thousand sleeps.
//! Nor does one begin where much comes at a time: there a wake-up is shared by many.
//!
//! Waking takes time too, and always about the same. So the kernel is asked to end a sleep a little before the deadline:
//! by as much as nine of ten sleeps have lately overslept. Those nine come less late by that much and cost nothing; the tenth
//! comes too early and looks out for the rest. Who needs it exact has the loop wake well before the deadline each time
//! ([`precise`](crate::Builder::precise_timers)).

use std::cell::Cell;
use std::time::Duration;

use crate::time::Instant;

/// A sleep that ended sooner than this might have been spared: the waking itself is the larger part of it.
const SHORT: Duration = Duration::from_micros(150);

/// And one that ended sooner than this was none: what came was there.
const AT_ONCE: Duration = Duration::from_micros(3);

/// Where a wake-up brings more than this, it is paid for: a loop with that much to do sleeps, and finds yet more when it wakes.
const FEW: usize = 4;

/// So many short sleeps in a row begin the first lookout.
const FIRST: u32 = 4;

/// After many vain lookouts, the next begins after so many short sleeps in a row.
const MOST: u32 = 1024;

/// So many successful lookouts in a row are worth a vain one.
const WORTH: u32 = 16;

/// So many successful lookouts in a row, and the vain ones are forgotten.
const FORGIVEN: u32 = 64;

/// The most by which a sleep is ended early.
const LONGEST_LEAD: Duration = Duration::from_micros(150);

/// The same where timers are to be precise: more than most sleeps oversleep, even on a virtual machine.
const PRECISE_LEAD: Duration = Duration::from_micros(120);

pub(crate) struct Lookout {
    /// How long to look out; zero if never.
    window: Duration,
    is_on: Cell<bool>,
    /// Short sleeps in a row that begin it.
    needed: Cell<u32>,
    /// Short sleeps in a row, or successful lookouts in a row.
    streak: Cell<u32>,
    wakes: Wakes,
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
    /// Earlier by what nine of ten sleeps oversleep, in nanoseconds.
    Learnt(Cell<u64>),
    Precisely,
}

impl Lookout {
    pub(crate) fn new(window: Duration, precise: bool) -> Lookout {
        Lookout {
            window,
            is_on: Cell::new(false),
            needed: Cell::new(FIRST),
            streak: Cell::new(0),
            wakes: match precise {
                true => Wakes::Precisely,
                false => Wakes::Learnt(Cell::new(0)),
            },
        }
    }

    /// For a clock of the driver's own.
    pub(crate) fn none() -> Lookout {
        Lookout {
            wakes: Wakes::AtOnce,
            ..Lookout::new(Duration::ZERO, false)
        }
    }

    /// Until when to look out before the sleep that is about to begin; `None` if it is not worth it.
    #[inline]
    pub(crate) fn ends_at(&self, now: Instant) -> Option<Instant> {
        self.is_on.get().then(|| now + self.window)
    }

    /// A lookout is over.
    pub(crate) fn looked(&self, seen: Seen, landed: usize) {
        let streak = self.streak.get();
        match seen {
            _ if landed > FEW => self.is_on.set(false),
            // It would not have slept either.
            Seen::AtOnce => {}
            Seen::Later if streak == FORGIVEN => self.needed.set(FIRST),
            Seen::Later => self.streak.set(streak + 1),
            // The many before were worth this one; what is slept now tells whether it goes on.
            Seen::Nothing if streak >= WORTH => self.streak.set(0),
            Seen::Nothing => {
                self.is_on.set(false);
                self.needed.set((self.needed.get() * 2).min(MOST));
                self.streak.set(0);
            }
        }
    }

    /// A sleep is over, for which there was no lookout or a vain one. Something came, or its time was up.
    pub(crate) fn slept(&self, took: Duration, has_come: bool, landed: usize) {
        if took < AT_ONCE {
            return;
        }
        if !has_come || took > SHORT || landed > FEW {
            self.is_on.set(false);
            return self.streak.set(self.streak.get() / 2);
        }
        if self.is_on.get() {
            return;
        }
        let streak = self.streak.get() + 1;
        self.streak.set(streak);
        if streak >= self.needed.get() && !self.window.is_zero() {
            self.is_on.set(true);
            self.streak.set(0);
        }
    }

    /// When the kernel is to end a sleep until `deadline`. Where timers are so dense that it would have to be before the sleep
    /// begins, they are as late as they are: only who asked for precise ones pays for looking out all the time.
    #[inline]
    pub(crate) fn wake_at(&self, deadline: Instant, now: Instant) -> Instant {
        match &self.wakes {
            Wakes::AtOnce => deadline,
            Wakes::Learnt(lead) => match deadline - Duration::from_nanos(lead.get()) {
                wake_at if wake_at > now => wake_at,
                _ => deadline,
            },
            Wakes::Precisely => deadline - PRECISE_LEAD,
        }
    }

    /// A sleep lasted until its time was up, and this much longer. Step by step the lead comes to where nine of ten oversleep
    /// more: each of them adds a step, and one that oversleeps less takes nine away.
    pub(crate) fn overslept(&self, by: Duration) {
        const STEP: u64 = 400;
        const FIRST_LEAD: u64 = 25_000;
        let Wakes::Learnt(lead) = &self.wakes else { return };
        let (now, by) = (lead.get(), by.as_nanos() as u64);
        let next = match by > now {
            // The way up from nothing need not be walked; but one sleep that was much too long says little.
            true if now < STEP => (by / 2).min(FIRST_LEAD),
            true => now + STEP,
            false => now.saturating_sub(9 * STEP),
        };
        lead.set(next.min(LONGEST_LEAD.as_nanos() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_micros(50);

    fn is_on(lookout: &Lookout) -> bool {
        lookout.ends_at(Instant::NEVER - WINDOW - WINDOW).is_some()
    }

    /// Short sleeps until it begins.
    fn sleeps_until_on(lookout: &Lookout) -> u32 {
        (1..=10_000)
            .find(|_| {
                lookout.slept(Duration::from_micros(60), true, 1);
                is_on(lookout)
            })
            .expect("it begins some time")
    }

    #[test]
    fn it_begins_when_sleeps_keep_ending_soon_and_backs_off_when_it_is_in_vain() {
        let lookout = Lookout::new(WINDOW, false);
        assert!(!is_on(&lookout));
        let mut needed = Vec::new();
        for _ in 0..12 {
            needed.push(sleeps_until_on(&lookout));
            lookout.looked(Seen::Nothing, 0);
            assert!(!is_on(&lookout), "a vain lookout ends it");
        }
        assert_eq!(needed[..5], [4, 8, 16, 32, 64]);
        assert_eq!(needed[11], 1024, "at the worst one vain lookout in a thousand sleeps");
        // Many good ones, and the vain ones are forgotten.
        sleeps_until_on(&lookout);
        for _ in 0..=FORGIVEN {
            lookout.looked(Seen::Later, 1);
        }
        lookout.slept(Duration::from_millis(5), true, 1);
        assert!(!is_on(&lookout), "a long sleep ends it");
        assert!(sleeps_until_on(&lookout) <= FIRST, "as soon as at first");
    }

    #[test]
    fn a_loop_that_is_idle_or_slow_or_has_much_to_do_never_begins() {
        let lookout = Lookout::new(WINDOW, false);
        for _ in 0..10_000 {
            lookout.slept(Duration::from_millis(1), true, 1);
            lookout.slept(Duration::from_micros(60), false, 0);
            lookout.slept(Duration::from_micros(60), true, 50);
            // What was there already says nothing.
            lookout.slept(Duration::from_micros(1), true, 1);
            assert!(!is_on(&lookout));
        }
        let never = Lookout::new(Duration::ZERO, false);
        for _ in 0..10_000 {
            never.slept(Duration::from_micros(60), true, 1);
            assert!(!is_on(&never));
        }
    }

    #[test]
    fn one_vain_lookout_among_many_good_ones_is_borne() {
        let lookout = Lookout::new(WINDOW, false);
        sleeps_until_on(&lookout);
        for _ in 0..WORTH {
            lookout.looked(Seen::Later, 1);
        }
        lookout.looked(Seen::Nothing, 0);
        lookout.slept(Duration::from_micros(90), true, 1);
        assert!(is_on(&lookout));
        lookout.looked(Seen::Nothing, 0);
        assert!(!is_on(&lookout), "the next one is not");
    }

    #[test]
    fn sleeps_end_earlier_by_what_nine_of_ten_oversleep() {
        let lookout = Lookout::new(WINDOW, false);
        let deadline = Instant::from_origin(Duration::from_secs(1));
        let began = Instant::from_origin(Duration::ZERO);
        assert_eq!(lookout.wake_at(deadline, began), deadline);
        // From 30 to 129 us, in no order.
        for round in 0..3_000u64 {
            lookout.overslept(Duration::from_micros(30 + round * 37 % 100));
        }
        let lead = deadline - lookout.wake_at(deadline, began);
        assert!(
            (Duration::from_micros(30)..Duration::from_micros(52)).contains(&lead),
            "{lead:?}, of which a tenth of the sleeps should oversleep less"
        );
        // One that is much too long says little.
        lookout.overslept(Duration::from_secs(1));
        assert!(deadline - lookout.wake_at(deadline, began) < lead + Duration::from_micros(1));
        // A deadline that is nearer than that is slept until.
        let near = began + Duration::from_micros(10);
        assert_eq!(lookout.wake_at(near, began), near);
    }
}
