//! The figures of all rounds, and their comparison.

use crate::contender::Contender;
use crate::kit::stats::{Spread, paired_ratio};
use crate::kit::text;
use crate::plan::{Job, Workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanos,
    Bytes,
    /// A count or a rate per second.
    Count,
    /// The load generator's CPU use, as a share of the time.
    LoadBusy,
}

/// Above this CPU use the load generator is the limit, and a rate means little.
const LOAD_BUSY: f64 = 0.9;

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Nanos => "ns",
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::LoadBusy => "share",
        }
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Unit::Nanos => text::lateness(value),
            Unit::Bytes => text::bytes(value.round()),
            Unit::Count => text::thousands(value),
            Unit::LoadBusy if value > LOAD_BUSY => format!("{:.0}% busy", value * 100.0),
            Unit::LoadBusy => format!("{:.0}%", value * 100.0),
        }
    }
}

/// A column.
pub(crate) struct Figure {
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) is_less_better: bool,
    /// Whether ratios of this figure are meaningful.
    pub(crate) is_compared: bool,
}

/// A table: figures that are measured together.
pub(crate) struct Group {
    pub(crate) workload: Workload,
    /// The name for targets and JSON.
    pub(crate) key: &'static str,
    pub(crate) title: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) job: Job,
    pub(crate) rounds: usize,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) scores: Vec<Score>,
}

/// One contender's rounds, each with all figures.
pub(crate) struct Score {
    pub(crate) contender: Contender,
    pub(crate) rounds: Vec<Vec<f64>>,
}

impl Group {
    /// Adds a round.
    pub(crate) fn add(&mut self, contender: Contender, figures: Vec<f64>) {
        match self.scores.iter_mut().find(|score| score.contender == contender) {
            Some(score) => score.rounds.push(figures),
            None => self.scores.push(Score {
                contender,
                rounds: vec![figures],
            }),
        }
    }

    fn rounds_of(&self, contender: Contender, figure: usize) -> impl Iterator<Item = f64> {
        let score = self.scores.iter().find(move |score| score.contender == contender);
        score
            .into_iter()
            .flat_map(move |score| score.rounds.iter().map(move |round| round[figure]))
    }

    /// All NaN for a contender that was not measured.
    pub(crate) fn spread(&self, contender: Contender, figure: usize) -> Spread {
        Spread::of(self.rounds_of(contender, figure))
    }

    /// The contender with the best median. Negative values are ignored: such a sleep ended early.
    pub(crate) fn best(&self, figure: usize, is_one: impl Fn(Contender) -> bool) -> Option<Contender> {
        let ones = self
            .scores
            .iter()
            .map(|score| score.contender)
            .filter(|&one| is_one(one) && self.spread(one, figure).median >= 0.0);
        let median = |one: &Contender| self.spread(*one, figure).median;
        let order = |a: &Contender, b: &Contender| median(a).total_cmp(&median(b));
        match self.figures[figure].is_less_better {
            true => ones.min_by(order),
            false => ones.max_by(order),
        }
    }

    /// The ratios of a figure to another contender's in the same round. A contender that fails is left out from then
    /// on, so the rounds that both have are the first ones.
    pub(crate) fn ratio(&self, ours: Contender, theirs: Contender, figure: usize) -> Spread {
        paired_ratio(self.rounds_of(ours, figure), self.rounds_of(theirs, figure))
    }
}
