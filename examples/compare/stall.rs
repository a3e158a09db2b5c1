//! Blocking the loop: how late a 10 ms tick is during 150 ms of computation, inside a task and in a thread. For asyncio
//! the work is that of the published figures, a password hash, which releases the interpreter's lock while it computes.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use windlass::metrics::{StallMeter, StallReport};
use windlass::time::sleep;
use windlass::{Builder, DriverChoice};

use super::contender::{Field, Kind};
use super::kit::process::Process;
use super::kit::progress::Progress;
use super::options::Plan;

pub(crate) const TICK: Duration = Duration::from_millis(10);
pub(crate) const WORK: Duration = Duration::from_millis(150);

/// The scenes that are measured.
pub(crate) const SCENES: [&str; 3] = ["loop idle", "150 ms of CPU inside a task", "the same in a thread"];

/// The published figures: p50, p99 and worst of each scene, in milliseconds.
pub(crate) const ARTICLE: [[f64; 3]; 3] = [[1.1, 1.2, 1.2], [1.1, 173.8, 173.8], [1.0, 6.0, 6.0]];

/// The lateness of ticks on one loop.
pub(crate) struct Stall {
    pub(crate) kind: Kind,
    /// p50, p99 and worst of each scene, in nanoseconds.
    pub(crate) nanos: [[f64; 3]; 3],
}

/// Estimate for the progress bar: starting a process.
const SECONDS_PER_START: f64 = 0.1;

pub(crate) fn weight_of_one(plan: &Plan) -> f64 {
    let (before, after) = plan.ticks;
    SECONDS_PER_START + 3.0 * (before + after).as_secs_f64() + 2.0 * WORK.as_secs_f64()
}

/// Must be called before this process pins itself to a core, which its children would inherit: the computing thread
/// needs a core of its own, if there is one.
pub(crate) fn measure(plan: &Plan, field: &Field, progress: &mut Progress, missing: &mut Vec<String>) -> Vec<Stall> {
    let mut all = Vec::new();
    for kind in field.runtimes() {
        let title = kind.title();
        progress.step_of(weight_of_one(plan), &format!("ticks during computation: {title}"));
        match ask(plan, kind, field) {
            Ok(nanos) => all.push(Stall { kind, nanos }),
            Err(error) => missing.push(format!("stalls, {title}: {error}")),
        }
    }
    all
}

fn ask(plan: &Plan, kind: Kind, field: &Field) -> io::Result<[[f64; 3]; 3]> {
    let (before, after) = plan.ticks;
    let mut child = match (kind.driver(), &field.python) {
        (None, Some(python)) => Process::start(python.stall(kind.name(), before, after), None)?,
        _ => {
            let (before, after) = (before.as_nanos().to_string(), after.as_nanos().to_string());
            Process::again(&["--stall", kind.name(), &before, &after], None)?
        }
    };
    let output = child.all_output(Duration::from_secs(20))?;
    let mut figures = output.split_whitespace().map(str::parse::<f64>);
    let mut nanos = [[0.0; 3]; 3];
    for figure in nanos.as_flattened_mut() {
        let next = figures.next().and_then(Result::ok);
        *figure = next.ok_or_else(|| io::Error::other("unexpected output of the child process"))?;
    }
    Ok(nanos)
}

/// The child process: prints the figures of each scene on a line, in nanoseconds.
pub(crate) fn measure_stalls(kind: Kind, before: Duration, after: Duration) -> io::Result<()> {
    let driver = kind.driver().unwrap_or(DriverChoice::Auto);
    let event_loop = Builder::new().driver(driver).build()?;
    let reports = event_loop.run_until_complete(async {
        let idle = watch(before, after, async {}).await;
        let blocked = watch(before, after, async { compute() }).await;
        let beside = watch(before, after, async {
            windlass::spawn_blocking(compute)
                .await
                .expect("the work does not panic");
        });
        [idle, blocked, beside.await]
    })?;
    let mut out = io::stdout();
    for report in reports {
        let StallReport { p50, p99, worst, .. } = report;
        writeln!(out, "{} {} {}", p50.as_nanos(), p99.as_nanos(), worst.as_nanos())?;
    }
    Ok(())
}

/// Serves one request during fewer than a hundred ticks, so that one late tick shows in the 99th percentile.
async fn watch(before: Duration, after: Duration, request: impl Future<Output = ()> + 'static) -> StallReport {
    let meter = StallMeter::start(TICK);
    sleep(before).await;
    windlass::spawn(request).await.expect("the work does not panic");
    sleep(after).await;
    meter.report()
}

/// Uses CPU time, as hashing a password does.
fn compute() {
    let begin = Instant::now();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    while begin.elapsed() < WORK {
        for byte in 0..10_000_u64 {
            hash = black_box((hash ^ byte).wrapping_mul(0x100_0000_01b3));
        }
    }
}
