//! A server with JSON, files, WebSockets, time limits and, with a certificate, HTTPS.
//!
//! `cargo run --release --features files,tls,ws --example server -- [--listen HOST:PORT] [--driver auto|proactor|reactor]
//! [--files DIR] [--cert PEM --key PEM]`. Ctrl-C or SIGTERM stops it gracefully.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use windlass::net::TcpListener;
use windlass::task::{Either, select};
use windlass::tls::rustls::ServerConfig;
use windlass::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use windlass_web::Server;
use windlass_web::files::Dir;
use windlass_web::timeout::RequestTimeoutLayer;
use windlass_web::ws::{Message, WebSocket, WebSocketUpgrade};

const USAGE: &str = "\
usage: server [--listen HOST:PORT] [--driver auto|proactor|reactor] [--files DIR] [--cert PEM --key PEM]

  --listen HOST:PORT  the address (default 127.0.0.1:8080)
  --driver NAME       auto (default), proactor or reactor
  --files DIR         the directory served below /files/ (default: the current one)
  --cert PEM          HTTPS with this certificate chain; needs --key
  --key PEM           the private key
  --help              this text";

#[derive(Serialize, Deserialize)]
struct Sum {
    numbers: Vec<i64>,
    #[serde(default)]
    sum: i64,
}

async fn sum(Json(mut sum): Json<Sum>) -> Json<Sum> {
    sum.sum = sum.numbers.iter().sum();
    Json(sum)
}

async fn slow() -> &'static str {
    windlass::time::sleep(Duration::from_millis(50)).await;
    "slow\n"
}

/// Sends every message back, until the client closes or the server stops.
async fn echo(ws: WebSocketUpgrade) -> Response {
    let mut stopping = windlass_web::stopping();
    ws.on_upgrade(async move |mut socket: WebSocket| {
        loop {
            let received = match select(socket.recv(), &mut stopping).await {
                Either::Left(received) => received,
                Either::Right(()) => break drop(socket.close(None).await),
            };
            match received {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
                Some(Ok(_)) => {} // a ping was answered
                Some(Err(_)) | None => break,
            }
        }
    })
}

fn app(files: String) -> Router {
    Router::new()
        .route("/", get(async || "hello\n"))
        .route(
            "/whoami",
            get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| format!("{peer}\n")),
        )
        .route("/sum", post(sum))
        .route("/slow", get(slow))
        .route("/ws", any(echo))
        .nest_service("/files", Dir::new(files))
        .layer(RequestTimeoutLayer::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Duration::from_secs(30),
        ))
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}\n{USAGE}");
    std::process::exit(2);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut listen, mut files) = ("127.0.0.1:8080".to_owned(), ".".to_owned());
    let (mut builder, mut cert, mut key) = (windlass::Builder::new(), None, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| refuse(&format!("{arg} needs a value")));
        match arg.as_str() {
            "--listen" => listen = value(),
            "--files" => files = value(),
            "--driver" => builder = builder.driver(value().parse()?),
            "--cert" => cert = Some(CertificateDer::pem_file_iter(value())?.collect::<Result<Vec<_>, _>>()?),
            "--key" => key = Some(PrivateKeyDer::from_pem_file(value())?),
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(());
            }
            _ => refuse(&format!("unknown option {arg}")),
        }
    }
    let mut server = Server::new().stop_on_signals().connect_info(ConnectInfo);
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let config = ServerConfig::builder().with_no_client_auth();
            server = server.tls(config.with_single_cert(cert, key)?);
        }
        (None, None) => {}
        _ => refuse("HTTPS needs --cert and --key"),
    }
    builder.build()?.run_until_complete(async {
        let listener = TcpListener::bind(listen.as_str()).await?;
        println!("listening on {}", listener.local_addr()?);
        server.serve(listener, app(files)).await?;
        println!("stopped");
        Ok(())
    })?
}
