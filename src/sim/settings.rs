//! The settings of one run, and its outcome.
//!
//! A run is a function of its seed and its [`Knobs`]. Shrinking turns knobs; a report prints the turned ones as
//! `WINDLASS_SIM_SET=...`, and a replay reads them from there.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::sim::log::{EventLog, LogMode};

/// What a run depends on besides the test itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunSettings {
    pub(crate) seed: u64,
    pub(crate) knobs: Knobs,
    pub(crate) log: LogMode,
    /// The run fails when its clock gets here.
    pub(crate) time_limit: Duration,
    /// The run fails after this many events.
    pub(crate) event_limit: u64,
    /// Observes each task and callback that runs, to name it in a report: see `misuse`. Has no effect on what happens.
    pub(crate) watches_entries: bool,
}

impl RunSettings {
    pub(crate) fn new(seed: u64) -> RunSettings {
        RunSettings {
            seed,
            knobs: Knobs::default(),
            log: LogMode::Tail,
            time_limit: Duration::from_secs(3_600),
            event_limit: 100_000_000,
            watches_entries: false,
        }
    }
}

/// What shrinking can turn. By default nothing is, and the seed decides.
///
/// As text: `keys=43,episodes=0+3,net=off,tie=fifo`. Names other than the ones listed in [`Knobs::from_str`] are sizes
/// of the test (`Sim::size`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Knobs {
    /// Values for `Sim::size`, by name.
    pub(crate) sizes: BTreeMap<String, u64>,
    /// The planned episodes of faults that happen, by their number in the plan. `None`: all.
    pub(crate) episodes: Option<Vec<usize>>,
    pub(crate) off: Domains,
    /// Events at the same time run in the order in which they were planned, not in seeded order.
    pub(crate) fifo_ties: bool,
    /// Every message takes the mean latency.
    pub(crate) constant_latency: bool,
    /// Socket buffers, receive windows and sectors have their default size, and reads and writes are not cut short.
    pub(crate) fixed_buffers: bool,
    /// Only the first of the test's hosts are started.
    pub(crate) hosts: Option<usize>,
}

/// Kinds of faults that are switched off as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Domains {
    /// Loss, duplication, reordering, cuts, resets, delays.
    pub(crate) net: bool,
    pub(crate) disk: bool,
    /// Drift, skew and jumps.
    pub(crate) clock: bool,
    /// Legal but unusual behaviour of the driver.
    pub(crate) quirks: bool,
}

impl Knobs {
    /// The value for a size that the run asks for, if it was set.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    /// Whether the planned episode with this number happens.
    pub(crate) fn has_episode(&self, number: usize) -> bool {
        self.episodes.as_ref().is_none_or(|kept| kept.contains(&number))
    }
}

impl FromStr for Knobs {
    type Err = String;

    fn from_str(text: &str) -> Result<Knobs, String> {
        let mut knobs = Knobs::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| format!("`{item}` is not of the form name=value"))?;
            let off = |value: &str| match value {
                "off" => Ok(true),
                "on" => Ok(false),
                _ => Err(format!("`{item}`: expected on or off")),
            };
            let number = |value: &str| value.parse::<u64>().map_err(|_| format!("`{item}`: expected a number"));
            match name {
                "net" => knobs.off.net = off(value)?,
                "disk" => knobs.off.disk = off(value)?,
                "clock" => knobs.off.clock = off(value)?,
                "quirks" => knobs.off.quirks = off(value)?,
                "tie" if value == "fifo" => knobs.fifo_ties = true,
                "latency" if value == "constant" => knobs.constant_latency = true,
                "buffers" if value == "fixed" => knobs.fixed_buffers = true,
                "tie" | "latency" | "buffers" => return Err(format!("`{item}` is unknown")),
                "hosts" => knobs.hosts = Some(number(value)? as usize),
                "episodes" if value == "none" => knobs.episodes = Some(Vec::new()),
                "episodes" => {
                    let numbers = value.split('+').map(|value| number(value).map(|value| value as usize));
                    knobs.episodes = Some(numbers.collect::<Result<_, _>>()?);
                }
                size => {
                    knobs.sizes.insert(size.to_owned(), number(value)?);
                }
            }
        }
        Ok(knobs)
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items: Vec<String> = self
            .sizes
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if let Some(episodes) = &self.episodes {
            let numbers: Vec<String> = episodes.iter().map(usize::to_string).collect();
            items.push(format!(
                "episodes={}",
                if numbers.is_empty() {
                    "none".into()
                } else {
                    numbers.join("+")
                }
            ));
        }
        let switches = [
            (self.off.net, "net=off"),
            (self.off.disk, "disk=off"),
            (self.off.clock, "clock=off"),
            (self.off.quirks, "quirks=off"),
            (self.fifo_ties, "tie=fifo"),
            (self.constant_latency, "latency=constant"),
            (self.fixed_buffers, "buffers=fixed"),
        ];
        items.extend(
            switches
                .iter()
                .filter(|(is_on, _)| *is_on)
                .map(|(_, text)| (*text).to_owned()),
        );
        if let Some(hosts) = self.hosts {
            items.push(format!("hosts={hosts}"));
        }
        f.write_str(&items.join(","))
    }
}

