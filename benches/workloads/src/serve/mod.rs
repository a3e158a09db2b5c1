//! The servers: each workload on each runtime.

pub mod copy;
mod http;
mod resp;
pub mod tls;

use std::net::SocketAddr;

use windlass::DriverChoice;

use crate::workload::Workload;

/// The prefix of the server's first line, before its address.
pub const LISTENING: &str = "listening on ";

pub fn serve(workload: Workload, runtime: &str, addr: SocketAddr) {
    let driver = match runtime.starts_with("proactor") {
        true => DriverChoice::Proactor,
        false => DriverChoice::Reactor,
    };
    match (runtime, workload) {
        ("tokio", Workload::Http1 | Workload::Http2) => on_tokio(addr, http::tokio_connection),
        ("tokio", Workload::Tls) => on_tokio(addr, tls::on_tokio()),
        ("tokio", Workload::Resp) => on_tokio(addr, resp::on_tokio()),
        ("tokio", Workload::Copy) => on_tokio(addr, copy::on_tokio),
        ("proactor" | "reactor", Workload::Http1 | Workload::Http2) => on_windlass(driver, addr, http::connection),
        ("proactor" | "reactor", Workload::Tls) => on_windlass(driver, addr, tls::on_windlass()),
        ("proactor" | "reactor", Workload::Resp) => on_windlass(driver, addr, resp::on_windlass()),
        ("proactor" | "reactor", Workload::Copy) => on_windlass(driver, addr, copy::on_windlass),
        ("tokio-threads", Workload::Http1 | Workload::Http2) => {
            accept_on_tokio(
                tokio::runtime::Builder::new_multi_thread(),
                addr,
                http::tokio_connection,
            );
        }
        ("proactor-shard" | "reactor-shard", Workload::Http1 | Workload::Http2) => {
            http::on_shards(driver, Some(1), addr)
        }
        ("proactor-shards" | "reactor-shards", Workload::Http1 | Workload::Http2) => {
            http::on_shards(driver, None, addr)
        }
        _ => super::wrong(&format!("there is no server {} on {runtime}", workload.name())),
    }
}

/// Runs a task for each connection on a loop of windlass.
fn on_windlass<F: Future<Output = ()> + 'static>(
    driver: DriverChoice,
    addr: SocketAddr,
    mut connection: impl FnMut(windlass::net::TcpStream) -> F,
) {
    let event_loop = windlass::Builder::new()
        .driver(driver)
        .build()
        .expect("the driver starts");
    let run = event_loop.run_until_complete(async {
        let builder = windlass::net::TcpListener::builder().reuse_port(true).nodelay(true);
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

/// Runs a task for each connection on tokio's runtime with one thread.
fn on_tokio<F: Future<Output = ()> + Send + 'static>(
    addr: SocketAddr,
    connection: impl FnMut(tokio::net::TcpStream) -> F,
) {
    accept_on_tokio(tokio::runtime::Builder::new_current_thread(), addr, connection);
}

fn accept_on_tokio<F: Future<Output = ()> + Send + 'static>(
    mut builder: tokio::runtime::Builder,
    addr: SocketAddr,
    mut connection: impl FnMut(tokio::net::TcpStream) -> F,
) {
    let runtime = builder.enable_all().build().expect("the runtime starts");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(addr).await.expect("bind");
        println!("{LISTENING}{}", listener.local_addr().expect("an address"));
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(connection(stream));
            }
        }
    });
}
