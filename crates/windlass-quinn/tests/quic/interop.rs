//! quinn on tokio as the peer, in both directions. The protocol is that of quinn's example programs: `GET /path` on a stream of
//! its own, answered with the content.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use windlass_quinn::quinn::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig, VarInt};
use windlass_quinn::{client, server};

use crate::support::{block, configs, on_every_driver};

const PROTOCOL: &str = "hq-29";
const REQUESTS: usize = 20;

/// The content at a path: `/N` has N kilobytes.
fn content(request: &[u8]) -> Vec<u8> {
    let request = std::str::from_utf8(request).unwrap();
    let path = request
        .strip_prefix("GET /")
        .and_then(|rest| rest.strip_suffix("\r\n"))
        .unwrap();
    block(0, path.parse::<usize>().unwrap() * 1_000)
}

/// Serves one connection. It uses no runtime's API, so both sides can run it.
async fn serve(incoming: Incoming) {
    let connection = incoming.await.unwrap();
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let request = recv.read_to_end(64 << 10).await.unwrap();
        send.write_all(&content(&request)).await.unwrap();
        send.finish().unwrap();
    }
}

async fn get(connection: &Connection, path: usize) {
    let request = format!("GET /{path}\r\n");
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(request.as_bytes()).await.unwrap();
    send.finish().unwrap();
    assert_eq!(recv.read_to_end(usize::MAX).await.unwrap(), content(request.as_bytes()));
}

/// Connects, gets small and large contents, and closes.
async fn use_server(client: &Endpoint, addr: SocketAddr) {
    let connection = client.connect(addr, "localhost").unwrap().await.unwrap();
    for path in 0..REQUESTS {
        get(&connection, path * path).await;
    }
    connection.close(VarInt::from_u32(0), b"done");
    client.wait_idle().await;
}

fn on_tokio<F: Future<Output = ()>>(make: impl FnOnce() -> F + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(make());
    })
}

#[test]
fn a_tokio_client_with_our_server() {
    on_every_driver(async || {
        let (server_config, client_config) = configs(PROTOCOL);
        let server = server("127.0.0.1:0", server_config).unwrap();
        let addr = server.local_addr().unwrap();
        let tokio_client = on_tokio(move || tokio_client(addr, client_config));
        serve(server.accept().await.unwrap()).await;
        server.wait_idle().await;
        windlass::spawn_blocking(|| tokio_client.join().unwrap()).await.unwrap();
    });
}

async fn tokio_client(addr: SocketAddr, config: ClientConfig) {
    let mut client = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    client.set_default_client_config(config);
    use_server(&client, addr).await;
}

#[test]
fn our_client_with_a_tokio_server() {
    on_every_driver(async || {
        let (server_config, client_config) = configs(PROTOCOL);
        let (told, addr) = mpsc::channel();
        let tokio_server = on_tokio(move || tokio_server(told, server_config));
        let addr = windlass::spawn_blocking(move || addr.recv().unwrap()).await.unwrap();
        let client = client("127.0.0.1:0", client_config).unwrap();
        use_server(&client, addr).await;
        windlass::spawn_blocking(|| tokio_server.join().unwrap()).await.unwrap();
    });
}

async fn tokio_server(told: mpsc::Sender<SocketAddr>, config: ServerConfig) {
    let server = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    told.send(server.local_addr().unwrap()).unwrap();
    serve(server.accept().await.unwrap()).await;
    server.wait_idle().await;
}
