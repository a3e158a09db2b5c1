//! Helpers shared by the tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::CancelToken;
use windlass::time::timeout;
use windlass::tls::rustls::pki_types::PrivateKeyDer;
use windlass::tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use windlass::{Builder, DriverChoice, JoinHandle};
use windlass_web::client::{self, Client, Connector};
use windlass_web::{App, Server};

/// A test that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(120);

/// Runs a test on both drivers.
pub(crate) fn on_each_driver(test: impl AsyncFn()) {
    for driver in [DriverChoice::Proactor, DriverChoice::Reactor] {
        let event_loop = match Builder::new().driver(driver).build() {
            Ok(event_loop) => event_loop,
            Err(error) => {
                println!("skipped on {driver:?}: {error}");
                continue;
            }
        };
        let run = event_loop.run_until_complete(timeout(HANG, test()));
        assert!(run.expect("the loop runs").is_ok(), "the test hangs on {driver:?}");
    }
}

/// A server that runs in a task of this loop.
pub(crate) struct Running {
    pub addr: SocketAddr,
    pub stop: CancelToken,
    pub task: JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub(crate) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Stops it, and waits for its end.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task
            .await
            .expect("the server's task has not failed")
            .expect("the server has not failed");
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.expect("the server accepts")
    }
}

pub(crate) async fn start(app: impl App) -> Running {
    start_with(Server::new(), app).await
}

pub(crate) async fn start_with(server: Server, app: impl App) -> Running {
    start_at(
        TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
        server,
        app,
    )
}

pub(crate) fn start_at(listener: TcpListener, server: Server, app: impl App) -> Running {
    let addr = listener.local_addr().expect("bound");
    let stop = CancelToken::new();
    let stopped = stop.cancelled();
    let task = windlass::spawn(async move { server.serve_until(listener, app, stopped).await });
    Running { addr, stop, task }
}

/// An HTTP/2 client without TLS.
pub(crate) fn h2_client() -> Client {
    client::builder().http2_only(true).build(Connector::plain())
}

/// The clients of both versions, to call a test with.
pub(crate) fn clients() -> [Client; 2] {
    [client::plain(), h2_client()]
}

pub(crate) fn get(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).expect("a valid request")
}

pub(crate) async fn body(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.expect("a whole body").to_bytes()
}

pub(crate) async fn get_text(client: &Client, uri: &str) -> String {
    let response = client.request(get(uri)).await.expect("a response");
    assert!(response.status().is_success(), "{}", response.status());
    String::from_utf8(body(response).await.into()).expect("text")
}

/// A server's configuration for `localhost`, and a client's that trusts it.
pub(crate) fn certificates() -> (ServerConfig, ClientConfig) {
    let made =
        rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a root");
    let provider = Arc::new(windlass::tls::rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    (
        server
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap(),
        client.unwrap().with_root_certificates(roots).with_no_client_auth(),
    )
}
