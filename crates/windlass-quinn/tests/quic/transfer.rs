//! Bulk transfers: offloads seen in counters, and loss.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_quinn::quinn::udp::{UdpSockRef, UdpSocketState};
use windlass_quinn::quinn::{Connection, Endpoint, EndpointConfig, VarInt};
use windlass_quinn::{Runtime, client, server};

use crate::support::{Counting, Counts, Proxy, block, byte, configs, on_every_driver, on_every_driver_within};

const BLOCK: usize = 256 << 10;

/// Sends `len` bytes on a new stream, and waits until the peer has them.
async fn upload(connection: &Connection, len: u64) {
    let mut stream = connection.open_uni().await.unwrap();
    let mut at = 0;
    while at < len {
        let count = BLOCK.min((len - at) as usize);
        stream.write_all(&block(at, count)).await.unwrap();
        at += count as u64;
    }
    stream.finish().unwrap();
    stream.stopped().await.unwrap();
}

/// Receives a stream, checks each byte, and returns their number.
async fn download(connection: &Connection) -> u64 {
    let mut stream = connection.accept_uni().await.unwrap();
    let mut at = 0;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await.unwrap() {
        assert_eq!(chunk.offset, at);
        let is_right = chunk.bytes.iter().zip(at..).all(|(&got, at)| got == byte(at));
        assert!(is_right, "a wrong byte after {at}");
        at += chunk.bytes.len() as u64;
    }
    at
}

#[test]
fn segmentation_offload_is_used() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let runtime = Runtime::new();
        let (sender, receiver) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        let make = |server_config, counts: &Arc<Counts>| {
            let socket = Counting::new(&runtime, counts.clone());
            let (config, runtime) = (EndpointConfig::default(), Arc::new(runtime.clone()));
            Endpoint::new_with_abstract_socket(config, server_config, socket, runtime).unwrap()
        };
        let server = make(Some(server_config), &receiver);
        let client = make(None, &sender);
        // What the kernel has, whether the runtime uses it or not.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let kernel = UdpSocketState::new(UdpSockRef::from(&socket)).unwrap();
        let (gso, gro) = (kernel.max_gso_segments(), kernel.gro_segments());

        let addr = server.local_addr().unwrap();
        let downloaded = windlass::spawn(async move { download(&server.accept().await.unwrap().await.unwrap()).await });
        let connection = client
            .connect_with(client_config, addr, "localhost")
            .unwrap()
            .await
            .unwrap();
        upload(&connection, 16 << 20).await;
        let stats = connection.stats();
        connection.close(VarInt::from_u32(0), b"");
        assert_eq!(downloaded.await.unwrap(), 16 << 20);
        println!(
            "up to {gso} segments per send and {gro} per receive: sent {:.2} datagrams per call, received {:.2} per message; \
             quinn counts {} datagrams in {} calls",
            sender.per_send(),
            receiver.per_message(),
            stats.udp_tx.datagrams,
            stats.udp_tx.ios
        );
        if gso > 1 {
            assert!(sender.per_send() > 1.5, "GSO is not used");
            assert!(stats.udp_tx.datagrams > stats.udp_tx.ios);
        }
        if gso > 1 && gro > 1 {
            assert!(receiver.per_message() > 1.5, "GRO is not used");
        }
    });
}

/// Transfers through a proxy that drops every 50th datagram in each direction.
async fn lossy(len: u64) {
    let (server_config, client_config) = configs("test");
    let server = server("127.0.0.1:0", server_config).unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap(), 50, 0).await;
    let client = client("127.0.0.1:0", client_config).unwrap();
    let start = Instant::now();
    let downloaded = windlass::spawn(async move { download(&server.accept().await.unwrap().await.unwrap()).await });
    let connection = client.connect(proxy.addr, "localhost").unwrap().await.unwrap();
    upload(&connection, len).await;
    let lost = connection.stats().path.lost_packets;
    connection.close(VarInt::from_u32(0), b"");
    assert_eq!(downloaded.await.unwrap(), len);
    let [up, down] = [0, 1].map(|direction| proxy.dropped[direction].get());
    println!(
        "{len} bytes in {:?}; dropped {up} and {down} datagrams; quinn lost {lost} packets",
        start.elapsed()
    );
    assert!(up > 0 && lost > 0, "nothing was lost");
}

#[test]
fn lost_datagrams() {
    on_every_driver(async || lossy(16 << 20).await);
}

#[test]
#[ignore = "takes minutes"]
fn a_gibibyte_with_loss() {
    on_every_driver_within(Duration::from_secs(3600), async || lossy(1 << 30).await);
}
