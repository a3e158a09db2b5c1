//! The work on madsim: this file is the whole program in the build with `--cfg madsim`. No faults.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use madsim::Config;
use madsim::net::{TcpListener, TcpStream, UdpSocket};
use madsim::runtime::{Handle, Runtime};
use madsim::time::sleep;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::work::{self, BEAT, CLIENTS, LATENCY, MESSAGE, Scenario, Work};

pub(crate) fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let work = Work::parse(&args).map_err(io::Error::other)?;
    println!("{}", work.measure(&simulate)?);
    Ok(())
}

fn simulate(seeds: Range<u64>, scenario: Scenario) -> io::Result<()> {
    for seed in seeds {
        work::begin();
        let mut config = Config::default();
        // An empty range is refused.
        config.net.send_latency = LATENCY..LATENCY + Duration::from_nanos(1);
        let mut runtime = Runtime::with_seed_and_config(seed, config);
        runtime.set_time_limit(scenario.time_limit());
        runtime.block_on(async {
            match scenario {
                Scenario::Echo {
                    connections,
                    echoes,
                    pause,
                } => echo(connections, echoes, pause).await,
                Scenario::Heartbeats {
                    hosts,
                    neighbours,
                    beats,
                } => heartbeats(hosts, neighbours, beats).await,
            }
        })?;
    }
    Ok(())
}

fn addr(host: usize, port: u16) -> SocketAddr {
    let [high, low] = (host as u16 + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), port)
}

async fn echo(connections: usize, echoes: usize, pause: Duration) -> io::Result<()> {
    let handle = Handle::current();
    let server = handle.create_node().name("server").ip(addr(0, 0).ip()).build();
    server.spawn(serve());
    // madsim refuses a connection if the server does not listen yet; the others send the request again.
    sleep(LATENCY).await;
    let clients = (0..CLIENTS).map(|client| {
        let name = format!("client{client}");
        let node = handle.create_node().name(name).ip(addr(1 + client, 0).ip()).build();
        node.spawn(async move {
            let tasks: Vec<_> = (0..connections)
                .map(|_| madsim::task::spawn(talk(echoes, pause)))
                .collect();
            for task in tasks {
                task.await.expect("a client does not panic")?;
            }
            Ok::<(), io::Error>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("a client does not panic")?;
    }
    Ok(())
}

async fn serve() -> io::Result<()> {
    let listener = TcpListener::bind(addr(0, 7000)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        madsim::task::spawn(async move {
            let mut buffer = [0; MESSAGE];
            // Bytes are sent by a flush.
            while stream.read_exact(&mut buffer).await.is_ok()
                && stream.write_all(&buffer).await.is_ok()
                && stream.flush().await.is_ok()
            {}
        });
    }
}

async fn talk(echoes: usize, pause: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect(addr(0, 7000)).await?;
    let mut buffer = [7; MESSAGE];
    for _ in 0..echoes {
        stream.write_all(&buffer).await?;
        stream.flush().await?;
        stream.read_exact(&mut buffer).await?;
        work::arrived(2);
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
    Ok(())
}

async fn heartbeats(hosts: usize, neighbours: usize, beats: usize) -> io::Result<()> {
    let handle = Handle::current();
    let nodes = (0..hosts).map(|host| {
        let node = handle
            .create_node()
            .name(format!("h{host}"))
            .ip(addr(host, 0).ip())
            .build();
        node.spawn(async move {
            let socket = Arc::new(UdpSocket::bind(addr(host, 9000)).await?);
            madsim::task::spawn(receive(socket.clone()));
            sleep(BEAT).await;
            let peers: Vec<SocketAddr> = (1..=neighbours).map(|step| addr((host + step) % hosts, 9000)).collect();
            let buffer = [host as u8; MESSAGE];
            for _ in 0..beats {
                for peer in &peers {
                    socket.send_to(*peer, &buffer).await?;
                }
                sleep(BEAT).await;
            }
            Ok::<(), io::Error>(())
        })
    });
    for node in nodes.collect::<Vec<_>>() {
        node.await.expect("a host does not panic")?;
    }
    Ok(())
}

async fn receive(socket: Arc<UdpSocket>) {
    let mut buffer = [0; MESSAGE];
    loop {
        if socket.recv_from(&mut buffer).await.is_ok() {
            work::arrived(1);
        }
    }
}
