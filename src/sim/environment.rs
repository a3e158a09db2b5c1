//! The environment variables of a sweep: `WINDLASS_SIM_SEED` and the others.

use crate::sim::settings::Knobs;
use crate::sim::shrink::Budget;

/// The environment variables of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Environment {
    /// `WINDLASS_SIM_SEED`: this seed alone, with its whole log written.
    pub(crate) seed: Option<u64>,
    /// `WINDLASS_SIM_SEEDS`: this many seeds, from the test's first one.
    pub(crate) seeds: Option<u64>,
    /// `WINDLASS_SIM_JOBS`: seeds that run at the same time, each on its own thread.
    pub(crate) jobs: Option<u64>,
    /// `WINDLASS_SIM_CHECK=1`: every seed runs twice.
    pub(crate) check: bool,
    /// `WINDLASS_SIM_SET`: knobs, as a report prints them.
    pub(crate) knobs: Knobs,
    /// `WINDLASS_SIM_SHRINK`: the most runs for shrinking; 0 turns it off.
    pub(crate) shrink: Option<u64>,
    /// `WINDLASS_SIM_LOG=0`: no event log, so no check for determinism. For benchmarks.
    pub(crate) no_log: bool,
}

impl Environment {
    pub(crate) fn read() -> Result<Environment, String> {
        Environment::parse(|name| std::env::var(name).ok())
    }

    pub(super) fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Environment, String> {
        let number = |name: &str| match get(name) {
            None => Ok(None),
            Some(text) if text.trim().is_empty() => Ok(None),
            Some(text) => match parse_number(text.trim()) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("sim: {name}={text} is not a number")),
            },
        };
        Ok(Environment {
            seed: number("WINDLASS_SIM_SEED")?,
            seeds: number("WINDLASS_SIM_SEEDS")?,
            jobs: number("WINDLASS_SIM_JOBS")?,
            check: number("WINDLASS_SIM_CHECK")?.is_some_and(|number| number != 0),
            knobs: match get("WINDLASS_SIM_SET") {
                None => Knobs::default(),
                Some(text) => text
                    .parse()
                    .map_err(|error| format!("sim: WINDLASS_SIM_SET={text}: {error}"))?,
            },
            shrink: number("WINDLASS_SIM_SHRINK")?,
            no_log: number("WINDLASS_SIM_LOG")? == Some(0),
        })
    }

    pub(super) fn budget(&self) -> Budget {
        let budget = Budget::default();
        Budget {
            runs: self.shrink.map_or(budget.runs, |runs| runs as usize),
            ..budget
        }
    }
}

/// Decimal, or hexadecimal after `0x`.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.replace('_', "").parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_parsed_and_mistakes_are_named() {
        let get = |name: &str| match name {
            "WINDLASS_SIM_SEED" => Some("0x1f3".to_owned()),
            "WINDLASS_SIM_SEEDS" => Some("10_000".to_owned()),
            "WINDLASS_SIM_JOBS" => Some("2".to_owned()),
            "WINDLASS_SIM_CHECK" => Some("1".to_owned()),
            "WINDLASS_SIM_SET" => Some("keys=3,tie=fifo".to_owned()),
            "WINDLASS_SIM_LOG" => Some("0".to_owned()),
            _ => None,
        };
        let environment = Environment::parse(get).unwrap();
        assert_eq!((environment.seed, environment.seeds), (Some(0x1f3), Some(10_000)));
        assert_eq!((environment.jobs, environment.check), (Some(2), true));
        assert!(environment.knobs.fifo_ties && environment.no_log);
        let wrong = Environment::parse(|name| (name == "WINDLASS_SIM_JOBS").then(|| "two".into())).unwrap_err();
        assert_eq!(wrong, "sim: WINDLASS_SIM_JOBS=two is not a number");
        let wrong = Environment::parse(|name| (name == "WINDLASS_SIM_SET").then(|| "net".into())).unwrap_err();
        assert!(wrong.contains("WINDLASS_SIM_SET=net"), "{wrong}");
    }
}
