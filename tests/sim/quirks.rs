//! Quirks of drivers: every kind occurs, programs do not notice them, and hosts of a world can have them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use windlass::fs::OpenOptions;
use windlass::net::{TcpListener, TcpStream};
use windlass::rand::Rng;
use windlass::sim::{self, Audit, Crash, Quirks, Sim};
use windlass::task::yield_now;
use windlass::{Builder, DriverChoice, EventLoop, spawn};

use crate::scenarios::finds;
use crate::{MS, SEC, TestResult, connect, echo, failure_of, ping, plain};

/// How often each quirk has occurred.
type Counts = BTreeMap<&'static str, u64>;

/// Runs a workload on the null driver with these quirks.
fn counts_of(quirks: &Quirks, seed: u64) -> Counts {
    let audit = Audit::new();
    let (wrapping, collecting) = (quirks.clone(), audit.clone());
    let builder = Builder::new().driver(DriverChoice::Null);
    let event_loop = builder
        .wrap_driver(move |inner| wrapping.wrap_audited(inner, &collecting))
        .build()
        .expect("a loop");
    // A shortage of memory is reported there.
    event_loop.set_exception_handler(|_| {});
    run_workload(&event_loop, seed);
    drop(event_loop);
    assert_eq!(audit.violations(), [""; 0]);
    audit.quirks().into_iter().collect()
}

fn run_workload(event_loop: &EventLoop, seed: u64) {
    let workload = async {
        let listener = retried(|| TcpListener::bind("127.0.0.1:0")).await;
        let mut tasks = Vec::new();
        for number in 0..4 {
            let rng = Rng::from_seed(seed * 100 + number);
            let (client, server) = pair(&listener).await;
            tasks.push(spawn(write(client, rng.clone())));
            tasks.push(spawn(read(server, rng.clone())));
            let (client, server) = pair(&listener).await;
            tasks.push(spawn(write_and_drop(client, server)));
            if cfg!(unix) {
                tasks.push(spawn(use_file(number, rng)));
            }
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    };
    event_loop.run_until_complete(workload).expect("the loop runs");
}

/// Makes a call again as long as there are no descriptors.
async fn retried<T, F: Future<Output = io::Result<T>>>(mut call: impl FnMut() -> F) -> T {
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => assert!(error.to_string().contains("open files"), "{error}"),
        }
    }
}

async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let addr = listener.local_addr().expect("an address");
    let connecting = spawn(retried(move || TcpStream::connect(addr)));
    let (server, _) = listener.accept().await.expect("accept");
    (connecting.await.expect("no panic"), server)
}

const LEN: usize = 40_000;

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

async fn write(stream: TcpStream, mut rng: Rng) {
    let bytes: Vec<u8> = (0..LEN).map(byte).collect();
    let mut at = 0;
    while at < LEN {
        let end = (at + rng.range(1..=4_000) as usize).min(LEN);
        stream.write_all(bytes[at..end].to_vec()).await.0.expect("write");
        at = end;
    }
}

/// Reads the whole stream in every way, and drops many of the reads.
async fn read(stream: TcpStream, mut rng: Rng) {
    let mut received = Vec::new();
    loop {
        let way = rng.below(3);
        let reading = async {
            match way {
                0 => stream.read_managed().await.expect("read").to_vec(),
                1 => {
                    let (result, buf) = stream.read(vec![0; 500]).await;
                    buf[..result.expect("read")].to_vec()
                }
                _ => {
                    let (result, bufs) = stream.read_vectored(vec![vec![0; 100]; 3]).await;
                    bufs.concat()[..result.expect("read")].to_vec()
                }
            }
        };
        match within(reading, rng.below(6)).await {
            Some(bytes) if bytes.is_empty() => break,
            Some(bytes) => received.extend(bytes),
            None => {}
        }
    }
    assert!(received.iter().copied().eq((0..LEN).map(byte)), "{}", received.len());
}

