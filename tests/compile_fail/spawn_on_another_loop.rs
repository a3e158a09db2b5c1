//! A future with a stream belongs to one loop: it cannot be sent to another thread.

use windlass::net::TcpStream;

fn main() {
    let background = windlass::LoopThread::start().unwrap();
    background.handle().spawn(async { TcpStream::connect("localhost:80").await.is_ok() }).unwrap();
}
