//! The command line.

use crate::parts::{Contender, Part};
use crate::work::Work;

pub(crate) const USAGE: &str = "\
usage: windlass-sim-peers [--quick] [--only PART]... [--rounds N]

Measures windlass::sim against turmoil and madsim, and reports which targets are reached.

  --quick      two rounds, and no whole hour of heartbeats: two minutes instead of ten, and noisier
  --only PART  only this part (may be repeated): echo, seeds, heartbeats, idle
  --rounds N   the number of rounds (default 5)
  --help       this text";

/// The job of one process.
pub(crate) enum Job {
    Compare(Options),
    /// Hidden: measure, for a parent that reads the figure from standard output.
    Work(Contender, Work),
    Help,
}

/// How much to measure.
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    pub(crate) parts: Vec<Part>,
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Job, String> {
    let mut args = args;
    let (mut quick, mut rounds, mut parts) = (false, None, Vec::new());
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => parts.push(Part::parse(&value()?)?),
            "--rounds" => match value()?.parse() {
                Ok(count @ 1..=1000) => rounds = Some(count),
                _ => return Err("--rounds needs a number from 1 to 1000".into()),
            },
            "--help" | "-h" => return Ok(Job::Help),
            "--work" => {
                let contender = Contender::parse(&value()?)?;
                let rest: Vec<String> = args.collect();
                return Ok(Job::Work(contender, Work::parse(&rest)?));
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    if parts.is_empty() {
        parts = Part::ALL.to_vec();
    }
    Ok(Job::Compare(Options {
        quick,
        rounds: rounds.unwrap_or(if quick { 2 } else { 5 }),
        parts,
    }))
}
