//! The cost of a bridge against the native calls: `cargo bench --bench bridge`
//!
//! An echo server on its own thread, 50 connections, 1 KiB, both drivers: with the native `read_managed` and
//! `write_all`; with a bridge that writes the bytes borrowed by `poll_fill_buf`; and with a bridge that copies into the
//! caller's slice. Rounds are interleaved; the CPU time of the server's thread per request is compared with the native
//! calls in the same round.
//!
//!     cargo bench --bench bridge -- --rounds 15 --requests 40000 --len 1024 --driver reactor

use std::future::poll_fn;
use std::io;
use std::process::ExitCode;
use std::task::{Poll, ready};

use kit::drivers::Driver;
use kit::echo_thread::{CONNECTIONS, echo, nanos_per_request};
use kit::options::Options;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};
use windlass::compat::Bridge;
use windlass::net::TcpStream;

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench bridge -- [--rounds N] [--requests N] [--len N] [--driver proactor|reactor]";

#[derive(Clone, Copy, Debug)]
enum Way {
    Native,
    Lent,
    Copied,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Native, "read_managed, write_all"),
    (Way::Lent, "poll_fill_buf, poll_write"),
    (Way::Copied, "poll_read, poll_write"),
];

fn main() -> ExitCode {
    kit::options::report("bridge", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--rounds", "--requests", "--len", "--driver"]);
    let (rounds, requests) = (options.number("--rounds", 15), options.number("--requests", 40_000));
    let len = options.number("--len", 1024);
    println!("CPU time per echoed request, {CONNECTIONS} connections x {len} bytes, medians of {rounds} rounds");
    for driver in options.drivers() {
        let mut times = vec![Vec::new(); WAYS.len()];
        let mut progress = Progress::new(rounds);
        for round in 0..rounds {
            progress.step(driver.name);
            for at in 0..WAYS.len() {
                // The order alternates too.
                let at = (at + round) % WAYS.len();
                times[at].push(measure(driver, WAYS[at].0, requests, len)?);
            }
        }
        progress.finish();
        for ((_, way), own) in WAYS.iter().zip(&times) {
            let ratio = paired_ratio(own.iter().copied(), times[0].iter().copied());
            let noisy = if ratio.is_noisy() { "   noisy" } else { "" };
            let (name, time, ratio) = (driver.name, Spread::of(own.iter().copied()).median, ratio.median);
            println!("{name:<10} {way:<26} {time:6.0} ns   ratio {ratio:.3}{noisy}");
        }
    }
    Ok(())
}

/// CPU time of the server's thread per request, in nanoseconds.
fn measure(driver: Driver, way: Way, requests: usize, len: usize) -> io::Result<f64> {
    let open = move || driver.open();
    match way {
        Way::Native => nanos_per_request(open, requests, len, echo),
        Way::Lent => nanos_per_request(open, requests, len, lent),
        Way::Copied => nanos_per_request(open, requests, len, |stream| copied(Bridge::new(stream))),
    }
}

/// One bridge per direction, because the buffer lent by one is written to the other.
async fn lent(stream: TcpStream) -> io::Result<()> {
    let (reader, writer) = stream.split();
    let (mut reader, mut writer) = (Bridge::new(reader), Bridge::new(writer));
    loop {
        let count = poll_fn(|cx| {
            let bytes = ready!(reader.poll_fill_buf(cx))?;
            match bytes.is_empty() {
                true => Poll::Ready(Ok(0)),
                false => writer.poll_write(cx, bytes),
            }
        })
        .await?;
        if count == 0 {
            return Ok(());
        }
        reader.consume(count);
        poll_fn(|cx| writer.poll_flush(cx)).await?;
    }
}

async fn copied(mut bridge: Bridge<TcpStream>) -> io::Result<()> {
    let mut buf = vec![0; 16 * 1024];
    loop {
        let count = poll_fn(|cx| bridge.poll_read(cx, &mut buf)).await?;
        if count == 0 {
            return Ok(());
        }
        write_all(&mut bridge, &buf[..count]).await?;
    }
}

async fn write_all(bridge: &mut Bridge<TcpStream>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|cx| bridge.poll_write(cx, bytes)).await?;
        bytes = &bytes[count..];
    }
    poll_fn(|cx| bridge.poll_flush(cx)).await
}
