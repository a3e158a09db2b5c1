//! What do the metrics cost that are always on? `cargo bench --bench metrics`
//!
//! An echo server on a thread of its own, once as it is and once without measuring time, 50 connections, 1 KiB, both
//! drivers; rounds are interleaved, and the processor time of the server's thread per request is compared pair by pair.
//! `-- --rounds 15 --requests 40000` to change the effort.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::{Builder, DriverChoice, EventLoop};

const CONNECTIONS: usize = 50;
const LEN: usize = 1024;

fn main() -> io::Result<()> {
    let (rounds, requests) = (option("--rounds", 15), option("--requests", 40_000));
    println!(
        "processor time per echoed request, {CONNECTIONS} connections x {LEN} bytes, medians of {rounds} paired rounds"
    );
    for (name, driver) in [("proactor", DriverChoice::Proactor), ("reactor", DriverChoice::Reactor)] {
        let Ok(event_loop) = Builder::new().driver(driver).build() else {
            println!("{name:<10} cannot be had here");
            continue;
        };
        drop(event_loop);
        let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            // Who comes first alternates too.
            let first = measure(driver, round % 2 == 0, requests)?;
            let second = measure(driver, round % 2 == 1, requests)?;
            let (on, off) = if round % 2 == 0 {
                (first, second)
            } else {
                (second, first)
            };
            with.push(on);
            without.push(off);
            ratios.push(on / off);
        }
        let (with, without, ratio) = (median(&mut with), median(&mut without), median(&mut ratios));
        println!("{name:<10} with {with:6.0} ns   without {without:6.0} ns   ratio {ratio:.3}");
    }
    Ok(())
}

/// Nanoseconds of the server's thread per request.
fn measure(driver: DriverChoice, measures_time: bool, requests: usize) -> io::Result<f64> {
    let (tell_addr, addr) = mpsc::channel();
    let server = std::thread::spawn(move || -> io::Result<Duration> {
        let event_loop = Builder::new().driver(driver).measure_time(measures_time).build()?;
        let used = thread_time();
        event_loop.run_until_complete(serve(tell_addr))??;
        Ok(thread_time() - used)
    });
    let addr: SocketAddr = addr.recv().expect("the server says where it is");
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

async fn serve(tell_addr: mpsc::Sender<SocketAddr>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    tell_addr.send(listener.local_addr()?).expect("somebody asks");
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

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn option(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let value = arguments.nth(1).and_then(|value| value.parse().ok());
    value.unwrap_or(default).max(1)
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the local timespec and keeps no pointer to it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
