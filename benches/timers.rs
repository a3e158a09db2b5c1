//! The lateness of sleeps and the cost of timers: `cargo bench --bench timers`
//!
//! Lateness: sequential sleeps of 50 us to 20 ms on both drivers and on a plain thread; percentiles of the lateness,
//! and the number of sleeps that ended early. Cost: 1,000 to 1,000,000 callbacks with random deadlines: the cost of
//! adding one, cancelling one and running one that is due; against the standard library's binary heap, which has
//! neither callbacks nor cancellation.
//!
//!     cargo bench --bench timers                              less than a minute
//!     cargo bench --bench timers -- --only lateness --rounds 10
//!     cargo bench --bench timers -- --only cost --timers 10000,100000

use std::cell::Cell;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kit::clock::least_timer_slack;
use kit::drivers::Driver;
use kit::lateness::Lateness;
use kit::options::Options;
use kit::progress::Progress;
use kit::random::Random;
use kit::stats::Spread;
use kit::text::{cells, lateness as late_by, lay_out, nanos};
use windlass::EventLoop;

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench timers -- [--only lateness|cost] [--timers N,..] [--driver proactor|reactor] [--rounds N]";

const PARTS: [&str; 2] = ["lateness", "cost"];

/// The lengths of the sleeps in microseconds, and their number per round.
const SLEEPS: [(u64, usize); 6] = [
    (50, 300),
    (100, 300),
    (500, 200),
    (1_000, 150),
    (5_000, 40),
    (20_000, 15),
];

/// The row of the plain thread.
const A_THREAD: &str = if cfg!(target_os = "linux") {
    "a thread's sleep, timer slack 1 ns"
} else {
    "a thread's sleep"
};

