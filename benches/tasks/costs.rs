//! The measurements by criterion.

use std::future::{Ready, ready};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use windlass::task::{JoinHandle, yield_now};

use crate::kit::drivers::Driver;
use crate::sleeper::Sleeper;

/// Tasks woken in a burst.
pub(crate) const BURST: usize = 100;

/// Long enough for the loop to block.
const PAUSE: Duration = Duration::from_micros(100);

pub(crate) fn measure(criterion: &mut Criterion, drivers: &[Driver]) {
    spawn_join(criterion, drivers);
    yields(criterion, drivers);
    wakes(criterion, drivers);
}

fn spawn_join(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("spawn_join");
    for driver in drivers {
        group.bench_function(BenchmarkId::new("next turn", driver.name), |bencher| {
            bencher.iter_custom(|count| on_loop(*driver, join_each(count, windlass::spawn)))
        });
        group.bench_function(BenchmarkId::new("eager", driver.name), |bencher| {
            bencher.iter_custom(|count| on_loop(*driver, join_each(count, windlass::task::spawn_eager)))
        });
    }
}

/// One empty task at a time.
async fn join_each(count: u64, spawn: fn(Ready<()>) -> JoinHandle<()>) -> Duration {
    let begin = Instant::now();
    for _ in 0..count {
        let _ = spawn(ready(())).await;
    }
    begin.elapsed()
}

fn yields(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("yield");
    for tasks in [1, 100] {
        for driver in drivers {
            let name = format!("{tasks} task{}", if tasks == 1 { "" } else { "s" });
            group.bench_function(BenchmarkId::new(name, driver.name), |bencher| {
                bencher.iter_custom(|count| on_loop(*driver, yield_all(tasks, count)))
            });
        }
    }
}

/// `tasks` tasks yield `count` times each; returns the time per `count` yields of one task.
async fn yield_all(tasks: u32, count: u64) -> Duration {
    let begin = Instant::now();
    let handles: Vec<_> = (0..tasks)
        .map(|_| {
            windlass::spawn(async move {
                for _ in 0..count {
                    yield_now().await;
                }
            })
        })
        .collect();
    for handle in handles {
        let _ = handle.await;
    }
    begin.elapsed() / tasks
}

fn wakes(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("wake");
    for driver in drivers {
        group.bench_function(BenchmarkId::from_parameter(driver.name), |bencher| {
            bencher.iter_custom(|count| {
                let sleeper = Sleeper::start(*driver, BURST, false).expect("the driver was probed before");
                let bursts = count.div_ceil(BURST as u64);
                let mut sending = Duration::ZERO;
                for _ in 0..bursts {
                    std::thread::sleep(PAUSE);
                    sending += sleeper.burst();
                    sleeper.wait_all().expect("woken tasks are polled");
                }
                // The last burst may have been larger than needed.
                sending.mul_f64(count as f64 / (bursts * BURST as u64) as f64)
            })
        });
    }
}

fn on_loop<T>(driver: Driver, work: impl Future<Output = T>) -> T {
    let event_loop = driver.open().expect("the driver was probed before");
    event_loop.run_until_complete(work).expect("the loop is not stopped")
}
