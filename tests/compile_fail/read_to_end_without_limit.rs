//! `read_to_end` without a limit, as with tokio.
use windlass::io::AsyncRead;
use windlass::net::TcpStream;

async fn body(mut stream: TcpStream) {
    let mut body = Vec::new();
    let _ = stream.read_to_end(&mut body).await;
}

fn main() {}
