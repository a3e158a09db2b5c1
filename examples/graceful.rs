//! Graceful shutdown: on Ctrl-C or SIGTERM the server stops accepting, lets connections finish until a deadline, and
//! then cancels them.
//!
//!     cargo run --example graceful -- 127.0.0.1:7777 10
//!
//! Connect (`nc 127.0.0.1 7777`) and press Ctrl-C here: new connections are refused, yours is served for 10 more
//! seconds.

#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use support::{accept_failed, outln};
use windlass::JoinHandle;
use windlass::net::{TcpListener, TcpStream};
use windlass::time::timeout;

/// The connections that are being served.
type Connections = Rc<RefCell<Vec<JoinHandle<io::Result<()>>>>>;

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
    let connections = Connections::default();
    let accepting = windlass::spawn(accept(listener, connections.clone()));

    shutdown.recv().await;

    // The listener closes with its task: new connections are refused.
    accepting.cancel();
    let _ = accepting.await;
    connections.borrow_mut().retain(|connection| !connection.is_finished());
    let mut left = connections.take();
    outln!("stopped accepting; {} connections are left", left.len());

    let drained = timeout(grace, async {
        for connection in &mut left {
            // Errors of single connections do not matter here.
            let _ = connection.await;
        }
    });
    if drained.await.is_ok() {
        outln!("all finished");
        return Ok(());
    }
    left.retain(|connection| !connection.is_finished());
    outln!("{} connections are cut", left.len());
    for connection in left {
        connection.cancel();
        let _ = connection.await;
    }
    Ok(())
}

async fn accept(listener: TcpListener, connections: Connections) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let mut connections = connections.borrow_mut();
                connections.retain(|connection| !connection.is_finished());
                connections.push(windlass::spawn(echo(stream)));
            }
            Err(error) => accept_failed(error).await,
        }
    }
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
