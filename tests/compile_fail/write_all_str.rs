//! A `&str` that is not static.
use windlass::net::TcpStream;

async fn greet(stream: TcpStream, name: &str) {
    let _ = stream.write_all(name).await;
}

fn main() {}
