//! The tables, for the terminal and for the HTML page.

use super::contender::Kind;
use super::cores::Pool;
use super::echo::{Score, Workload};
use super::kit::load::Shape;
use super::kit::stats::Spread;
use super::kit::text::{bytes, cells, lateness, lay_out, micros, nanos, ratio, thousands};
use super::options::{Part, Plan, SINGLE, USUAL};
use super::run::{Results, Setting};
use super::stall::{self, SCENES};
use super::syscalls::Calls;
use super::tasks::{BATCHES, DRIVERS};

pub(crate) mod article;

/// Above this CPU use the load generator is the limit, and a rate means little.
const LOAD_BUSY: f64 = 0.9;

pub(crate) struct Table {
    /// The part of the page.
    pub(crate) part: Option<Part>,
    pub(crate) title: String,
    /// The first row is the header.
    pub(crate) rows: Vec<Vec<String>>,
    /// The number of text columns, which are left-aligned.
    pub(crate) left: &'static [usize],
    /// Explanations below the table.
    pub(crate) notes: Vec<String>,
}

impl Table {
    pub(crate) fn text(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("  ({note})\n")).collect();
        format!("{}\n{}{notes}", self.title, lay_out(&self.rows, self.left))
    }
}

pub(crate) fn all(plan: &Plan, setting: &Setting, results: &Results) -> Vec<Table> {
    let mut tables = Vec::new();
    if plan.has(Part::Echo) || plan.has(Part::Timers) {
        tables.push(article::table(setting, results));
    }
    if !results.echo.is_empty() {
        tables.push(by_connections(results));
    }
    let single = results.echo.iter().find(|workload| workload.shape == SINGLE);
    for workload in [results.usual(), single].into_iter().flatten() {
        tables.push(echo(plan, results, workload));
    }
    if let Some(pool) = results.pools.first() {
        tables.push(all_cores(results, pool.shape));
    }
    if !results.timers.is_empty() {
        tables.push(timers(results));
    }
    if !results.memory.is_empty() {
        tables.push(memory(results));
    }
    if !results.stalls.is_empty() {
        tables.push(stalls(results));
    }
    if !results.tasks.is_empty() {
        tables.push(tasks(results));
    }
    tables
}

/// The loads that differ only in the number of connections, in ascending order.
pub(crate) fn ladder(results: &Results) -> Vec<&Workload> {
    let is_step = |workload: &&Workload| workload.shape.request_len == USUAL.request_len;
    let mut steps: Vec<&Workload> = results.echo.iter().filter(is_step).collect();
    steps.sort_by_key(|workload| workload.shape.connections);
    steps
}

/// A pool with one shard per core beside a pool of one.
fn all_cores(results: &Results, shape: Shape) -> Table {
    let mut rows = vec![cells(["", "shards", "req/s", "spread", "CPU/req", "x one shard"])];
    for pool in &results.pools {
        let is_one = |other: &&Pool| other.kind == pool.kind && other.shards == 1;
        let one = results.pools.iter().find(is_one);
        let times = one.map_or(f64::NAN, |one| pool.score.rate_times(&one.score));
        let rate = pool.score.rate();
        rows.push(vec![
            pool.kind.title().to_string(),
            pool.shards.to_string(),
            format!("{}{}", if rate.is_noisy() { "~" } else { "" }, thousands(rate.median)),
            percent((rate.most - rate.least) / rate.median),
            micros(pool.score.cpu_micros().median),
            ratio(times),
        ]);
    }
    Table {
        part: Some(Part::Echo),
        title: format!("All cores: echo by a pool of shards, {shape}"),
        rows,
        left: &[0],
        notes: vec![
            "the load runs on the same cores, with one thread for each: compare the rows with each other only".into(),
        ],
    }
}

