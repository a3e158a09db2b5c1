//! Calls over UDP that take effect exactly once, although datagrams are lost, duplicated and reordered.
//!
//! A client numbers its calls and repeats each until it has the reply. The server remembers each client's last number
//! and reply, and answers a repetition from there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::UdpSocket;
use windlass::rand::Rng;
use windlass::sim::{Chaos, FaultKind, Sim};
use windlass::time::{sleep, timeout};

use super::{finds, passes};
use crate::{TestResult, v4};

#[derive(Clone, Copy, Default)]
struct Bugs {
    /// The server carries a repeated call out again.
    no_memory: bool,
    /// The client takes a late reply to an earlier call for the reply to the current one.
    takes_any_reply: bool,
    /// The server compares numbers for equality only, so that a call that arrives late is new to it.
    forgets_order: bool,
}

/// Client, number, amount.
fn encode(words: [u64; 3]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Option<[u64; 3]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; 3] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}

/// Adds amounts to one total per client, and answers with the new total.
async fn serve(bugs: Bugs) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:7000").await?;
    let mut totals: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    loop {
        let datagram = socket.recv_managed().await?;
        let Some([client, number, amount]) = decode(&datagram) else {
            continue;
        };
        let (last, total) = totals.entry(client).or_default();
        let is_new = match bugs {
            Bugs { no_memory: true, .. } => true,
            Bugs {
                forgets_order: true, ..
            } => number != *last,
            _ => number > *last,
        };
        if is_new {
            *last = number;
            *total += amount;
        }
        // The reply to an old call, if anyone still waits for it, is the current total: its client has moved on.
        let _ = socket
            .send_to(encode([client, number, *total]), datagram.from())
            .await
            .0;
    }
}

async fn call_all(client: u64, calls: u64, done: Rc<Cell<usize>>, bugs: Bugs) -> io::Result<()> {
    let mut rng = Rng::new();
    let server = v4("server", 7000).await?;
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    let mut expected = 0;
    for number in 1..=calls {
        let amount = rng.range(1..1_000);
        expected += amount;
        let total = call(&socket, server, [client, number, amount], bugs).await;
        assert_eq!(total, expected, "client {client}: the wrong total after call {number}");
        // A late copy of a call is only harmful soon after it; faults come seconds apart.
        if rng.chance(0.1) {
            sleep(Duration::from_millis(rng.range(0..2_000))).await;
        }
    }
    done.set(done.get() + 1);
    Ok(())
}

async fn call(socket: &UdpSocket, server: SocketAddr, words: [u64; 3], bugs: Bugs) -> u64 {
    loop {
        let _ = socket.send_to(encode(words), server).await.0;
        let reply = timeout(Duration::from_millis(200), async {
            loop {
                let Ok(datagram) = socket.recv_managed().await else {
                    continue;
                };
                match decode(&datagram) {
                    Some([_, replied, total]) if replied == words[1] || bugs.takes_any_reply => return total,
                    _ => {}
                }
            }
        });
        if let Ok(total) = reply.await {
            return total;
        }
    }
}

async fn scenario(sim: Sim, bugs: Bugs) -> TestResult {
    let done = Rc::new(Cell::new(0));
    let clients = sim.size("clients", 1..=3);
    let calls = sim.size("calls", 1..=100);
    sim.host("server").start(move || serve(bugs));
    for client in 0..clients {
        let done = done.clone();
        sim.host(&format!("c{client}"))
            .start(move || call_all(client, calls, done.clone(), bugs));
    }
    sim.chaos(
        Chaos::only([FaultKind::Lossy, FaultKind::Slow, FaultKind::Cut, FaultKind::Pause])
            .every(Duration::from_secs(3))
            .lasting(Duration::from_secs(3)),
    );
    let lasting = sim.size("seconds", 1..=60);
    let _ = timeout(Duration::from_secs(lasting), async {
        while done.get() < clients as usize {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    sim.calm();
    sim.within(Duration::from_secs(120), async {
        while done.get() < clients as usize {
            sleep(Duration::from_millis(100)).await;
        }
        TestResult::Ok(())
    })
    .await?;
    Ok(())
}

#[test]
fn each_call_takes_effect_once() {
    passes(|sim| scenario(sim, Bugs::default()));
}

#[test]
fn a_server_without_memory_is_found() {
    finds("the wrong total", |sim| {
        scenario(
            sim,
            Bugs {
                no_memory: true,
                ..Bugs::default()
            },
        )
    });
}

#[test]
fn a_client_that_takes_any_reply_is_found() {
    finds("the wrong total", |sim| {
        scenario(
            sim,
            Bugs {
                takes_any_reply: true,
                ..Bugs::default()
            },
        )
    });
}

#[test]
fn a_server_that_forgets_the_order_is_found() {
    finds("the wrong total", |sim| {
        scenario(
            sim,
            Bugs {
                forgets_order: true,
                ..Bugs::default()
            },
        )
    });
}
