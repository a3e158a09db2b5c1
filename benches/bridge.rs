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
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc;
use std::task::{Poll, ready};
use std::time::Duration;

use kit::clock::thread_time;
use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::stats::{Spread, paired_ratio};
use windlass::EventLoop;
use windlass::compat::Bridge;
use windlass::net::{TcpListener, TcpStream};

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench bridge -- [--rounds N] [--requests N] [--len N] [--driver proactor|reactor]";

const CONNECTIONS: usize = 50;

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
    let (addr_sender, addr) = mpsc::channel();
    let server = std::thread::spawn(move || -> io::Result<Duration> {
        let event_loop = driver.open()?;
        let used = thread_time();
        event_loop.run_until_complete(serve(addr_sender, way))??;
        Ok(thread_time() - used)
    });
    let addr: SocketAddr = addr.recv().expect("the server sends its address");
    EventLoop::new()?.run_until_complete(async {
        let each = requests / CONNECTIONS;
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| windlass::spawn(ask(addr, each, len)))
            .collect();
        for client in clients {
            client.await.expect("no panic")?;
        }
        io::Result::Ok(())
    })??;
    let used = server.join().expect("no panic")?;
    Ok(used.as_nanos() as f64 / requests as f64)
}

async fn serve(addr_sender: mpsc::Sender<SocketAddr>, way: Way) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    addr_sender
        .send(listener.local_addr()?)
        .expect("the receiver is waiting");
    let mut served = Vec::new();
    for _ in 0..CONNECTIONS {
        let (stream, _) = listener.accept().await?;
        served.push(windlass::spawn(async move {
            match way {
                Way::Native => native(stream).await,
                Way::Lent => lent(stream).await,
                Way::Copied => copied(Bridge::new(stream)).await,
            }
        }));
    }
    for task in served {
        task.await.expect("no panic")?;
    }
    Ok(())
}

async fn native(stream: TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
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

async fn ask(addr: SocketAddr, requests: usize, len: usize) -> io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    let (mut question, mut answer) = (vec![7u8; len], vec![0u8; len]);
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
