//! A chat server: a client gives a name and then receives the lines of the others.
//!
//! `cargo run --release --example line_chat -- 127.0.0.1:7000`, then `nc 127.0.0.1 7000` in several terminals. Or
//! `--demo`, with scripted clients. On Ctrl-C or SIGTERM it stops accepting, and ends when the last member has left.

#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use support::{GRACE, accept_failed, drain, outln, reap};
use windlass::io::{AsyncWrite, BufReader, Lines};
use windlass::net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
use windlass::signal::ShutdownSignal;
use windlass::task::JoinSet;

const USAGE: &str = "usage: line_chat LISTEN, as in `line_chat 127.0.0.1:7000`, or line_chat --demo";

/// The maximum length of a line.
const MAX_LINE: usize = 1_000;

/// The maximum number of lines queued for a member. A slower member misses lines.
const MAX_WAITING: usize = 1_000;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--demo"] => windlass::run(demo())?,
        ["--help" | "-h"] => {
            outln!("{USAGE}");
            Ok(())
        }
        [listen] if !listen.starts_with('-') => windlass::run(async {
            let listener = TcpListener::bind(listen).await?;
            let shutdown = windlass::signal::shutdown()?;
            outln!("listening on {}", listener.local_addr()?);
            serve(listener, shutdown).await;
            Ok(())
        })?,
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

/// The members of the chat.
#[derive(Default)]
struct Room {
    members: RefCell<HashMap<SocketAddr, Rc<Member>>>,
}

/// The lines queued for one member.
#[derive(Default)]
struct Member {
    waiting: RefCell<VecDeque<Rc<[u8]>>>,
    /// Wakes the member's writing task, if it waits for lines.
    writer: RefCell<Option<windlass::Promise<()>>>,
}

impl Room {
    /// Queues a line for every member but its sender.
    fn broadcast(&self, sender: SocketAddr, line: &str) {
        outln!("{line}");
        let line: Rc<[u8]> = format!("{line}\n").into_bytes().into();
        for (addr, member) in &*self.members.borrow() {
            let mut waiting = member.waiting.borrow_mut();
            if *addr != sender && waiting.len() < MAX_WAITING {
                waiting.push_back(line.clone());
                if let Some(promise) = member.writer.take() {
                    let _ = promise.resolve(());
                }
            }
        }
    }
}

async fn serve(listener: TcpListener, mut shutdown: ShutdownSignal) {
    let room = Rc::new(Room::default());
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
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
            if let Err(error) = welcome(&room, stream, peer).await {
                outln!("{peer}: {error}");
            }
            room.members.borrow_mut().remove(&peer);
        });
    }
    // From here on, new connections are refused.
    drop(listener);
    drain(connections, GRACE).await;
}

/// Serves one member until it disconnects.
async fn welcome(room: &Room, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).max_line_len(MAX_LINE).lines();
    AsyncWrite::write_all(&mut writer, "your name?\n").await.0?;
    let Some(name) = lines.next_line().await? else {
        return Ok(());
    };
    let member = Rc::new(Member::default());
    room.members.borrow_mut().insert(peer, member.clone());
    let writing = windlass::spawn(write(writer, member));
    room.broadcast(peer, &format!("* {name} is here"));
    let result = listen(room, peer, &name, &mut lines).await;
    room.broadcast(peer, &format!("* {name} is gone"));
    // Waits until no write is in flight: then the connection closes.
    writing.cancel();
    let _ = writing.await;
    result
}

async fn listen(room: &Room, peer: SocketAddr, name: &str, lines: &mut Lines<OwnedReadHalf>) -> io::Result<()> {
    loop {
        match lines.next_line().await {
            Ok(Some(line)) => room.broadcast(peer, &format!("{name}: {line}")),
            Ok(None) => return Ok(()),
            // Too long, or not UTF-8: the line is skipped.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => outln!("* {name}: {error}"),
            Err(error) => return Err(error),
        }
    }
}

/// Writes queued lines to a member.
async fn write(writer: OwnedWriteHalf, member: Rc<Member>) -> io::Result<()> {
    loop {
        let lines: Vec<Rc<[u8]>> = member.waiting.borrow_mut().drain(..).collect();
        if lines.is_empty() {
            let (promise, placeholder) = windlass::promise();
            member.writer.replace(Some(promise));
            let _ = placeholder.await;
            continue;
        }
        writer.write_all_vectored(lines).await.0?;
    }
}

/// A scripted chat.
async fn demo() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    windlass::spawn(serve(listener, windlass::signal::shutdown()?));
    let mut ann = join_chat(addr, "ann").await?;
    let mut bob = join_chat(addr, "bob").await?;
    expect_line(&mut ann, "* bob is here").await?;
    send(&mut ann, "hello, bob").await?;
    expect_line(&mut bob, "ann: hello, bob").await?;
    send(&mut bob, &"blah ".repeat(1_000)).await?;
    send(&mut bob, "hello, ann").await?;
    // The line that was too long was skipped.
    expect_line(&mut ann, "bob: hello, ann").await?;
    drop(bob);
    expect_line(&mut ann, "* bob is gone").await?;
    outln!("the demo succeeded");
    Ok(())
}

async fn join_chat(addr: SocketAddr, name: &str) -> io::Result<Lines<TcpStream>> {
    let mut lines = BufReader::new(TcpStream::connect(addr).await?).lines();
    expect_line(&mut lines, "your name?").await?;
    send(&mut lines, name).await?;
    Ok(lines)
}

async fn send(lines: &mut Lines<TcpStream>, text: &str) -> io::Result<()> {
    lines.get_mut().write_all(format!("{text}\n")).await.0
}

async fn expect_line(lines: &mut Lines<TcpStream>, expected: &str) -> io::Result<()> {
    match lines.next_line().await? {
        Some(line) if line == expected => Ok(()),
        other => Err(io::Error::other(format!("received {other:?} instead of {expected:?}"))),
    }
}
