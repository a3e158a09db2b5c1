//! An array is lent, as with tokio.
use windlass::net::TcpStream;

async fn header(stream: TcpStream) {
    let mut header = [0; 4];
    let _ = stream.read_exact(&mut header).await;
}

fn main() {}
