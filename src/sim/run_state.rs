//! What one run keeps besides its hosts and network: its settings, random streams, and what it reports.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::sim::chaos::{Chaos, Episode, Fault};
use crate::sim::log::EventLog;
use crate::sim::rng::{Rng, Streams};
use crate::sim::settings::{Failure, Outcome, RunSettings, Size};

/// The settings of a run and the parts of its outcome.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) settings: RunSettings,
    pub(crate) streams: Streams,
    sizes: Vec<Size>,
    episodes: Vec<String>,
    marks: BTreeMap<String, u64>,
    /// The first failure.
    failure: Option<Failure>,
    pub(crate) warnings: Vec<String>,
    pub(crate) missing: Vec<(String, PathBuf)>,
}

impl RunState {
    pub(crate) fn new(settings: &RunSettings) -> RunState {
        RunState {
            settings: settings.clone(),
            streams: Streams::new(settings.seed),
            sizes: Vec::new(),
            episodes: Vec::new(),
            marks: BTreeMap::new(),
            failure: None,
            warnings: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// A size of the test: as it was set, or drawn from a stream of its own. The same name has the same value again.
    pub(crate) fn size(&mut self, name: &str, range: RangeInclusive<u64>) -> u64 {
        if let Some(size) = self.sizes.iter().find(|size| size.name == name) {
            return size.value;
        }
        let (least, most) = (*range.start(), *range.end());
        let value = match self.settings.knobs.size(name) {
            Some(value) => value.clamp(least, most),
            None => self.streams.stream(&format!("size/{name}")).range(range),
        };
        self.sizes.push(Size {
            name: name.to_owned(),
            value,
            least,
        });
        value
    }

    /// Counts a mark if it is met, and remembers that it was asked about.
    pub(crate) fn sometimes(&mut self, name: &str, is_met: bool) {
        match self.marks.get_mut(name) {
            Some(count) => *count += u64::from(is_met),
            None => drop(self.marks.insert(name.to_owned(), u64::from(is_met))),
        }
    }

    /// A random stream of the test's own.
    pub(crate) fn rng(&self, name: &str) -> Rng {
        self.streams.stream(&format!("test/{name}"))
    }

    /// The episodes of a plan that happen, in the order of their beginnings.
    pub(crate) fn plan(&mut self, chaos: &Chaos, hosts: &[String]) -> Vec<Episode> {
        let first = self.episodes.len();
        // Each plan of a run has its own stream.
        let mut rng = self.streams.stream(&format!("chaos/{first}"));
        let plan = chaos.plan(&mut rng, hosts);
        self.episodes.extend(plan.iter().map(Episode::to_string));
        let knobs = &self.settings.knobs;
        let is_off = |fault: &Fault| match fault {
            Fault::Cut { .. } | Fault::Slow { .. } | Fault::Lossy { .. } => knobs.off.net,
            Fault::Crash { .. } | Fault::Pause { .. } => false,
            Fault::WallClock { .. } => knobs.off.clock,
            Fault::DiskStall { .. } | Fault::DiskError { .. } => knobs.off.disk,
        };
        let kept = |number: usize, episode: &Episode| knobs.has_episode(number) && !is_off(&episode.fault);
        (first..)
            .zip(plan)
            .filter(|(number, episode)| kept(*number, episode))
            .map(|(_, episode)| episode)
            .collect()
    }

    /// Ends the run with a failure, unless it has failed before.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    #[cfg(test)]
    fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(crate) fn into_outcome(self, log: EventLog, elapsed: Duration, hosts: usize) -> Outcome {
        Outcome {
            failure: self.failure,
            elapsed,
            log,
            sizes: self.sizes,
            episodes: self.episodes,
            marks: self.marks,
            hosts,
            warnings: self.warnings,
            missing: self.missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_log() -> EventLog {
        EventLog::new(crate::sim::log::LogMode::Off)
    }

    fn settings(set: &str) -> RunSettings {
        RunSettings {
            knobs: set.parse().unwrap(),
            ..RunSettings::new(5)
        }
    }

    #[test]
    fn sizes_are_drawn_once_or_set_within_their_range() {
        let mut state = RunState::new(&settings(""));
        let keys = state.size("keys", 1..=1_000);
        assert_eq!(state.size("keys", 1..=1_000), keys);
        assert_ne!(state.size("others", 1..=1_000_000), state.size("more", 1..=1_000_000));
        for (set, expected) in [("keys=43", 43), ("keys=0", 1), ("keys=9999", 1_000)] {
            let mut state = RunState::new(&settings(set));
            assert_eq!(state.size("keys", 1..=1_000), expected);
            // Other draws stay as they were.
            assert_eq!(
                state.size("others", 1..=1_000_000),
                RunState::new(&settings("")).size("others", 1..=1_000_000)
            );
        }
        let sizes = state.into_outcome(no_log(), Duration::ZERO, 0).sizes;
        assert_eq!(
            sizes[0],
            Size {
                name: "keys".into(),
                value: keys,
                least: 1
            }
        );
    }

    #[test]
    fn dropped_episodes_and_domains_do_not_happen_and_the_others_stay() {
        let hosts: Vec<String> = ["a", "b", "c"].map(String::from).into();
        let plan = |set: &str| RunState::new(&settings(set)).plan(&Chaos::swarm(), &hosts);
        let all = plan("");
        assert!(all.len() > 5);
        let numbers: Vec<String> = (0..all.len())
            .filter(|number| number % 2 == 1)
            .map(|number| number.to_string())
            .collect();
        let odd: Vec<Episode> = all.iter().skip(1).step_by(2).cloned().collect();
        assert_eq!(plan(&format!("episodes={}", numbers.join("+"))), odd);
        assert!(plan("episodes=none").is_empty());
        let is_net = |episode: &Episode| {
            matches!(
                episode.fault,
                Fault::Cut { .. } | Fault::Slow { .. } | Fault::Lossy { .. }
            )
        };
        let others: Vec<Episode> = all.iter().filter(|episode| !is_net(episode)).cloned().collect();
        assert_eq!(plan("net=off"), others);
        // The second plan of a run has its own numbers.
        let mut state = RunState::new(&settings(""));
        assert_ne!(state.plan(&Chaos::swarm(), &hosts), state.plan(&Chaos::swarm(), &hosts));
        assert!(state.into_outcome(no_log(), Duration::ZERO, 3).episodes.len() > all.len());
    }

    #[test]
    fn marks_count_and_the_first_failure_stays() {
        let mut state = RunState::new(&settings(""));
        state.sometimes("met", false);
        state.sometimes("met", true);
        state.sometimes("not met", false);
        let failure = |message: &str| Failure {
            kind: crate::sim::settings::FailureKind::Error,
            message: message.into(),
            location: None,
            details: Vec::new(),
        };
        assert!(!state.has_failed());
        state.fail(failure("first"));
        state.fail(failure("second"));
        assert!(state.has_failed());
        let outcome = state.into_outcome(no_log(), Duration::ZERO, 0);
        assert_eq!(outcome.marks, [("met".into(), 1), ("not met".into(), 0)].into());
        assert_eq!(outcome.failure.unwrap().message, "first");
    }
}
