//! The cost of the console: `cargo bench --features console --bench console`
//!
//! An echo server on its own thread, 50 connections, 1 KiB: without a console (`off`), with one (`on`), and with one that has a
//! viewer, which reads events (`viewer`). The variants are interleaved, in a different order in each round. The CPU time of the
//! server's thread per request is compared with `off` within a round.
//!
//!     cargo bench --features console --bench console -- --rounds 15 --requests 100000 --driver reactor

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::thread;

use kit::drivers::Driver;
use kit::echo_thread::{CONNECTIONS, echo, nanos_per_request};
use kit::options::Options;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};
use windlass::console;

mod kit;

const USAGE: &str = "\
usage: cargo bench --features console --bench console -- [--rounds N] [--requests N] [--driver proactor|reactor]";

const LEN: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Off,
    On,
    Viewer,
}

const VARIANTS: [Variant; 3] = [Variant::Off, Variant::On, Variant::Viewer];

fn main() -> ExitCode {
    kit::options::report("console", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--rounds", "--requests", "--driver"]);
    let (rounds, requests) = (options.number("--rounds", 15), options.number("--requests", 100_000));
    println!("CPU time per echoed request, {CONNECTIONS} connections x {LEN} bytes, medians of {rounds} paired rounds");
    for driver in options.drivers() {
        let mut times = [const { Vec::new() }; 3];
        let mut progress = Progress::new(rounds);
        for round in 0..rounds {
            progress.step(driver.name);
            for step in 0..VARIANTS.len() {
                let variant = (round + step) % VARIANTS.len();
                times[variant].push(measure(driver, VARIANTS[variant], requests)?);
            }
        }
        progress.finish();
        let [off, on, viewer] = &times;
        let median = |times: &[f64]| Spread::of(times.to_vec()).median;
        print!("{:<10} off {:6.0} ns", driver.name, median(off));
        for (name, limit, with) in [("on", 1.01, on), ("viewer", 1.03, viewer)] {
            let ratio = paired_ratio(with.iter().copied(), off.iter().copied());
            let noisy = if ratio.is_noisy() { " noisy" } else { "" };
            let verdict = if ratio.median <= limit { "ok" } else { "MISSED" };
            print!(
                "   {name} {:6.0} ns, ratio {:.3} ({verdict}, limit {limit}{noisy})",
                median(with),
                ratio.median
            );
        }
        println!();
    }
    Ok(())
}

/// CPU time of the server's thread per request, in nanoseconds.
fn measure(driver: Driver, variant: Variant, requests: usize) -> io::Result<f64> {
    let console = (variant != Variant::Off)
        .then(|| console::serve("127.0.0.1:0"))
        .transpose()?;
    let viewer = match &console {
        Some(console) if variant == Variant::Viewer => Some(view(console.local_addr())?),
        _ => None,
    };
    let nanos = nanos_per_request(move || driver.open(), requests, LEN, echo)?;
    if let Some(console) = console {
        console.stop();
    }
    if let Some(viewer) = viewer {
        let seen = viewer.join().expect("no panic");
        assert!(seen > 0, "the viewer has seen nothing");
    }
    Ok(nanos)
}

/// Reads events until the console ends. Returns the number of bytes.
fn view(addr: SocketAddr) -> io::Result<thread::JoinHandle<usize>> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(format!("GET /events HTTP/1.1\r\nHost: {addr}\r\n\r\n").as_bytes())?;
    Ok(thread::spawn(move || {
        let (mut seen, mut buffer) = (0, vec![0; 64 * 1024]);
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            seen += read;
        }
        seen
    }))
}
