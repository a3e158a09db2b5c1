//! A datagram's buffer is lent, as with tokio.
use windlass::net::UdpSocket;

async fn serve(socket: UdpSocket) {
    let mut buf = [0; 1500];
    let _ = socket.recv_from(&mut buf).await;
}

fn main() {}
