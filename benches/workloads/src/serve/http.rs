//! A service of hyper. HTTP/2 is detected by the first bytes of a connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use windlass::DriverChoice;
use windlass::compat::Bridge;

use super::LISTENING;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
}

/// On this many shards, or on one for each core.
pub fn on_shards(driver: DriverChoice, count: Option<usize>, addr: SocketAddr) {
    let mut pool = windlass::shards::Builder::new().each_loop(move |_, builder| builder.driver(driver));
    if let Some(count) = count {
        pool = pool.count(count);
    }
    let pool = pool.build().expect("a pool");
    let listener = windlass::net::TcpListener::builder().nodelay(true);
    let listener = pool
        .listen_with(listener, addr, windlass::shards::Accept::ReusePort)
        .expect("bind");
    println!("{LISTENING}{}", listener.local_addr());
    let run = pool.run(move |_| async move {
        while let Some((stream, _)) = listener.accept().await? {
            windlass::spawn(connection(stream));
        }
        Ok::<(), std::io::Error>(())
    });
    run.expect("the pool runs");
}

pub async fn connection(stream: windlass::net::TcpStream) {
    use windlass::hyper::{Executor, Timer};
    let mut stream = Bridge::new(stream);
    let is_http2 = poll_fn(|cx| stream.poll_fill_buf(cx).map_ok(|bytes| bytes.starts_with(b"PRI "))).await;
    let _ = match is_http2 {
        Ok(true) => {
            http2::Builder::new(Executor)
                .timer(Timer)
                .serve_connection(stream, service_fn(hello))
                .await
        }
        _ => {
            http1::Builder::new()
                .timer(Timer)
                .serve_connection(stream, service_fn(hello))
                .await
        }
    };
}

pub async fn tokio_connection(stream: tokio::net::TcpStream) {
    use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
    let mut first = [0; 4];
    let is_http2 = stream
        .peek(&mut first)
        .await
        .is_ok_and(|count| first[..count] == *b"PRI ");
    let stream = TokioIo::new(stream);
    let _ = match is_http2 {
        true => {
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .serve_connection(stream, service_fn(hello))
                .await
        }
        false => {
            http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(stream, service_fn(hello))
                .await
        }
    };
}
