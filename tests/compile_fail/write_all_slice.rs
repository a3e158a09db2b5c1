//! A part of a local buffer is lent.
use windlass::net::TcpStream;

async fn reply(stream: TcpStream) {
    let out = vec![1, 2, 3];
    let _ = stream.write_all(&out[1..]).await;
}

fn main() {}
