//! The command line, and how much is measured.

use std::path::PathBuf;
use std::time::Duration;

use super::contender::Kind;
use super::kit::load::Shape;

pub(crate) const USAGE: &str = "\
usage: compare [--quick] [--only PART] [--out FOLDER]

Compares event loops on this machine: windlass on both drivers, hand-written epoll and io_uring loops, and, if there is
a python3, asyncio and uvloop. Prints tables, and writes a report with plots (HTML) and all raw figures (JSON).

  --quick        shorter rounds and fewer loads: under 20 s instead of two minutes, and noisier
  --only PART    only one part:
                   echo    throughput, latency, CPU time and system calls per request; a pool on all cores
                   timers  how late a sleep ends
                   memory  of an idle connection
                   stall   how late a tick is while a task computes
                   tasks   the cost of the loop itself
  --out FOLDER   the folder for the report and for the virtual environment with uvloop, which the next run reuses;
                 default: `compare` in cargo's target directory
  --help         this text";

/// The job of one process.
pub(crate) enum Job {
    Compare(Plan),
    /// Hidden: be a server, for a parent that reads the port from standard output.
    Serve(Kind),
    /// Hidden: be a pool with this many shards.
    ServePool(Kind, usize),
    /// Hidden: measure sleeps, for a parent that reads the lateness of each from standard output.
    Sleep(Kind, Duration, usize),
    /// Hidden: measure stalls, for a parent that reads them from standard output. The times are before and after the
    /// work.
    Stall(Kind, Duration, Duration),
    Help,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Echo,
    Timers,
    Memory,
    Stall,
    Tasks,
}

impl Part {
    const ALL: [(Part, &str); 5] = [
        (Part::Echo, "echo"),
        (Part::Timers, "timers"),
        (Part::Memory, "memory"),
        (Part::Stall, "stall"),
        (Part::Tasks, "tasks"),
    ];

    fn parse(name: &str) -> Result<Part, String> {
        let found = Part::ALL.into_iter().find(|(_, known)| *known == name);
        let wrong = format!("unknown part '{name}': choose echo, timers, memory, stall or tasks");
        found.map(|(part, _)| part).ok_or(wrong)
    }
}

/// A load and its number of rounds.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) shape: Shape,
    pub(crate) rounds: usize,
}

/// How much to measure.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) only: Option<Part>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) loads: Vec<Effort>,
    /// The length of an echo round.
    pub(crate) warm_up: Duration,
    pub(crate) round: Duration,
    /// The load on pools of shards, and its number of rounds.
    pub(crate) pool_load: Shape,
    pub(crate) pool_rounds: usize,
    /// The number of requests over which system calls are counted.
    pub(crate) traced_requests: u64,
    /// The sleeps, their number per round, and the number of rounds.
    pub(crate) sleeps: [(Duration, usize); 2],
    pub(crate) sleep_rounds: usize,
    pub(crate) idle_connections: usize,
    /// The times before and after the work that blocks the loop.
    pub(crate) ticks: (Duration, Duration),
    /// Turns per batch, for the cost of the loop itself.
    pub(crate) turns: usize,
}

/// The published table gives neither the number of clients nor the request size; this is a common choice.
pub(crate) const USUAL: Shape = shape(50, 1024);

/// One small request at a time: the cost of a wake-up.
pub(crate) const SINGLE: Shape = shape(1, 64);

const fn shape(connections: usize, request_len: usize) -> Shape {
    Shape {
        connections,
        request_len,
        in_flight: 1,
    }
}

impl Plan {
    fn full() -> Plan {
        let load = |connections, rounds| Effort {
            shape: shape(connections, USUAL.request_len),
            rounds,
        };
        let single = Effort {
            shape: SINGLE,
            rounds: 5,
        };
        Plan {
            quick: false,
            only: None,
            out: None,
            loads: vec![
                load(50, 5),
                single,
                load(1, 3),
                load(10, 3),
                load(200, 3),
                load(1000, 3),
            ],
            warm_up: Duration::from_millis(60),
            round: Duration::from_millis(370),
            pool_load: shape(200, USUAL.request_len),
            pool_rounds: 3,
            traced_requests: 2000,
            sleeps: [(Duration::from_micros(100), 500), (Duration::from_millis(1), 200)],
            sleep_rounds: 3,
            idle_connections: 10_000,
            ticks: (Duration::from_millis(350), Duration::from_millis(450)),
            turns: 100_000,
        }
    }

    fn quick() -> Plan {
        let mut plan = Plan::full();
        plan.quick = true;
        plan.loads
            .retain(|load| [1, 50, 1000].contains(&load.shape.connections));
        for load in &mut plan.loads {
            load.rounds = 3;
        }
        plan.warm_up = Duration::from_millis(10);
        plan.round = Duration::from_millis(50);
        plan.traced_requests = 300;
        plan.sleeps = [(Duration::from_micros(100), 200), (Duration::from_millis(1), 80)];
        plan.sleep_rounds = 1;
        plan.idle_connections = 1000;
        plan.ticks = (Duration::from_millis(60), Duration::from_millis(120));
        plan.turns = 20_000;
        plan
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Job, String> {
    let mut args = args;
    let (mut quick, mut only, mut out) = (false, None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only = Some(Part::parse(&value()?)?),
            "--out" => out = Some(PathBuf::from(value()?)),
            "--help" | "-h" => return Ok(Job::Help),
            // Cargo passes this to every bench.
            "--bench" => {}
            "--serve" => return Ok(Job::Serve(Kind::parse(&value()?)?)),
            "--serve-pool" => {
                let kind = Kind::parse(&value()?)?;
                let count = value()?.parse().map_err(|_| "--serve-pool needs a count")?;
                return Ok(Job::ServePool(kind, count));
            }
            "--sleep" => {
                let kind = Kind::parse(&value()?)?;
                let pause = nanos(&value()?)?;
                let count = value()?.parse().map_err(|_| "--sleep needs a count")?;
                return Ok(Job::Sleep(kind, pause, count));
            }
            "--stall" => {
                return Ok(Job::Stall(
                    Kind::parse(&value()?)?,
                    nanos(&value()?)?,
                    nanos(&value()?)?,
                ));
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    let plan = if quick { Plan::quick() } else { Plan::full() };
    Ok(Job::Compare(Plan { only, out, ..plan }))
}

fn nanos(text: &str) -> Result<Duration, String> {
    let nanos = text
        .parse()
        .map_err(|_| format!("'{text}' is not a number of nanoseconds"))?;
    Ok(Duration::from_nanos(nanos))
}
