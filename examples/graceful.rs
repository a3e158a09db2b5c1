//! Graceful shutdown: on Ctrl-C or SIGTERM the server stops accepting, lets connections finish until a deadline, and
//! then cancels them.
//!
//!     cargo run --example graceful -- 127.0.0.1:7777 10
//!
//! Connect (`nc 127.0.0.1 7777`) and press Ctrl-C here: new connections are refused, yours is served for 10 more
//! seconds.

#[path = "support/mod.rs"]
mod support;

use std::io;
use std::time::Duration;

use support::{accept_failed, drain, outln, reap};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::{CancelToken, JoinSet};

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let addr = args.next().unwrap_or("127.0.0.1:7777".to_owned());
    let seconds = args.next().unwrap_or("10".to_owned());
    let seconds = seconds
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let grace = seconds
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the deadline must be a number of seconds"))?;
    windlass::run(serve(addr, grace))?
}

async fn serve(addr: String, grace: Duration) -> io::Result<()> {
    let listener = TcpListener::bind(addr.as_str()).await?;
    // From here on, Ctrl-C and SIGTERM no longer end the process by default.
    let mut shutdown = windlass::signal::shutdown()?;
    outln!("listening on {}", listener.local_addr()?);
    let stop = CancelToken::new();
    let accepting = windlass::spawn(accept(listener, stop.clone()));

    shutdown.recv().await;

    // The task's handle resolves when its last accept has left the kernel and the listener is closed: from here on, new
    // connections are refused.
    stop.cancel();
    let connections = accepting.await?;
    drain(connections, grace).await;
    Ok(())
}

/// Accepts until `stop` is cancelled, and returns the connections. They fail independently of each other.
async fn accept(listener: TcpListener, stop: CancelToken) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    // A cancelled accept loses no connection.
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
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
    connections
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}
