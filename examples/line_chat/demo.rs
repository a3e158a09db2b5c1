//! A scripted chat: `--demo`.

use std::io;
use std::net::SocketAddr;

use windlass::io::{AsyncWrite, BufReader, Lines};
use windlass::net::{TcpListener, TcpStream};

use crate::serve;
use crate::support::outln;

/// A scripted chat.
pub(crate) async fn run() -> io::Result<()> {
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
