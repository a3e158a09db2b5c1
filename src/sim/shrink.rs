//! Shrinking: a smaller run that fails at the same place.
//!
//! Each step changes the [`Knobs`] of the failing run and repeats it. A change that still fails alike
//! ([`Failure::is_like`]) is kept. Steps, in this order, repeated while something gets smaller: drop planned episodes
//! (delta debugging), switch off whole domains of faults, reduce the test's sizes, then the things that make a timeline
//! hard to read: seeded order of simultaneous events, varying latency, short reads and writes, and hosts.
//!
//! Random streams are independent of each other, so a change in one place leaves the rest of the run as it was, as far as
//! the program behaves alike.

use std::time::{Duration, Instant};

use crate::sim::settings::{Failure, Knobs, Outcome, RunSettings};

/// How much work shrinking may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) runs: usize,
    pub(crate) time: Duration,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            runs: 200,
            time: Duration::from_secs(30),
        }
    }
}

/// The smallest failing run that was found.
#[derive(Debug)]
pub(crate) struct Shrunk {
    pub(crate) knobs: Knobs,
    pub(crate) runs: usize,
    pub(crate) took: Duration,
}

/// Shrinks a failing run. `outcome` is its outcome with `settings`.
pub(crate) fn shrink(
    run: &dyn Fn(&RunSettings) -> Outcome,
    settings: &RunSettings,
    outcome: &Outcome,
    budget: Budget,
) -> Shrunk {
    let started = Instant::now();
    let failure = outcome.failure.clone().expect("only failing runs are shrunk");
    let mut search = Search {
        run,
        settings: settings.clone(),
        failure,
        last: Facts::of(outcome),
        budget,
        started,
        runs: 0,
    };
    while search.pass() {}
    Shrunk {
        knobs: search.settings.knobs,
        runs: search.runs,
        took: started.elapsed(),
    }
}

/// What the steps need to know of the smallest failing run.
struct Facts {
    episodes: usize,
    /// Name, value, least value.
    sizes: Vec<(String, u64, u64)>,
    hosts: usize,
}

impl Facts {
    fn of(outcome: &Outcome) -> Facts {
        Facts {
            episodes: outcome.episodes.len(),
            sizes: outcome
                .sizes
                .iter()
                .map(|size| (size.name.clone(), size.value, size.least))
                .collect(),
            hosts: outcome.hosts,
        }
    }
}

struct Search<'a> {
    run: &'a dyn Fn(&RunSettings) -> Outcome,
    /// With the smallest knobs so far.
    settings: RunSettings,
    failure: Failure,
    last: Facts,
    budget: Budget,
    started: Instant,
    runs: usize,
}

