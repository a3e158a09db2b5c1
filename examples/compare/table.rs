//! The report, for a person.

use std::fmt::Write;
use std::time::Duration;

use crate::echo::{Score, Workload};
use crate::kit::stats::Spread;
use crate::kit::text::{cells, lay_out, micros, thousands};
use crate::options::Plan;
use crate::run::Results;
use crate::serve::Kind;
use crate::tasks::{Cost, DRIVERS};
use crate::timers::{Lateness, Sleeper};

/// The sleep whose lateness stands for the timer's resolution: shorter than a millisecond, so that a loop which counts in
/// milliseconds shows it.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// A row of the article: its loop, its figures, and what is measured here in its place.
struct ArticleRow {
    name: &'static str,
    rate: &'static str,
    resolution: &'static str,
    kind: Kind,
    sleeper: Sleeper,
}

/// The article's figures, from its machine. Its proactor is asyncio's on Windows; here windlass's stands beside it, as its
/// reactor stands beside asyncio's selector.
const ARTICLE: [ArticleRow; 4] = [
    ArticleRow {
        name: "SelectorEventLoop",
        rate: "~25k",
        resolution: "~1 ms",
        kind: Kind::Asyncio,
        sleeper: Sleeper::Asyncio,
    },
    ArticleRow {
        name: "",
        rate: "",
        resolution: "",
        kind: Kind::Reactor,
        sleeper: Sleeper::Reactor,
    },
    ArticleRow {
        name: "uvloop",
        rate: "~75k",
        resolution: "~1 ms",
        kind: Kind::Uvloop,
        sleeper: Sleeper::Uvloop,
    },
    ArticleRow {
        name: "ProactorEventLoop",
        rate: "~15k",
        resolution: "~15 ms",
        kind: Kind::Proactor,
        sleeper: Sleeper::Proactor,
    },
];

pub(crate) fn report(plan: &Plan, results: &Results) -> String {
    let mut out = String::new();
    if plan.echo || plan.timers {
        out += &article(plan, results);
    }
    for workload in &results.echo {
        out += &echo(plan, workload);
    }
    if !results.timers.is_empty() {
        out += &timers(&results.timers);
    }
    if !results.tasks.is_empty() {
        out += &tasks(&results.tasks);
    }
    if !results.missing.is_empty() {
        out += "\nNot measured\n";
        for line in &results.missing {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

fn article(plan: &Plan, results: &Results) -> String {
    let mut rows = vec![cells([
        "article's loop",
        "article",
        "here",
        "article",
        "here",
        "measured here",
    ])];
    for row in &ARTICLE {
        let score = results.echo.first().and_then(|workload| workload.score(row.kind));
        let rate = score.map_or("-".into(), |score| thousands(score.rate().median));
        let late = results
            .timers
            .iter()
            .find(|late| late.sleeper == row.sleeper && late.pause == SHORT_SLEEP);
        let resolution = late.map_or("-".into(), |late| micros(late.micros(0.5)));
        let measured = score.is_some() || late.is_some();
        let here = if measured { row.kind.title() } else { "-" };
        rows.push(cells([row.name, row.rate, &rate, row.resolution, &resolution, here]));
    }
    let mut out = String::from("\nThe article's table: echo requests per second, then timer resolution\n");
    out += &lay_out(&rows, &[0, 5]);
    if plan.echo {
        out += "  (requests: 50 connections x 1 KiB; ";
    } else {
        out += "  (";
    }
    out += "resolution: how late a sleep of 100 us ends, median;\n   \
            \"article\" is another machine, its ProactorEventLoop is on Windows: compare shapes, not figures)\n";
    out
}

fn echo(plan: &Plan, workload: &Workload) -> String {
    let connections = workload.connections;
    let plural = if connections == 1 { "" } else { "s" };
    let mut out = format!(
        "\nEcho, {connections} connection{plural} x {} B (median of {} rounds of {:?}, interleaved)\n",
        workload.request_len, plan.rounds, plan.round
    );
    let (epoll, uring) = (workload.score(Kind::Epoll), workload.score(Kind::Uring));
    let mut rows = vec![cells([
        "",
        "req/s",
        "min-max",
        "server CPU",
        "x epoll",
        "x io_uring",
        "busy",
        "load busy",
        "",
    ])];
    for (kind, score) in &workload.scores {
        let Spread {
            median: rate,
            least,
            most,
        } = score.rate();
        let noisy = if score.rate().is_noisy() { "noisy" } else { "" };
        let cpu = score.cpu_micros();
        rows.push(cells([
            kind.title(),
            &thousands(rate),
            &format!("{}-{}", thousands(least), thousands(most)),
            &format!("{cpu:.2} us/req"),
            &epoll.map_or("-".into(), |epoll| format!("{:.2}", score.cpu_times(epoll))),
            &uring.map_or("-".into(), |uring| format!("{:.2}", score.cpu_times(uring))),
            &format!("{:.0}%", score.busy() * 100.0),
            &format!("{:.0}%", score.load_busy() * 100.0),
            noisy,
        ]));
    }
    out += &lay_out(&rows, &[0, 8]);
    if connections > 1 {
        let saturated = |busy: f64| busy > 0.9;
        let is_load_limit = |score: &Score| saturated(score.load_busy()) && !saturated(score.busy());
        let is_starved = |score: &Score| !saturated(score.load_busy()) && !saturated(score.busy());
        if workload.scores.iter().any(|(_, score)| is_load_limit(score)) {
            out +=
                "  (where the load is busy and the server is not, the load is the limit: judge by CPU per request)\n";
        }
        if workload.scores.iter().any(|(_, score)| is_starved(score)) {
            out += "  (where neither is busy, something else was running on these cores: judge by CPU per request)\n";
        }
    }
    out
}

fn timers(all: &[Lateness]) -> String {
    let mut rows = vec![cells(["", "sleep", "p50", "p99", "most"])];
    for late in all {
        rows.push(cells([
            late.sleeper.title(),
            &micros(late.pause.as_secs_f64() * 1e6),
            &micros(late.micros(0.5)),
            &micros(late.micros(0.99)),
            &micros(late.micros(1.0)),
        ]));
    }
    format!("\nTimers: how late a sleep ends\n{}", lay_out(&rows, &[0]))
}

/// What, then a column for each driver.
fn tasks(all: &[Cost]) -> String {
    let titles = DRIVERS.map(|driver| format!("{driver:?}"));
    let mut rows = vec![cells(["", &titles[0], &titles[1]])];
    for cost in all {
        let is_new = rows.last().is_none_or(|row| row[0] != cost.what);
        if is_new {
            rows.push(cells([cost.what, "-", "-"]));
        }
        let column = DRIVERS.iter().position(|&driver| driver == cost.driver);
        if let (Some(row), Some(column)) = (rows.last_mut(), column) {
            row[column + 1] = format!("{:.0} ns", cost.best());
        }
    }
    let title = "\nThe loop itself, windlass on each driver (best of several batches, interleaved)\n";
    format!("{title}{}", lay_out(&rows, &[0]))
}
