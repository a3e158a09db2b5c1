//! The CPU time of a UDP datagram, sent and received: `cargo bench --bench udp`
//!
//! One loop sends datagrams of 1,200 bytes through the loopback and receives them: one by one, in batches, and as
//! segments that the kernel splits and coalesces (GSO and GRO). "Waiting" receives a datagram before the next is sent, so
//! a batch is always one datagram: that is what batches cost when they do not help.
//!
//!     cargo bench --bench udp                                 a few seconds
//!     cargo bench --bench udp -- --window 8,64 --driver reactor --rounds 15 --datagrams 50000

use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use kit::clock::thread_time;
use kit::drivers::Driver;
use kit::options::Options;
use kit::progress::Progress;
use kit::rounds::{Way, interleave, table};
use kit::text::nanos;
use windlass::net::{RecvBatch, SendBatch, UdpSocket};

mod kit;

const USAGE: &str = "\
usage: cargo bench --bench udp -- [--window N,..] [--driver proactor|reactor] [--rounds N] [--datagrams N]";

const LEN: usize = 1_200;

fn main() -> ExitCode {
    kit::options::report("udp", run())
}

fn run() -> io::Result<()> {
    let options = Options::read(USAGE, &["--window", "--driver", "--rounds", "--datagrams"]);
    let (rounds, total) = (options.number("--rounds", 7), options.number("--datagrams", 20_000));
    let windows = options.numbers("--window", &[1, 32]);
    let drivers = options.drivers();
    println!("medians of {rounds} interleaved rounds of {total} datagrams\n");
    let mut progress = Progress::new(drivers.len() * windows.len());
    for driver in drivers {
        for &window in &windows {
            progress.step(&format!("{}, {window} at a time", driver.name));
            compare(driver, rounds, total, window);
        }
    }
    progress.finish();
    Ok(())
}

fn compare(driver: Driver, rounds: usize, total: usize, window: usize) {
    let single = Way::new("one by one", move || {
        driver.open()?.run_until_complete(one_by_one(total, window))?
    });
    let received = Way::new("received in batches", move || {
        driver.open()?.run_until_complete(received_in_batches(total, window))?
    });
    let batched = Way::new("both in batches", move || {
        driver.open()?.run_until_complete(in_batches(total, window))?
    });
    let offloaded = Way::new("GSO and GRO", move || {
        driver.open()?.run_until_complete(segmented(total, window))?
    });
    let waiting = Way::new("waiting, one by one", move || {
        driver.open()?.run_until_complete(one_that_waits(total, false))?
    });
    let waiting_batch = Way::new("waiting, in batches", move || {
        driver.open()?.run_until_complete(one_that_waits(total, true))?
    });
    let ways = match window {
        1 => vec![waiting, waiting_batch],
        _ => vec![single, received, batched, offloaded],
    };
    let title = format!("{} at a time, {}", window, driver.name);
    println!("{}", table(&title, "a datagram", &interleave(rounds, ways), nanos));
}

/// A sender that is connected to a receiver.
async fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let receiver = UdpSocket::builder().recv_buffer(4 << 20).bind("127.0.0.1:0").await?;
    let sender = UdpSocket::builder().connect(receiver.local_addr()?).await?;
    Ok((sender, receiver))
}

/// The CPU time per datagram: other programs on the machine disturb it least.
fn each(begin: Duration, total: usize) -> io::Result<f64> {
    Ok((thread_time() - begin).as_nanos() as f64 / total as f64)
}

async fn one_by_one(total: usize, window: usize) -> io::Result<f64> {
    let (sender, receiver) = pair().await?;
    let (mut bytes, mut buf) = (vec![7u8; LEN], Vec::with_capacity(LEN));
    let begin = thread_time();
    for _ in 0..total / window {
        for _ in 0..window {
            bytes = send(&sender, bytes).await?;
        }
        for _ in 0..window {
            let result;
            (result, buf) = receiver.recv_from(buf).await;
            check(result?.0)?;
        }
    }
    each(begin, total)
}

async fn received_in_batches(total: usize, window: usize) -> io::Result<f64> {
    let (sender, receiver) = pair().await?;
    let (mut bytes, mut batch) = (vec![7u8; LEN], RecvBatch::new(window, LEN));
    let begin = thread_time();
    for _ in 0..total / window {
        for _ in 0..window {
            bytes = send(&sender, bytes).await?;
        }
        receive(&receiver, &mut batch, window).await?;
    }
    each(begin, total)
}

async fn in_batches(total: usize, window: usize) -> io::Result<f64> {
    let (sender, receiver) = pair().await?;
    let (bytes, mut sending, mut batch) = ([7u8; LEN], SendBatch::new(), RecvBatch::new(window, LEN));
    let begin = thread_time();
    for _ in 0..total / window {
        for _ in 0..window {
            sending.push(&bytes, None);
        }
        sender.send_batch(&mut sending).await?;
        receive(&receiver, &mut batch, window).await?;
    }
    each(begin, total)
}

async fn segmented(total: usize, window: usize) -> io::Result<f64> {
    let (sender, receiver) = pair().await?;
    receiver.set_gro(true)?;
    if sender.max_gso_segments() == 1 {
        return Err(io::Error::other("this kernel does not split datagrams"));
    }
    let (mut bytes, mut batch) = (vec![7u8; LEN * window], RecvBatch::new(8, 65_535));
    let begin = thread_time();
    for _ in 0..total / window {
        let result;
        (result, bytes) = sender.send_segmented(bytes, LEN).await;
        if result? != LEN * window {
            return Err(io::Error::other("not everything was sent"));
        }
        receive(&receiver, &mut batch, window).await?;
    }
    each(begin, total)
}

/// The receiver waits before each datagram is sent.
async fn one_that_waits(total: usize, in_batches: bool) -> io::Result<f64> {
    let (sender, receiver) = pair().await?;
    let sender = Rc::new(sender);
    let (mut buf, mut batch) = (Vec::with_capacity(LEN), RecvBatch::new(32, LEN));
    let begin = thread_time();
    for _ in 0..total {
        let sending = windlass::spawn({
            let sender = sender.clone();
            async move { sender.send([7u8; LEN]).await.0 }
        });
        if in_batches {
            receive(&receiver, &mut batch, 1).await?;
        } else {
            let result;
            (result, buf) = receiver.recv_from(buf).await;
            check(result?.0)?;
        }
        sending.await??;
    }
    each(begin, total)
}

async fn send(sender: &UdpSocket, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let (result, bytes) = sender.send(bytes).await;
    result.map(|_| bytes)
}

async fn receive(receiver: &UdpSocket, batch: &mut RecvBatch, mut count: usize) -> io::Result<()> {
    while count > 0 {
        count -= receiver.recv_batch(batch).await?;
        for datagram in &*batch {
            check(datagram.len())?;
        }
    }
    Ok(())
}

fn check(len: usize) -> io::Result<()> {
    match len {
        LEN => Ok(()),
        _ => Err(io::Error::other("a datagram of another length")),
    }
}
