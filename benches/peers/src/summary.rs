//! The echo tables in two: CPU time per request of every contender at every size, and windlass next to the best hand-written
//! loop of the same kind and to the best peer.

use std::fmt::Write;

use crate::contender::Contender;
use crate::kit::stats::Spread;
use crate::kit::text::{lay_out, ratio, thousands};
use crate::plan::{ECHO, Job};
use crate::results::Group;

/// Columns of an echo table.
const RATE: usize = 0;
const CPU: usize = 1;

struct Table {
    title: &'static str,
    rows: Vec<Vec<String>>,
    /// Left-aligned columns.
    left: &'static [usize],
}

/// For a terminal; empty without echo tables.
pub(crate) fn text(groups: &[Group]) -> String {
    let one = |table: &Table| format!("\n{}\n{}", table.title, lay_out(&table.rows, table.left));
    tables(groups).iter().map(one).collect()
}

/// For `docs/benchmarks.md`.
pub(crate) fn markdown(groups: &[Group]) -> String {
    let mut out = String::new();
    for table in tables(groups) {
        let _ = writeln!(out, "{}:\n", table.title);
        for (at, row) in table.rows.iter().enumerate() {
            let _ = writeln!(out, "| {} |", row.join(" | "));
            if at == 0 {
                let _ = writeln!(out, "|{}", "---|".repeat(row.len()));
            }
        }
        out.push('\n');
    }
    out
}

fn tables(groups: &[Group]) -> Vec<Table> {
    let sizes: Vec<&Group> = groups
        .iter()
        .filter(|group| !group.scores.is_empty() && ECHO.iter().any(|(key, ..)| *key == group.key))
        .collect();
    if sizes.is_empty() {
        return Vec::new();
    }
    vec![ratios(&sizes), times(&sizes)]
}

fn name(group: &Group) -> String {
    match &group.job {
        Job::Echo { shape, .. } => shape.to_string(),
        _ => group.title.clone(),
    }
}

fn times(sizes: &[&Group]) -> Table {
    let mut head = vec!["us".to_string()];
    head.extend(sizes.iter().map(|group| name(group)));
    let mut rows = vec![head];
    for contender in Contender::ALL {
        let spreads: Vec<Spread> = sizes.iter().map(|group| group.spread(contender, CPU)).collect();
        if spreads.iter().all(|spread| spread.median.is_nan()) {
            continue;
        }
        let mut row = vec![contender.title().to_string()];
        row.extend(spreads.iter().map(|spread| match spread.median.is_nan() {
            true => "-".into(),
            false => {
                let half = (spread.most - spread.least) / 2.0 / spread.median;
                format!("{:.2} ±{:.0}%", spread.median / 1e3, half * 100.0)
            }
        }));
        rows.push(row);
    }
    Table {
        title: "CPU time per request in us, median and half the range of the rounds",
        rows,
        left: &[0],
    }
}

fn ratios(sizes: &[&Group]) -> Table {
    let head = [
        "echo",
        "driver",
        "requests/s",
        "CPU, x the hand-written loop",
        "CPU, x the best peer",
        "requests/s, x the best peer",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for group in sizes {
        for ours in [Contender::Proactor, Contender::Reactor] {
            let rate = group.spread(ours, RATE).median;
            if rate.is_nan() {
                continue;
            }
            rows.push(vec![
                name(group),
                ours.name().into(),
                thousands(rate),
                beside(group, ours, CPU, |one| one.is_hand_of_kind(ours)),
                beside(group, ours, CPU, Contender::is_peer),
                beside(group, ours, RATE, Contender::is_peer),
            ]);
        }
    }
    Table {
        title: "windlass next to the best hand-written loop of the same kind and the best peer: median of the ratios within a \
                round, lowest and highest in brackets",
        rows,
        left: &[0, 1, 3, 4, 5],
    }
}

/// `1.02 (0.98, 1.07) uring`
fn beside(group: &Group, ours: Contender, figure: usize, is_one: impl Fn(Contender) -> bool) -> String {
    let Some(best) = group.best(figure, is_one) else {
        return "-".into();
    };
    let Spread { median, least, most } = group.ratio(ours, best, figure);
    format!("{} ({}, {}) {}", ratio(median), ratio(least), ratio(most), best.name())
}
