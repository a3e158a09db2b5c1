//! The plots of the report.

use std::time::Duration;

use super::super::contender::Kind;
use super::super::kit::load::Round;
use super::super::kit::text::{bytes, micros, nanos, ratio, thousands};
use super::super::options::SINGLE;
use super::super::run::Results;
use super::super::tables::ladder;
use super::super::timers::Lateness;
use super::bars::{self, Bar};
use super::plot::{Axis, Plot, Point, Series};
use super::svg::{Bend, escape, short, swatch};

/// Widths: full screen, two side by side, phone.
const WIDE: (f64, f64) = (1000.0, 400.0);
const HALF: (f64, f64) = (484.0, 340.0);
const NARROW: (f64, f64) = (350.0, 330.0);

/// A plot with its title, drawn for a screen and for a phone; the page shows one of them.
fn figure(title: &str, note: &str, kinds: &[Kind], drawings: &[String]) -> String {
    let entry = |kind: &Kind| format!("<li>{}{}</li>", swatch(*kind), escape(kind.title()));
    let legend: String = kinds.iter().map(entry).collect();
    let legend = if kinds.is_empty() {
        legend
    } else {
        format!("<ul class=\"legend\">{legend}</ul>")
    };
    format!(
        "<figure><figcaption><strong>{}</strong> <span>{}</span></figcaption>{legend}{}</figure>",
        escape(title),
        escape(note),
        drawings.concat()
    )
}

fn lines(plot: &Plot, note: &str, screen: (f64, f64)) -> String {
    let kinds: Vec<Kind> = plot.series.iter().map(|series| series.kind).collect();
    let drawings = [plot.draw(screen, "screen"), plot.draw(NARROW, "phone")];
    figure(plot.title, note, &kinds, &drawings)
}

pub(super) fn throughput(results: &Results) -> Option<String> {
    let steps = ladder(results);
    let (first, last) = (steps.first()?, steps.last()?);
    let ends = (first.shape.connections as f64, last.shape.connections.max(2) as f64);
    let mut series = Vec::new();
    for kind in Kind::ALL {
        let mut points = Vec::new();
        for step in &steps {
            let Some(score) = step.score(kind) else { continue };
            let rate = score.rate();
            let noisy = if rate.is_noisy() { ", noisy" } else { "" };
            let (median, least, most) = (thousands(rate.median), thousands(rate.least), thousands(rate.most));
            let title = format!(
                "{}, {} connections: {median} requests/s ({least} to {most}{noisy})",
                kind.title(),
                step.shape.connections
            );
            points.push(Point {
                x: step.shape.connections as f64,
                y: rate.median,
                spread: Some((rate.least, rate.most)),
                title: Some(title),
            });
        }
        if !points.is_empty() {
            series.push(Series { kind, points });
        }
    }
    let tops = series
        .iter()
        .flat_map(|series| &series.points)
        .filter_map(|point| point.spread);
    let most = tops.map(|(_, most)| most).fold(0.0, f64::max);
    let ticks = steps.iter().map(|step| step.shape.connections);
    let plot = Plot {
        title: "Throughput by connections",
        x: Axis {
            label: "connections (log)".into(),
            bend: Bend::Log,
            ends,
            ticks: ticks.map(|count| (count as f64, count.to_string())).collect(),
        },
        y: Axis::from_zero("requests per second", most, thousands),
        series,
        beside: true,
    };
    let note = "1 KiB requests, one at a time on each connection. Median; bars from the slowest to the fastest round.";
    Some(lines(&plot, note, WIDE))
}

