//! std's `IoSlice`, as with tokio.
use std::io::IoSlice;
use windlass::net::TcpStream;

async fn reply(stream: TcpStream) {
    let (head, body) = (b"head".to_vec(), b"body".to_vec());
    let _ = stream.write_vectored(vec![IoSlice::new(&head), IoSlice::new(&body)]).await;
}

fn main() {}