fn main() -> ExitCode {
    kit::options::report("timers", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--only", "--timers", "--driver", "--rounds"]);
    let counts = options.numbers("--timers", &[1_000, 10_000, 100_000, 1_000_000]);
    let rounds = options.number("--rounds", 5);
    let [wants_lateness, wants_cost] = PARTS.map(|part| options.wants("--only", part, &PARTS));
    let drivers = options.drivers();
    if wants_lateness {
        lateness(&drivers, rounds)?;
    }
    if wants_cost {
        cost(&drivers, &counts, rounds)?;
    }
    Ok(())
}

fn lateness(drivers: &[Driver], rounds: usize) -> io::Result<()> {
    // The last row is the plain thread.
    let mut late = vec![vec![Lateness::default(); SLEEPS.len()]; drivers.len() + 1];
    let mut progress = Progress::new(rounds);
    for _ in 0..rounds {
        progress.step("sleeping");
        for (at, (micros, times)) in SLEEPS.into_iter().enumerate() {
            let pause = Duration::from_micros(micros);
            for (driver, late) in drivers.iter().zip(&mut late) {
                sleep_on(&driver.open()?, pause, times, &mut late[at])?;
            }
            let beside = &mut late[drivers.len()][at];
            std::thread::scope(|scope| scope.spawn(|| sleep_in_thread(pause, times, beside)).join().ok());
        }
    }
    progress.finish();

    let mut rows = vec![cells([
        "late after a sleep of",
        "",
        "p50",
        "p90",
        "p99",
        "max",
        "sleeps",
        "early",
    ])];
    let names = drivers.iter().map(|driver| driver.name).chain([A_THREAD]);
    let names: Vec<&str> = names.collect();
    for (at, (micros, _)) in SLEEPS.into_iter().enumerate() {
        for (row, name) in names.iter().enumerate() {
            let late = &late[row][at];
            rows.push(vec![
                if row == 0 {
                    nanos(micros as f64 * 1e3)
                } else {
                    String::new()
                },
                name.to_string(),
                late_by(late.nanos(0.5)),
                late_by(late.nanos(0.9)),
                late_by(late.nanos(0.99)),
                late_by(late.most()),
                late.len().to_string(),
                late.early().to_string(),
            ]);
        }
    }
    println!("{}", lay_out(&rows, &[0, 1]));
    Ok(())
}

fn sleep_on(event_loop: &EventLoop, pause: Duration, times: usize, late: &mut Lateness) -> io::Result<()> {
    event_loop.run_until_complete(async {
        for _ in 0..times {
            let begin = Instant::now();
            windlass::time::sleep(pause).await;
            late.add(begin.elapsed(), pause);
        }
    })
}

/// The bare kernel, on a separate thread, because the loops must not inherit its timer slack.
fn sleep_in_thread(pause: Duration, times: usize, late: &mut Lateness) {
    least_timer_slack();
    for _ in 0..times {
        let begin = Instant::now();
        std::thread::sleep(pause);
        late.add(begin.elapsed(), pause);
    }
}

/// Nanoseconds for each timer.
#[derive(Clone, Copy)]
struct Cost {
    add: f64,
    fire: f64,
    cancel: f64,
}

fn cost(drivers: &[Driver], counts: &[usize], rounds: usize) -> io::Result<()> {
    let mut rows = vec![cells(["timers", "", "add", "fire", "cancel", ""])];
    let mut progress = Progress::new(counts.len() * rounds);
    for &count in counts {
        let mut costs = vec![Vec::new(); drivers.len() + 1];
        for _ in 0..rounds {
            progress.step(&format!("{count} timers"));
            for (driver, costs) in drivers.iter().zip(&mut costs) {
                costs.push(on_loop(&driver.open()?, count)?);
            }
            costs[drivers.len()].push(on_heap(count));
        }
        let names = drivers.iter().map(|driver| driver.name).chain(["a binary heap"]);
        for (row, (name, costs)) in names.zip(&costs).enumerate() {
            let of = |figure: fn(&Cost) -> f64| Spread::of(costs.iter().map(figure));
            let all = [of(|cost| cost.add), of(|cost| cost.fire), of(|cost| cost.cancel)];
            let [add, fire, cancel] = all.map(|spread| nanos(spread.median));
            let is_noisy = all.iter().any(|spread| spread.is_noisy());
            rows.push(vec![
                if row == 0 { count.to_string() } else { String::new() },
                name.to_string(),
                add,
                fire,
                cancel,
                if is_noisy { "noisy" } else { "" }.to_string(),
            ]);
        }
    }
    progress.finish();
    print!("{}", lay_out(&rows, &[1, 5]));
    println!("\n  each, medians of {rounds} interleaved rounds");
    Ok(())
}

/// Small numbers of timers are added repeatedly, until the time is measurable.
fn passes(count: usize) -> usize {
    (50_000 / count).max(1)
}

fn on_loop(event_loop: &EventLoop, count: usize) -> io::Result<Cost> {
    let (mut added, mut fired, mut cancelled) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut random = Random::new();
    for _ in 0..passes(count) {
        // Far enough that none is due before it is cancelled.
        let begin = Instant::now();
        let mut handles = Vec::with_capacity(count);
        for _ in 0..count {
            handles.push(event_loop.call_later(Duration::from_micros(60_000_000 + random.below(1 << 26)), || {}));
        }
        let full = Instant::now();
        for handle in &handles {
            handle.cancel();
        }
        cancelled += full.elapsed();
        added += full - begin;
        drop(handles);
        fired += fire(event_loop, count, &mut random)?;
    }
    let each = |time: Duration| time.as_nanos() as f64 / (count * passes(count)) as f64;
    Ok(Cost {
        add: each(added),
        fire: each(fired),
        cancel: each(cancelled),
    })
}

/// Adds timers, waits until all are due, and measures the time to run them.
fn fire(event_loop: &EventLoop, count: usize, random: &mut Random) -> io::Result<Duration> {
    let left = Rc::new(Cell::new(count));
    let now = event_loop.time();
    for _ in 0..count {
        let left = left.clone();
        let when = now + Duration::from_nanos(random.below(1 << 20));
        event_loop.call_at(when, move || left.set(left.get() - 1));
    }
    std::thread::sleep(Duration::from_millis(2));
    let begin = Instant::now();
    while left.get() > 0 {
        event_loop.turn()?;
    }
    Ok(begin.elapsed())
}

/// The lower bound: an ordered queue without callbacks.
fn on_heap(count: usize) -> Cost {
    let (mut added, mut fired) = (Duration::ZERO, Duration::ZERO);
    let mut random = Random::new();
    for _ in 0..passes(count) {
        let begin = Instant::now();
        let mut heap = BinaryHeap::new();
        for id in 0..count {
            heap.push((random.below(1 << 26), id));
        }
        let full = Instant::now();
        while let Some(timer) = heap.pop() {
            black_box(timer);
        }
        fired += full.elapsed();
        added += full - begin;
    }
    let each = |time: Duration| time.as_nanos() as f64 / (count * passes(count)) as f64;
    Cost {
        add: each(added),
        fire: each(fired),
        cancel: f64::NAN,
    }
}
