//! The summary: a few sentences with the main results.

use super::super::contender::Kind;
use super::super::echo::Score;
use super::super::kit::text::{bytes, lateness, nanos, ratio, thousands};
use super::super::run::Results;
use super::super::tables::article::{SHORT_SLEEP, rate, resolution};

/// The contenders of the summary, in order.
const SHOWN: [Kind; 4] = [Kind::Proactor, Kind::Reactor, Kind::Uvloop, Kind::Asyncio];

pub(crate) fn summary(results: &Results) -> Vec<String> {
    let parts = [
        echo(results),
        cost(results),
        timers(results),
        memory(results),
        stalls(results),
        noise(results),
    ];
    parts.into_iter().flatten().collect()
}

/// `windlass Proactor 26k, uvloop 20k`, of those that have a figure.
fn listed(figure: impl Fn(Kind) -> f64, write: impl Fn(f64) -> String) -> Option<String> {
    let shown = SHOWN.into_iter().filter(|kind| figure(*kind).is_finite());
    let shown: Vec<String> = shown
        .map(|kind| format!("{} {}", name(kind), write(figure(kind))))
        .collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// A title without its kernel interface.
fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Asyncio => "asyncio",
        other => other.title().split(" (").next().unwrap_or_default(),
    }
}

fn echo(results: &Results) -> Option<String> {
    let listed = listed(|kind| rate(results, kind), thousands)?;
    Some(format!("Requests per second at {}: {listed}.", results.usual_shape()))
}

/// The ratio to the hand-written loop on the same kernel interface.
fn cost(results: &Results) -> Option<String> {
    let usual = results.usual()?;
    let times = |ours: Kind, limit: Kind| {
        let times = usual.score(ours)?.cpu_times(usual.score(limit)?);
        Some(format!("{} x that of {}", ratio(times), limit.title()))
    };
    let ratios = [
        times(Kind::Proactor, Kind::Uring).map(|ratio| format!("the proactor {ratio}")),
        times(Kind::Reactor, Kind::Epoll).map(|ratio| format!("the reactor {ratio}")),
    ];
    let ratios: Vec<String> = ratios.into_iter().flatten().collect();
    (!ratios.is_empty()).then(|| format!("CPU time per request: {}.", ratios.join(", ")))
}

fn timers(results: &Results) -> Option<String> {
    let listed = listed(|kind| resolution(results, kind), lateness)?;
    Some(format!(
        "A sleep of {} us ends late by (median): {listed}.",
        SHORT_SLEEP.as_micros()
    ))
}

fn memory(results: &Results) -> Option<String> {
    let figure = |kind: Kind| {
        let memory = results.memory.iter().find(|memory| memory.kind == kind);
        memory.map_or(f64::NAN, |memory| memory.per_connection())
    };
    let listed = listed(figure, |count| bytes(count.round()))?;
    Some(format!("An idle connection takes: {listed}."))
}

/// The latest tick with the work inside a task, and in a thread.
fn stalls(results: &Results) -> Option<String> {
    let stall = results.stalls.first()?;
    let [_, [.., inside], [.., beside]] = stall.nanos;
    Some(format!(
        "Work inside a task makes a tick {} late, in a thread {} ({}).",
        nanos(inside),
        nanos(beside),
        name(stall.kind)
    ))
}

fn noise(results: &Results) -> Option<String> {
    let scores = results.echo.iter().flat_map(|workload| &workload.scores);
    let rates: Vec<_> = scores.map(|(_, score): &(Kind, Score)| score.rate()).collect();
    let noisy = rates.iter().filter(|rate| rate.is_noisy()).count();
    (noisy > 0).then(|| {
        format!(
            "{noisy} of {} echo results are noisy: their rounds differ by more than 15%.",
            rates.len()
        )
    })
}
