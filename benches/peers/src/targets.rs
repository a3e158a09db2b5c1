//! The performance targets of windlass, and whether this run reached them.

use crate::contender::Contender;
use crate::kit::stats::Spread;
use crate::kit::text::{cells, lay_out, ratio};
use crate::plan::ECHO;
use crate::results::Group;

/// A target: a figure, its bound, and the reference.
#[derive(Clone, Copy)]
struct Target {
    /// The group's key and the number of its column.
    group: &'static str,
    figure: usize,
    subject: Subject,
    bound: Bound,
    against: Against,
}

#[derive(Clone, Copy)]
enum Subject {
    Proactor,
    Reactor,
    /// Each driver.
    Each,
    /// Each driver, and the better of them: the one with more requests per second, for all figures of the group.
    EachAndBetter,
    /// Each driver with precise timers.
    EachPrecise,
    /// Each driver with eager tasks, as glommio's are.
    EachEager,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

#[derive(Clone, Copy)]
enum Against {
    /// On the same interface of the kernel: epoll or io_uring.
    BestHandWritten,
    BestPeer,
    One(Contender),
    /// An absolute bound.
    Nothing,
}

const fn target(group: &'static str, figure: usize, subject: Subject, bound: Bound, against: Against) -> Target {
    Target {
        group,
        figure,
        subject,
        bound,
        against,
    }
}

/// CPU time per echo, for every size: at most this multiple of the best hand-written loop of the same kind, and below every peer.
const ECHO_LIMIT: f64 = 1.03;

fn targets() -> Vec<Target> {
    use Against::*;
    use Bound::*;
    use Subject::*;
    let of_size = |(key, ..): (&'static str, usize, usize)| {
        [
            target(key, 1, Each, AtMost(ECHO_LIMIT), BestHandWritten),
            target(key, 1, Each, Below(1.0), BestPeer),
        ]
    };
    let mut all = ECHO.map(of_size).as_flattened().to_vec();
    all.extend(OTHERS);
    all
}

const OTHERS: [Target; 30] = {
    use Against::*;
    use Bound::*;
    use Subject::*;
    const TOKIO: Against = One(Contender::Tokio);
    [
        target("echo-1x64", 0, EachAndBetter, AtLeast(3.0), BestPeer),
        target(
            "echo-paced-300us",
            0,
            Proactor,
            AtMost(1.05),
            One(Contender::ProactorNoBusyPoll),
        ),
        target(
            "echo-paced-300us",
            0,
            Reactor,
            AtMost(1.05),
            One(Contender::ReactorNoBusyPoll),
        ),
        target(
            "echo-paced-5ms",
            0,
            Proactor,
            AtMost(1.05),
            One(Contender::ProactorNoBusyPoll),
        ),
        target(
            "echo-paced-5ms",
            0,
            Reactor,
            AtMost(1.05),
            One(Contender::ReactorNoBusyPoll),
        ),
        // The target is about 1 us; up to 2 us passes.
        target("timers-100us", 0, EachPrecise, AtMost(2000.0), Nothing),
        target("timers-1ms", 0, EachPrecise, AtMost(2000.0), Nothing),
        target("timers-100us", 0, Each, AtMost(0.5), BestPeer),
        target("timers-100us", 1, Each, AtMost(0.8), BestPeer),
        target("timers-1ms", 0, Each, AtMost(0.5), BestPeer),
        target("timers-1ms", 1, Each, AtMost(0.8), BestPeer),
        target("timers-10ms", 0, Each, AtMost(0.5), BestPeer),
        target("timers-10ms", 1, Each, AtMost(0.8), BestPeer),
        target("sleeps-200k", 0, Each, AtMost(0.9), TOKIO),
        target("sleeps-200k", 1, Each, AtMost(0.9), TOKIO),
        target("sleepers-1k", 0, Each, AtMost(1.0), TOKIO),
        target("sleepers-10k", 0, Each, AtMost(1.0), TOKIO),
        target("sleepers-100k", 0, Each, AtMost(1.0), TOKIO),
        target("sleepers-1m", 0, Each, AtMost(1.0), TOKIO),
        target("cancel-1m", 0, Each, AtMost(0.9), TOKIO),
        target("cancel-1m", 1, Each, AtMost(0.9), TOKIO),
        target("tasks", 0, Each, AtMost(0.8), BestPeer),
        target("tasks", 0, EachEager, AtMost(0.8), BestPeer),
        target("tasks", 1, Each, AtMost(0.8), BestPeer),
        target("tasks", 2, Each, AtMost(0.8), BestPeer),
        target("files", 0, Each, AtLeast(1.5), BestPeer),
        target("files", 1, Each, AtLeast(1.1), BestPeer),
        target("memory", 0, Each, AtMost(800.0), Nothing),
        target("wake", 0, Each, AtMost(1.0), BestPeer),
        target("wake", 1, Each, AtMost(0.5), BestPeer),
    ]
};

/// The result for a target.
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) subject: String,
    pub(crate) bound: String,
    pub(crate) measured: String,
    /// None if it was not measured.
    pub(crate) is_reached: Option<bool>,
    /// Some rounds had the opposite result.
    pub(crate) is_noisy: bool,
    /// Repeated for the better driver: not counted here.
    pub(crate) is_repeated: bool,
}

