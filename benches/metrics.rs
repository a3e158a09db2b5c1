//! The cost of the metrics that are always on: `cargo bench --bench metrics`
//!
//! An echo server on its own thread, with and without time measurement, 50 connections, 1 KiB, both drivers; rounds are
//! interleaved, and the CPU time of the server's thread per request is compared within a round.
//!
//!     cargo bench --bench metrics -- --rounds 15 --requests 40000 --driver reactor

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use kit::clock::thread_time;
use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};
use windlass::EventLoop;
use windlass::net::{TcpListener, TcpStream};

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench metrics -- [--rounds N] [--requests N] [--driver proactor|reactor]";

const CONNECTIONS: usize = 50;
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
                let time = measure(driver, measures_time, requests)?;
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

/// CPU time of the server's thread per request, in nanoseconds.
fn measure(driver: Driver, measures_time: bool, requests: usize) -> io::Result<f64> {
    let (addr_sender, addr) = mpsc::channel();
    let server = std::thread::spawn(move || -> io::Result<Duration> {
        let event_loop = driver.builder().measure_time(measures_time).build()?;
        let used = thread_time();
        event_loop.run_until_complete(serve(addr_sender))??;
        Ok(thread_time() - used)
    });
    let addr: SocketAddr = addr.recv().expect("the server sends its address");
    EventLoop::new()?.run_until_complete(async {
        let each = requests / CONNECTIONS;
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| windlass::spawn(ask(addr, each))).collect();
        for client in clients {
            client.await.expect("no panic")?;
        }
        io::Result::Ok(())
    })??;
    let used = server.join().expect("no panic")?;
    Ok(used.as_nanos() as f64 / requests as f64)
}

async fn serve(addr_sender: mpsc::Sender<SocketAddr>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    addr_sender
        .send(listener.local_addr()?)
        .expect("the receiver is waiting");
    let mut served = Vec::new();
    for _ in 0..CONNECTIONS {
        let (stream, _) = listener.accept().await?;
        served.push(windlass::spawn(async move {
            loop {
                let bytes = stream.read_managed().await?;
                if bytes.is_empty() {
                    return io::Result::Ok(());
                }
                stream.write_all(bytes).await.0?;
            }
        }));
    }
    for task in served {
        task.await.expect("no panic")?;
    }
    Ok(())
}

async fn ask(addr: SocketAddr, requests: usize) -> io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    let (mut question, mut answer) = (vec![7u8; LEN], vec![0u8; LEN]);
    for _ in 0..requests {
        let result;
        (result, question) = stream.write_all(question).await;
        result?;
        let result;
        (result, answer) = stream.read_exact(answer).await;
        result?;
    }
    Ok(())
}
