//! hyper clients and servers, both on windlass.

use futures_util::future::join_all;
use http_body_util::Empty;
use hyper::body::Bytes;
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};

use crate::server::{Client, connect, get, start, until};
use crate::support::{on_every_driver, rounds};

/// Bytes that encode their position.
fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn a_connection_is_kept_alive() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let mut client = Client::one(addr).await;
            for number in 0..20 {
                assert_eq!(
                    client.fetch(&format!("/hello{number}"), "").await,
                    format!("hello{number}")
                );
            }
            assert_eq!((stats.connections.get(), stats.requests.get()), (1, 20));
            drop(client);
            until("the connection ends", || stats.ended.get() == 1).await;
            assert_eq!(stats.failed.get(), 0);
        });
    });
}

#[test]
fn bodies_of_every_size_come_back() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, _) = start().await;
            for mut client in [Client::one(addr).await, Client::two(addr).await] {
                for len in [0, 1, 4_095, 8_192, 65_535, 65_537, 1 << 20, 3_000_000] {
                    let body = numbered(len);
                    let echo = client.fetch("/echo", body.clone()).await;
                    assert!(echo == body, "{len} bytes do not come back unchanged");
                }
            }
        });
    });
}

#[test]
fn streams_share_a_connection() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, stats) = start().await;
            let stream = Bridge::new(connect(addr).await);
            let mut http = hyper::client::conn::http2::Builder::new(Executor);
            let (sender, connection) = http
                .timer(Timer)
                .handshake::<_, Empty<Bytes>>(stream)
                .await
                .expect("handshake");
            windlass::spawn(connection);
            let count = rounds().clamp(20, 200);
            // Slow responses do not delay the others.
            let path = |number: usize| match number % 10 {
                0 => "/slow".to_owned(),
                _ => format!("/hello{number}"),
            };
            let fetches = (0..count).map(|number| get(sender.clone(), path(number)));
            for (number, body) in join_all(fetches).await.into_iter().enumerate() {
                match number % 10 {
                    0 => assert_eq!(body, "done"),
                    _ => assert_eq!(body, format!("hello{number}")),
                }
            }
            assert_eq!((stats.connections.get(), stats.requests.get()), (1, count));
            drop(sender);
            // Cleanly or not: the client may be closed when the server answers its GOAWAY.
            until("the connection ends", || stats.ended.get() == 1).await;
        });
    });
}

/// A client that disconnects during a request ends its stream, and nothing else.
#[test]
fn dropped_requests_leak_nothing() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let run = event_loop.run_until_complete(async {
            let (addr, stats) = start().await;
            for round in 0..rounds().min(60) {
                let mut client = match round % 2 {
                    0 => Client::one(addr).await,
                    _ => Client::two(addr).await,
                };
                let given_up = windlass::time::timeout(
                    std::time::Duration::from_micros(37 * round as u64 % 2_000),
                    client.fetch("/slow", numbered(50_000)),
                );
                let _ = given_up.await;
            }
            until("all connections end", || stats.ended.get() == stats.connections.get()).await;
            let mut client = Client::one(addr).await;
            assert_eq!(client.fetch("/hello", "").await, "hello");
        });
        run.expect("the loop runs");
        until_idle(&event_loop);
    });
}

/// Waits until the connections' operations have ended; the server's accept stays.
fn until_idle(event_loop: &windlass::EventLoop) {
    let idle = event_loop.run_until_complete(async {
        for _ in 0..12_000 {
            if windlass::counters().ops <= 3 {
                return;
            }
            windlass::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("left: {:?}", windlass::metrics::metrics().ops);
    });
    idle.expect("the loop runs");
}

/// A connection that is upgraded to another protocol, without `Send`.
#[test]
fn a_connection_is_upgraded() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = crate::support::pair().await;
            let serving = windlass::spawn(async move {
                let service = hyper::service::service_fn(|_| async {
                    let answer = hyper::Response::builder()
                        .status(101)
                        .header("connection", "upgrade")
                        .header("upgrade", "echo")
                        .body(Empty::<Bytes>::new());
                    Ok::<_, std::convert::Infallible>(answer.expect("an answer"))
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(Bridge::new(server), service);
                let parts = connection.without_shutdown().await.expect("served");
                // Bytes that the client sent early were read already; the rest is in the stream.
                let stream = parts.io.into_inner();
                stream.write_all(parts.read_buf).await.0.expect("write");
                loop {
                    let bytes = stream.read_managed().await.expect("read");
                    if bytes.is_empty() {
                        return;
                    }
                    stream.write_all(bytes).await.0.expect("write");
                }
            });
            let ask = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nearly";
            client.write_all(ask).await.0.expect("write");
            assert!(
                crate::raw::read_until(&client, "early")
                    .await
                    .starts_with("HTTP/1.1 101")
            );
            client.write_all("and late").await.0.expect("write");
            assert_eq!(crate::raw::read_until(&client, "late").await, "and late");
            drop(client);
            serving.await.expect("no panic");
        });
    });
}
