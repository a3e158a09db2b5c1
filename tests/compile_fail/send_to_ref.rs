//! A datagram is lent, as with tokio.
use windlass::net::UdpSocket;

async fn query(socket: UdpSocket) {
    let query = vec![1, 2, 3];
    let _ = socket.send_to(&query, "127.0.0.1:53").await;
}

fn main() {}
