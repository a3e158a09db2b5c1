//! An echo server.
//!
//! `cargo run --release --example echo -- [--addr 127.0.0.1:7777] [--driver auto|proactor|reactor]`, then
//! `nc 127.0.0.1 7777`. On Ctrl-C or SIGTERM it stops accepting and lets the open connections finish.

#[path = "support/mod.rs"]
mod support;

use std::io;

use support::{GRACE, accept_failed, drain, outln, reap};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::JoinSet;
use windlass::{Builder, DriverChoice};

const USAGE: &str = "usage: echo [--addr HOST:PORT] [--driver auto|proactor|reactor]";

struct Options {
    addr: String,
    driver: DriverChoice,
}

fn main() -> io::Result<()> {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            outln!("{USAGE}");
            return Ok(());
        }
        Err(wrong) => {
            eprintln!("{wrong}\n{USAGE}");
            std::process::exit(2);
        }
    };
    let event_loop = Builder::new().driver(options.driver).build()?;
    outln!("driver: {}", event_loop.describe());
    event_loop.run_until_complete(serve(&options.addr))?
}

async fn serve(addr: &str) -> io::Result<()> {
    let listener = TcpListener::bind(addr).await?;
    let mut shutdown = windlass::signal::shutdown()?;
    outln!("listening on {}", listener.local_addr()?);
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                reap(&mut connections);
                connections.spawn(async move {
                    if let Err(error) = echo(stream).await {
                        eprintln!("{peer}: {error}");
                    }
                });
            }
            Err(error) => accept_failed(error).await,
        }
    }
    // From here on, new connections are refused.
    drop(listener);
    drain(connections, GRACE).await;
    Ok(())
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        addr: "127.0.0.1:7777".into(),
        driver: DriverChoice::Auto,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--addr" => options.addr = value()?,
            "--driver" => options.driver = value()?.parse().map_err(|error: io::Error| error.to_string())?,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some(options))
}