impl Verdict {
    pub(crate) fn word(&self) -> &'static str {
        match (self.is_reached, self.is_noisy) {
            (None, _) => "not measured",
            (Some(true), false) => "reached",
            (Some(true), true) => "reached, not in every round",
            (Some(false), false) => "not reached",
            (Some(false), true) => "not reached, but in some rounds",
        }
    }
}

/// The targets of the selected groups.
pub(crate) fn verdicts(groups: &[Group]) -> Vec<Verdict> {
    let mut all = Vec::new();
    for target in &targets() {
        let Some(group) = groups.iter().find(|group| group.key == target.group) else {
            continue;
        };
        use Contender::{Proactor, ProactorEager, ProactorPrecise, Reactor, ReactorEager, ReactorPrecise};
        let subject: &[_] = match target.subject {
            Subject::Proactor => &[Proactor],
            Subject::Reactor => &[Reactor],
            Subject::Each | Subject::EachAndBetter => &[Proactor, Reactor],
            Subject::EachPrecise => &[ProactorPrecise, ReactorPrecise],
            Subject::EachEager => &[ProactorEager, ReactorEager],
        };
        all.extend(subject.iter().map(|&ours| judge(target, group, ours)));
        if let Subject::EachAndBetter = target.subject {
            all.extend(judge_better(target, group));
        }
    }
    all
}

/// Repeats the target for the driver with more requests per second, the first figure of an echo group.
fn judge_better(target: &Target, group: &Group) -> Option<Verdict> {
    let better = group.best(0, |one| matches!(one, Contender::Proactor | Contender::Reactor))?;
    let verdict = judge(target, group, better);
    Some(Verdict {
        subject: format!("the better ({})", better.name()),
        is_repeated: true,
        ..verdict
    })
}

fn judge(target: &Target, group: &Group, ours: Contender) -> Verdict {
    let figure = &group.figures[target.figure];
    let (theirs, against) = match target.against {
        Against::BestHandWritten => (
            group.best(target.figure, |one| one.is_hand_of_kind(ours)),
            "the best hand-written loop of its kind",
        ),
        Against::BestPeer => (group.best(target.figure, Contender::is_peer), "the best peer"),
        Against::One(one) => (Some(one), one.title()),
        Against::Nothing => (None, ""),
    };
    let measured = match (theirs, target.against) {
        (_, Against::Nothing) => group.spread(ours, target.figure),
        (Some(theirs), _) => group.ratio(ours, theirs, target.figure),
        _ => Spread::of([]),
    };
    let limit = |value: f64| match (target.against, target.subject) {
        (Against::Nothing, Subject::EachPrecise) => format!("{} (about 1 us)", figure.unit.show(value)),
        (Against::Nothing, _) => figure.unit.show(value),
        _ => format!("{value} x "),
    };
    let bound = match target.bound {
        Bound::AtMost(value) => format!("at most {}{against}", limit(value)),
        Bound::Below(_) => format!("below {against}"),
        Bound::AtLeast(value) => format!("at least {}{against}", limit(value)),
    };
    let is_met = |value: f64| match target.bound {
        Bound::AtMost(most) => value <= most,
        Bound::Below(end) => value < end,
        Bound::AtLeast(least) => value >= least,
    };
    let named = match (target.against, theirs) {
        (Against::BestHandWritten | Against::BestPeer, Some(theirs)) => format!(" ({})", theirs.name()),
        _ => String::new(),
    };
    Verdict {
        what: format!("{}: {}", group.key, figure.title),
        subject: ours.name().into(),
        bound: bound + &named,
        measured: match target.against {
            Against::Nothing => figure.unit.show(measured.median),
            _ => ratio(measured.median),
        },
        is_reached: (!measured.median.is_nan()).then(|| is_met(measured.median)),
        is_noisy: is_met(measured.least) != is_met(measured.most),
        is_repeated: false,
    }
}

pub(crate) fn table(verdicts: &[Verdict]) -> String {
    let mut rows = vec![cells(["", "driver", "target", "measured", ""])];
    for verdict in verdicts {
        let bound = &verdict.bound;
        rows.push(cells([
            &verdict.what,
            &verdict.subject,
            bound,
            &verdict.measured,
            verdict.word(),
        ]));
    }
    let counted = || verdicts.iter().filter(|verdict| !verdict.is_repeated);
    let reached = counted().filter(|verdict| verdict.is_reached == Some(true)).count();
    let judged = counted().filter(|verdict| verdict.is_reached.is_some()).count();
    format!(
        "\nTargets: {reached} of {judged} reached in this run (the better driver's are counted once)\n{}",
        lay_out(&rows, &[0, 1, 2, 4])
    )
}
