//! A buffer of another element type: `vec![0; n]` that something else makes a `Vec<i32>`.
use windlass::net::TcpStream;

async fn serve(stream: TcpStream) {
    let buf: Vec<i32> = vec![0; 1024];
    let _ = stream.read(buf).await;
}

fn main() {}
