//! A client of the log: one connection per call.

use std::io;

use windlass::io::{AsyncWrite, BufReader};
use windlass::net::TcpStream;

/// Appends an entry and returns its index. After an error the entry may be in the log or not.
pub(crate) async fn add(leader: &str, entry: &str) -> io::Result<usize> {
    let reply = call(leader, format!("add {entry}\n")).await?;
    let index = reply.strip_prefix("added ").and_then(|index| index.parse().ok());
    index.ok_or_else(|| io::Error::other(reply))
}

/// An entry that was appended. Waits until a quorum has it.
pub(crate) async fn get(leader: &str, index: usize) -> io::Result<String> {
    let reply = call(leader, format!("get {index}\n")).await?;
    let entry = reply.strip_prefix("entry ").map(str::to_owned);
    entry.ok_or_else(|| io::Error::other(reply))
}

async fn call(addr: &str, request: String) -> io::Result<String> {
    let mut lines = BufReader::new(TcpStream::connect(addr).await?).lines();
    lines.get_mut().write_all(request).await.0?;
    lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof.into())
}
