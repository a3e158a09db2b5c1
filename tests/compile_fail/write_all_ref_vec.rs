//! A vector is lent, as with tokio.
use windlass::net::TcpStream;

async fn reply(stream: TcpStream) -> std::io::Result<()> {
    let out = vec![1, 2, 3];
    stream.write_all(&out).await?;
    Ok(())
}

fn main() {}
