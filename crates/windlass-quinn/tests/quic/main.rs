//! quinn on windlass: streams, timers, loss, threads, shards, HTTP/3, and quinn on tokio as the peer.

mod h3;
mod interop;
mod shards;
mod support;
mod transfer;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use windlass::task::JoinSet;
use windlass_quinn::quinn::{
    ConnectError, Connection, ConnectionError, Endpoint, IdleTimeout, TransportConfig, VarInt,
};
use windlass_quinn::{client, server};

use self::support::{HANG, Proxy, Watchdog, configs, on_every_driver};

/// Answers each stream with its request, until the client closes.
async fn echo(connection: Connection) -> ConnectionError {
    loop {
        let (mut send, mut recv) = match connection.accept_bi().await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        windlass::spawn(async move {
            let request = recv.read_to_end(1 << 20).await.unwrap();
            send.write_all(&request).await.unwrap();
            send.finish().unwrap();
        })
        .detach();
    }
}

async fn ask(connection: &Connection, request: &[u8]) -> Vec<u8> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(request).await.unwrap();
    send.finish().unwrap();
    recv.read_to_end(1 << 20).await.unwrap()
}

/// A server that echoes.
fn echo_server(config: windlass_quinn::quinn::ServerConfig) -> Endpoint {
    let endpoint = server("127.0.0.1:0", config).unwrap();
    let accepting = endpoint.clone();
    windlass::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            windlass::spawn(async move {
                if let Ok(connection) = incoming.await {
                    echo(connection).await;
                }
            })
            .detach();
        }
    })
    .detach();
    endpoint
}

#[test]
fn streams() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap()
            .await
            .unwrap();
        for len in [0, 1, 1_000, 100_000] {
            let request = support::block(7, len);
            assert_eq!(ask(&connection, &request).await, request);
        }
        connection.close(VarInt::from_u32(0), b"done");
        client.wait_idle().await;
        server.wait_idle().await;
    });
}

#[test]
fn both_sides_learn_of_a_close() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = server("127.0.0.1:0", server_config).unwrap();
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connecting = client.connect(server.local_addr().unwrap(), "localhost").unwrap();
        let accepted = windlass::spawn(async move { server.accept().await.unwrap().await.unwrap() });
        let connection = connecting.await.unwrap();
        let accepted = accepted.await.unwrap();
        accepted.close(VarInt::from_u32(7), b"enough");
        match connection.closed().await {
            ConnectionError::ApplicationClosed(close) => assert_eq!(close.error_code, VarInt::from_u32(7)),
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_hundred_connections_with_ten_streams_each() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let addr = server.local_addr().unwrap();
        let mut connections = JoinSet::new();
        for number in 0..100_u64 {
            let client = client.clone();
            connections.spawn(async move {
                let connection = client.connect(addr, "localhost").unwrap().await.unwrap();
                let mut streams = JoinSet::new();
                for stream in 0..10 {
                    let connection = connection.clone();
                    streams.spawn(async move {
                        let request = support::block(number * 10 + stream, 5_000);
                        assert_eq!(ask(&connection, &request).await, request);
                    });
                }
                while let Some(stream) = streams.join_next().await {
                    stream.unwrap();
                }
                connection.close(VarInt::from_u32(0), b"");
            });
        }
        while let Some(connection) = connections.join_next().await {
            connection.unwrap();
        }
        client.wait_idle().await;
    });
}

#[test]
fn a_lost_first_datagram_is_sent_again() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = echo_server(server_config);
        let proxy = Proxy::start(server.local_addr().unwrap(), u64::MAX, 1).await;
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client.connect(proxy.addr, "localhost").unwrap().await.unwrap();
        assert_eq!(ask(&connection, b"ping").await, b"ping");
        assert_eq!(proxy.dropped[0].get(), 1);
    });
}

#[test]
fn idle_connections_end() {
    on_every_driver(async || {
        let (server_config, mut client_config) = configs("test");
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(IdleTimeout::try_from(Duration::from_millis(200)).unwrap()));
        client_config.transport_config(Arc::new(transport));
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap()
            .await
            .unwrap();
        assert!(matches!(connection.closed().await, ConnectionError::TimedOut));
    });
}

