//! A hundred fetches that each wait 100 ms for the response: sequentially, on a thread each, and on one loop.
//!
//! `cargo run --release --example http_get -- [--fetches 100] [--delay-ms 100]`. The server runs in this
//! program, with its own loop and thread.

#[path = "support/mod.rs"]
mod support;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::outln;
use windlass::EventLoop;
use windlass::net::{StreamReader, StreamWriter, open_connection, start_server};
use windlass::time::sleep;

const USAGE: &str = "usage: http_get [--fetches COUNT] [--delay-ms MILLISECONDS]";

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const BODY: &str = "delayed answer\n";

fn main() -> io::Result<()> {
    let (mut fetches, mut delay) = (100, 100);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|value| value.parse::<u64>().ok());
        match (arg.as_str(), number) {
            ("--fetches", Some(count @ 1..=10_000)) => fetches = count as usize,
            ("--delay-ms", Some(millis)) => delay = millis,
            ("--help" | "-h", _) => {
                outln!("{USAGE}");
                return Ok(());
            }
            _ => {
                eprintln!("unknown argument {arg}\n{USAGE}");
                std::process::exit(2);
            }
        }
    }
    let delay = Duration::from_millis(delay);
    let addr = start_serving(delay)?;
    let event_loop = EventLoop::new()?;
    let description = event_loop.describe().to_string();
    // An unmeasured first run, so that one-time setup at either end is not counted.
    event_loop.run_until_complete(fetch_on_loop(addr, fetches))??;

    let sequential = measure(|| (0..fetches).try_for_each(|_| fetch(addr)))?;
    let threads = measure(|| fetch_on_threads(addr, fetches))?;
    let on_loop = measure(|| event_loop.run_until_complete(fetch_on_loop(addr, fetches))?)?;

    outln!("{fetches} fetches, each answered after {delay:?}, on {description}\n");
    outln!("                          wall time   threads   memory per fetch   published figures");
    let row = |name: &str, run: &Run, threads: usize, article: &str| {
        let memory = match run.memory {
            Some(bytes) => format!("{:.1} KiB", bytes as f64 / 1024.0 / fetches as f64),
            None => "unknown".into(),
        };
        outln!(
            "{name:<24}  {:>7.3} s  {threads:>8}  {memory:>17}   {article}",
            run.time.as_secs_f64()
        );
    };
    row("sequential", &sequential, 1, "");
    row("a thread for each", &threads, fetches, "~1 MB per thread (stack)");
    row("windlass, one loop", &on_loop, 1, "~1 KB per coroutine (heap)");
    outln!("\nMemory is the peak resident size minus the size before: a coarse measure that");
    outln!("includes the server. A thread also reserves 2 MiB of address space for its stack.");
    Ok(())
}

/// The server: answers after a delay. It runs until the program ends.
fn start_serving(delay: Duration) -> io::Result<SocketAddr> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        windlass::run(async move {
            let answer = move |mut reader: StreamReader, writer: StreamWriter| async move {
                reader.read_until("\r\n\r\n").await?;
                sleep(delay).await;
                writer.write(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{BODY}",
                    BODY.len()
                ));
                Ok::<(), io::Error>(())
            };
            let server = start_server(answer, "127.0.0.1:0").await?;
            sender.send(server.local_addr()).map_err(io::Error::other)?;
            server.serve_forever().await
        })
    });
    receiver.recv().map_err(io::Error::other)?
}

fn fetch(addr: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(REQUEST.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    check(&answer)
}

fn fetch_on_threads(addr: SocketAddr, fetches: usize) -> io::Result<()> {
    let threads: Vec<_> = (0..fetches).map(|_| std::thread::spawn(move || fetch(addr))).collect();
    threads
        .into_iter()
        .try_for_each(|thread| thread.join().expect("no panic"))
}

async fn fetch_on_loop(addr: SocketAddr, fetches: usize) -> io::Result<()> {
    let tasks: Vec<_> = (0..fetches)
        .map(|_| {
            windlass::spawn(async move {
                let (mut reader, writer) = open_connection(addr).await?;
                writer.write(REQUEST);
                let answer = reader.read_to_end(1 << 20).await?;
                check(&String::from_utf8_lossy(answer))
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

fn check(answer: &str) -> io::Result<()> {
    match answer.ends_with(BODY) {
        true => Ok(()),
        false => Err(io::Error::other(format!("unexpected answer: {answer:?}"))),
    }
}

struct Run {
    time: Duration,
    memory: Option<usize>,
}

fn measure(run: impl FnOnce() -> io::Result<()>) -> io::Result<Run> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let before = resident()?;
            let mut most = before;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(resident()?);
                std::thread::sleep(Duration::from_millis(2));
            }
            Some(most - before)
        });
        std::thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        let result = run();
        let time = begin.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let memory = watching.join().expect("no panic");
        result.map(|()| Run { time, memory })
    })
}

/// The resident size of this process in bytes, on systems that report it.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
