//! The report as text.

use std::fmt::Write;

use crate::contender::Contender;
use crate::kit::text::{lay_out, ratio};
use crate::results::Group;
use crate::summary;
use crate::targets::{self, Verdict};

pub(crate) fn report(groups: &[Group], verdicts: &[Verdict], missing: &[String]) -> String {
    let mut out = String::from(
        "\"limit\" is the ratio to the best hand-written loop of that column (on the same interface, epoll or io_uring, if\n\
         there is one), \"peer\" to the best peer: medians of ratios computed within a round. For rates more is better,\n\
         for the rest less.\n\
         ~ noisy: the rounds differ by more than 15 % of their median\n\
         load: CPU use of the load generator; above 90 % it is the limit, and only CPU/request is meaningful\n\
         early: the number of sleeps that ended before their deadline\n",
    );
    for group in groups {
        out += &table(group);
    }
    out += &summary::text(groups);
    if !verdicts.is_empty() {
        out += &targets::table(verdicts);
    }
    if !missing.is_empty() {
        out += "\nNot measured\n";
        for line in missing {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

fn table(group: &Group) -> String {
    let has_limit = group.scores.iter().any(|score| score.contender.is_hand());
    let has_peer = group.scores.iter().any(|score| score.contender.is_peer());
    let mut head = vec![String::new()];
    for figure in &group.figures {
        head.push(figure.title.into());
        head.extend((has_limit && figure.is_compared).then(|| "limit".into()));
        head.extend((has_peer && figure.is_compared).then(|| "peer".into()));
    }
    let mut rows = vec![head];
    for score in &group.scores {
        let ours = score.contender;
        let mut row = vec![ours.title().to_string()];
        for (at, figure) in group.figures.iter().enumerate() {
            let spread = group.spread(ours, at);
            let noisy = if spread.is_noisy() && figure.is_compared {
                "~"
            } else {
                ""
            };
            row.push(format!("{noisy}{}", figure.unit.show(spread.median)));
            row.extend((has_limit && figure.is_compared).then(|| to_best(group, ours, at, limit_of(group, ours, at))));
            let peer = || group.best(at, Contender::is_peer);
            row.extend((has_peer && figure.is_compared).then(|| to_best(group, ours, at, peer())));
        }
        rows.push(row);
    }
    let rounds = group.rounds;
    let plural = if rounds == 1 { "" } else { "s" };
    format!("\n{} [{rounds} round{plural}]\n{}", group.title, lay_out(&rows, &[0]))
}

/// The best hand-written loop of the same kind, or of any if the group has none of that kind.
fn limit_of(group: &Group, ours: Contender, figure: usize) -> Option<Contender> {
    let of_kind = group.best(figure, |one| one.is_hand_of_kind(ours));
    of_kind.or_else(|| group.best(figure, Contender::is_hand))
}

fn to_best(group: &Group, ours: Contender, figure: usize, best: Option<Contender>) -> String {
    match best {
        Some(best) => match group.ratio(ours, best, figure).median {
            // A best value of zero has no ratio.
            median if median.is_infinite() => "-".into(),
            median => ratio(median),
        },
        None => "-".into(),
    }
}