fn by_connections(results: &Results) -> Table {
    let steps = ladder(results);
    let mut head = vec![String::new()];
    head.extend(steps.iter().map(|workload| workload.shape.connections.to_string()));
    let mut rows = vec![head];
    let mut is_any_noisy = false;
    for kind in Kind::ALL {
        if steps.iter().all(|workload| workload.score(kind).is_none()) {
            continue;
        }
        let mut row = vec![kind.title().to_string()];
        for workload in &steps {
            let rate = workload.score(kind).map(Score::rate);
            let is_noisy = rate.is_some_and(Spread::is_noisy);
            is_any_noisy |= is_noisy;
            let mark = if is_noisy { "~" } else { "" };
            row.push(rate.map_or("-".into(), |rate| format!("{mark}{}", thousands(rate.median))));
        }
        rows.push(row);
    }
    let len = bytes(USUAL.request_len as f64);
    let noisy = "~: noisy, the rounds differ by more than 15%";
    Table {
        part: Some(Part::Echo),
        title: format!("Echo requests per second by connections, {len} each"),
        rows,
        left: &[0],
        notes: is_any_noisy.then(|| noisy.into()).into_iter().collect(),
    }
}

fn echo(plan: &Plan, results: &Results, workload: &Workload) -> Table {
    let (epoll, uring) = (workload.score(Kind::Epoll), workload.score(Kind::Uring));
    let times = |score: &Score, other: Option<&Score>| other.map_or(f64::NAN, |other| score.cpu_times(other));
    let mut rows = vec![cells([
        "",
        "req/s",
        "spread",
        "p50",
        "p99",
        "CPU/req",
        "x epoll",
        "x io_uring",
        "calls/req",
        "busy",
        "load",
    ])];
    for (kind, score) in &workload.scores {
        let (rate, latency) = (score.rate(), score.latency());
        let is_it = |calls: &&Calls| calls.kind == *kind && calls.shape == workload.shape;
        let calls = results.calls.iter().find(is_it).map_or(f64::NAN, Calls::per_request);
        let mark = if rate.is_noisy() { "~" } else { "" };
        rows.push(cells([
            kind.title(),
            &format!("{mark}{}", thousands(rate.median)),
            &percent((rate.most - rate.least) / rate.median),
            &nanos(latency.nanos(0.5)),
            &nanos(latency.nanos(0.99)),
            &micros(score.cpu_micros().median),
            &ratio(times(score, epoll)),
            &ratio(times(score, uring)),
            &ratio(calls),
            &percent(score.busy()),
            &percent(score.load_busy()),
        ]));
    }
    let (rounds, length) = (workload.rounds, plan.round);
    Table {
        part: Some(Part::Echo),
        title: format!(
            "Echo, {} (median of {rounds} rounds of {} ms, interleaved)",
            workload.shape,
            length.as_millis()
        ),
        rows,
        left: &[0],
        notes: echo_notes(results, workload),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn echo_notes(results: &Results, workload: &Workload) -> Vec<String> {
    let mut notes = vec![
        "spread: between the slowest and the fastest round; ~: noisy, more than 15%".to_string(),
        "x epoll, x io_uring: ratio of CPU/req to the hand-written loop, median of the rounds".to_string(),
        "p50, p99: over all requests of all rounds".to_string(),
        "busy, load: CPU use of the server and of the load generator".to_string(),
    ];
    if workload.shape.connections > 1 && !results.calls.is_empty() {
        notes.push("calls: counted on a traced server, which is slow and gets larger batches: a lower bound".into());
    }
    if !results.calls.is_empty() {
        notes.push("calls/req: counted once".into());
    }
    let is_saturated = |busy: f64| busy > LOAD_BUSY;
    let any = |is: &dyn Fn(&Score) -> bool| workload.scores.iter().any(|(_, score)| is(score));
    if workload.shape.connections > 1 {
        if any(&|score| is_saturated(score.load_busy()) && !is_saturated(score.busy())) {
            notes.push(
                "where the load generator is busy and the server is not, it is the limit: compare CPU/req".into(),
            );
        }
        if any(&|score| !is_saturated(score.load_busy()) && !is_saturated(score.busy())) {
            notes.push("where neither is busy, other programs used these cores: compare CPU/req".into());
        }
    }
    notes
}

fn timers(results: &Results) -> Table {
    let mut rows = vec![cells(["", "sleep", "p50", "p99", "worst"])];
    for late in &results.timers {
        rows.push(cells([
            late.kind.title(),
            &nanos(late.pause.as_nanos() as f64),
            &lateness(late.nanos(0.5)),
            &lateness(late.nanos(0.99)),
            &lateness(late.nanos(1.0)),
        ]));
    }
    let mut notes = vec![
        "p50, p99, worst: over all sleeps of all rounds".to_string(),
        "hand-written epoll: epoll_pwait2 with a timer slack of 1 ns, as for the bare kernel".to_string(),
    ];
    if results.timers.iter().any(|late| late.nanos(0.5) < 0.0) {
        notes.push("early: this loop rounds sleeps to milliseconds, so short ones become zero".into());
    }
    Table {
        part: Some(Part::Timers),
        title: "Timers: lateness of a sleep".into(),
        rows,
        left: &[0],
        notes,
    }
}

fn memory(results: &Results) -> Table {
    let mut rows = vec![cells(["", "per connection", "before", "after"])];
    for memory in &results.memory {
        rows.push(cells([
            memory.kind.title(),
            &bytes(memory.per_connection().round()),
            &bytes(memory.bytes_before as f64),
            &bytes(memory.bytes_after as f64),
        ]));
    }
    let connections = results.memory.first().map_or(0, |memory| memory.connections);
    let held =
        "resident memory of the server after one echo per connection, minus the memory before; without kernel sockets";
    Table {
        part: Some(Part::Memory),
        title: format!("Memory of an idle connection, at {connections} of them"),
        rows,
        left: &[0],
        notes: vec![held.into(), "measured once".into()],
    }
}

fn stalls(results: &Results) -> Table {
    let ms = |ms: f64| match ms {
        ms if ms < 0.995 => format!("{ms:.2} ms"),
        ms => format!("{ms:.1} ms"),
    };
    let mut rows = vec![cells(["", "", "p50", "p99", "worst"])];
    for (scene, name) in SCENES.into_iter().enumerate() {
        let [p50, p99, worst] = stall::ARTICLE[scene].map(ms);
        rows.push(cells([name, "asyncio, published", &p50, &p99, &worst]));
        for stall in &results.stalls {
            let [p50, p99, worst] = stall.nanos[scene].map(|nanos| ms(nanos / 1e6));
            rows.push(cells(["", stall.kind.title(), &p50, &p99, &worst]));
        }
    }
    Table {
        part: Some(Part::Stall),
        title: format!("Stalls: lateness of a {} ms tick", stall::TICK.as_millis()),
        rows,
        left: &[0, 1],
        notes: vec![
            "in a thread: spawn_blocking, or asyncio's run_in_executor; asyncio hashes a password".into(),
            "each scene was measured once".into(),
        ],
    }
}

/// One row per measurement, one column per driver.
fn tasks(results: &Results) -> Table {
    let titles = DRIVERS.map(|driver| format!("{driver:?}"));
    let mut rows = vec![cells(["", &titles[0], &titles[1]])];
    for cost in &results.tasks {
        if rows.last().is_none_or(|row| row[0] != cost.what) {
            rows.push(cells([cost.what, "-", "-"]));
        }
        let column = DRIVERS.iter().position(|&driver| driver == cost.driver);
        if let (Some(row), Some(column)) = (rows.last_mut(), column) {
            row[column + 1] = nanos(cost.best());
        }
    }
    Table {
        part: Some(Part::Tasks),
        title: format!("Cost of the windlass loop on each driver (best of {BATCHES} batches, interleaved)"),
        rows,
        left: &[0],
        notes: Vec::new(),
    }
}
