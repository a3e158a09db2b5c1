//! The published table of asyncio's loops, with the figures measured here below each of its rows.

use std::time::Duration;

use super::super::contender::Kind;
use super::super::echo::Score;
use super::super::kit::text::{cells, lateness, thousands};
use super::super::run::{Results, Setting};
use super::{LOAD_BUSY, Table};

/// The sleep whose lateness represents the timer resolution: shorter than a millisecond, so that rounding to
/// milliseconds shows.
pub(crate) const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// Median lateness of a short sleep, in nanoseconds.
pub(crate) fn resolution(results: &Results, kind: Kind) -> f64 {
    let is_it = |late: &&super::super::timers::Lateness| late.kind == kind && late.pause == SHORT_SLEEP;
    results
        .timers
        .iter()
        .find(is_it)
        .map_or(f64::NAN, |late| late.nanos(0.5))
}

/// Median requests per second under the usual load.
pub(crate) fn rate(results: &Results, kind: Kind) -> f64 {
    let score = results.usual().and_then(|workload| workload.score(kind));
    score.map(Score::rate).map_or(f64::NAN, |rate| rate.median)
}

/// The ratio of requests per second to another contender under the usual load: within each round, then the median.
pub(crate) fn rate_times(results: &Results, ours: Kind, theirs: Kind) -> f64 {
    let scores = results
        .usual()
        .and_then(|usual| usual.score(ours).zip(usual.score(theirs)));
    scores.map_or(f64::NAN, |(ours, theirs)| ours.rate_times(theirs))
}

/// Whether the load generator used nearly all of its core: then it, and not the server, limits the rate.
fn is_load_busy(results: &Results, kind: Kind) -> bool {
    let score = results.usual().and_then(|workload| workload.score(kind));
    score.is_some_and(|score| score.load_busy() > LOAD_BUSY)
}

pub(super) fn table(setting: &Setting, results: &Results) -> Table {
    let mut rows = vec![cells(["", "", "SelectorEventLoop", "uvloop", "ProactorEventLoop"])];
    rows.push(cells(["echo, requests/s", "article", "~25k", "~75k", "~15k"]));
    rows.extend(here(|kind| match is_load_busy(results, kind) {
        true => format!("{} (load busy)", thousands(rate(results, kind))),
        false => thousands(rate(results, kind)),
    }));
    rows.push(cells(["timer resolution", "article", "~1 ms", "~1 ms", "~15 ms"]));
    rows.extend(here(|kind| lateness(resolution(results, kind))));
    rows.push(cells([
        "max descriptors",
        "article",
        "OS limit (~1M)",
        "OS limit",
        "unlimited (IOCP)",
    ]));
    let limit = setting.limits.descriptors.to_string();
    rows.extend(here(|kind| match implementation(setting, kind).as_str() {
        "-" => "-".into(),
        _ => limit.clone(),
    }));
    rows.push(cells([
        "implementation",
        "article",
        "Python, C selector",
        "Cython, libuv",
        "Python, IOCP",
    ]));
    rows.extend(here(|kind| implementation(setting, kind)));
    Table {
        part: None,
        title: "The published table, and the same on this machine".into(),
        rows,
        left: &[0, 1, 2, 3, 4],
        notes: notes(setting, results),
    }
}

/// Two rows: Python's loops, and windlass' drivers in the columns of the loops that they correspond to.
fn here(cell: impl Fn(Kind) -> String) -> [Vec<String>; 2] {
    let (asyncio, uvloop) = (cell(Kind::Asyncio), cell(Kind::Uvloop));
    let (reactor, proactor) = (cell(Kind::Reactor), cell(Kind::Proactor));
    [
        cells(["", "Python, here", &asyncio, &uvloop, "only on Windows"]),
        cells(["", "windlass, here", &reactor, "", &proactor]),
    ]
}

/// The implementation of each contender; a driver names itself.
fn implementation(setting: &Setting, kind: Kind) -> String {
    let python = setting.python.as_deref();
    let made = match kind {
        Kind::Asyncio => python
            .and_then(|python| python.split(", ").next())
            .map(|python| format!("{python}, epoll")),
        Kind::Uvloop => python
            .and_then(|python| python.split(", ").nth(1))
            .map(|uvloop| format!("{uvloop}, epoll")),
        _ => kind
            .title()
            .split_once('(')
            .map(|(_, name)| format!("Rust, {}", name.trim_end_matches(')'))),
    };
    made.unwrap_or("-".into())
}

fn notes(setting: &Setting, results: &Results) -> Vec<String> {
    let mut notes = vec![
        "article: published figures from another machine, ProactorEventLoop on Windows: compare proportions only"
            .to_string(),
        format!(
            "requests: {}; resolution: lateness of a {} us sleep, median",
            results.usual_shape(),
            SHORT_SLEEP.as_micros()
        ),
    ];
    if Kind::ALL.into_iter().any(|kind| is_load_busy(results, kind)) {
        let what = "load busy: the load took more than 90% of its core, so the rate is a lower bound: compare CPU/req";
        notes.push(what.into());
    }
    let limits = &setting.limits;
    let nr_open = limits
        .nr_open
        .map_or(String::new(), |most| format!(", can be raised to {most} (fs.nr_open)"));
    notes.push(format!(
        "max descriptors: RLIMIT_NOFILE ({} here{nr_open}) limits every loop",
        limits.descriptors
    ));
    if let Some(watches) = limits.epoll_watches {
        notes.push(format!(
            "epoll is also limited by fs.epoll.max_user_watches ({watches} here); io_uring has no such limit"
        ));
    }
    if let Some(most) = results.memory.iter().map(|memory| memory.connections).max() {
        notes.push(format!(
            "tested: {most} connections at once, see the memory per connection"
        ));
    }
    notes
}
