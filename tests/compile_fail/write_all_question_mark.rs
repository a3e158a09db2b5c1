//! `?` on the pair of result and buffer.
use windlass::net::TcpStream;

async fn greet(stream: TcpStream) -> std::io::Result<()> {
    stream.write_all("hello").await?;
    Ok(())
}

fn main() {}
