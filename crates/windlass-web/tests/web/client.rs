//! The HTTP client: pool, versions, errors.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use windlass::net::TcpListener;
use windlass_web::client::{self, Client, Connector};
use windlass_web::{Server, serve};

use crate::support::{self, certificates, clients, get_text, h2_client, on_each_driver, start_with};

fn ports() -> Router {
    Router::new().route(
        "/",
        get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.port().to_string()),
    )
}

/// Requests one after the other use one connection; over HTTP/2, concurrent ones too.
#[test]
fn connections_are_kept() {
    on_each_driver(async || {
        let server = start_with(Server::new().connect_info(ConnectInfo), ports()).await;
        for client in clients() {
            let mut seen = HashSet::new();
            for _ in 0..10 {
                seen.insert(get_text(&client, &server.uri("/")).await);
            }
            assert_eq!(seen.len(), 1);
        }
        let (client, uri) = (h2_client(), server.uri("/"));
        let seen = windlass::task::join_all((0..100).map(|_| get_text(&client, &uri))).await;
        assert_eq!(seen.into_iter().collect::<HashSet<_>>().len(), 1);
        server.end().await;
    });
}

#[test]
fn connections_over_tls_are_kept() {
    on_each_driver(async || {
        let (server_config, client_config) = certificates();
        let server = start_with(Server::new().tls(server_config).connect_info(ConnectInfo), ports()).await;
        let client = client::with_tls(client_config);
        let uri = format!("https://127.0.0.1:{}/", server.addr.port());
        let first = get_text(&client, &uri).await;
        let seen = windlass::task::join_all((0..100).map(|_| get_text(&client, &uri))).await;
        assert!(seen.iter().all(|port| *port == first));
        server.end().await;
    });
}

/// Clients are `Send`, so a handler can call another server.
#[test]
fn a_handler_with_a_client() {
    on_each_driver(async || {
        let inner = start_with(Server::new(), Router::new().route("/", get(async || "inner"))).await;
        let (client, uri) = (client::plain(), inner.uri("/"));
        let outer = Router::new().route(
            "/",
            get(async move || {
                let response = client.request(support::get(&uri)).await.unwrap();
                axum::body::Body::new(response.into_body())
            }),
        );
        let outer = start_with(Server::new(), outer).await;
        for client in clients() {
            assert_eq!(get_text(&client, &outer.uri("/")).await, "inner");
        }
        outer.end().await;
        inner.end().await;
    });
}

#[test]
fn errors() {
    on_each_driver(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let error = client::plain().request(support::get(&uri)).await.unwrap_err();
        assert!(error.is_connect(), "{error:?}");

        // A server that accepts nothing more: TLS needs an answer.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connector = Connector::with_tls(certificates().1).connect_timeout(Duration::from_millis(20));
        let client: Client = client::builder().build(connector);
        let uri = format!("https://{}/", listener.local_addr().unwrap());
        let error = client.request(support::get(&uri)).await.unwrap_err();
        assert!(
            error.is_connect() && format!("{error:?}").contains("TimedOut"),
            "{error:?}"
        );
        let error = client.request(support::get("ftp://localhost/")).await.unwrap_err();
        assert!(format!("{error:?}").contains("ftp"), "{error:?}");
    });
}

/// The line of the documentation: a server that also listens to signals.
#[test]
fn serve_in_one_line() {
    on_each_driver(async || {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let serving = windlass::spawn(async { serve(listener, Router::new().route("/", get(async || "hello"))).await });
        assert_eq!(get_text(&client::plain(), &uri).await, "hello");
        serving.cancel();
    });
}
