//! The cost of blocking jobs, and the savings of managed buffers: `cargo bench --bench pool`
//!
//! Threads: `spawn_blocking` with an empty job, sequential and 64 at once, against a thread that answers over a
//! channel. Buffers: 1 KiB written to a connection and read from its other end, into a pool buffer, into a reused
//! buffer of the caller, and into the heap because the pool's only buffer is in use.
//!
//!     cargo bench --bench pool                                a few seconds
//!     cargo bench --bench pool -- --only buffers --driver reactor --rounds 15

use std::io;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Instant;

use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::rounds::{Way, interleave, table};
use kit::text::nanos;
use windlass::net::{TcpListener, TcpStream};
use windlass::spawn_blocking;

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench pool -- [--only threads|buffers] [--driver proactor|reactor] [--rounds N]";

const PARTS: [&str; 2] = ["threads", "buffers"];
const JOBS: usize = 6_400;
const READS: usize = 5_000;
const LEN: usize = 1024;

fn main() -> ExitCode {
    kit::options::report("pool", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--only", "--driver", "--rounds"]);
    let rounds = options.number("--rounds", 7);
    let [wants_threads, wants_buffers] = PARTS.map(|part| options.wants("--only", part, &PARTS));
    let drivers = options.drivers();
    println!("medians of {rounds} interleaved rounds\n");
    let depths: &[usize] = if wants_threads { &[1, 64] } else { &[] };
    let buffered: &[Driver] = if wants_buffers { &drivers } else { &[] };
    let mut progress = Progress::new(depths.len() + buffered.len());
    for &depth in depths {
        progress.step(&format!("jobs, {depth} at once"));
        threads(&drivers, depth, rounds);
    }
    for &driver in buffered {
        progress.step(&format!("buffers, {}", driver.name));
        buffers(driver, rounds);
    }
    progress.finish();
    Ok(())
}

fn threads(drivers: &[Driver], depth: usize, rounds: usize) {
    let mut ways = vec![Way::new("a channel", move || Ok(by_channel(depth)))];
    for driver in drivers {
        ways.push(Way::new(driver.name, move || {
            driver.open()?.run_until_complete(by_pool(depth))?
        }));
    }
    let title = format!("a job on a thread, {depth} at once");
    println!("{}", table(&title, "each", &interleave(rounds, ways), nanos));
}

/// Nanoseconds per message to a thread that answers each one.
fn by_channel(depth: usize) -> f64 {
    let (ask, asked) = mpsc::channel::<usize>();
    let (answer, answers) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for job in asked {
            if answer.send(job).is_err() {
                return;
            }
        }
    });
    let begin = Instant::now();
    for _ in 0..JOBS / depth {
        for job in 0..depth {
            ask.send(job).expect("the thread receives until the channel is closed");
        }
        for _ in 0..depth {
            answers.recv().expect("every job is answered");
        }
    }
    let each = begin.elapsed().as_nanos() as f64 / JOBS as f64;
    drop(ask);
    let _ = thread.join();
    each
}

async fn by_pool(depth: usize) -> io::Result<f64> {
    // Starts the threads before the measurement.
    work_off(depth).await?;
    let begin = Instant::now();
    for _ in 0..JOBS / depth {
        work_off(depth).await?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / JOBS as f64)
}

async fn work_off(depth: usize) -> io::Result<()> {
    let jobs: Vec<_> = (0..depth).map(|job| spawn_blocking(move || job)).collect();
    for job in jobs {
        job.await?;
    }
    Ok(())
}

fn buffers(driver: Driver, rounds: usize) {
    let pooled = Way::new("from the pool", move || {
        driver.open()?.run_until_complete(managed(true))?
    });
    let own = Way::new("a buffer of the caller", move || {
        driver.open()?.run_until_complete(own())?
    });
    let exhausted = Way::new("pool empty, from the heap", move || {
        let event_loop = driver.builder().managed_buffers(1, 8 * 1024).build()?;
        event_loop.run_until_complete(managed(false))?
    });
    let measured = interleave(rounds, vec![own, pooled, exhausted]);
    let title = format!("write and read 1 KiB, {}", driver.name);
    println!("{}", table(&title, "each", &measured, nanos));
}

/// Nanoseconds per write and managed read. To measure an empty pool, its only buffer is held meanwhile.
async fn managed(is_pooled: bool) -> io::Result<f64> {
    let (writer, reader) = pair().await?;
    let mut bytes = vec![7u8; LEN];
    let mut held = Vec::new();
    if !is_pooled {
        bytes = send(&writer, bytes).await?;
        held.push(reader.read_managed().await?);
    }
    let begin = Instant::now();
    for _ in 0..READS {
        bytes = send(&writer, bytes).await?;
        let mut received = 0;
        while received < LEN {
            let piece = reader.read_managed().await?;
            if piece.is_pooled() != is_pooled {
                return Err(io::Error::other("the bytes arrived in the wrong kind of buffer"));
            }
            received += piece.len();
        }
    }
    Ok(begin.elapsed().as_nanos() as f64 / READS as f64)
}

async fn own() -> io::Result<f64> {
    let (writer, reader) = pair().await?;
    let (mut bytes, mut buf) = (vec![7u8; LEN], vec![0; LEN]);
    let begin = Instant::now();
    for _ in 0..READS {
        bytes = send(&writer, bytes).await?;
        let result;
        (result, buf) = reader.read_exact(buf).await;
        result?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / READS as f64)
}

async fn send(writer: &TcpStream, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let (result, bytes) = writer.write_all(bytes).await;
    result.map(|()| bytes)
}

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let writer = TcpStream::connect(listener.local_addr()?).await?;
    let (reader, _) = listener.accept().await?;
    writer.set_nodelay(true)?;
    Ok((writer, reader))
}
