//! The effect of blocking the loop: `cargo run --release --example stall`.
//!
//! Measures how late a 10 ms tick is while a task computes for 150 ms, and while `spawn_blocking` does the same work.
//! The last column has the published figures for asyncio.

#[path = "support/mod.rs"]
mod support;

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use support::outln;
use windlass::metrics::{StallMeter, StallReport};
use windlass::time::sleep;

const WORK: Duration = Duration::from_millis(150);

fn main() -> io::Result<()> {
    let event_loop = windlass::EventLoop::new()?;
    outln!("{}\n", event_loop.describe());
    outln!(
        "{:<32} {:>10} {:>10} {:>10}   asyncio: p50, p99, worst",
        "a 10 ms tick is late by",
        "p50",
        "p99",
        "worst"
    );
    event_loop.run_until_complete(async {
        let idle = measure(async {}).await;
        print("loop idle", idle, "1.1, 1.2, 1.2 ms");
        let blocked = measure(async { compute() }).await;
        print("150 ms of CPU inside a task", blocked, "1.1, 173.8, 173.8 ms");
        let off_loop = measure(async {
            windlass::spawn_blocking(compute).await.expect("compute does not panic");
        })
        .await;
        print("the same through spawn_blocking", off_loop, "1.0, 6.0, 6.0 ms");
    })
}

/// Serves one request during about 90 ticks: fewer than 100, so that one late tick shows in the 99th percentile.
async fn measure(request: impl Future<Output = ()> + 'static) -> StallReport {
    let meter = StallMeter::start(Duration::from_millis(10));
    sleep(Duration::from_millis(400)).await;
    windlass::spawn(request).await.expect("compute does not panic");
    sleep(Duration::from_millis(500)).await;
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

fn print(what: &str, report: StallReport, asyncio: &str) {
    let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
    let (p50, p99, worst) = (ms(report.p50), ms(report.p99), ms(report.worst));
    outln!("{what:<32} {p50:>10} {p99:>10} {worst:>10}   {asyncio}");
}
