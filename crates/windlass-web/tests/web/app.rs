//! An axum application: JSON, state, slow handlers, layers, TLS, shards.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{StatusCode, Version};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use windlass::compat::ThreadBound;
use windlass::net::TcpListener;
use windlass::sync::Notify;
use windlass_web::timeout::{Elapsed, RequestTimeoutLayer, TimeoutLayer};
use windlass_web::{Server, client};

use crate::support::{self, body, certificates, clients, get_text, on_each_driver, start, start_with};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Order {
    item: String,
    count: u32,
}

#[test]
fn json_paths_queries_and_state() {
    on_each_driver(async || {
        let orders = Arc::new(AtomicUsize::new(0));
        async fn order(State(orders): State<Arc<AtomicUsize>>, Json(order): Json<Order>) -> Json<Order> {
            orders.fetch_add(1, SeqCst);
            Json(Order {
                count: order.count * 2,
                ..order
            })
        }
        let app = Router::new()
            .route("/order", post(order))
            .route(
                "/{name}",
                get(async |Path(name): Path<String>, Query(order): Query<Order>| format!("{name} {order:?}")),
            )
            .with_state(orders.clone());
        let server = start(app).await;
        for client in clients() {
            let request = Request::post(server.uri("/order"))
                .header("content-type", "application/json")
                .body(Full::from(r#"{"item": "tea", "count": 21}"#))
                .unwrap();
            let response = client.request(request).await.unwrap();
            assert_eq!(response.headers()["content-type"], "application/json");
            let answer = body(response).await;
            assert_eq!(answer, r#"{"item":"tea","count":42}"#);

            let bad = Request::post(server.uri("/order")).body(Full::from("{}")).unwrap();
            assert_eq!(
                client.request(bad).await.unwrap().status(),
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            );
            let text = get_text(&client, &server.uri("/ada?item=milk&count=1")).await;
            assert_eq!(text, r#"ada Order { item: "milk", count: 1 }"#);
        }
        assert_eq!(orders.load(SeqCst), 2);
        server.end().await;
    });
}

#[test]
fn bodies_of_a_megabyte_both_ways() {
    on_each_driver(async || {
        let app = Router::new()
            .route("/", post(async |bytes: Bytes| bytes))
            .layer(axum::extract::DefaultBodyLimit::max(2 << 20));
        let server = start(app).await;
        let sent: Bytes = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect::<Vec<_>>().into();
        for client in clients() {
            let request = Request::post(server.uri("/")).body(Full::from(sent.clone())).unwrap();
            assert!(body(client.request(request).await.unwrap()).await == sent);
        }
        server.end().await;
    });
}

/// A handler that waits does not keep other requests waiting: neither on other connections, nor on the same one over HTTP/2.
#[test]
fn slow_handlers() {
    on_each_driver(async || {
        // What is not `Send` can be used through a ThreadBound.
        let gate = ThreadBound::new(Rc::new(Notify::new()));
        let (waiting, opened) = (gate.clone(), gate.clone());
        let app = Router::new()
            .route(
                "/slow",
                get(async move || {
                    let gate = (*waiting).clone();
                    ThreadBound::future(async move { gate.notified().await }).await;
                    "slow"
                }),
            )
            .route("/fast", get(async || "fast"));
        let server = start(app).await;
        for client in clients() {
            let (slow_client, uri) = (client.clone(), server.uri("/slow"));
            let slow = windlass::spawn(async move { get_text(&slow_client, &uri).await });
            for _ in 0..10 {
                assert_eq!(get_text(&client, &server.uri("/fast")).await, "fast");
            }
            assert!(!slow.is_finished());
            opened.notify_one(); // stored, if the handler does not wait yet
            assert_eq!(slow.await.unwrap(), "slow");
        }
        server.end().await;
    });
}

#[test]
fn timeout_layers() {
    on_each_driver(async || {
        let never = get(async || windlass::time::sleep(Duration::from_secs(3600)).await);
        let app = Router::new()
            .route("/never", never)
            .route("/now", get(async || "now"))
            .layer(RequestTimeoutLayer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Duration::from_millis(20),
            ));
        let server = start(app).await;
        for client in clients() {
            let response = client.request(support::get(&server.uri("/never"))).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            // A limit that no machine exceeds.
            assert_eq!(
                client
                    .request(support::get(&server.uri("/now")))
                    .await
                    .unwrap()
                    .status(),
                StatusCode::OK
            );
        }
        server.end().await;

        // On a client.
        let app = Router::new().route(
            "/",
            get(async || windlass::time::sleep(Duration::from_secs(3600)).await),
        );
        let server = start_with(Server::new().grace(Duration::ZERO), app).await;
        let limited = tower::Layer::layer(&TimeoutLayer::new(Duration::from_millis(20)), client::plain());
        let error = tower::ServiceExt::oneshot(limited, support::get(&server.uri("/")))
            .await
            .unwrap_err();
        assert!(error.is::<Elapsed>(), "{error}");
        server.end().await;
    });
}

/// The service, its future and its body are not `Send`.
#[test]
fn a_service_that_is_not_send() {
    on_each_driver(async || {
        let count = Rc::new(Cell::new(0));
        let counter = count.clone();
        let app = tower::service_fn(move |_: Request<hyper::body::Incoming>| {
            let count = counter.clone();
            async move {
                windlass::task::yield_now().await;
                count.set(count.get() + 1);
                Ok::<_, std::convert::Infallible>(Response::new(count.get().to_string()))
            }
        });
        let server = start(app).await;
        for client in clients() {
            get_text(&client, &server.uri("/")).await;
        }
        assert_eq!(count.get(), 2);
        server.end().await;
    });
}

#[test]
fn a_panic_ends_its_request_alone() {
    on_each_driver(async || {
        let app = Router::new()
            .route(
                "/panic",
                get(async || -> &'static str { panic!("this panic is part of the test") }),
            )
            .route("/", get(async || "alive"));
        let server = start(app).await;
        for client in clients() {
            client.request(support::get(&server.uri("/panic"))).await.unwrap_err();
            assert_eq!(get_text(&client, &server.uri("/")).await, "alive");
        }
        server.end().await;
    });
}

#[test]
fn connect_info() {
    on_each_driver(async || {
        let app = Router::new().route(
            "/",
            get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()),
        );
        let server = start_with(Server::new().connect_info(ConnectInfo), app).await;
        for client in clients() {
            assert_eq!(get_text(&client, &server.uri("/")).await, "127.0.0.1");
        }
        server.end().await;
    });
}

/// ALPN selects the version; a client that does not know the certificate is refused.
#[test]
fn tls() {
    on_each_driver(async || {
        let (server_config, client_config) = certificates();
        let app = Router::new().route("/", get(async |version: Version| format!("{version:?}")));
        let server = start_with(Server::new().tls(server_config), app).await;
        let uri = format!("https://localhost:{}/", server.addr.port());
        let both = client::with_tls(client_config.clone());
        assert_eq!(get_text(&both, &uri).await, "HTTP/2.0");
        let mut old = client_config;
        old.alpn_protocols = vec![b"http/1.1".to_vec()];
        assert_eq!(get_text(&client::with_tls(old), &uri).await, "HTTP/1.1");
        let error = client::new().request(support::get(&uri)).await.unwrap_err();
        assert!(error.is_connect(), "{error:?}");
        let error = client::plain().request(support::get(&uri)).await.unwrap_err();
        assert!(format!("{error:?}").contains("needs a connector with TLS"), "{error:?}");
        server.end().await;
    });
}

#[cfg(unix)]
#[test]
fn unix_sockets() {
    use windlass::compat::Bridge;
    use windlass::net::{UnixListener, UnixStream};
    on_each_driver(async || {
        let path = std::env::temp_dir().join(format!(
            "windlass-web-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let app = Router::new().route("/", get(async || "unix"));
        windlass::spawn(async move { Server::new().serve(listener, app).await });
        let stream = Bridge::new(UnixStream::connect(&path).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        windlass::spawn(connection);
        let response = sender.send_request(support::get("/")).await.unwrap();
        assert_eq!(body(response).await, "unix");
        std::fs::remove_file(&path).unwrap();
    });
}

/// Two shards with a service each, which stop together.
#[test]
fn shards() {
    for driver in [windlass::DriverChoice::Proactor, windlass::DriverChoice::Reactor] {
        let builder = windlass::shards::Builder::new()
            .count(2)
            .each_loop(move |_, builder| builder.driver(driver));
        let Ok(pool) = builder.build() else {
            println!("skipped on {driver:?}");
            continue;
        };
        let listener = pool.listen("127.0.0.1:0").unwrap();
        let served = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counters = served.clone();
        let run = pool.run(move |shard| {
            let (counters, index) = (counters.clone(), shard.index());
            let app = Router::new().route(
                "/",
                get(async move || {
                    counters[index].fetch_add(1, SeqCst);
                    "hello"
                }),
            );
            async move {
                if index == 0 {
                    windlass::spawn(async move {
                        // Each client has its own connection. The kernel chooses the shard.
                        for _ in 0..40 {
                            let client = client::plain();
                            assert_eq!(
                                get_text(&client, &format!("http://{}/", listener.local_addr())).await,
                                "hello"
                            );
                        }
                        shard.stop();
                    });
                }
                Server::new().serve(listener, app).await
            }
        });
        run.unwrap();
        let counts = [served[0].load(SeqCst), served[1].load(SeqCst)];
        assert_eq!(counts[0] + counts[1], 40);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}"); // else with a probability of 2 ^ -39
    }
}

/// `axum::serve`'s own features that need no runtime work: streams as bodies, and tokio's channels.
#[test]
fn event_streams_with_tokio_channels() {
    use axum::response::sse::{Event, Sse};
    on_each_driver(async || {
        let (sender, receiver) = tokio::sync::mpsc::channel::<u32>(1);
        let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
        let app = Router::new().route(
            "/",
            get(async move || {
                let receiver = receiver.lock().unwrap().take().unwrap();
                let events = futures_util::stream::unfold(receiver, async |mut receiver| {
                    let number = receiver.recv().await?;
                    Some((
                        Ok::<_, std::convert::Infallible>(Event::default().data(number.to_string())),
                        receiver,
                    ))
                });
                Sse::new(events)
            }),
        );
        let server = start(app).await;
        let (client, uri) = (client::plain(), server.uri("/"));
        let text = windlass::spawn(async move { get_text(&client, &uri).await });
        for number in 1..=3 {
            sender.send(number).await.unwrap();
        }
        drop(sender);
        assert_eq!(text.await.unwrap(), "data: 1\n\ndata: 2\n\ndata: 3\n\n");
        server.end().await;
    });
}

/// A listener that is not the kernel's, and fails now and then: as if there were no descriptors left.
#[test]
fn errors_of_accept_are_survived() {
    struct Failing {
        inner: TcpListener,
        failures: u32,
    }
    impl windlass_web::Listener for Failing {
        type Stream = windlass::net::TcpStream;
        async fn accept(&mut self) -> Option<std::io::Result<(windlass::net::TcpStream, Option<SocketAddr>)>> {
            if self.failures > 0 {
                self.failures -= 1;
                return Some(Err(std::io::Error::from_raw_os_error(24))); // EMFILE
            }
            windlass_web::Listener::accept(&mut self.inner).await
        }
    }
    on_each_driver(async || {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", inner.local_addr().unwrap());
        let reported = Arc::new(AtomicUsize::new(0));
        let reports = reported.clone();
        let server = Server::new().on_error(move |error, peer| {
            assert!(error.is::<std::io::Error>() && peer.is_none());
            reports.fetch_add(1, SeqCst);
        });
        let app = Router::new().route("/", get(async || "hello"));
        windlass::spawn(async move { server.serve(Failing { inner, failures: 3 }, app).await });
        assert_eq!(get_text(&client::plain(), &uri).await, "hello");
        assert_eq!(reported.load(SeqCst), 3);
    });
}
