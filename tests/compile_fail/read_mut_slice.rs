//! A part of the buffer is lent, as with tokio.
use windlass::net::TcpStream;

async fn serve(stream: TcpStream) {
    let mut buf = [0; 1024];
    let _ = stream.read(&mut buf[..]).await;
}

fn main() {}
