//! Echo throughput, with the rounds of all contenders interleaved.

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

/// A load and the results of every contender.
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
    /// Median, minimum and maximum of a figure over the rounds.
    pub(crate) fn spread(&self, figure: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    pub(crate) fn rate(&self) -> Spread {
        self.spread(Round::rate)
    }

    pub(crate) fn cpu_micros(&self) -> Spread {
        self.spread(Round::cpu_micros)
    }

    /// The time from request to echo, over all rounds.
    pub(crate) fn latency(&self) -> Histogram {
        let mut all = Histogram::default();
        for round in &self.rounds {
            all.merge(&round.latency);
        }
        all
    }

    /// The ratio to another contender's CPU time per request: computed within each round, then the median.
    pub(crate) fn cpu_times(&self, other: &Score) -> f64 {
        let cpu = |score: &Score| score.rounds.iter().map(Round::cpu_micros).collect::<Vec<_>>();
        paired_ratio(cpu(self), cpu(other)).median
    }

    /// The ratio to another contender's requests per second: computed within each round, then the median.
    pub(crate) fn rate_times(&self, other: &Score) -> f64 {
        let rates = |score: &Score| score.rounds.iter().map(Round::rate).collect::<Vec<_>>();
        paired_ratio(rates(self), rates(other)).median
    }

    /// The server's CPU use, as a share of the time.
    pub(crate) fn busy(&self) -> f64 {
        self.spread(Round::busy).median
    }

    /// The load generator's CPU use, as a share of the time.
    pub(crate) fn load_busy(&self) -> f64 {
        self.spread(Round::load_busy).median
    }
}

/// Estimates for the progress bar: opening a connection, and starting a server.
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

/// The loads, each limited to the possible number of connections. Of loads that become equal, only the first is kept.
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

/// Limits the number of connections.
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
                "echo on {wanted} connections: RLIMIT_NOFILE is {limit}, so {less} were used"
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
        // The first round is in the order of the tables; each later round starts with the next contender. A contender
        // that fails once is left out: its server may be gone.
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