/// Awaits a future for this many turns.
async fn within<F: Future>(future: F, turns: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..turns {
        let poll = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = poll {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Drops writes: the peer gets as many bytes as later writes count.
async fn write_and_drop(client: TcpStream, server: TcpStream) {
    let reader = spawn(async move { while !server.read_managed().await.expect("read").is_empty() {} });
    for turns in 0..40 {
        within(client.write_all(vec![1; 10_000]), turns % 7).await;
    }
    drop(client);
    reader.await.expect("no panic");
}

async fn use_file(number: u64, mut rng: Rng) {
    let path = std::env::temp_dir().join(format!("quirks-{number}"));
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .clone();
    let file = retried(|| options.open(&path)).await;
    let bytes: Vec<u8> = (0..LEN).map(byte).collect();
    let mut at = 0;
    while at < LEN {
        let end = (at + rng.range(1..=20_000) as usize).min(LEN);
        let written = file.write_at(bytes[at..end].to_vec(), at as u64).await;
        at += written.0.expect("write");
    }
    let (mut received, mut dropped) = (Vec::new(), 0);
    while received.len() < LEN {
        // A dropped read of a file makes no progress: the next one is awaited for longer.
        let turns = rng.below(6) + dropped;
        let reading = file.read_at(vec![0; 1 + rng.below(20_000) as usize], received.len() as u64);
        if let Some((result, buf)) = within(reading, turns).await {
            received.extend_from_slice(&buf[..result.expect("read")]);
            dropped = 0;
        } else {
            dropped += 1;
        }
    }
    assert!(received == bytes);
}

/// Adds the counts of some seeds.
fn swept(quirks: impl Fn(u64) -> Quirks) -> Counts {
    let mut all = Counts::new();
    for seed in 0..10 {
        for (name, count) in counts_of(&quirks(seed), seed) {
            *all.entry(name).or_default() += count;
        }
    }
    all
}

#[test]
fn every_quirk_occurs_when_it_is_on_and_no_other_does() {
    assert_eq!(swept(Quirks::none), Counts::new());
    type Set = fn(Quirks) -> Quirks;
    let cases: &[(Set, &[&str])] = &[
        (|q| q.late_starts(0.3), &["late start", "cancel won"]),
        (|q| q.done_at_once(0.5), &["done at once"]),
        (
            |q| q.attempts_served(0.5).tries_first(true),
            &["attempt refused", "attempt served"],
        ),
        (|q| q.late_completions(0.5), &["late completion"]),
        (|q| q.split_polls(0.5), &["split poll"]),
        (|q| q.permuted(true), &["permuted"]),
        (|q| q.late_cancels(0.5), &["late cancel"]),
        (|q| q.late_starts(0.3).lost_cancels(1.0), &["late start", "cancel lost"]),
        (|q| q.short_counts(0.3), &["short count"]),
        (|q| q.empty_polls(0.3), &["empty poll"]),
        (|q| q.short_of_memory(0.1), &["failed poll"]),
        (|q| q.empty_pool(0.3), &["empty pool"]),
        (|q| q.aborted_accepts(0.3), &["aborted accept"]),
        (|q| q.no_descriptors(0.3), &["no descriptor"]),
        (
            |q| q.queue_entries(1).lost_cancels(1.0),
            &["parked start", "parked cancel", "cancel lost"],
        ),
        (
            |q| q.late_starts(0.3).scribbles(true),
            &["late start", "cancel won", "scribble"],
        ),
        (
            |q| q.short_counts(0.5).continued_sends(1.0).most_polls(8),
            &["short count", "continued send", "cancel halfway"],
        ),
    ];
    for (set, expected) in cases {
        let counts = swept(|seed| set(Quirks::none(seed)));
        let expected: Counts = expected.iter().map(|name| (*name, 1)).collect();
        assert!(
            counts.keys().eq(expected.keys()),
            "{counts:?}, but expected {expected:?}"
        );
    }
}

#[test]
fn a_swarm_has_every_quirk_that_programs_do_not_notice() {
    let counts = swept(Quirks::swarm);
    assert_eq!(counts.len(), 19, "{counts:?}");
    for name in ["failed poll", "no descriptor"] {
        assert!(!counts.contains_key(name), "{counts:?}");
    }
}

/// A message in one write: the reader wrongly expects it in one read.
async fn one_read(sim: Sim, quirks: Option<Quirks>) -> TestResult {
    sim.links(plain());
    let host = sim.host("server");
    let host = match quirks {
        Some(quirks) => host.quirks(quirks),
        None => host,
    };
    host.start(|| async {
        let listener = TcpListener::bind("0.0.0.0:7000").await?;
        let (stream, _) = listener.accept().await?;
        let (result, _) = stream.read(vec![0; 5]).await;
        assert_eq!(result?, 5, "one read");
        stream.write_all("thank you").await.0
    });
    let stream = connect("server").await?;
    stream.write_all("hello").await.0?;
    stream.read_exact(vec![0; 9]).await.0?;
    Ok(())
}

#[test]
fn a_host_can_have_quirks() {
    sim::sweep(0..50, |sim| one_read(sim, None));
    sim::sweep(0..50, |sim| {
        let quirks = Quirks::swarm(sim.seed()).short_counts(0.0);
        one_read(sim, Some(quirks))
    });
    finds("one read", |sim| {
        let quirks = Quirks::swarm(sim.seed());
        one_read(sim, Some(quirks))
    });
}

#[test]
fn the_timeline_shows_quirks_and_shrinking_removes_them() {
    let late = |sim: &Sim| Quirks::swarm(sim.seed()).late_completions(0.5);
    let needed = failure_of(|sim| async move {
        sim.links(plain());
        sim.host("server").quirks(late(&sim).short_counts(1.0)).start(|| async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let (stream, _) = listener.accept().await?;
            assert_eq!(stream.read(vec![0; 5]).await.0?, 5, "one read");
            Ok::<(), io::Error>(())
        });
        let stream = connect("server").await?;
        stream.write_all("hello").await.0?;
        stream.read_managed().await?;
        Ok(())
    });
    assert!(!needed.contains("quirks=off"), "{needed}");
    assert!(needed.contains("quirk: "), "the quirks of the loop: {needed}");
    assert!(needed.contains("quirk late completion"), "{needed}");
    let unneeded = failure_of(|sim| async move {
        sim.host("server").quirks(late(&sim)).start(echo);
        ping(&connect("server").await?, "hello").await?;
        Err("always".into())
    });
    assert!(unneeded.contains("quirks=off"), "{unneeded}");
}

/// Crashes and restarts under load: the audit of every loop that ends finds nothing, and each run is the same twice.
#[test]
fn hosts_with_quirks_crash_and_restart() {
    sim::sweep(0..30, |sim| async move {
        let quirks = Quirks::swarm(sim.seed());
        sim.host("server").quirks(quirks.clone()).start(echo);
        let served = Rc::new(Cell::new(0));
        sim.host("client").quirks(quirks).may_fail().start({
            let served = served.clone();
            move || {
                let served = served.clone();
                async move {
                    loop {
                        let Ok(stream) = connect("server").await else {
                            windlass::time::sleep(10 * MS).await;
                            continue;
                        };
                        // A server that loses power after it has received the request never answers: the connection is
                        // half-open, and a read without a timeout would wait forever.
                        let ask = || windlass::time::timeout(SEC, ping(&stream, "to the server and back"));
                        while let Ok(Ok(())) = ask().await {
                            served.set(served.get() + 1);
                        }
                    }
                    #[allow(unreachable_code)]
                    Ok::<(), io::Error>(())
                }
            }
        });
        for round in 0..6 {
            windlass::time::sleep(20 * MS).await;
            let crash = if round % 2 == 0 { Crash::Process } else { Crash::Power };
            sim.crash("server", crash);
            windlass::time::sleep(10 * MS).await;
            sim.restart("server");
        }
        let before = served.get();
        sim.within(600 * SEC, async {
            while served.get() == before {
                windlass::time::sleep(MS).await;
            }
            Ok::<(), io::Error>(())
        })
        .await
    });
}
