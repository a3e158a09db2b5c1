//! More clients than a server has descriptors, buffers and memory for.
//!
//! The server's backlog is short, its process may open few descriptors, its kernel is short of memory for sockets now and
//! then, and its pool has few buffers. It must not stop accepting: every client that keeps trying is served. For each request
//! it opens a file. Some clients connect and say nothing.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::fs::File;
use windlass::net::{TcpListener, TcpStream};
use windlass::os_code;
use windlass::rand::Rng;
use windlass::sim::Sim;
use windlass::time::{sleep, timeout};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The server waits for a request without a limit.
    no_idle_timeout: bool,
    /// An error of one connection ends the server.
    stops_at_errors: bool,
    /// The server keeps the connections whose requests have failed.
    keeps_failed: bool,
}

const IDLE: Duration = Duration::from_secs(3);

const REQUEST: usize = 100;

/// What the server has met.
#[derive(Default)]
struct Met {
    out_of_descriptors: Cell<bool>,
}

async fn serve(backlog: u32, met: Rc<Met>, bugs: Bugs) -> io::Result<()> {
    let listener = loop {
        match TcpListener::builder().backlog(backlog).listen("0.0.0.0:7000").await {
            Ok(listener) => break listener,
            // The kernel is short of memory.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    };
    let failed = Rc::new(Cell::new(Vec::new()));
    loop {
        let (stream, _) = listener.accept().await?;
        let (met, failed) = (met.clone(), failed.clone());
        let session = windlass::spawn(async move {
            let result = answer(&stream, bugs).await;
            let code = result.as_ref().err().and_then(os_code);
            // A read that finds the pool empty gets memory elsewhere.
            assert_ne!(code, Some(libc::ENOBUFS), "a read failed for lack of buffers");
            if code == Some(libc::EMFILE) {
                met.out_of_descriptors.set(true);
                if bugs.keeps_failed {
                    let mut streams = failed.take();
                    streams.push(stream);
                    failed.set(streams);
                }
            }
            result
        });
        match bugs.stops_at_errors {
            true => session.await.map_err(io::Error::other)??,
            false => session.detach(),
        }
    }
}

/// Reads a request, reads the reply from a file, and sends it.
async fn answer(stream: &TcpStream, bugs: Bugs) -> io::Result<()> {
    let idle = if bugs.no_idle_timeout { Duration::MAX } else { IDLE };
    timeout(idle, async {
        // Keeps buffers of the pool until the request is complete.
        let mut received = Vec::new();
        while received
            .iter()
            .map(|part: &windlass::io::ManagedBuf| part.len())
            .sum::<usize>()
            < REQUEST
        {
            let part = stream.read_managed().await?;
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received.push(part);
        }
        io::Result::Ok(())
    })
    .await??;
    let file = File::open("/reply").await?;
    let (result, reply) = file.read_exact_at(vec![0; 5], 0).await;
    result?;
    // The file is busy for as long as the client takes.
    timeout(IDLE, stream.write_all(reply)).await?.0
}

/// Tries until it is served, `times` times.
async fn request_all(times: u64, slow: bool, done: Rc<Cell<u64>>) {
    let mut rng = Rng::new();
    for _ in 0..times {
        while !matches!(
            timeout(Duration::from_secs(10), request(slow, &mut rng)).await,
            Ok(Ok(()))
        ) {
            sleep(Duration::from_millis(rng.range(1..300))).await;
        }
        done.set(done.get() + 1);
    }
}

async fn request(slow: bool, rng: &mut Rng) -> io::Result<()> {
    let stream = TcpStream::connect("server:7000").await?;
    stream.write_all(vec![b'?'; REQUEST / 2]).await.0?;
    if slow {
        sleep(Duration::from_millis(rng.range(0..500))).await;
    }
    stream.write_all(vec![b'?'; REQUEST / 2]).await.0?;
    let (result, reply) = stream.read_exact([0; 5]).await;
    result?;
    assert_eq!(&reply, b"hello", "another reply");
    Ok(())
}

/// Connects and says nothing, again and again.
async fn keep_silent(connections: u64) {
    let mut streams = Vec::new();
    for _ in 0..connections {
        if let Ok(Ok(stream)) = timeout(Duration::from_secs(1), TcpStream::connect("server:7000")).await {
            streams.push(stream);
        }
        sleep(Duration::from_millis(20)).await;
    }
    std::future::pending().await
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let mut rng = sim.rng();
    let clients = sim.size("clients", 1..=10);
    let requests = sim.size("requests", 1..=5);
    let silent = sim.size("silent", 0..=12);
    let backlog = rng.range(1..=4) as u32;
    let descriptors = rng.range(4..=16) as usize;
    let buffers = rng.range(1..=4) as u16;
    let met = Rc::new(Met::default());
    let mut server = sim
        .host("server")
        .max_descriptors(descriptors)
        .builder(move |builder| builder.managed_buffers(buffers, 64));
    if rng.chance(0.5) {
        server = server.socket_shortage(0.3 * rng.unit());
    }
    if rng.chance(0.3) {
        server = server.abort_on_overflow();
    }
    if bugs.stops_at_errors {
        server = server.may_fail();
    }
    sim.disk("server").write("/reply", "hello")?;
    server.start({
        let met = met.clone();
        move || serve(backlog, met.clone(), bugs)
    });
    let done = Rc::new(Cell::new(0));
    for client in 0..clients {
        let (done, slow) = (done.clone(), rng.chance(0.3));
        sim.host(&format!("c{client}"))
            .start(move || request_all(requests, slow, done.clone()));
    }
    sim.host("silent").start(move || keep_silent(silent));
    sleep(Duration::from_secs(2)).await;
    sim.sometimes("a request met EMFILE", met.out_of_descriptors.get());
    sim.sometimes("a client still waits", done.get() < clients * requests);
    sim.calm();
    let served = sim.within(Duration::from_secs(120), async {
        while done.get() < clients * requests {
            sleep(Duration::from_millis(100)).await;
        }
        TestResult::Ok(())
    });
    assert!(served.await.is_ok(), "a client is not served");
    Ok(())
}

#[test]
fn every_client_is_served() {
    let report = passes(|sim| scenario(sim, Bugs::default()));
    // A listener that lacks descriptors pauses: it does not try again and again.
    assert!(report.events < 5_000 * report.seeds, "{report}");
}

#[test]
fn silent_clients_are_found() {
    finds("a client is not served", |sim| {
        let bugs = Bugs {
            no_idle_timeout: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn a_server_that_stops_at_an_error_is_found() {
    finds("a client is not served", |sim| {
        let bugs = Bugs {
            stops_at_errors: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}

#[test]
fn leaked_connections_are_found() {
    finds("a client is not served", |sim| {
        let bugs = Bugs {
            keeps_failed: true,
            ..Bugs::default()
        };
        scenario(sim, bugs)
    });
}
