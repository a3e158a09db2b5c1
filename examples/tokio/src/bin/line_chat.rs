//! `examples/line_chat.rs` on tokio.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Sender};
use tokio::task::JoinSet;
use tokio_equivalents::{GRACE, Shutdown, accept_failed, drain, outln, reap};
use tokio_stream::StreamExt;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

const MAX_LINE: usize = 1_000;
const MAX_MEMBERS: usize = 1_000;
const MAX_WAITING: usize = 1_000;

type Room = Sender<(SocketAddr, Arc<str>)>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".to_owned());
    let listener = TcpListener::bind(&addr).await?;
    let mut shutdown = Shutdown::new()?;
    outln!("listening on {}", listener.local_addr()?);
    let (room, _) = broadcast::channel(MAX_WAITING);
    let permits = Arc::new(Semaphore::new(MAX_MEMBERS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.recv() => break,
        };
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
    drop(listener);
    drain(connections, GRACE).await;
    Ok(())
}

async fn welcome(room: Room, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_LINE));
    writer.write_all(b"your name?\n").await?;
    let name = match lines.next().await {
        Some(name) => name.map_err(io::Error::other)?,
        None => return Ok(()),
    };
    let mut messages = room.subscribe();
    let say = |line: String| {
        outln!("{line}");
        let _ = room.send((peer, format!("{line}\n").into()));
    };
    say(format!("* {name} is here"));
    let result = loop {
        tokio::select! {
            line = lines.next() => match line {
                Some(Ok(line)) => say(format!("{name}: {line}")),
                Some(Err(LinesCodecError::MaxLineLengthExceeded)) => outln!("* {name}: a line is too long"),
                Some(Err(LinesCodecError::Io(error))) if error.kind() == io::ErrorKind::InvalidData => {
                    outln!("* {name}: {error}");
                }
                Some(Err(LinesCodecError::Io(error))) => break Err(error),
                None => break Ok(()),
            },
            message = messages.recv() => match message {
                Ok((sender, line)) if sender != peer => {
                    if let Err(error) = writer.write_all(line.as_bytes()).await {
                        break Err(error);
                    }
                }
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => outln!("* {name} missed {missed} lines"),
                Err(RecvError::Closed) => break Ok(()),
            },
        }
    };
    say(format!("* {name} is gone"));
    result
}
