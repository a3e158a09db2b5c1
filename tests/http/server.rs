//! The server and the clients of these tests.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::server::conn::auto;
use windlass::compat::Bridge;
use windlass::hyper::{Executor, Timer};
use windlass::net::{TcpListener, TcpStream};
use windlass::time::sleep;

/// A body that need not be `Send`.
pub(crate) type Answer = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// Counters of the server. They need no locks, because everything runs on one thread.
#[derive(Default)]
pub(crate) struct Stats {
    pub connections: Cell<usize>,
    /// Connections that have ended, cleanly or not.
    pub ended: Cell<usize>,
    pub failed: Cell<usize>,
    pub requests: Cell<usize>,
    /// Bytes of `/endless` that were requested.
    pub produced: Cell<usize>,
    /// Uploads that ended early.
    pub truncated_uploads: Cell<usize>,
}

fn add(cell: &Cell<usize>, count: usize) {
    cell.set(cell.get() + count);
}

/// Starts a server on a new port. It runs as long as the loop.
pub(crate) async fn start() -> (SocketAddr, Rc<Stats>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("an address");
    let stats = Rc::new(Stats::default());
    let shared = stats.clone();
    windlass::spawn(async move {
        let mut http = auto::Builder::new(Executor);
        http.http1()
            .timer(Timer)
            .half_close(true)
            .header_read_timeout(Duration::from_secs(60))
            .max_buf_size(64 * 1024);
        http.http2().timer(Timer);
        let http = Rc::new(http);
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            add(&shared.connections, 1);
            let (http, stats) = (http.clone(), shared.clone());
            windlass::spawn(async move {
                let service = service_fn(|request| answer(request, stats.clone()));
                let result = http.serve_connection(Bridge::new(stream), service).await;
                if let Err(error) = result {
                    println!("-- connection: {error:?}");
                    add(&stats.failed, 1);
                }
                add(&stats.ended, 1);
            });
        }
    });
    (addr, stats)
}

async fn answer(request: Request<Incoming>, stats: Rc<Stats>) -> Result<Response<Answer>, Infallible> {
    add(&stats.requests, 1);
    let path = request.uri().path().to_owned();
    let text = |text: String| Response::new(Box::pin(Full::new(Bytes::from(text))) as Answer);
    Ok(match path.as_str() {
        "/echo" => match request.into_body().collect().await {
            Ok(body) => Response::new(Box::pin(Full::new(body.to_bytes())) as Answer),
            Err(_) => {
                add(&stats.truncated_uploads, 1);
                text("truncated".into())
            }
        },
        "/endless" => Response::new(Box::pin(Endless(stats)) as Answer),
        "/slow" => {
            sleep(Duration::from_millis(20)).await;
            text("done".into())
        }
        path if path.starts_with("/hello") => text(path[1..].to_owned()),
        _ => {
            let mut refused = text(String::new());
            *refused.status_mut() = StatusCode::NOT_FOUND;
            refused
        }
    })
}

/// A body that continues as long as it is polled.
struct Endless(Rc<Stats>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        const PIECE: &[u8] = &[7; 16 * 1024];
        add(&self.0.produced, PIECE.len());
        std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PIECE)))))
    }
}

pub(crate) async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.expect("connect")
}

/// A client of either version.
pub(crate) enum Client {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn one(addr: SocketAddr) -> Client {
        let (sender, connection) = http1::handshake(Bridge::new(connect(addr).await))
            .await
            .expect("handshake");
        windlass::spawn(connection);
        Client::One(sender)
    }

    pub(crate) async fn two(addr: SocketAddr) -> Client {
        let stream = Bridge::new(connect(addr).await);
        let mut http = http2::Builder::new(Executor);
        let (sender, connection) = http.timer(Timer).handshake(stream).await.expect("handshake");
        windlass::spawn(connection);
        Client::Two(sender)
    }

    pub(crate) async fn send(&mut self, path: &str, body: impl Into<Bytes>) -> Response<Incoming> {
        let request = Request::post(format!("http://localhost{path}"))
            .header("host", "localhost")
            .body(Full::new(body.into()))
            .expect("a request");
        let response = match self {
            Client::One(sender) => {
                sender.ready().await.expect("ready");
                sender.send_request(request).await
            }
            Client::Two(sender) => {
                sender.ready().await.expect("ready");
                sender.send_request(request).await
            }
        };
        response.expect("an answer")
    }

    pub(crate) async fn fetch(&mut self, path: &str, body: impl Into<Bytes>) -> Bytes {
        let response = self.send(path, body).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().collect().await.expect("a body").to_bytes()
    }
}

/// A request without a body, for streams of HTTP/2 side by side.
pub(crate) async fn get(mut sender: http2::SendRequest<Empty<Bytes>>, path: String) -> Bytes {
    let request = Request::get(format!("http://localhost{path}"))
        .body(Empty::new())
        .expect("a request");
    sender.ready().await.expect("ready");
    let response = sender.send_request(request).await.expect("an answer");
    response.into_body().collect().await.expect("a body").to_bytes()
}

/// Waits until a condition holds, with a timeout.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}