impl Search<'_> {
    /// All steps once. Whether another pass may find more.
    fn pass(&mut self) -> bool {
        let before = self.settings.knobs.clone();
        self.drop_episodes();
        self.switch_off();
        self.reduce_sizes();
        self.simplify();
        self.drop_hosts();
        self.settings.knobs != before && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.runs >= self.budget.runs || self.started.elapsed() >= self.budget.time
    }

    /// Changes the knobs and keeps the change if the run still fails alike.
    fn attempt(&mut self, change: impl FnOnce(&mut Knobs)) -> bool {
        let mut settings = self.settings.clone();
        change(&mut settings.knobs);
        if settings == self.settings || self.is_over() {
            return false;
        }
        self.runs += 1;
        let outcome = (self.run)(&settings);
        let is_alike = outcome
            .failure
            .as_ref()
            .is_some_and(|failure| failure.is_like(&self.failure));
        if is_alike {
            self.settings = settings;
            self.last = Facts::of(&outcome);
        }
        is_alike
    }

    /// Delta debugging: tries without ever smaller parts of the plan, until no single episode can be left out.
    fn drop_episodes(&mut self) {
        let all = || (0..self.last.episodes).collect();
        let mut kept: Vec<usize> = self.settings.knobs.episodes.clone().unwrap_or_else(all);
        kept.retain(|number| *number < self.last.episodes);
        let mut parts = 1;
        while !kept.is_empty() {
            let part_len = kept.len().div_ceil(parts);
            let mut first = 0;
            let mut has_dropped = false;
            while first < kept.len() {
                let end = (first + part_len).min(kept.len());
                let mut fewer = kept.clone();
                fewer.drain(first..end);
                if self.attempt(|knobs| knobs.episodes = Some(fewer.clone())) {
                    kept = fewer;
                    has_dropped = true;
                } else {
                    first = end;
                }
            }
            match (has_dropped, part_len) {
                (false, 1) => break,
                // Single episodes once more: one may have been needed only with another that is gone.
                (true, 1) => parts = kept.len(),
                _ => parts = (parts * 2).min(kept.len().max(1)),
            }
            if self.is_over() {
                break;
            }
        }
    }

    fn switch_off(&mut self) {
        self.attempt(|knobs| knobs.off.net = true);
        self.attempt(|knobs| knobs.off.disk = true);
        self.attempt(|knobs| knobs.off.clock = true);
        self.attempt(|knobs| knobs.off.quirks = true);
    }

    /// For each size the least value that still fails, by bisection: exact if every larger value fails too.
    fn reduce_sizes(&mut self) {
        for (name, value, least) in self.last.sizes.clone() {
            let (mut low, mut high) = (least, value);
            while low < high && !self.is_over() {
                let middle = low + (high - low) / 2;
                let smaller = |knobs: &mut Knobs| knobs.sizes.extend([(name.clone(), middle)]);
                if self.attempt(smaller) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
        }
    }

    fn simplify(&mut self) {
        self.attempt(|knobs| knobs.fifo_ties = true);
        self.attempt(|knobs| knobs.constant_latency = true);
        self.attempt(|knobs| knobs.fixed_buffers = true);
    }

    fn drop_hosts(&mut self) {
        while self.last.hosts > 1 {
            let fewer = self.last.hosts - 1;
            if !self.attempt(|knobs| knobs.hosts = Some(fewer)) {
                break;
            }
            // The knob is the limit; a test may start fewer than that.
            self.last.hosts = self.last.hosts.min(fewer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::sim::log::{EventLog, LogMode};
    use crate::sim::settings::{FailureKind, Size};

    /// A test with ten episodes, three hosts and a size `keys` of 200 (at least 1), which fails as `fails` says.
    fn fake(fails: impl Fn(&Knobs) -> Option<&'static str>) -> impl Fn(&RunSettings) -> Outcome {
        move |settings| Outcome {
            failure: fails(&settings.knobs).map(|location| Failure {
                kind: FailureKind::Panic,
                message: "lost".into(),
                location: Some(location.into()),
                details: Vec::new(),
            }),
            elapsed: Duration::ZERO,
            log: EventLog::new(LogMode::Tail),
            sizes: vec![Size {
                name: "keys".into(),
                value: settings.knobs.size("keys").unwrap_or(200),
                least: 1,
            }],
            episodes: (0..10).map(|number| format!("episode {number}")).collect(),
            marks: Default::default(),
            hosts: settings.knobs.hosts.unwrap_or(3),
            warnings: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn shrink_fake(budget: Budget, fails: impl Fn(&Knobs) -> Option<&'static str>) -> Shrunk {
        let run = fake(fails);
        let settings = RunSettings::new(1);
        let outcome = run(&settings);
        shrink(&run, &settings, &outcome, budget)
    }

    #[test]
    fn only_what_the_failure_needs_is_left() {
        let shrunk = shrink_fake(Budget::default(), |knobs| {
            let needed = knobs.has_episode(2)
                && knobs.has_episode(7)
                && !knobs.off.disk
                && knobs.size("keys").unwrap_or(200) >= 43
                && !knobs.constant_latency
                && knobs.hosts.unwrap_or(3) >= 2;
            needed.then_some("tests/kv.rs:27:1")
        });
        assert_eq!(
            shrunk.knobs.to_string(),
            "keys=43,episodes=2+7,net=off,clock=off,quirks=off,tie=fifo,buffers=fixed,hosts=2"
        );
        assert!(shrunk.runs < 100, "{}", shrunk.runs);
    }

    #[test]
    fn what_depends_on_nothing_loses_everything() {
        let shrunk = shrink_fake(Budget::default(), |_| Some("tests/kv.rs:27:1"));
        assert_eq!(shrunk.knobs.episodes, Some(vec![]));
        assert_eq!((shrunk.knobs.size("keys"), shrunk.knobs.hosts), (Some(1), Some(1)));
        assert!(shrunk.runs < 30, "{}", shrunk.runs);
    }

    #[test]
    fn another_failure_does_not_count() {
        let shrunk = shrink_fake(Budget::default(), |knobs| match knobs.has_episode(4) {
            true => Some("tests/kv.rs:27:1"),
            false => Some("tests/kv.rs:99:1"),
        });
        assert_eq!(shrunk.knobs.episodes, Some(vec![4]));
    }

    /// Episode 3 is needed only while episode 8 happens: a single pass over the episodes keeps it.
    #[test]
    fn episodes_are_tried_again_after_others_are_gone() {
        let shrunk = shrink_fake(Budget::default(), |knobs| {
            let fails = knobs.has_episode(0) && (knobs.has_episode(3) || !knobs.has_episode(8));
            fails.then_some("tests/kv.rs:27:1")
        });
        assert_eq!(shrunk.knobs.episodes, Some(vec![0]));
    }

    #[test]
    fn the_budget_is_kept_and_the_result_still_fails() {
        for runs in [0, 1, 5, 17] {
            let count = RefCell::new(0);
            let fails = |knobs: &Knobs| {
                *count.borrow_mut() += 1;
                (knobs.has_episode(1) && knobs.has_episode(6)).then_some("tests/kv.rs:27:1")
            };
            let shrunk = shrink_fake(
                Budget {
                    runs,
                    ..Budget::default()
                },
                fails,
            );
            assert_eq!(shrunk.runs, runs);
            assert_eq!(*count.borrow(), runs + 1);
            assert!(shrunk.knobs.has_episode(1) && shrunk.knobs.has_episode(6));
        }
    }
}
