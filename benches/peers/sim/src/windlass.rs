//! The work on windlass: with faults as in a test, or without.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream, UdpSocket};
use windlass::sim::{self, Dist, Link, Sim};
use windlass::time::sleep;

use crate::work::{self, BEAT, CLIENTS, LATENCY, MESSAGE, Scenario};

/// As a test has them: latencies vary, packets are lost, twice and out of order, reads and writes are cut short.
pub(crate) fn with_faults() -> Link {
    Link::new()
        .latency(Dist::exponential(LATENCY * 9 / 10, LATENCY / 10))
        .loss(0.001)
        .duplicate(0.001)
        .reorder(0.01)
        .short_counts(1.0 / 64.0)
}

/// As the peers: a constant latency and no faults.
pub(crate) fn without_faults() -> Link {
    Link::new().latency(Dist::constant(LATENCY)).short_counts(0.0)
}

pub(crate) fn simulate(seeds: Range<u64>, scenario: Scenario, link: Link) -> io::Result<()> {
    let swept = sim::try_sweep(seeds, move |sim| async move {
        work::begin();
        sim.time_limit(scenario.time_limit());
        sim.event_limit(u64::MAX);
        sim.links(link);
        match scenario {
            Scenario::Echo {
                connections,
                echoes,
                pause,
            } => echo(&sim, connections, echoes, pause).await,
            Scenario::Heartbeats {
                hosts,
                neighbours,
                beats,
            } => heartbeats(&sim, hosts, neighbours, beats).await,
        }
        Ok(())
    });
    swept.map(drop).map_err(|failed| io::Error::other(failed.to_string()))
}

/// Counts the hosts that are not done; the last one wakes the test.
struct Pending {
    hosts: Cell<usize>,
    waker: Cell<Option<Waker>>,
}

impl Pending {
    fn new(hosts: usize) -> Rc<Pending> {
        Rc::new(Pending {
            hosts: Cell::new(hosts),
            waker: Cell::new(None),
        })
    }

    fn done(&self) {
        self.hosts.set(self.hosts.get() - 1);
        if self.hosts.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    async fn all_done(&self) {
        poll_fn(|cx| {
            self.waker.set(Some(cx.waker().clone()));
            match self.hosts.get() {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }
}

async fn echo(sim: &Sim, connections: usize, echoes: usize, pause: Duration) {
    let pending = Pending::new(CLIENTS);
    sim.host("server").start(serve);
    for client in 0..CLIENTS {
        let pending = pending.clone();
        sim.host(&format!("client{client}")).start(move || {
            let pending = pending.clone();
            async move {
                let tasks: Vec<_> = (0..connections).map(|_| windlass::spawn(talk(echoes, pause))).collect();
                for task in tasks {
                    task.await.expect("a client does not panic")?;
                }
                pending.done();
                Ok::<(), io::Error>(())
            }
        });
    }
    pending.all_done().await;
}

async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        windlass::spawn(async move {
            let mut buffer = [0; MESSAGE];
            loop {
                let (received, bytes) = stream.read_exact(buffer).await;
                if received.is_err() {
                    return;
                }
                let (sent, bytes) = stream.write_all(bytes).await;
                if sent.is_err() {
                    return;
                }
                buffer = bytes;
            }
        });
    }
}

async fn talk(echoes: usize, pause: Duration) -> io::Result<()> {
    let stream = TcpStream::connect("server:7000").await?;
    let mut buffer = [7; MESSAGE];
    for _ in 0..echoes {
        let (sent, bytes) = stream.write_all(buffer).await;
        sent?;
        let (received, bytes) = stream.read_exact(bytes).await;
        received?;
        work::arrived(2);
        buffer = bytes;
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    Ok(())
}

async fn heartbeats(sim: &Sim, hosts: usize, neighbours: usize, beats: usize) {
    let pending = Pending::new(hosts);
    for host in 0..hosts {
        let pending = pending.clone();
        sim.host(&format!("h{host}")).start(move || {
            let pending = pending.clone();
            async move {
                let socket = Rc::new(UdpSocket::bind("0.0.0.0:9000").await?);
                windlass::spawn(receive(socket.clone()));
                // Those that are not there yet send nothing back.
                sleep(BEAT).await;
                let mut peers: Vec<SocketAddr> = Vec::new();
                for step in 1..=neighbours {
                    let name = format!("h{}:9000", (host + step) % hosts);
                    peers.extend(
                        windlass::net::lookup_host(name)
                            .await?
                            .into_iter()
                            .find(SocketAddr::is_ipv4),
                    );
                }
                let mut buffer = [host as u8; MESSAGE];
                for _ in 0..beats {
                    for peer in &peers {
                        let (sent, bytes) = socket.send_to(buffer, *peer).await;
                        sent?;
                        buffer = bytes;
                    }
                    sleep(BEAT).await;
                }
                pending.done();
                Ok::<(), io::Error>(())
            }
        });
    }
    pending.all_done().await;
}

async fn receive(socket: Rc<UdpSocket>) {
    let mut buffer = [0; MESSAGE];
    loop {
        let (received, bytes) = socket.recv_from(buffer).await;
        // The answer of a host that has ended.
        if received.is_ok() {
            work::arrived(1);
        }
        buffer = bytes;
    }
}
