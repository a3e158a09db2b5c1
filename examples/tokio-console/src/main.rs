//! A windlass program whose tasks tokio-console shows.
//!
//! In this folder `cargo run`, and in another terminal `cargo install --locked tokio-console`, then `tokio-console`. The program
//! runs until Ctrl-C.

use std::io;
use std::time::{Duration, Instant};

use windlass::net::{TcpListener, TcpStream};
use windlass::task::Builder;
use windlass::time::sleep;

fn main() -> io::Result<()> {
    // Serves tokio-console on 127.0.0.1:6669, or TOKIO_CONSOLE_BIND, from a thread of its own. Before the first task.
    console_subscriber::init();
    windlass::run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let _server = Builder::new().name("server").spawn(serve(listener));
        let _ticker = Builder::new().name("ticker").spawn(tick());
        let _busy = Builder::new().name("busy").spawn(compute());
        let stream = TcpStream::connect(addr).await?;
        Builder::new().name("client").spawn(send(stream)).await?
    })?
}

/// Waits for connections: an operation wakes it.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        drop(Builder::new().name("connection").spawn(echo(stream)));
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    loop {
        let (count, mut buffer) = stream.read(vec![0; 1024]).await;
        match count? {
            0 => return Ok(()),
            count => buffer.truncate(count),
        }
        stream.write_all(buffer).await.0?;
    }
}

async fn send(stream: TcpStream) -> io::Result<()> {
    loop {
        stream.write_all("ping").await.0?;
        stream.read(vec![0; 1024]).await.0?;
        sleep(Duration::from_millis(50)).await;
    }
}

/// A timer wakes it. It spawns tasks that end.
async fn tick() {
    for number in 1.. {
        sleep(Duration::from_millis(100)).await;
        let name = format!("tick {number}");
        drop(Builder::new().name(name).spawn(async {}));
    }
}

/// Has long polls, and wakes itself after each.
async fn compute() {
    loop {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        windlass::task::yield_now().await;
        sleep(Duration::from_millis(200)).await;
    }
}
