//! The measurements by criterion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use windlass::{EventLoop, LoopHandle};

use crate::kit::drivers::Driver;

/// Callbacks per turn.
const BATCH: u64 = 100;

/// Long enough for the loop to block.
const PAUSE: Duration = Duration::from_micros(100);

pub(crate) fn measure(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("turn");
    for driver in drivers {
        turns(&mut group, *driver);
    }
    group.finish();
    batches(criterion, drivers, "call_soon", |event_loop| {
        event_loop.call_soon(|| {});
    });
    batches(criterion, drivers, "call_later", |event_loop| {
        event_loop.call_later(Duration::ZERO, || {});
    });
    cancels(criterion, drivers);
    from_another_thread(criterion, drivers);
}

fn open(driver: Driver) -> EventLoop {
    driver.open().expect("the driver was probed before")
}

/// A normal turn. It does not block while there is something to run.
fn turn(event_loop: &EventLoop) {
    event_loop.turn().expect("the driver works");
}

fn turns(group: &mut BenchmarkGroup<'_, WallTime>, driver: Driver) {
    let event_loop = open(driver);
    group.bench_function(BenchmarkId::new("empty", driver.name), |bencher| {
        bencher.iter(|| event_loop.turn_nowait().expect("the driver works"))
    });
    group.bench_function(BenchmarkId::new("one callback", driver.name), |bencher| {
        bencher.iter(|| {
            event_loop.call_soon(|| {});
            turn(&event_loop);
        })
    });
}

/// Adds callbacks and runs them in one turn; returns the time per callback.
fn batches(criterion: &mut Criterion, drivers: &[Driver], name: &str, add: fn(&EventLoop)) {
    let mut group = criterion.benchmark_group(name);
    for driver in drivers {
        let event_loop = open(*driver);
        group.bench_function(BenchmarkId::from_parameter(driver.name), |bencher| {
            bencher.iter_custom(|count| {
                let begin = Instant::now();
                let mut left = count;
                while left > 0 {
                    let batch = left.min(BATCH);
                    (0..batch).for_each(|_| add(&event_loop));
                    turn(&event_loop);
                    left -= batch;
                }
                begin.elapsed()
            })
        });
    }
}

fn cancels(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("call_later_cancel");
    for driver in drivers {
        let event_loop = open(*driver);
        group.bench_function(BenchmarkId::from_parameter(driver.name), |bencher| {
            bencher.iter(|| event_loop.call_later(Duration::from_secs(60), || {}).cancel())
        });
    }
}

fn from_another_thread(criterion: &mut Criterion, drivers: &[Driver]) {
    let mut group = criterion.benchmark_group("call_soon_threadsafe");
    for driver in drivers {
        group.bench_function(BenchmarkId::from_parameter(driver.name), |bencher| {
            bencher.iter_custom(|count| send(*driver, count))
        });
    }
}

/// The time to send `count` callbacks, in bursts, to a loop that sleeps before each burst.
fn send(driver: Driver, count: u64) -> Duration {
    let (sender, receiver) = mpsc::channel::<LoopHandle>();
    let thread = std::thread::spawn(move || {
        let event_loop = open(driver);
        sender.send(event_loop.handle()).expect("the receiver is waiting");
        event_loop.run_forever()
    });
    let handle = receiver.recv().expect("the driver was probed before");
    let ran = Arc::new(AtomicU64::new(0));
    let (mut sending, mut sent) = (Duration::ZERO, 0);
    while sent < count {
        let burst = (count - sent).min(BATCH);
        std::thread::sleep(PAUSE);
        let begin = Instant::now();
        for _ in 0..burst {
            let ran = ran.clone();
            let call = move || {
                ran.fetch_add(1, Ordering::Release);
            };
            handle.call_soon_threadsafe(call).expect("the loop runs");
        }
        sending += begin.elapsed();
        sent += burst;
        while ran.load(Ordering::Acquire) < sent {
            std::thread::yield_now();
        }
    }
    handle.stop().expect("the loop runs");
    let _ = thread.join();
    sending
}
