//! The work on turmoil, with its defaults: a tick is 1 ms. No faults.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream, UdpSocket};
use turmoil::{Builder, Sim};

use crate::work::{self, BEAT, CLIENTS, LATENCY, MESSAGE, Scenario};

pub(crate) fn simulate(seeds: Range<u64>, scenario: Scenario) -> io::Result<()> {
    for seed in seeds {
        work::begin();
        let mut sim = Builder::new()
            .rng_seed(seed)
            .simulation_duration(scenario.time_limit())
            .min_message_latency(LATENCY)
            .max_message_latency(LATENCY)
            .build();
        match scenario {
            Scenario::Echo {
                connections,
                echoes,
                pause,
            } => echo(&mut sim, connections, echoes, pause),
            Scenario::Heartbeats {
                hosts,
                neighbours,
                beats,
            } => heartbeats(&mut sim, hosts, neighbours, beats),
        }
        sim.run().map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(())
}

fn echo(sim: &mut Sim<'_>, connections: usize, echoes: usize, pause: Duration) {
    sim.host("server", serve);
    for client in 0..CLIENTS {
        sim.client(format!("client{client}"), async move {
            let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(talk(echoes, pause))).collect();
            for task in tasks {
                task.await??;
            }
            Ok(())
        });
    }
}

async fn serve() -> turmoil::Result {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buffer = [0; MESSAGE];
            while stream.read_exact(&mut buffer).await.is_ok() && stream.write_all(&buffer).await.is_ok() {}
        });
    }
}

async fn talk(echoes: usize, pause: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect("server:7000").await?;
    let mut buffer = [7; MESSAGE];
    for _ in 0..echoes {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        work::arrived(2);
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    Ok(())
}

fn heartbeats(sim: &mut Sim<'_>, hosts: usize, neighbours: usize, beats: usize) {
    for host in 0..hosts {
        sim.client(format!("h{host}"), async move {
            let socket = Rc::new(UdpSocket::bind("0.0.0.0:9000").await?);
            tokio::task::spawn_local(receive(socket.clone()));
            sleep(BEAT).await;
            let peers: Vec<SocketAddr> = (1..=neighbours)
                .map(|step| SocketAddr::new(turmoil::lookup(format!("h{}", (host + step) % hosts)), 9000))
                .collect();
            let buffer = [host as u8; MESSAGE];
            for _ in 0..beats {
                for peer in &peers {
                    socket.send_to(&buffer, *peer).await?;
                }
                sleep(BEAT).await;
            }
            Ok(())
        });
    }
}

async fn receive(socket: Rc<UdpSocket>) {
    let mut buffer = [0; MESSAGE];
    loop {
        if socket.recv_from(&mut buffer).await.is_ok() {
            work::arrived(1);
        }
    }
}
