//! How late short sleeps end: `cargo run --release --example lateness -- [MICROSECONDS [COUNT]]`.
//!
//! windlass's timers with the loop alone and as a guest of tokio, and tokio's own timers, one sleep after the other.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use windlass::{Builder, DriverChoice};
use windlass_tokio::Guest;

fn main() -> io::Result<()> {
    let mut args = std::env::args()
        .skip(1)
        .map(|arg| arg.parse::<u64>().expect("a number"));
    let length = Duration::from_micros(args.next().unwrap_or(100));
    let count = args.next().unwrap_or(5_000) as usize;
    println!("lateness of {count} sleeps of {length:?}, in us");
    for (name, driver) in [("io_uring", DriverChoice::Proactor), ("epoll", DriverChoice::Reactor)] {
        let build = || Builder::new().driver(driver).build();
        let event_loop = match build() {
            Ok(event_loop) => event_loop,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let alone = event_loop.run_until_complete(measure(count, length, windlass::time::sleep))?;
        print(&format!("{name}, alone"), alone);
        let guest = Guest::new(build()?)?.block_on(measure(count, length, windlass::time::sleep))?;
        print(&format!("{name}, guest of tokio"), guest);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    print(
        "tokio's own timers",
        runtime.block_on(measure(count, length, tokio::time::sleep)),
    );
    Ok(())
}

/// The lateness of each sleep, sorted.
async fn measure<F: Future>(count: usize, length: Duration, sleep: impl Fn(Duration) -> F) -> Vec<Duration> {
    let mut late = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        sleep(length).await;
        late.push(begun.elapsed().saturating_sub(length));
    }
    late.sort();
    late
}

fn print(name: &str, late: Vec<Duration>) {
    let percentile = |percent: usize| late[(late.len() * percent / 100).min(late.len() - 1)].as_micros();
    println!(
        "{name:<26} p50 {:>6}   p90 {:>6}   p99 {:>6}",
        percentile(50),
        percentile(90),
        percentile(99)
    );
}
