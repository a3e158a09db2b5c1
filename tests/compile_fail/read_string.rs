//! Bytes are read into a string.
use windlass::net::TcpStream;

async fn serve(stream: TcpStream) {
    let _ = stream.read(String::new()).await;
}

fn main() {}
