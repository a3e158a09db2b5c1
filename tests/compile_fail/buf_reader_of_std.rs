//! A blocking stream of std in a buffered reader.
use windlass::io::BufReader;

async fn first_line(stream: std::net::TcpStream) {
    let _ = BufReader::new(stream).lines().next_line().await;
}

fn main() {}
