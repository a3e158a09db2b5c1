//! A string is lent, as with tokio.
use windlass::net::TcpStream;

async fn greet(stream: TcpStream, name: &str) {
    let text = format!("hello, {name}\n");
    let _ = stream.write_all(&text).await;
}

fn main() {}
