//! The figures of every round as JSON.

use crate::kit::json::{list, number, object, string};
use crate::kit::machine::Machine;
use crate::options::Options;
use crate::results::Group;
use crate::targets::Verdict;

pub(crate) fn document(
    options: &Options,
    machine: &Machine,
    groups: &[Group],
    verdicts: &[Verdict],
    missing: &[String],
) -> String {
    let contenders = options.contenders.iter().map(|contender| {
        object(&[
            ("name", string(contender.name())),
            ("version", string(contender.version())),
            ("settings", string(contender.settings())),
        ])
    });
    let verdicts = verdicts.iter().map(|verdict| {
        object(&[
            ("what", string(&verdict.what)),
            ("driver", string(&verdict.subject)),
            ("target", string(&verdict.bound)),
            ("measured", string(&verdict.measured)),
            ("verdict", string(verdict.word())),
        ])
    });
    let document = object(&[
        ("machine", string(&machine.to_string())),
        ("quick", options.quick.to_string()),
        ("contenders", list(contenders)),
        ("groups", list(groups.iter().map(group))),
        ("targets", list(verdicts)),
        ("not_measured", list(missing.iter().map(|line| string(line)))),
    ]);
    document + "\n"
}

/// The columns, and each contender's rounds with one figure per column.
fn group(group: &Group) -> String {
    let figures = group.figures.iter().map(|figure| {
        object(&[
            ("title", string(figure.title)),
            ("unit", string(figure.unit.name())),
            ("less_is_better", figure.is_less_better.to_string()),
        ])
    });
    let scores = group.scores.iter().map(|score| {
        let round = |figures: &Vec<f64>| list(figures.iter().map(|&figure| number(figure)));
        object(&[
            ("contender", string(score.contender.name())),
            ("rounds", list(score.rounds.iter().map(round))),
        ])
    });
    object(&[
        ("key", string(group.key)),
        ("title", string(&group.title)),
        ("figures", list(figures)),
        ("scores", list(scores)),
    ])
}