/// The labelled percentiles.
const NAMED: [(f64, &str); 4] = [(0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%")];

pub(super) fn latency(results: &Results) -> Option<String> {
    let usual = results.usual()?;
    let fewest = usual.scores.iter().map(|(_, score)| score.latency().len()).min()?;
    // With fewer requests, the 99.9th percentile means nothing.
    let last = if fewest >= 10_000 { 0.999 } else { 0.99 };
    let mut series = Vec::new();
    for (kind, score) in &usual.scores {
        let latency = score.latency();
        let mut shares: Vec<f64> = (0..=90).map(|step| 1.0 - 10f64.powf(f64::from(step) / -30.0)).collect();
        shares.extend(NAMED.map(|(share, _)| share));
        shares.retain(|share| *share <= last + 1e-9);
        shares.sort_by(f64::total_cmp);
        let point = |share: &f64| {
            let y = latency.nanos(*share);
            let named = NAMED.iter().find(|(named, _)| (named - share).abs() < 1e-9);
            let title = named.map(|(_, name)| format!("{}, {name}: {}", kind.title(), nanos(y)));
            Point {
                x: *share,
                y,
                spread: None,
                title,
            }
        };
        // A labelled percentile may also be one of the dense ones.
        let mut points: Vec<Point> = shares.iter().map(point).collect();
        points.dedup_by(|a, b| (a.x - b.x).abs() < 1e-9);
        series.push(Series { kind: *kind, points });
    }
    let ends = ends(series.iter().flat_map(|series| &series.points).map(|point| point.y))?;
    let ticks = NAMED.iter().filter(|(share, _)| *share <= last);
    let mut ticks: Vec<(f64, String)> = ticks.map(|(share, name)| (*share, name.to_string())).collect();
    ticks.insert(0, (0.0, "0%".into()));
    let plot = Plot {
        title: "Latency",
        x: Axis {
            label: "share of requests answered".into(),
            bend: Bend::Nines,
            ends: (0.0, last),
            ticks,
        },
        y: Axis::log("from request to echo (log)", ends, nanos),
        series,
        beside: false,
    };
    let note = format!(
        "{}, all rounds. Lower is better; each step to the right is ten times rarer.",
        usual.shape
    );
    Some(lines(&plot, &note, WIDE))
}

/// Minimum and maximum.
fn ends(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let figures: Vec<f64> = figures.filter(|figure| figure.is_finite() && *figure > 0.0).collect();
    let least = figures.iter().copied().reduce(f64::min)?;
    Some((least, figures.into_iter().reduce(f64::max)?))
}

pub(super) fn timers(results: &Results, pause: Duration) -> Option<String> {
    let measured = results.timers.iter().filter(|late| late.pause == pause);
    // A logarithmic axis cannot show sleeps that end early.
    let (early, late): (Vec<&Lateness>, Vec<&Lateness>) = measured.partition(|late| late.nanos(0.5) < 0.0);
    let series: Vec<Series> = late.iter().map(|late| sleeps(late)).collect();
    let ends = ends(series.iter().flat_map(|series| &series.points).map(|point| point.x))?;
    let title = format!("Lateness of a sleep of {}", short(nanos(pause.as_nanos() as f64)));
    let shares = [0.0, 0.25, 0.5, 0.75, 1.0];
    let plot = Plot {
        title: &title,
        x: Axis::log("late by (log)", ends, nanos),
        y: Axis {
            label: "share of the sleeps that have ended".into(),
            bend: Bend::Linear,
            ends: (0.0, 1.0),
            ticks: shares.map(|share| (share, format!("{:.0}%", share * 100.0))).into(),
        },
        series,
        beside: false,
    };
    let mut note = String::from("From 1% to 99% of the sleeps, all rounds. Further left is better.");
    for early in early {
        note += &format!(" Not drawn: {}, whose sleeps end early.", early.kind.title());
    }
    Some(lines(&plot, &note, HALF))
}

/// The share of sleeps that have ended, by lateness.
fn sleeps(late: &Lateness) -> Series {
    let all = late.sorted();
    let last = all.len().saturating_sub(1) as f64;
    let point = |step: u32| {
        let share = f64::from(step) / 200.0;
        // Less than 100 ns late counts as on time.
        let x = (all[(last * share).round() as usize] as f64).max(100.0);
        let name = match step {
            100 => Some("half of them end"),
            198 => Some("99% end"),
            _ => None,
        };
        Point {
            x,
            y: share,
            spread: None,
            title: name.map(|name| format!("{}: {name} no later than {}", late.kind.title(), nanos(x))),
        }
    };
    Series {
        kind: late.kind,
        points: if all.is_empty() {
            Vec::new()
        } else {
            (2..=198).map(point).collect()
        },
    }
}

fn bar_figure(title: &str, note: &str, bars: &[Bar]) -> Option<String> {
    if bars.is_empty() {
        return None;
    }
    let drawings = [
        bars::draw(title, bars, HALF.0, "screen"),
        bars::draw(title, bars, NARROW.0, "phone"),
    ];
    Some(figure(title, note, &[], &drawings))
}

pub(super) fn processor_time(results: &Results) -> Option<String> {
    let usual = results.usual()?;
    let bar = |(kind, score): &(Kind, super::super::echo::Score)| {
        let spread = score.spread(Round::cpu_micros);
        Bar {
            kind: *kind,
            value: spread.median,
            spread: Some((spread.least, spread.most)),
            text: micros(spread.median),
        }
    };
    let bars: Vec<Bar> = usual.scores.iter().map(bar).collect();
    let note = format!("{}, user and kernel. Thin line: spread of the rounds.", usual.shape);
    bar_figure("CPU time per request", &note, &bars)
}

pub(super) fn system_calls(results: &Results) -> Option<String> {
    let counted = results.calls.iter().filter(|calls| calls.shape == SINGLE);
    let bars: Vec<Bar> = counted
        .map(|calls| Bar {
            kind: calls.kind,
            value: calls.per_request(),
            spread: None,
            text: ratio(calls.per_request()),
        })
        .collect();
    let note = format!("{SINGLE}, where nothing can be batched; counted once by a tracer.");
    bar_figure("System calls per request", &note, &bars)
}

pub(super) fn memory(results: &Results) -> Option<String> {
    let bars: Vec<Bar> = results
        .memory
        .iter()
        .map(|memory| Bar {
            kind: memory.kind,
            value: memory.per_connection(),
            spread: None,
            text: bytes(memory.per_connection().round()),
        })
        .collect();
    let connections = results.memory.first().map_or(0, |memory| memory.connections);
    let note = format!("At {connections} connections with one echo each; the server's resident memory, measured once.");
    bar_figure("Memory per idle connection", &note, &bars)
}
