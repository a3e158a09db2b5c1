//! The bytes of a local string are lent.
use windlass::net::TcpStream;

async fn greet(stream: TcpStream) {
    let text = String::from("hello");
    let _ = stream.write_all(text.as_bytes()).await;
}

fn main() {}
