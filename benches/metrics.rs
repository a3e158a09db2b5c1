//! The cost of the metrics that are always on: `cargo bench --bench metrics`
//!
//! An echo server on its own thread, with and without time measurement, 50 connections, 1 KiB, both drivers; rounds are
//! interleaved, and the CPU time of the server's thread per request is compared within a round.
//!
//!     cargo bench --bench metrics -- --rounds 15 --requests 40000 --driver reactor

use std::io;
use std::process::ExitCode;

use kit::echo_thread::{CONNECTIONS, echo, nanos_per_request};
use kit::options::Options;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench metrics -- [--rounds N] [--requests N] [--driver proactor|reactor]";

const LEN: usize = 1024;

fn main() -> ExitCode {
    kit::options::report("metrics", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--rounds", "--requests", "--driver"]);
    let (rounds, requests) = (options.number("--rounds", 15), options.number("--requests", 40_000));
    println!("CPU time per echoed request, {CONNECTIONS} connections x {LEN} bytes, medians of {rounds} paired rounds");
    for driver in options.drivers() {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let mut progress = Progress::new(rounds);
        for round in 0..rounds {
            progress.step(driver.name);
            // The order alternates too.
            for measures_time in [round % 2 == 0, round % 2 == 1] {
                let open = move || driver.builder().measure_time(measures_time).build();
                let time = nanos_per_request(open, requests, LEN, echo)?;
                if measures_time { &mut with } else { &mut without }.push(time);
            }
        }
        progress.finish();
        let ratio = paired_ratio(with.iter().copied(), without.iter().copied());
        let noisy = if ratio.is_noisy() { "   noisy" } else { "" };
        let [with, without] = [with, without].map(|times| Spread::of(times).median);
        let (name, ratio) = (driver.name, ratio.median);
        println!("{name:<10} with {with:6.0} ns   without {without:6.0} ns   ratio {ratio:.3}{noisy}");
    }
    Ok(())
}