#[test]
fn keep_alive_keeps_a_connection() {
    on_every_driver(async || {
        let (server_config, mut client_config) = configs("test");
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_millis(20)));
        client_config.transport_config(Arc::new(transport));
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap()
            .await
            .unwrap();
        // Only the timer sends now.
        let (turns, pings) = (windlass::counters().turns, connection.stats().frame_tx.ping);
        while connection.stats().frame_tx.ping < pings + 10 {
            windlass::time::sleep(Duration::from_millis(5)).await;
        }
        let turns = windlass::counters().turns - turns;
        println!("{turns} turns for ten pings");
        assert!(
            turns < 500,
            "{turns} turns for ten pings: a timer fires too early, again and again"
        );
        assert_eq!(ask(&connection, b"ping").await, b"ping");
    });
}

#[test]
fn nothing_listens() {
    on_every_driver(async || {
        let (_, mut client_config) = configs("test");
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(IdleTimeout::try_from(Duration::from_millis(300)).unwrap()));
        client_config.transport_config(Arc::new(transport));
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = client("127.0.0.1:0", client_config).unwrap();
        let error = client.connect(closed, "localhost").unwrap().await.unwrap_err();
        assert!(matches!(error, ConnectionError::TimedOut), "{error}");
        // A closed endpoint does not connect.
        client.close(VarInt::from_u32(0), b"");
        assert!(matches!(
            client.connect(closed, "localhost"),
            Err(ConnectError::EndpointStopping)
        ));
    });
}

#[test]
fn connections_are_used_and_opened_on_other_threads() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = echo_server(server_config);
        let addr = server.local_addr().unwrap();
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client.connect(addr, "localhost").unwrap().await.unwrap();
        let answers = windlass::spawn_blocking(move || {
            // On a thread without a loop.
            let another = client.connect(addr, "localhost").unwrap();
            windlass::run(async move {
                let first = ask(&connection, b"elsewhere").await;
                let second = ask(&another.await.unwrap(), b"opened elsewhere").await;
                // The endpoint and the connections are dropped on this thread.
                drop(client);
                (first, second)
            })
        });
        let (first, second) = answers.await.unwrap().unwrap();
        assert_eq!((&first[..], &second[..]), (&b"elsewhere"[..], &b"opened elsewhere"[..]));
        server.wait_idle().await;
    });
}

#[test]
fn connections_are_refused_on_other_threads() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = server("127.0.0.1:0", server_config).unwrap();
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connecting = client.connect(server.local_addr().unwrap(), "localhost").unwrap();
        let connecting = windlass::spawn(connecting);
        let incoming = server.accept().await.unwrap();
        thread::spawn(move || incoming.refuse()).join().unwrap();
        let error = connecting.await.unwrap().unwrap_err();
        assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");
    });
}

#[test]
fn an_endpoint_moves_to_another_socket() {
    on_every_driver(async || {
        let (server_config, client_config) = configs("test");
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap()
            .await
            .unwrap();
        assert_eq!(ask(&connection, b"before").await, b"before");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.rebind(socket).unwrap();
        assert_eq!(ask(&connection, b"after").await, b"after");
        // On another thread it is refused.
        let error = thread::spawn(move || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            client.rebind(socket).unwrap_err().kind()
        });
        assert_eq!(error.join().unwrap(), std::io::ErrorKind::Unsupported);
    });
}

#[test]
fn a_loop_that_ends_takes_its_endpoints_with_it() {
    let _watchdog = Watchdog::start(HANG);
    let (server_config, client_config) = configs("test");
    let (kept, connection) = windlass::run(async move {
        let server = echo_server(server_config);
        let client = client("127.0.0.1:0", client_config).unwrap();
        let connection = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap()
            .await
            .unwrap();
        (client, connection)
    })
    .unwrap();
    // Neither hangs nor crashes; the endpoint's task is gone.
    assert!(matches!(
        kept.connect("127.0.0.1:1".parse().unwrap(), "localhost"),
        Err(ConnectError::EndpointStopping)
    ));
    drop(connection);
    drop(kept);
}
