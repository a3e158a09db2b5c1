//! Request and reply over TCP, with connections that are reset, cut and left half-open.
//!
//! A client sends numbered requests and waits for the echo of each. On an error or after a timeout it connects again and
//! repeats the request. The server closes connections without requests after a while, since the client of a half-open
//! connection never will.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::rand::Rng;
use windlass::sim::{Chaos, FaultKind, Sim};
use windlass::time::{sleep, timeout};

use super::{finds, passes};
use crate::TestResult;

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The client keeps the part of a reply that it received before its connection broke.
    keeps_partial_reply: bool,
    /// The server waits for the next request without a limit.
    no_idle_timeout: bool,
}

const IDLE: Duration = Duration::from_secs(20);

/// Length of the payload and number of the request, before the payload.
const HEADER: usize = 12;

fn frame(id: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend(id.to_le_bytes());
    frame.extend(payload);
    frame
}

/// Takes one frame from the beginning of the bytes, if it is complete.
fn take_frame(bytes: &mut Vec<u8>) -> Option<(u64, Vec<u8>)> {
    let len = u32::from_le_bytes(bytes.get(..4)?.try_into().unwrap()) as usize;
    let id = u64::from_le_bytes(bytes.get(4..HEADER)?.try_into().unwrap());
    let payload = bytes.get(HEADER..HEADER.checked_add(len)?)?.to_vec();
    bytes.drain(..HEADER + len);
    Some((id, payload))
}

/// Counts an open connection while it lives.
struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn serve(open: Rc<Cell<usize>>, bugs: Bugs) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        open.set(open.get() + 1);
        let guard = Open(open.clone());
        windlass::spawn(async move {
            let _guard = guard;
            // An error ends this connection alone.
            let _ = echo(stream, bugs).await;
        })
        .detach();
    }
}

async fn echo(stream: TcpStream, bugs: Bugs) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let idle = if bugs.no_idle_timeout { Duration::MAX } else { IDLE };
        let received = timeout(idle, stream.read_managed()).await??;
        if received.is_empty() {
            return Ok(());
        }
        bytes.extend_from_slice(&received);
        while let Some((id, payload)) = take_frame(&mut bytes) {
            timeout(IDLE, stream.write_all(frame(id, &payload))).await?.0?;
        }
    }
}

struct Client {
    stream: Option<TcpStream>,
    received: Vec<u8>,
    bugs: Bugs,
}

impl Client {
    /// The reply to a request, over as many connections as it takes.
    async fn call(&mut self, id: u64, payload: &[u8], rng: &mut Rng) -> (u64, Vec<u8>) {
        loop {
            match timeout(Duration::from_secs(4), self.attempt(id, payload)).await {
                Ok(Ok(reply)) => return reply,
                Ok(Err(_)) | Err(_) => {
                    self.stream = None;
                    if !self.bugs.keeps_partial_reply {
                        self.received.clear();
                    }
                    sleep(Duration::from_millis(rng.range(10..500))).await;
                }
            }
        }
    }

    async fn attempt(&mut self, id: u64, payload: &[u8]) -> io::Result<(u64, Vec<u8>)> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(TcpStream::connect("server:7000").await?),
        };
        stream.write_all(frame(id, payload)).await.0?;
        loop {
            if let Some(reply) = take_frame(&mut self.received) {
                return Ok(reply);
            }
            let received = stream.read_managed().await?;
            if received.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&received);
        }
    }
}

async fn request_all(requests: u64, done: Rc<Cell<usize>>, bugs: Bugs) {
    let mut rng = Rng::new();
    let mut client = Client {
        stream: None,
        received: Vec::new(),
        bugs,
    };
    for id in 0..requests {
        let mut payload = vec![0; rng.range(0..60_000) as usize];
        rng.fill(&mut payload);
        let reply = client.call(id, &payload, &mut rng).await;
        assert_eq!(reply.0, id, "the reply to another request");
        assert!(reply.1 == payload, "the reply to request {id} was changed");
        if rng.chance(0.1) {
            sleep(Duration::from_millis(rng.range(0..3_000))).await;
        }
    }
    done.set(done.get() + 1);
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let open = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    let clients = sim.size("clients", 1..=4) as usize;
    let requests = sim.size("requests", 1..=40);
    sim.host("server").start({
        let open = open.clone();
        move || serve(open.clone(), bugs)
    });
    let names: Vec<String> = (0..clients).map(|number| format!("c{number}")).collect();
    for name in &names {
        let done = done.clone();
        sim.host(name).start(move || request_all(requests, done.clone(), bugs));
    }
    sim.chaos(
        Chaos::only([
            FaultKind::Cut,
            FaultKind::CutOneWay,
            FaultKind::Slow,
            FaultKind::Lossy,
            FaultKind::Kill,
            FaultKind::PowerLoss,
            FaultKind::Pause,
        ])
        .every(Duration::from_secs(10)),
    );
    let mut rng = sim.rng();
    for _ in 0..sim.size("resets", 0..=20) {
        sleep(Duration::from_millis(rng.range(0..2_000))).await;
        sim.reset(rng.pick(&names).unwrap(), "server");
    }
    sim.sometimes("all clients were done before the faults ended", done.get() >= clients);
    sim.calm();
    // A client that was restarted after it was done counts twice.
    sim.within(Duration::from_secs(600), async {
        while done.get() < clients {
            sleep(Duration::from_millis(100)).await;
        }
        TestResult::Ok(())
    })
    .await?;
    sleep(IDLE * 2 + Duration::from_secs(1)).await;
    assert_eq!(open.get(), 0, "connections are left open");
    Ok(())
}

#[test]
fn every_request_is_answered_and_no_connection_leaks() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_partial_reply_that_is_kept_is_found() {
    finds("was changed", |sim| {
        scenario(
            sim,
            Bugs {
                keeps_partial_reply: true,
                ..Bugs::default()
            },
        )
    });
}

#[test]
fn half_open_connections_are_found() {
    finds("connections are left open", |sim| {
        scenario(
            sim,
            Bugs {
                no_idle_timeout: true,
                ..Bugs::default()
            },
        )
    });
}
