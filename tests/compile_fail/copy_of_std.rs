//! A blocking stream of std is copied.
async fn print(mut stream: std::net::TcpStream) {
    let _ = windlass::io::copy(&mut stream, &mut windlass::io::stdout()).await;
}

fn main() {}
