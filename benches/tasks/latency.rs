//! The latency of a wake from another thread, and its system calls.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::costs::BURST;
use crate::kit::drivers::Driver;
use crate::kit::histogram::Histogram;
use crate::kit::progress::Progress;
use crate::kit::text::{cells, lay_out, nanos};
use crate::sleeper::Sleeper;

const ROUNDS: usize = 5;
const WAKES: usize = 300;
const BURSTS: u64 = 50;

/// The state of the loop at the wake, for how long it has been in it, and whether it is busy.
const STATES: [(&str, Duration, bool); 3] = [
    ("asleep for 1 ms", Duration::from_millis(1), false),
    ("idle for 10 us", Duration::from_micros(10), false),
    ("busy with a task that yields", Duration::from_micros(10), true),
];

/// Whether criterion's command line selects the table: no filter is given, or one that matches.
pub(crate) fn is_wanted() -> bool {
    let mut words = std::env::args().skip(1).peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--bench" => {}
            // No measurements for a list or a test run.
            "--list" | "--test" | "--help" | "-h" => return false,
            // criterion's other options with a value.
            option if option.starts_with('-') => drop(words.next_if(|value| !value.starts_with('-'))),
            filter => return "latency".contains(filter),
        }
    }
    true
}

pub(crate) fn measure(drivers: &[Driver]) -> io::Result<()> {
    let mut late = vec![vec![Histogram::default(); drivers.len()]; STATES.len()];
    let mut progress = Progress::new(ROUNDS);
    for _ in 0..ROUNDS {
        progress.step("wakes from another thread");
        for (late, (_, pause, is_busy)) in late.iter_mut().zip(STATES) {
            for (late, driver) in late.iter_mut().zip(drivers) {
                wake_often(*driver, pause, is_busy, late)?;
            }
        }
    }
    progress.finish();

    let mut rows = vec![cells(["latency of a wake, loop", "", "p50", "p90", "p99", "max"])];
    for ((name, ..), late) in STATES.iter().zip(&late) {
        for (driver, late) in drivers.iter().zip(late) {
            rows.push(vec![
                name.to_string(),
                driver.name.to_string(),
                nanos(late.nanos(0.5)),
                nanos(late.nanos(0.9)),
                nanos(late.nanos(0.99)),
                nanos(late.most().as_nanos() as f64),
            ]);
        }
    }
    println!("\n{}", lay_out(&rows, &[0, 1]));
    for driver in drivers {
        match writes_per_burst(*driver) {
            Ok(writes) => println!(
                "  {}: {writes:.2} write(2) calls of the sender for a burst of {BURST} wakes to a sleeping loop",
                driver.name
            ),
            Err(error) => println!(
                "  {}: the sender's system calls could not be counted: {error}",
                driver.name
            ),
        }
    }
    Ok(())
}

fn wake_often(driver: Driver, pause: Duration, is_busy: bool, late: &mut Histogram) -> io::Result<()> {
    let sleeper = Sleeper::start(driver, 1, is_busy)?;
    for _ in 0..WAKES {
        wait(pause);
        late.add(sleeper.ring()?);
    }
    Ok(())
}

/// Short pauses spin: a sleep would end late.
fn wait(pause: Duration) {
    if pause >= Duration::from_millis(1) {
        return std::thread::sleep(pause);
    }
    let begin = Instant::now();
    while begin.elapsed() < pause {
        std::hint::spin_loop();
    }
}

fn writes_per_burst(driver: Driver) -> io::Result<f64> {
    let sleeper = Sleeper::start(driver, BURST, false)?;
    let mut writes = 0;
    for _ in 0..BURSTS {
        std::thread::sleep(Duration::from_millis(2));
        let before = own_writes()?;
        sleeper.burst();
        writes += own_writes()? - before;
        sleeper.wait_all()?;
    }
    Ok(writes as f64 / BURSTS as f64)
}

/// The number of write(2) calls of this thread so far.
fn own_writes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("syscw:"));
    let count = line.and_then(|count| count.trim().parse().ok());
    count.ok_or(io::Error::other("the kernel does not report them"))
}
