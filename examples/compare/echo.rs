//! Echo throughput: every contender in turn, round after round.

use std::io;
use std::time::Duration;

use crate::kit::load::{self, Round, Shape};
use crate::kit::machine::Machine;
use crate::kit::process::Process;
use crate::kit::progress::Progress;
use crate::kit::stats::{Spread, paired_ratio};
use crate::options::Plan;
use crate::python::Python;
use crate::serve::Kind;

/// The loads: how many connections, how many bytes in a request.
const LOADS: [(usize, usize); 3] = [(50, 1024), (1, 64), (1000, 64)];

/// A load and what every contender made of it.
pub(crate) struct Workload {
    pub(crate) connections: usize,
    pub(crate) request_len: usize,
    pub(crate) scores: Vec<(Kind, Score)>,
}

impl Workload {
    pub(crate) fn score(&self, kind: Kind) -> Option<&Score> {
        self.scores
            .iter()
            .find(|(scored, _)| *scored == kind)
            .map(|(_, score)| score)
    }
}

/// One contender's rounds.
#[derive(Default)]
pub(crate) struct Score {
    pub(crate) rounds: Vec<Round>,
}

impl Score {
    /// Median, least and most of some figure of a round.
    pub(crate) fn spread(&self, figure: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    pub(crate) fn rate(&self) -> Spread {
        self.spread(Round::rate)
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.spread(Round::cpu_micros).median
    }

    /// How many times the processor time per request of another this one takes: round by round, each with the round that
    /// the other had right before or after it, and of these the median.
    pub(crate) fn cpu_times(&self, other: &Score) -> f64 {
        let cpu = |score: &Score| score.rounds.iter().map(Round::cpu_micros).collect::<Vec<_>>();
        paired_ratio(cpu(self), cpu(other)).median
    }

    /// The share of the time in which the server had its core.
    pub(crate) fn busy(&self) -> f64 {
        self.spread(Round::busy).median
    }

    /// The share of the time in which the load had its core.
    pub(crate) fn load_busy(&self) -> f64 {
        self.spread(Round::load_busy).median
    }
}

struct Contender {
    kind: Kind,
    server: Process,
    port: u16,
}

/// Those that can be tried here.
fn kinds(python: Option<&Python>) -> impl Iterator<Item = Kind> {
    let has_uvloop = python.is_some_and(|python| python.uvloop.is_some());
    let has_python = python.is_some();
    Kind::ALL.into_iter().filter(move |kind| match kind {
        Kind::Proactor | Kind::Reactor | Kind::Epoll | Kind::Uring | Kind::UringMultishot => true,
        Kind::Asyncio => has_python,
        Kind::Uvloop => has_uvloop,
    })
}

pub(crate) fn steps(plan: &Plan, python: Option<&Python>) -> usize {
    kinds(python).count() * LOADS.len() * plan.rounds
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    python: Option<&Python>,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> io::Result<Vec<Workload>> {
    let mut contenders = Vec::new();
    for kind in kinds(python) {
        match start(kind, machine, python) {
            Ok(contender) => contenders.push(contender),
            Err(error) => missing.push(format!("{}: {error}", kind.title())),
        }
    }
    let mut workloads = Vec::new();
    for (connections, request_len) in LOADS {
        let mut scores: Vec<(Kind, Score)> = Vec::new();
        for round in 1..=plan.rounds {
            // Who fails once is out: its server may be gone.
            contenders.retain(|contender| {
                let (kind, title) = (contender.kind, contender.kind.title());
                let rounds = plan.rounds;
                progress.step(&format!(
                    "echo {connections} x {request_len} B, {round}/{rounds}: {title}"
                ));
                let shape = Shape {
                    connections,
                    request_len,
                    in_flight: 1,
                };
                match load::drive(&contender.server, contender.port, shape, plan.warm_up, plan.round) {
                    Ok(round) => add(&mut scores, kind, round),
                    Err(error) => missing.push(format!("{title}, {connections} connections: {error}")),
                }
                scores
                    .iter()
                    .any(|(scored, score)| *scored == kind && score.rounds.len() == round)
            });
        }
        workloads.push(Workload {
            connections,
            request_len,
            scores,
        });
    }
    Ok(workloads)
}

fn add(scores: &mut Vec<(Kind, Score)>, kind: Kind, round: Round) {
    match scores.iter_mut().find(|(scored, _)| *scored == kind) {
        Some((_, score)) => score.rounds.push(round),
        None => scores.push((kind, Score { rounds: vec![round] })),
    }
}

/// Starts a server, which waits, asleep, for its turns.
fn start(kind: Kind, machine: &Machine, python: Option<&Python>) -> io::Result<Contender> {
    let core = machine.server_core();
    let mut server = match (kind, python) {
        (Kind::Proactor | Kind::Reactor | Kind::Epoll | Kind::Uring | Kind::UringMultishot, _) => {
            Process::again(&["--serve", kind.name()], core)?
        }
        (Kind::Asyncio | Kind::Uvloop, Some(python)) => Process::start(python.echo(kind.name()), core)?,
        (Kind::Asyncio | Kind::Uvloop, None) => return Err(io::Error::other("there is no python3")),
    };
    let line = server.first_line(Duration::from_secs(10))?;
    let port = line
        .trim()
        .parse()
        .map_err(|_| io::Error::other(format!("'{line}' is no port")))?;
    Ok(Contender { kind, server, port })
}
