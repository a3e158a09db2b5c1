//! The command line.

use std::path::PathBuf;

use crate::contender::Contender;
use crate::plan::Workload;
use crate::work::Task;

pub(crate) const USAGE: &str = "\
usage: windlass-peers [--quick] [--only PART]... [--contender NAME]... [--rounds N] [--instructions] [--json PATH]
                      [--markdown PATH] [--connections N]

Measures windlass against tokio, compio, monoio, glommio, smol and hand-written loops, and reports which targets are
reached.

  --quick           one or two short rounds: noisy, three minutes instead of about twenty
  --only PART       only this part (may be repeated): echo, timers, sleeps, tasks, files, wake, memory, instructions; or one
                    table of it: echo-1x64, echo-10x64, echo-50x64, echo-50x1k, echo-200x64, echo-1000x64, echo-3000x64,
                    echo-9000x64, echo-50x1k-16 (16 requests in flight), echo-paced-300us, echo-paced-5ms, timers-100us,
                    timers-1ms, timers-10ms, sleeps-200k, cancel-1m, sleepers-1k, sleepers-10k, sleepers-100k, sleepers-1m
  --contender NAME  only this contender (may be repeated): epoll, uring, uring-multishot, pread, tokio, compio, monoio,
                    glommio, smol, proactor, reactor; with a setting: proactor-precise,
                    reactor-precise (timers), proactor-no-busy-poll, reactor-no-busy-poll (paced echo),
                    proactor-eager, reactor-eager (tasks)
  --rounds N        the maximum number of rounds (default 5)
  --connections N   idle connections of the part memory (default 10000)
  --instructions    also count user-space instructions per request, under valgrind's callgrind (one to two minutes more)
  --json PATH       also write every round's figures to this file
  --markdown PATH   also write the summary of the echo tables to this file, as tables in Markdown
  --help            this text";

/// The job of one process.
pub(crate) enum Job {
    Compare(Options),
    /// Hidden: be a server for this many connections, for a parent that reads the port from standard output.
    Serve(Contender, usize),
    /// Hidden: measure, for a parent that reads the figures from standard output.
    Work(Contender, Task),
    Help,
}

/// How much to measure.
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    /// The idle connections of the memory table.
    pub(crate) connections: usize,
    /// The selected parts and tables; empty for all but the instructions.
    only: Vec<String>,
    has_instructions: bool,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
}

impl Options {
    /// Whether a table of this part is selected.
    pub(crate) fn wants(&self, workload: Workload, key: &str) -> bool {
        match workload {
            Workload::Instructions if self.has_instructions => true,
            Workload::Instructions if self.only.is_empty() => false,
            _ => self.only.is_empty() || self.only.iter().any(|only| only == workload.name() || only == key),
        }
    }

    /// A selected name that is neither a part nor one of these tables.
    pub(crate) fn unknown<'a>(&self, keys: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let is_known =
            |only: &str| Workload::ALL.iter().any(|one| one.name() == only) || keys.clone().any(|key| key == only);
        self.only.iter().map(String::as_str).find(|only| !is_known(only))
    }
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Job, String> {
    let mut args = args;
    let mut quick = false;
    let (mut rounds, mut connections) = (None, 10_000);
    let mut has_instructions = false;
    let (mut only, mut contenders) = (Vec::new(), Vec::new());
    let (mut json, mut markdown) = (None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only.push(value()?),
            "--contender" => contenders.push(Contender::parse(&value()?)?),
            "--rounds" => rounds = Some(parse_number(&arg, &value()?, 1000)?),
            "--connections" => connections = parse_number(&arg, &value()?, 1_000_000)?,
            "--instructions" => has_instructions = true,
            "--json" => json = Some(PathBuf::from(value()?)),
            "--markdown" => markdown = Some(PathBuf::from(value()?)),
            "--help" | "-h" => return Ok(Job::Help),
            "--serve" => {
                let contender = Contender::parse(&value()?)?;
                let connections = args.next().and_then(|count| count.parse().ok());
                return Ok(Job::Serve(
                    contender,
                    connections.ok_or("--serve needs a number of connections")?,
                ));
            }
            "--work" => {
                let contender = Contender::parse(&value()?)?;
                let rest: Vec<String> = args.collect();
                return Ok(Job::Work(contender, Task::parse(&rest)?));
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    if contenders.is_empty() {
        contenders = Contender::ALL.to_vec();
    }
    Ok(Job::Compare(Options {
        quick,
        rounds: rounds.unwrap_or(if quick { 2 } else { 5 }),
        connections,
        only,
        has_instructions,
        contenders,
        json,
        markdown,
    }))
}

fn parse_number(option: &str, text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("{option} needs a number from 1 to {most}, not '{text}'"))
}
