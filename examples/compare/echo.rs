//! Echo throughput: every contender in turn, round after round.

use super::contender::{Field, Kind};
use super::kit::histogram::Histogram;
use super::kit::load::{self, Round, Shape};
use super::kit::machine::Machine;
use super::kit::progress::Progress;
use super::kit::rounds::take_turns;
use super::kit::stats::{Spread, paired_ratio};
use super::limits::Limits;
use super::options::{Effort, Plan};
use super::serve::Server;

/// A load and what every contender made of it.
pub(crate) struct Workload {
    pub(crate) shape: Shape,
    pub(crate) rounds: usize,
    pub(crate) scores: Vec<(Kind, Score)>,
}

impl Workload {
    fn add(&mut self, kind: Kind, round: Round) {
        match self.scores.iter_mut().find(|(scored, _)| *scored == kind) {
            Some((_, score)) => score.rounds.push(round),
            None => self.scores.push((kind, Score { rounds: vec![round] })),
        }
    }

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

    pub(crate) fn cpu_micros(&self) -> Spread {
        self.spread(Round::cpu_micros)
    }

    /// From request to echo, all rounds together.
    pub(crate) fn latency(&self) -> Histogram {
        let mut all = Histogram::default();
        for round in &self.rounds {
            all.merge(&round.latency);
        }
        all
    }

    /// How many times the processor time per request of another this one takes: within each round, and of these the
    /// median.
    pub(crate) fn cpu_times(&self, other: &Score) -> f64 {
        let cpu = |score: &Score| score.rounds.iter().map(Round::cpu_micros).collect::<Vec<_>>();
        paired_ratio(cpu(self), cpu(other)).median
    }

    /// How many times the requests per second of another this one serves: within each round, and of these the median.
    pub(crate) fn rate_times(&self, other: &Score) -> f64 {
        let rates = |score: &Score| score.rounds.iter().map(Round::rate).collect::<Vec<_>>();
        paired_ratio(rates(self), rates(other)).median
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

/// Until a connection is open, and until a server has started.
const SECONDS_PER_CONNECTION: f64 = 60e-6;
const SECONDS_PER_START: f64 = 0.1;

pub(crate) fn weight(plan: &Plan, limits: &Limits, field: &Field) -> f64 {
    let rounds = |load: &Effort| load.rounds as f64 * weight_of_one(plan, load.shape);
    let loads: f64 = fitting(plan, limits).iter().map(rounds).sum();
    field.servers().count() as f64 * (SECONDS_PER_START + loads)
}

fn weight_of_one(plan: &Plan, shape: Shape) -> f64 {
    (plan.warm_up + plan.round).as_secs_f64() + shape.connections as f64 * SECONDS_PER_CONNECTION
}

/// The loads, each with as many connections as there may be: those that become the same are one, the first.
fn fitting(plan: &Plan, limits: &Limits) -> Vec<Effort> {
    let mut loads: Vec<Effort> = Vec::new();
    for load in &plan.loads {
        let shape = fit(load.shape, limits);
        if loads.iter().all(|other| other.shape != shape) {
            loads.push(Effort { shape, ..*load });
        }
    }
    loads
}

/// As many connections as there may be.
pub(crate) fn fit(shape: Shape, limits: &Limits) -> Shape {
    let connections = limits.connections(shape.connections);
    Shape { connections, ..shape }
}

pub(crate) fn measure(
    plan: &Plan,
    machine: &Machine,
    limits: &Limits,
    field: &Field,
    progress: &mut Progress,
    missing: &mut Vec<String>,
) -> Vec<Workload> {
    let mut servers = Vec::new();
    for kind in field.servers() {
        progress.step_of(SECONDS_PER_START, &format!("starting {}", kind.title()));
        match Server::start(kind, machine, field) {
            Ok(server) => servers.push((kind, server)),
            Err(error) => missing.push(format!("echo, {}: {error}", kind.title())),
        }
    }
    let mut workloads = Vec::new();
    for load in &plan.loads {
        let (less, wanted) = (fit(load.shape, limits).connections, load.shape.connections);
        if less < wanted {
            let limit = limits.descriptors;
            missing.push(format!(
                "echo on {wanted} connections: RLIMIT_NOFILE is {limit}, so there were {less}"
            ));
        }
    }
    for load in fitting(plan, limits) {
        let shape = load.shape;
        let mut workload = Workload {
            shape,
            rounds: load.rounds,
            scores: Vec::new(),
        };
        // Every load begins as the tables do, and then everybody has a turn at being the first. Who fails once is out: its
        // server may be gone.
        servers.sort_by_key(|(kind, _)| Kind::ALL.iter().position(|one| one == kind));
        take_turns(load.rounds, &mut servers, |round, (kind, server)| {
            let what = format!("echo {shape}, {round}/{}: {}", load.rounds, kind.title());
            progress.step_of(weight_of_one(plan, shape), &what);
            let done = load::drive(&server.process, server.port, shape, plan.warm_up, plan.round);
            if let Err(error) = &done {
                missing.push(format!("echo {shape}, {}: {error}", kind.title()));
            }
            done.map(|round| workload.add(*kind, round)).is_ok()
        });
        workloads.push(workload);
    }
    workloads
}
