//! A server for clients of Redis, with a few commands on strings: PING, ECHO, SET (with EX or PX), GET, DEL, INCR, EXPIRE,
//! TTL, MGET, MSET, DBSIZE and FLUSHALL, pipelined or not, as arrays or as words on a line.
//!
//! `cargo run --release --example resp_server -- [127.0.0.1:6379] [--shards N|all]`, then `redis-cli SET greeting hello EX 60`, or
//! `redis-benchmark -t set,get -P 16`.
//!
//! The number of connections, the length of a request and the queued output are limited; a client that stops in the
//! middle of a request, or does not read its replies, is disconnected. On Ctrl-C or SIGTERM the server stops accepting
//! and lets the open connections finish.
//!
//! One loop serves by default. With `--shards`, each of N loops owns a part of the keys: see `sharded.rs`.

#[path = "../support/mod.rs"]
mod support;

mod sharded;
mod store;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use store::{Parsed, Store, parse};
use support::{GRACE, accept_failed, drain, outln, reap};
use windlass::io::BufReader;
use windlass::net::{TcpListener, TcpStream};
use windlass::sync::Semaphore;
use windlass::task::JoinSet;
use windlass::time::{interval, timeout};

/// The maximum number of connections; further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 1000;
/// Replies are sent when no complete request is left, or when they exceed this.
const MAX_OUTPUT: usize = 64 * 1024;
/// How long the rest of a request may take, and how long a client may not read.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> io::Result<()> {
    let (addr, shards) = sharded::arguments()?;
    if let Some(count) = shards {
        return sharded::run(&addr, count);
    }
    windlass::run(async {
        let listener = TcpListener::builder().nodelay(true).listen(addr.as_str()).await?;
        let mut shutdown = windlass::signal::shutdown()?;
        outln!("listening on {}", listener.local_addr()?);
        let store = Rc::new(RefCell::new(Store::default()));
        windlass::spawn(sweep(store.clone())).detach();
        let permits = Rc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        let accept = async || {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        while let Some((accepted, permit)) = shutdown.run_until_shutdown(accept()).await {
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
        // From here on, new connections are refused.
        drop(listener);
        drain(connections, GRACE).await;
        Ok(())
    })?
}

async fn serve(stream: TcpStream, store: &RefCell<Store>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut output = Vec::new();
    loop {
        match parse(reader.buffer()) {
            Ok(Parsed::Request(request, len)) => {
                store.borrow_mut().execute(&request, &mut output);
                reader.consume(len);
                if output.len() > MAX_OUTPUT {
                    send(reader.get_ref(), &mut output).await?;
                }
            }
            Ok(Parsed::Needs(len)) => {
                send(reader.get_ref(), &mut output).await?;
                // A client may be idle between requests, not within one.
                let patience = if reader.buffer().is_empty() {
                    Duration::MAX
                } else {
                    PATIENCE
                };
                if timeout(patience, reader.fill_at_least(len)).await??.is_empty() {
                    return Ok(());
                }
            }
            Err(error) => {
                output.extend_from_slice(format!("-ERR {error}\r\n").as_bytes());
                return send(reader.get_ref(), &mut output).await;
            }
        }
    }
}

async fn send(stream: &TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    let (result, sent) = timeout(PATIENCE, stream.write_all(std::mem::take(output))).await?;
    *output = sent;
    output.clear();
    result
}

/// Frees expired entries once a second.
async fn sweep(store: Rc<RefCell<Store>>) {
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        store.borrow_mut().sweep();
    }
}
