//! An echo server on a thread of this process, and its clients on another loop: for benches that compare settings of the
//! server by the CPU time of its thread.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use windlass::EventLoop;
use windlass::net::{TcpListener, TcpStream};

use super::clock::thread_time;

pub(crate) const CONNECTIONS: usize = 50;

/// The CPU time of the server's thread per request, in nanoseconds: `requests` requests of `len` bytes, one in flight on each
/// of [`CONNECTIONS`] connections. `open` makes the server's loop; `connection` serves one connection until the client closes it.
pub(crate) fn nanos_per_request<F>(
    open: impl FnOnce() -> io::Result<EventLoop> + Send + 'static,
    requests: usize,
    len: usize,
    connection: impl Fn(TcpStream) -> F + Send + 'static,
) -> io::Result<f64>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let (addr_sender, addr) = mpsc::channel();
    let server = thread::spawn(move || {
        let event_loop = open()?;
        let used = thread_time();
        event_loop.run_until_complete(serve(addr_sender, connection))??;
        io::Result::Ok(thread_time() - used)
    });
    // Without an address, the thread has ended with an error.
    if let Ok(addr) = addr.recv() {
        EventLoop::new()?.run_until_complete(async {
            let each = requests / CONNECTIONS;
            let client = |_| windlass::spawn(ask(addr, each, len));
            for client in (0..CONNECTIONS).map(client).collect::<Vec<_>>() {
                client.await.expect("no panic")?;
            }
            io::Result::Ok(())
        })??;
    }
    let used = server.join().expect("no panic")?;
    Ok(used.as_nanos() as f64 / requests as f64)
}

async fn serve<F>(addr_sender: mpsc::Sender<SocketAddr>, connection: impl Fn(TcpStream) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    addr_sender.send(addr).expect("the receiver is waiting");
    let mut served = Vec::new();
    for _ in 0..CONNECTIONS {
        let (stream, _) = listener.accept().await?;
        served.push(windlass::spawn(connection(stream)));
    }
    for task in served {
        task.await.expect("no panic")?;
    }
    Ok(())
}

/// Echoes until the client closes, with the native calls.
pub(crate) async fn echo(stream: TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}

async fn ask(addr: SocketAddr, requests: usize, len: usize) -> io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    let (mut question, mut answer) = (vec![7u8; len], vec![0u8; len]);
    for _ in 0..requests {
        let result;
        (result, question) = stream.write_all(question).await;
        result?;
        let result;
        (result, answer) = stream.read_exact(answer).await;
        result?;
    }
    Ok(())
}
