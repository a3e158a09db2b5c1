//! The same service on each runtime. HTTP/2 is detected by the first bytes of a connection.

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

/// The prefix of the server's first line, before its address.
pub const LISTENING: &str = "listening on ";

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"Hello, World!"))))
}

pub fn serve(runtime: &str, addr: SocketAddr) {
    let driver = match runtime.starts_with("proactor") {
        true => DriverChoice::Proactor,
        false => DriverChoice::Reactor,
    };
    match runtime {
        "tokio" => on_tokio(tokio::runtime::Builder::new_current_thread(), addr),
        "tokio-threads" => on_tokio(tokio::runtime::Builder::new_multi_thread(), addr),
        "proactor" | "reactor" => on_windlass(driver, addr),
        "proactor-shards" | "reactor-shards" => on_shards(driver, addr),
        other => super::wrong(&format!("{other} is not a server")),
    }
}

fn on_windlass(driver: DriverChoice, addr: SocketAddr) {
    let event_loop = windlass::Builder::new()
        .driver(driver)
        .build()
        .expect("the driver starts");
    let run = event_loop.run_until_complete(async {
        let builder = windlass::net::TcpListener::builder().reuse_port(true);
        let listener = builder.listen(addr).await.expect("bind");
        println!("{LISTENING}{}", listener.local_addr().expect("an address"));
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                windlass::spawn(connection(stream));
            }
        }
    });
    run.expect("the loop runs");
}

fn on_shards(driver: DriverChoice, addr: SocketAddr) {
    let pool = windlass::shards::Builder::new().each_loop(move |_, builder| builder.driver(driver));
    let pool = pool.build().expect("a pool");
    let listener = pool.listen(addr).expect("bind");
    println!("{LISTENING}{}", listener.local_addr());
    let run = pool.run(move |_| async move {
        while let Some((stream, _)) = listener.accept().await? {
            windlass::spawn(connection(stream));
        }
        Ok::<(), std::io::Error>(())
    });
    run.expect("the pool runs");
}

async fn connection(stream: windlass::net::TcpStream) {
    use windlass::hyper::{Executor, Timer};
    let _ = stream.set_nodelay(true);
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

fn on_tokio(mut builder: tokio::runtime::Builder, addr: SocketAddr) {
    use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
    let runtime = builder.enable_all().build().expect("the runtime starts");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(addr).await.expect("bind");
        println!("{LISTENING}{}", listener.local_addr().expect("an address"));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
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
            });
        }
    });
}
