//! Measures how late sleeps end: `cargo run --release --example lateness -- [--driver auto|proactor|reactor] [--rounds
//! 100]`.
//!
//! asyncio's loop on Windows sleeps in steps of 15.6 ms, the system clock tick. This prints the lateness on this
//! machine.

#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::outln;
use windlass::time::sleep;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: lateness [--driver auto|proactor|reactor] [--rounds COUNT]";

/// The lengths of the sleeps, in microseconds.
const SLEEPS: [u64; 8] = [50, 100, 250, 500, 1_000, 2_500, 5_000, 20_000];

fn main() -> ExitCode {
    let mut driver = DriverChoice::Auto;
    let mut rounds = 100;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match (argument.as_str(), value.as_deref()) {
            ("--help", _) => {
                outln!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            ("--driver", Some(name)) => match name.parse() {
                Ok(choice) => driver = choice,
                Err(error) => return refuse(&error.to_string()),
            },
            ("--rounds", Some(count)) => match count.parse() {
                Ok(count) if count > 0 => rounds = count,
                _ => return refuse(&format!("--rounds needs a number above 0, not {count}")),
            },
            (option @ ("--driver" | "--rounds"), None) => return refuse(&format!("{option} needs a value")),
            (option, _) => return refuse(&format!("unknown option {option}")),
        }
    }
    match measure(driver, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lateness: {error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n{USAGE}");
    ExitCode::from(2)
}

fn measure(driver: DriverChoice, rounds: usize) -> std::io::Result<()> {
    let event_loop = Builder::new().driver(driver).build()?;
    outln!("{}", event_loop.describe());
    outln!(
        "{:>12} {:>12} {:>12} {:>12}",
        "sleep",
        "late: p50",
        "late: p99",
        "late: max"
    );
    event_loop.run_until_complete(async {
        for micros in SLEEPS {
            let wanted = Duration::from_micros(micros);
            let mut late = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                let begin = Instant::now();
                sleep(wanted).await;
                late.push(begin.elapsed().saturating_sub(wanted));
            }
            late.sort();
            let shown = |late: Duration| format!("{:.1} us", late.as_nanos() as f64 / 1_000.0);
            outln!(
                "{:>12} {:>12} {:>12} {:>12}",
                shown(wanted),
                shown(late[rounds / 2]),
                shown(late[rounds * 99 / 100]),
                shown(late[rounds - 1])
            );
        }
    })
}
