//! The command line.

use std::time::Duration;

use crate::serve::Kind;
use crate::timers::Sleeper;

pub(crate) const USAGE: &str = "\
usage: compare [--quick] [--only echo|timers|tasks]

Measures echo throughput, timer resolution and the cost of tasks, for windlass and for what it is compared with.

  --quick       shorter rounds: about 12 s instead of 45 s, and noisier
  --only PART   only one part: echo, timers or tasks
  --help        this text";

/// What one process is to do.
pub(crate) enum Job {
    Compare(Plan),
    /// Hidden: be a server, for a parent that reads the port from standard output.
    Serve(Kind),
    /// Hidden: measure sleeps, for a parent that reads the lateness of each from standard output.
    Sleep(Sleeper, Duration, usize),
    Help,
}

/// How much to measure.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) echo: bool,
    pub(crate) timers: bool,
    pub(crate) tasks: bool,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) round: Duration,
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Job, String> {
    let mut args = args;
    let mut quick = false;
    let mut only = None;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => {
                let part = value()?;
                if !["echo", "timers", "tasks"].contains(&part.as_str()) {
                    return Err(format!("nothing here is called '{part}': choose echo, timers or tasks"));
                }
                only = Some(part);
            }
            "--help" | "-h" => return Ok(Job::Help),
            "--serve" => return Ok(Job::Serve(Kind::parse(&value()?)?)),
            "--sleep" => {
                let sleeper = Sleeper::parse(&value()?)?;
                let nanos = value()?.parse().map_err(|_| "--sleep needs nanoseconds")?;
                let count = value()?.parse().map_err(|_| "--sleep needs a count")?;
                return Ok(Job::Sleep(sleeper, Duration::from_nanos(nanos), count));
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let (warm_up, round) = if quick { (50, 200) } else { (100, 900) };
    Ok(Job::Compare(Plan {
        quick,
        echo: wanted("echo"),
        timers: wanted("timers"),
        tasks: wanted("tasks"),
        rounds: 3,
        warm_up: Duration::from_millis(warm_up),
        round: Duration::from_millis(round),
    }))
}
