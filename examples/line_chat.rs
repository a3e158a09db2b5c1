//! A chat: who connects gives a name and hears what the others say, line by line.
//!
//! `cargo run --release --example line_chat -- 127.0.0.1:7000`, then `nc 127.0.0.1 7000` in several terminals. Or `--demo`, with
//! clients that keep to a script. On Ctrl-C or SIGTERM it stops accepting, and ends when the last member has left.

#[path = "support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use support::{Connections, GRACE, accept_failed, outln};
use windlass::io::{AsyncWrite, BufReader, Lines};
use windlass::net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream};
use windlass::signal::ShutdownSignal;

const USAGE: &str = "usage: line_chat LISTEN, as in `line_chat 127.0.0.1:7000`, or line_chat --demo";

/// The longest line that is taken.
const MAX_LINE: usize = 1_000;

/// Who has not taken this many lines is too slow, and misses some.
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

/// Everybody who is here.
#[derive(Default)]
struct Room {
    members: RefCell<HashMap<SocketAddr, Rc<Member>>>,
}

/// What one member has yet to be told.
#[derive(Default)]
struct Member {
    waiting: RefCell<VecDeque<Rc<[u8]>>>,
    /// Whoever writes to this member, asleep until there is something.
    writer: RefCell<Option<windlass::Promise<()>>>,
}

impl Room {
    /// Tells all but one.
    fn tell(&self, but: SocketAddr, line: &str) {
        outln!("{line}");
        let line: Rc<[u8]> = format!("{line}\n").into_bytes().into();
        for (addr, member) in &*self.members.borrow() {
            let mut waiting = member.waiting.borrow_mut();
            if *addr != but && waiting.len() < MAX_WAITING {
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
    let mut connections = Connections::default();
    while let Some(accepted) = shutdown.run_until_shutdown(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        let room = room.clone();
        connections.spawn(async move {
            if let Err(error) = welcome(&room, stream, peer).await {
                outln!("{peer}: {error}");
            }
            room.members.borrow_mut().remove(&peer);
        });
    }
    // From here on connecting is refused.
    drop(listener);
    connections.drain(GRACE).await;
}

/// One member, from hello to goodbye.
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
    room.tell(peer, &format!("* {name} is here"));
    let result = listen(room, peer, &name, &mut lines).await;
    room.tell(peer, &format!("* {name} is gone"));
    // Waits until nothing is being written any more: then the connection closes.
    writing.cancel();
    let _ = writing.await;
    result
}

async fn listen(room: &Room, peer: SocketAddr, name: &str, lines: &mut Lines<OwnedReadHalf>) -> io::Result<()> {
    loop {
        match lines.next_line().await {
            Ok(Some(line)) => room.tell(peer, &format!("{name}: {line}")),
            Ok(None) => return Ok(()),
            // Too long, or not text: that line is lost on the others, and the next one counts.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => outln!("* {name}: {error}"),
            Err(error) => return Err(error),
        }
    }
}

/// Writes what a member has yet to be told, as it comes.
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

/// A chat with itself.
async fn demo() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    windlass::spawn(serve(listener, windlass::signal::shutdown()?));
    let mut ann = join_chat(addr, "ann").await?;
    let mut bob = join_chat(addr, "bob").await?;
    hear(&mut ann, "* bob is here").await?;
    say(&mut ann, "hello, bob").await?;
    hear(&mut bob, "ann: hello, bob").await?;
    say(&mut bob, &"blah ".repeat(1_000)).await?;
    say(&mut bob, "hello, ann").await?;
    // The line that was too long did not come.
    hear(&mut ann, "bob: hello, ann").await?;
    drop(bob);
    hear(&mut ann, "* bob is gone").await?;
    outln!("the chat went as it should");
    Ok(())
}

async fn join_chat(addr: SocketAddr, name: &str) -> io::Result<Lines<TcpStream>> {
    let mut lines = BufReader::new(TcpStream::connect(addr).await?).lines();
    hear(&mut lines, "your name?").await?;
    say(&mut lines, name).await?;
    Ok(lines)
}

async fn say(lines: &mut Lines<TcpStream>, text: &str) -> io::Result<()> {
    lines.get_mut().write_all(format!("{text}\n")).await.0
}

async fn hear(lines: &mut Lines<TcpStream>, expected: &str) -> io::Result<()> {
    match lines.next_line().await? {
        Some(line) if line == expected => Ok(()),
        other => Err(io::Error::other(format!("heard {other:?}, not {expected:?}"))),
    }
}
