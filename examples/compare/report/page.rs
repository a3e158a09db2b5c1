//! The page: summary, plots with their tables, method, and what was not measured.

use super::super::contender::Kind;
use super::super::kit::text::{bytes, nanos, ratio, thousands};
use super::super::options::{Part, Plan};
use super::super::run::{Results, Setting};
use super::super::tables::Table;
use super::super::tables::article::{SHORT_SLEEP, rate, rate_times, resolution};
use super::super::tasks::BATCHES;
use super::figures;
use super::style::STYLE;
use super::summary::summary;
use super::svg::escape;

pub(crate) fn page(plan: &Plan, setting: &Setting, results: &Results, tables: &[Table]) -> String {
    let mut body = String::from("<h1>Event loops compared</h1>");
    body += &format!(
        "<p class=\"when\">windlass {}, asyncio, uvloop, hand-written epoll and io_uring &middot; {} &middot; {}</p>",
        env!("CARGO_PKG_VERSION"),
        escape(&setting.date),
        escape(&setting.machine.model),
    );
    let sentences: String = summary(results)
        .iter()
        .map(|line| format!("<li>{}</li>", escape(line)))
        .collect();
    if !sentences.is_empty() {
        body += &format!("<ul class=\"plain\">{sentences}</ul>");
    }
    if cfg!(debug_assertions) {
        body += "<p><strong>This is a debug build: the figures mean little.</strong></p>";
    }
    body += &tiles(results);
    body += &tables_of(None, tables);
    body += &section("Echo", Part::Echo, tables, &echo_figures(results));
    body += &section("Timers", Part::Timers, tables, &timer_figures(plan, results));
    body += &memory(tables, results);
    body += &section("Stalls", Part::Stall, tables, "");
    body += &section("Cost of the loop", Part::Tasks, tables, "");
    body += &missing(results);
    body += &method(plan, setting);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Event loops compared: windlass, asyncio, uvloop</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main>{body}</main>\n</body>\n</html>\n"
    )
}

/// The key figures.
fn tiles(results: &Results) -> String {
    let tile = |value: Option<String>, what: String| match value {
        Some(value) => format!(
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&value),
            escape(&what)
        ),
        None => String::new(),
    };
    let known = |figure: f64| Some(figure).filter(|figure| figure.is_finite());
    let best = [Kind::Proactor, Kind::Reactor].into_iter().max_by(|a, b| {
        let known = |kind: &Kind| known(rate(results, *kind)).unwrap_or(0.0);
        known(a).total_cmp(&known(b))
    });
    let best = best.unwrap_or(Kind::Proactor);
    let times = |other: Kind| known(rate_times(results, best, other)).map(|times| format!("{} x", ratio(times)));
    let finest = [Kind::Proactor, Kind::Reactor].map(|kind| resolution(results, kind));
    let finest = finest.into_iter().reduce(f64::min).and_then(known);
    let smallest = results.memory.iter().filter(|memory| memory.kind.driver().is_some());
    let smallest = smallest.map(|memory| memory.per_connection()).reduce(f64::min);
    let tiles = [
        tile(
            known(rate(results, best)).map(thousands),
            format!("requests per second, {}, {}", best.title(), results.usual_shape()),
        ),
        tile(times(Kind::Asyncio), "asyncio's requests per second".into()),
        tile(times(Kind::Uvloop), "uvloop's requests per second".into()),
        tile(
            finest.map(nanos),
            format!("lateness of a {} us sleep on windlass, median", SHORT_SLEEP.as_micros()),
        ),
        tile(
            smallest.map(|count| bytes(count.round())),
            "memory per idle connection on windlass".into(),
        ),
    ];
    let tiles = tiles.concat();
    if tiles.is_empty() {
        tiles
    } else {
        format!("<div class=\"tiles\">{tiles}</div>")
    }
}

fn echo_figures(results: &Results) -> String {
    let throughput = figures::throughput(results).unwrap_or_default();
    let latency = figures::latency(results).unwrap_or_default();
    let costs = [figures::processor_time(results), figures::system_calls(results)];
    throughput + &latency + &pair(costs)
}

fn timer_figures(plan: &Plan, results: &Results) -> String {
    pair(plan.sleeps.map(|(pause, _)| figures::timers(results, pause)))
}

