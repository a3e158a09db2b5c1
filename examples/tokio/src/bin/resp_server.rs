//! `examples/resp_server` on tokio.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use store::{Parsed, Store, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tokio_equivalents::{GRACE, Shutdown, accept_failed, drain, outln, reap};

#[path = "../../../resp_server/store.rs"]
mod store;

const MAX_CONNECTIONS: usize = 1000;
const MAX_OUTPUT: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:6379".to_owned());
    let listener = TcpListener::bind(&addr).await?;
    let mut shutdown = Shutdown::new()?;
    outln!("listening on {}", listener.local_addr()?);
    let store = Arc::new(Mutex::new(Store::default()));
    tokio::spawn(sweep(store.clone()));
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.recv() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(error).await;
                continue;
            }
        };
        let store = store.clone();
        reap(&mut connections);
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = serve(stream, &store).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
    drop(listener);
    drain(connections, GRACE).await;
    Ok(())
}

async fn serve(mut stream: TcpStream, store: &Mutex<Store>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BytesMut::new();
    let mut output = Vec::new();
    loop {
        match parse(&input) {
            Ok(Parsed::Request(request, len)) => {
                store.lock().expect("no panic").execute(&request, &mut output);
                input.advance(len);
                if output.len() > MAX_OUTPUT {
                    send(&mut stream, &mut output).await?;
                }
            }
            Ok(Parsed::Needs(len)) => {
                send(&mut stream, &mut output).await?;
                // A client may be idle between requests, not within one.
                let patience = if input.is_empty() { Duration::MAX } else { PATIENCE };
                let filled = timeout(patience, async {
                    while input.len() < len {
                        if stream.read_buf(&mut input).await? == 0 {
                            return match input.is_empty() {
                                true => Ok(false),
                                false => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                            };
                        }
                    }
                    Ok(true)
                });
                if !filled.await?? {
                    return Ok(());
                }
            }
            Err(error) => {
                output.extend_from_slice(format!("-ERR {error}\r\n").as_bytes());
                return send(&mut stream, &mut output).await;
            }
        }
    }
}

async fn send(stream: &mut TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    timeout(PATIENCE, stream.write_all(output)).await??;
    output.clear();
    Ok(())
}

async fn sweep(store: Arc<Mutex<Store>>) {
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        store.lock().expect("no panic").sweep();
    }
}