/// What a run did.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` if the test passed.
    pub(crate) failure: Option<Failure>,
    /// The time on the simulation's clock at the end.
    pub(crate) elapsed: Duration,
    /// The events, with their hash and checkpoints.
    pub(crate) log: EventLog,
    /// The sizes that the test asked for.
    pub(crate) sizes: Vec<Size>,
    /// The planned episodes of faults, as text, by number; those that were dropped too.
    pub(crate) episodes: Vec<String>,
    /// How often each mark of `Sim::sometimes` was met; 0 for those that were only asked about.
    pub(crate) marks: BTreeMap<String, u64>,
    /// The number of hosts that the test started.
    pub(crate) hosts: usize,
    /// Misuse that does not fail a run.
    pub(crate) warnings: Vec<String>,
    /// Paths that a program did not find, with its host.
    pub(crate) missing: Vec<(String, PathBuf)>,
}

/// A size of the test: see `Sim::size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) name: String,
    pub(crate) value: u64,
    /// The least value that the test accepts.
    pub(crate) least: u64,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    /// The place in the source, as `file:line:column`, where there is one.
    pub(crate) location: Option<String>,
    /// More lines for the report, such as the dumps of all loops.
    pub(crate) details: Vec<String>,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// A panic in the test, in a host or in a job.
    Panic,
    /// The test returned an error.
    Error,
    /// No event is left, and the test has not ended.
    Deadlock,
    /// The time limit or the event limit was reached.
    Limit,
    /// The program did something that a simulation cannot control, such as waking a loop from a thread of its own.
    Misuse,
}

impl Failure {
    /// Whether two failures are taken for the same: shrinking must not end with another one.
    pub(crate) fn is_like(&self, other: &Failure) -> bool {
        self.kind == other.kind
            && match (&self.location, &other.location) {
                (Some(one), Some(two)) => one == two,
                // Numbers in a message may change as the test gets smaller.
                (None, None) => without_numbers(&self.message) == without_numbers(&other.message),
                _ => false,
            }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.location {
            Some(location) => write!(f, " ({location})"),
            None => Ok(()),
        }
    }
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|char| !char.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_survive_printing_and_parsing() {
        for text in [
            "",
            "keys=43",
            "a=0,keys=43,episodes=0+3,net=off,disk=off,clock=off,quirks=off,tie=fifo,latency=constant,buffers=fixed,hosts=2",
            "episodes=none",
        ] {
            let knobs: Knobs = text.parse().unwrap();
            assert_eq!(knobs.to_string(), text);
        }
        let knobs: Knobs = " keys=4, net=on ,episodes=2 ".parse().unwrap();
        assert_eq!(knobs.size("keys"), Some(4));
        assert_eq!(knobs.size("other"), None);
        assert!(knobs.has_episode(2) && !knobs.has_episode(1));
        assert!(Knobs::default().has_episode(7));
    }

    #[test]
    fn wrong_knobs_are_named() {
        for text in ["keys", "keys=x", "net=maybe", "tie=lifo", "episodes=1+b"] {
            let error = text.parse::<Knobs>().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn failures_are_alike_by_place() {
        let at = |location: Option<&str>, message: &str| Failure {
            kind: FailureKind::Panic,
            message: message.into(),
            location: location.map(Into::into),
            details: Vec::new(),
        };
        assert!(at(Some("a:1:1"), "lost 3").is_like(&at(Some("a:1:1"), "lost key 4")));
        assert!(!at(Some("a:1:1"), "lost").is_like(&at(Some("a:2:1"), "lost")));
        assert!(at(None, "lost 3").is_like(&at(None, "lost 14")));
        assert!(!at(None, "lost 3").is_like(&at(Some("a:1:1"), "lost 3")));
        let deadlock = Failure {
            kind: FailureKind::Deadlock,
            ..at(None, "lost 3")
        };
        assert!(!deadlock.is_like(&at(None, "lost 3")));
    }
}
