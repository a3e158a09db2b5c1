//! Client and server, both ours.

use futures_util::future::join_all;
use http_body_util::Empty;
use hyper::body::Bytes;
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};

use crate::server::{Client, connect, get, start, until};
use crate::support::{on_every_driver, rounds};

/// Bytes that tell their place.
fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

#[test]
fn a_connection_is_kept_alive() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let mut client = Client::one(addr).await;
            for number in 0..20 {
                assert_eq!(
                    client.fetch(&format!("/hello{number}"), "").await,
                    format!("hello{number}")
                );
            }
            assert_eq!((seen.connections.get(), seen.requests.get()), (1, 20));
            drop(client);
            until("the connection ends", || seen.ended.get() == 1).await;
            assert_eq!(seen.failed.get(), 0);
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
                    assert!(echo == body, "{len} bytes do not come back as they were");
                }
            }
        });
    });
}

#[test]
fn streams_share_a_connection() {
    on_every_driver(|case| {
        case.run(async {
            let (addr, seen) = start().await;
            let stream = Bridge::new(connect(addr).await);
            let mut http = hyper::client::conn::http2::Builder::new(Executor);
            let (sender, connection) = http
                .timer(Timer)
                .handshake::<_, Empty<Bytes>>(stream)
                .await
                .expect("handshake");
            windlass::spawn(connection);
            let count = rounds().clamp(20, 200);
            // Slow ones among them do not hold the others up.
            let path = |number: usize| match number % 10 {
                0 => "/slow".to_owned(),
                _ => format!("/hello{number}"),
            };
            let fetches = (0..count).map(|number| get(sender.clone(), path(number)));
            for (number, body) in join_all(fetches).await.into_iter().enumerate() {
                match number % 10 {
                    0 => assert_eq!(body, "at last"),
                    _ => assert_eq!(body, format!("hello{number}")),
                }
            }
            assert_eq!((seen.connections.get(), seen.requests.get()), (1, count));
            drop(sender);
            // Well or not: the client is gone when the server answers its farewell.
            until("the connection ends", || seen.ended.get() == 1).await;
        });
    });
}

/// A client that goes away in the middle takes its stream along, and nothing else.
#[test]
fn given_up_requests_leave_nothing() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let run = event_loop.run_until_complete(async {
            let (addr, seen) = start().await;
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
            until("all connections end", || seen.ended.get() == seen.connections.get()).await;
            let mut client = Client::one(addr).await;
            assert_eq!(client.fetch("/hello", "").await, "hello");
        });
        run.expect("the loop runs");
        until_quiet(&event_loop);
    });
}

/// What is left when the tasks are gone: the accept, and nothing else.
fn until_quiet(event_loop: &windlass::EventLoop) {
    let quiet = event_loop.run_until_complete(async {
        for _ in 0..12_000 {
            if windlass::counters().ops <= 3 {
                return;
            }
            windlass::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("left: {:?}", windlass::metrics::metrics().ops);
    });
    quiet.expect("the loop runs");
}

/// A connection that goes on as something else, without `Send`.
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
                // What the client said too early was read already; the rest is in the stream.
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
                crate::raw::hear_until(&client, "early")
                    .await
                    .starts_with("HTTP/1.1 101")
            );
            client.write_all("and late").await.0.expect("write");
            assert_eq!(crate::raw::hear_until(&client, "late").await, "and late");
            drop(client);
            serving.await.expect("no panic");
        });
    });
}
