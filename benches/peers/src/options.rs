//! The command line.

use std::path::PathBuf;

use crate::contender::Contender;
use crate::plan::Workload;
use crate::work::Task;

pub(crate) const USAGE: &str = "\
usage: windlass-peers [--quick] [--only PART]... [--contender NAME]... [--rounds N] [--instructions] [--json PATH]

Measures windlass against tokio, compio, monoio, glommio, smol and hand-written loops, and reports which targets are
reached.

  --quick           two short rounds: one to two minutes instead of five to eight, and noisier
  --only PART       only this part (may be repeated): echo, timers, sleeps, tasks, files, wake, memory, instructions
  --contender NAME  only this contender (may be repeated): epoll, uring, uring-multishot, pread, tokio, compio, monoio,
                    glommio, smol, proactor, reactor; with a setting: proactor-precise,
                    reactor-precise (timers), proactor-no-busy-poll, reactor-no-busy-poll (paced echo),
                    proactor-eager, reactor-eager (tasks)
  --rounds N        the maximum number of rounds (default 5)
  --instructions    also count user-space instructions per request, under valgrind's callgrind (one to two minutes more)
  --json PATH       also write every round's figures to this file
  --help            this text";

/// The job of one process.
pub(crate) enum Job {
    Compare(Options),
    /// Hidden: be a server, for a parent that reads the port from standard output.
    Serve(Contender),
    /// Hidden: measure, for a parent that reads the figures from standard output.
    Work(Contender, Task),
    Help,
}

/// How much to measure.
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) json: Option<PathBuf>,
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Job, String> {
    let mut args = args;
    let mut quick = false;
    let mut rounds = None;
    let mut instructions = false;
    let (mut workloads, mut contenders) = (Vec::new(), Vec::new());
    let mut json = None;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => workloads.push(Workload::parse(&value()?)?),
            "--contender" => contenders.push(Contender::parse(&value()?)?),
            "--rounds" => rounds = Some(parse_rounds(&value()?)?),
            "--instructions" => instructions = true,
            "--json" => json = Some(PathBuf::from(value()?)),
            "--help" | "-h" => return Ok(Job::Help),
            "--serve" => return Ok(Job::Serve(Contender::parse(&value()?)?)),
            "--work" => {
                let contender = Contender::parse(&value()?)?;
                let rest: Vec<String> = args.collect();
                return Ok(Job::Work(contender, Task::parse(&rest)?));
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    if workloads.is_empty() {
        workloads = Workload::ALL.to_vec();
        workloads.retain(|&workload| workload != Workload::Instructions);
    }
    if instructions {
        workloads.push(Workload::Instructions);
    }
    if contenders.is_empty() {
        contenders = Contender::ALL.to_vec();
    }
    Ok(Job::Compare(Options {
        quick,
        rounds: rounds.unwrap_or(if quick { 2 } else { 5 }),
        workloads,
        contenders,
        json,
    }))
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=1000) => Ok(rounds),
        _ => Err(format!("--rounds needs a number from 1 to 1000, not '{text}'")),
    }
}
