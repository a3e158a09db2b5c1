//! The connections of `examples/resp_server` and of the same program on tokio, without their limits on connections.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use store::{Parsed, Store, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::io::BufReader;

#[allow(dead_code, reason = "the server does not sweep")]
#[path = "../../../../examples/resp_server/store.rs"]
mod store;

const MAX_OUTPUT: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);

pub fn on_windlass() -> impl FnMut(windlass::net::TcpStream) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    let store = Rc::new(RefCell::new(Store::default()));
    move |stream| {
        let store = store.clone();
        Box::pin(async move { drop(serve(stream, &store).await) })
    }
}

async fn serve(stream: windlass::net::TcpStream, store: &RefCell<Store>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut output = Vec::new();
    loop {
        match parse(reader.buffer()).map_err(io::Error::other)? {
            Parsed::Request(request, len) => {
                store.borrow_mut().execute(&request, &mut output);
                reader.consume(len);
                if output.len() > MAX_OUTPUT {
                    send(reader.get_ref(), &mut output).await?;
                }
            }
            Parsed::Needs(len) => {
                send(reader.get_ref(), &mut output).await?;
                let rest = windlass::time::timeout(PATIENCE, reader.fill_at_least(len));
                if rest.await??.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

async fn send(stream: &windlass::net::TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    let sent = windlass::time::timeout(PATIENCE, stream.write_all(std::mem::take(output)));
    let (result, sent) = sent.await?;
    *output = sent;
    output.clear();
    result
}

pub fn on_tokio() -> impl FnMut(tokio::net::TcpStream) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let store = Arc::new(Mutex::new(Store::default()));
    move |stream| {
        let store = store.clone();
        Box::pin(async move { drop(serve_on_tokio(stream, &store).await) })
    }
}

async fn serve_on_tokio(mut stream: tokio::net::TcpStream, store: &Mutex<Store>) -> io::Result<()> {
    let mut input = BytesMut::new();
    let mut output = Vec::new();
    loop {
        match parse(&input).map_err(io::Error::other)? {
            Parsed::Request(request, len) => {
                store.lock().expect("no panic").execute(&request, &mut output);
                input.advance(len);
                if output.len() > MAX_OUTPUT {
                    send_on_tokio(&mut stream, &mut output).await?;
                }
            }
            Parsed::Needs(len) => {
                send_on_tokio(&mut stream, &mut output).await?;
                let filled = tokio::time::timeout(PATIENCE, async {
                    while input.len() < len {
                        // As much as windlass' buffers have; by itself, `read_buf` makes room for 64 bytes.
                        input.reserve(8 * 1024);
                        if stream.read_buf(&mut input).await? == 0 {
                            return Ok::<_, io::Error>(false);
                        }
                    }
                    Ok(true)
                });
                if !filled.await?? {
                    return Ok(());
                }
            }
        }
    }
}

async fn send_on_tokio(stream: &mut tokio::net::TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    tokio::time::timeout(PATIENCE, stream.write_all(output)).await??;
    output.clear();
    Ok(())
}
