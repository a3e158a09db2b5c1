//! A chat server: a client gives a name and then receives the lines of the others.
//!
//! `cargo run --release --example line_chat -- 127.0.0.1:7000`, then `nc 127.0.0.1 7000` in several terminals. Or
//! `--demo`, with scripted clients. On Ctrl-C or SIGTERM it stops accepting, and ends when the last member has left, or
//! ten seconds later.

#[path = "../support/mod.rs"]
mod support;

mod demo;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use support::{GRACE, accept_failed, drain, outln, reap};
use windlass::io::BufReader;
use windlass::net::{TcpListener, TcpStream};
use windlass::signal::ShutdownSignal;
use windlass::sync::Semaphore;
use windlass::sync::broadcast::{self, RecvError};
use windlass::task::{Either, JoinSet, select};

/// The maximum length of a line. A longer one is skipped.
const MAX_LINE: usize = 1_000;
/// The maximum number of members; further clients wait until one leaves.
const MAX_MEMBERS: usize = 1_000;
/// The maximum number of lines queued for a member. A slower member misses lines.
const MAX_WAITING: usize = 1_000;

/// Passes a line and its sender to every member.
type Room = broadcast::Sender<(SocketAddr, Rc<str>)>;

fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".to_owned());
    windlass::run(async {
        if addr == "--demo" {
            return demo::run().await;
        }
        let listener = TcpListener::bind(addr.as_str()).await?;
        let shutdown = windlass::signal::shutdown()?;
        outln!("listening on {}", listener.local_addr()?);
        serve(listener, shutdown).await;
        Ok(())
    })?
}

async fn serve(listener: TcpListener, mut shutdown: ShutdownSignal) {
    let (room, _) = broadcast::channel(MAX_WAITING);
    let permits = Rc::new(Semaphore::new(MAX_MEMBERS));
    let mut connections = JoinSet::new();
    let accept = async || {
        let permit = permits.clone().acquire_owned().await.expect("it is never closed");
        (listener.accept().await, permit)
    };
    while let Some((accepted, permit)) = shutdown.run_until_shutdown(accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        let room = room.clone();
        reap(&mut connections);
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = welcome(room, stream, peer).await {
                outln!("{peer}: {error}");
            }
        });
    }
    // From here on, new connections are refused.
    drop(listener);
    drain(connections, GRACE).await;
}

/// Serves one member until it disconnects.
async fn welcome(room: Room, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    let mut lines = BufReader::new(reader).max_line_len(MAX_LINE).lines();
    writer.write_all("your name?\n").await.0?;
    let Some(name) = lines.next_line().await? else {
        return Ok(());
    };
    let mut messages = room.subscribe();
    let say = |line: String| {
        outln!("{line}");
        // Fails only without members.
        let _ = room.send((peer, format!("{line}\n").into()));
    };
    say(format!("* {name} is here"));
    let result = loop {
        match select(lines.next_line(), messages.recv()).await {
            Either::Left(Ok(Some(line))) => say(format!("{name}: {line}")),
            // Too long, or not UTF-8: the line is skipped.
            Either::Left(Err(error)) if error.kind() == io::ErrorKind::InvalidData => outln!("* {name}: {error}"),
            Either::Left(end) => break end.map(drop),
            Either::Right(Ok((sender, line))) if sender != peer => {
                if let (Err(error), _) = writer.write_all(line).await {
                    break Err(error);
                }
            }
            Either::Right(Err(RecvError::Lagged(missed))) => outln!("* {name} missed {missed} lines"),
            Either::Right(_) => {}
        }
    };
    say(format!("* {name} is gone"));
    result
}