/// The plot and the table, side by side if there is space.
fn memory(tables: &[Table], results: &Results) -> String {
    let Some(figure) = figures::memory(results) else {
        return String::new();
    };
    let table = tables_of(Some(Part::Memory), tables);
    format!("<section><h2>Memory</h2><div class=\"pair\">{figure}<div>{table}</div></div></section>")
}

/// Two plots, side by side if there is space.
fn pair(figures: [Option<String>; 2]) -> String {
    let drawn: String = figures.into_iter().flatten().collect();
    if drawn.is_empty() {
        drawn
    } else {
        format!("<div class=\"pair level\">{drawn}</div>")
    }
}

fn section(title: &str, part: Part, tables: &[Table], figures: &str) -> String {
    let tables = tables_of(Some(part), tables);
    if tables.is_empty() && figures.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2>{figures}{tables}</section>", escape(title))
}

fn tables_of(part: Option<Part>, tables: &[Table]) -> String {
    tables
        .iter()
        .filter(|table| table.part == part)
        .map(draw_table)
        .collect()
}

fn draw_table(table: &Table) -> String {
    let row = |row: &Vec<String>, tag: &str| {
        let cell = |(column, cell): (usize, &String)| {
            let class = if table.left.contains(&column) {
                " class=\"words\""
            } else {
                ""
            };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        };
        row.iter().enumerate().map(cell).collect::<String>()
    };
    let mut rows = table.rows.iter();
    let head = rows.next().map(|head| row(head, "th")).unwrap_or_default();
    // If the first of two text columns is empty, the row belongs to the row above.
    let is_grouped = table.left.starts_with(&[0, 1]);
    let body: String = rows
        .map(|cells| {
            let class = if is_grouped && !cells[0].is_empty() {
                " class=\"begins\""
            } else {
                ""
            };
            format!("<tr{class}>{}</tr>", row(cells, "td"))
        })
        .collect();
    let notes: String = table
        .notes
        .iter()
        .map(|note| format!("<li>{}</li>", escape(note)))
        .collect();
    let notes = if notes.is_empty() {
        notes
    } else {
        format!("<ul class=\"notes\">{notes}</ul>")
    };
    format!(
        "<h3>{}</h3><div class=\"scroll\"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\
         {notes}",
        escape(&table.title)
    )
}

fn missing(results: &Results) -> String {
    if results.missing.is_empty() {
        return String::new();
    }
    let lines: String = results
        .missing
        .iter()
        .map(|line| format!("<li>{}</li>", escape(line)))
        .collect();
    format!("<section><h2>Not measured</h2><ul class=\"plain\">{lines}</ul></section>")
}

fn method(plan: &Plan, setting: &Setting) -> String {
    let mut facts = vec![("Command", format!("<code>{}</code>", escape(&setting.command)))];
    facts.push(("Date", escape(&setting.date)));
    facts.push(("Machine", escape(&setting.machine.to_string())));
    facts.extend(setting.drivers.iter().map(|driver| ("Driver", escape(driver))));
    facts.extend(setting.python.iter().map(|python| ("Python", escape(python))));
    facts.push(("Raw figures", "<code>report.json</code>, next to this page".into()));
    let facts: String = facts
        .iter()
        .map(|(name, fact)| format!("<dt>{name}</dt><dd>{fact}</dd>"))
        .collect();
    let quick = match plan.quick {
        true => " This was a quick run: the rounds are short and the figures noisier.",
        false => "",
    };
    format!(
        "<section><h2>Method</h2>\
         <p>Every server is a separate process on one core; the load comes from another process, on another core if \
         there is one; only the pools of shards share all cores with their load. Each connection has one request in flight; each echo is compared with the request. The rounds \
         of all contenders are interleaved, each starting with the next contender, so that a machine that slows down \
         affects all of them. Requests per second and CPU time are medians of the rounds; ratios are computed within \
         each round, then the median is taken. Percentiles of latency and lateness are over all rounds. Memory, \
         stalls and system calls were measured once. The cost of the loop, which interruptions can only increase, is \
         the best of {BATCHES} batches. Rounds that differ by more than 15% are marked as noisy. All traffic stays on \
         the loopback.{quick}</p><dl>{facts}</dl></section>"
    )
}
