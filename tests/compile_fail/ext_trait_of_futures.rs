//! An extension trait of futures on a stream of windlass.
use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use windlass::io::DuplexStream;

async fn echo(mut stream: DuplexStream) {
    let mut buf = [0; 1024];
    let count = stream.read(&mut buf).await.unwrap();
    stream.write_all(&buf[..count]).await.unwrap();
}

fn main() {}
