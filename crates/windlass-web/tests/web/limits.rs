//! What a client can make a server hold, and for how long.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use windlass::net::TcpStream;
use windlass_web::Server;

use crate::support::{certificates, on_each_driver, start_with};

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Everything that the peer sends until it closes.
async fn read_to_end(stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match stream.read_managed().await {
            Ok(bytes) if bytes.is_empty() => return all,
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(_) => return all, // a reset is an end, too
        }
    }
}

/// Nothing at all, a part of the version, a part of the headers, and a second request that never comes.
#[test]
fn silent_clients_are_disconnected() {
    on_each_driver(async || {
        let server = start_with(Server::new().header_timeout(Duration::from_secs(1)), hello()).await;
        for sent in ["", "PRI * HTTP/2", "GET / HT", "GET / HTTP/1.1\r\nhost: a\r\n"] {
            let stream = server.connect().await;
            stream.write_all(sent).await.0.unwrap();
            let answer = read_to_end(&stream).await;
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{sent:?}");
        }
        let stream = server.connect().await;
        stream.write_all("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.0.unwrap();
        let answer = read_to_end(&stream).await;
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"hello"));
        server.end().await;
    });
}

#[test]
fn a_tls_handshake_has_the_same_limit() {
    on_each_driver(async || {
        let limited = Server::new()
            .tls(certificates().0)
            .header_timeout(Duration::from_secs(1));
        let server = start_with(limited, hello()).await;
        read_to_end(&server.connect().await).await;
        server.end().await;
    });
}

/// A client that does not read its response is disconnected, and the handler's body is dropped.
#[test]
fn clients_that_do_not_read_are_disconnected() {
    struct OnDrop(Option<windlass::Promise<()>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.take().map(|promise| promise.resolve(()));
        }
    }
    on_each_driver(async || {
        let (dropped, is_dropped) = windlass::promise::<()>();
        let dropped = windlass::compat::ThreadBound::new(std::cell::Cell::new(Some(OnDrop(Some(dropped)))));
        let dropped = std::sync::Arc::new(dropped);
        let app = Router::new().route(
            "/",
            get(async move || {
                let guard = windlass::compat::ThreadBound::new(dropped.take().unwrap());
                let endless = futures_util::stream::repeat_with(move || {
                    let _ = &guard;
                    Ok::<_, std::io::Error>(bytes::Bytes::from_static(&[7; 8192]))
                });
                axum::body::Body::from_stream(endless)
            }),
        );
        let server = start_with(Server::new().write_timeout(Duration::from_millis(100)), app).await;
        let stream = server.connect().await;
        stream.write_all("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.0.unwrap();
        is_dropped.await.unwrap();
        drop(stream);
        server.end().await;
    });
}

/// With a limit of one, the second connection is served when the first has ended.
#[test]
fn connections() {
    on_each_driver(async || {
        let server = start_with(Server::new().max_connections(1), hello()).await;
        let request = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let first = server.connect().await;
        first.write_all(request).await.0.unwrap();
        assert!(!first.read_managed().await.unwrap().is_empty());
        let second = server.connect().await; // in the backlog
        second.write_all(request).await.0.unwrap();
        for _ in 0..3 {
            first.write_all(request).await.0.unwrap();
            assert!(!first.read_managed().await.unwrap().is_empty());
        }
        let answer = windlass::spawn(async move { second.read_managed().await.unwrap().to_vec() });
        windlass::task::yield_now().await;
        assert!(!answer.is_finished());
        drop(first);
        assert!(answer.await.unwrap().starts_with(b"HTTP/1.1 200"));
        server.end().await;
    });
}
