//! A maximum instead of a buffer, as with asyncio's `reader.read(n)`.
use windlass::net::TcpStream;

async fn serve(stream: TcpStream) {
    let _ = stream.read(1024).await;
}

fn main() {}
