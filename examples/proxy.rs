//! A TCP proxy: forwards each connection to a target, in both directions.
//!
//! `cargo run --release --example proxy -- 127.0.0.1:7000 127.0.0.1:7777`, or `--demo`, with its own server and
//! client. On Ctrl-C or SIGTERM it stops accepting and lets the open connections finish.

#[path = "support/mod.rs"]
mod support;

use std::io;
use std::net::SocketAddr;

use support::{GRACE, accept_failed, drain, outln, reap};
use windlass::io::{AsyncRead, AsyncWrite, copy, copy_bidirectional};
use windlass::net::{TcpListener, TcpStream};
use windlass::signal::ShutdownSignal;
use windlass::task::JoinSet;

const USAGE: &str = "usage: proxy LISTEN TARGET, as in `proxy 127.0.0.1:7000 127.0.0.1:7777`, or proxy --demo";

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--demo"] => windlass::run(demo())?,
        [listen, target] if !listen.starts_with('-') => windlass::run(async {
            let listener = TcpListener::bind(listen).await?;
            let shutdown = windlass::signal::shutdown()?;
            outln!("{} -> {target}", listener.local_addr()?);
            serve(listener, target, shutdown).await;
            Ok(())
        })?,
        ["--help" | "-h"] => {
            outln!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

/// Serves each connection in a task.
async fn serve(listener: TcpListener, target: &str, mut shutdown: ShutdownSignal) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        let (client, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        let target = target.to_owned();
        reap(&mut connections);
        connections.spawn(async move {
            match proxy(client, &target).await {
                Ok((sent, received)) => outln!("{peer}: {sent} bytes sent, {received} received"),
                Err(error) => outln!("{peer}: {error}"),
            }
        });
    }
    // From here on, new connections are refused.
    drop(listener);
    drain(connections, GRACE).await;
}

async fn proxy(mut client: TcpStream, target: &str) -> io::Result<(u64, u64)> {
    let mut server = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut server).await
}

/// A server that answers in capitals after the end of the request, the proxy in front of it, and a client.
async fn demo() -> io::Result<()> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let target = server.local_addr()?.to_string();
    windlass::spawn(async move {
        loop {
            let (stream, _) = server.accept().await?;
            let text = (&stream).read_to_string(1 << 20).await?;
            stream.write_all(text.to_uppercase()).await.0?;
            // Dropping the stream closes the connection.
            drop(stream);
        }
        #[allow(unreachable_code, reason = "gives the block its error type")]
        Ok::<(), io::Error>(())
    })
    .detach();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let shutdown = windlass::signal::shutdown()?;
    windlass::spawn(async move { serve(listener, &target, shutdown).await }).detach();
    for question in ["hello", "are you there?"] {
        outln!("{question} -> {}", ask(addr, question).await?);
    }
    // The proxy prints its line when both directions have ended.
    windlass::time::sleep(std::time::Duration::from_millis(50)).await;
    Ok(())
}

/// Sends the request, shuts down the write side, and reads the answer.
async fn ask(addr: SocketAddr, question: &'static str) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    copy(&mut question.as_bytes(), &mut stream).await?;
    AsyncWrite::shutdown(&mut stream).await?;
    stream.read_to_string(1 << 20).await
}
