//! The buffer is lent, as with tokio.
use windlass::net::TcpStream;

async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut buf = vec![0; 1024];
    let count = stream.read(&mut buf).await?;
    println!("{:?}", &buf[..count]);
    Ok(())
}

fn main() {}
