//! The wrapper for libraries that require `Send`, and the executor for other threads.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;

use futures_util::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::rt::Executor;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use windlass::LoopHandle;
use windlass::compat::{Bridge, ThreadBound};

use crate::support::{on_every_driver, pair};

#[test]
fn a_wrapped_stream_can_be_upgraded() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let service = service_fn(|mut request: Request<Incoming>| async move {
                windlass::spawn(async move {
                    let upgraded = hyper::upgrade::on(&mut request).await.expect("an upgrade");
                    let parts = upgraded.downcast::<ThreadBound<Bridge<windlass::net::TcpStream>>>();
                    let parts = parts.expect("the same stream");
                    let stream = parts.io.into_inner().expect("its own thread").into_inner();
                    stream.write_all("upgraded").await.0.expect("write");
                });
                let mut response = Response::new(Empty::<Bytes>::new());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response
                    .headers_mut()
                    .insert("upgrade", "raw".parse().expect("a header"));
                Ok::<_, Infallible>(response)
            });
            let server = http1::Builder::new()
                .serve_connection(Bridge::new(far).into_send(), service)
                .with_upgrades();
            let server = windlass::spawn(server);
            let mut near = Bridge::new(near);
            near.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n")
                .await
                .expect("write");
            let mut text = String::new();
            near.read_to_string(&mut text).await.expect("read");
            assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
            assert!(text.ends_with("\r\n\r\nupgraded"), "{text}");
            server.await.expect("no panic").expect("no error");
        });
    });
}

#[test]
fn a_wrapper_forwards_the_traits_of_futures_io() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (mut near, far) = (Bridge::new(near).into_send(), Bridge::new(far).into_send());
            AsyncWriteExt::write_all(&mut near, b"one\ntwo\n").await.expect("write");
            AsyncWriteExt::close(&mut near).await.expect("close");
            let (reader, mut writer) = far.split();
            writer.write_all(b"three").await.expect("write");
            AsyncWriteExt::flush(&mut writer).await.expect("flush");
            let mut far = reader.reunite(writer).expect("the halves of one stream");
            let mut line = String::new();
            AsyncBufReadExt::read_line(&mut far, &mut line).await.expect("read");
            assert_eq!(line, "one\n");
            let mut rest = String::new();
            AsyncReadExt::read_to_string(&mut far, &mut rest).await.expect("read");
            assert_eq!(rest, "two\n");
            let mut reply = [0; 5];
            AsyncReadExt::read_exact(&mut near, &mut reply).await.expect("read");
            assert_eq!(&reply, b"three");
        });
    });
}

/// Refuses vectored writes, as the traits' default does.
struct Plain(Bridge<windlass::net::TcpStream>);

impl AsyncWrite for Plain {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.0), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.0), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.0), cx)
    }
}

#[test]
fn a_wrapper_forwards_the_traits_of_tokio() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (mut near, mut far) = (Bridge::new(near).into_send(), Bridge::new(far).into_send());
            assert!(AsyncWrite::is_write_vectored(&near) && hyper::rt::Write::is_write_vectored(&near));
            let slices = [IoSlice::new(b"he"), IoSlice::new(b"llo")];
            let count = poll_fn(|cx| AsyncWrite::poll_write_vectored(Pin::new(&mut near), cx, &slices)).await;
            assert_eq!(count.expect("write"), 5);
            let plain = near.into_inner().expect("its own thread");
            let mut plain = ThreadBound::new(Plain(plain));
            assert!(!AsyncWrite::is_write_vectored(&plain));
            let count = poll_fn(|cx| AsyncWrite::poll_write(Pin::new(&mut plain), cx, b"!")).await;
            assert_eq!(count.expect("write"), 1);
            poll_fn(|cx| AsyncWrite::poll_shutdown(Pin::new(&mut plain), cx))
                .await
                .expect("shutdown");
            let mut text = Vec::new();
            loop {
                let lent = poll_fn(|cx| AsyncBufRead::poll_fill_buf(Pin::new(&mut far), cx).map_ok(<[u8]>::len)).await;
                let mut buf = [0; 2];
                let mut buf = ReadBuf::new(&mut buf);
                poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut far), cx, &mut buf))
                    .await
                    .expect("read");
                assert_eq!(lent.expect("read") == 0, buf.filled().is_empty());
                text.extend_from_slice(buf.filled());
                if buf.filled().is_empty() {
                    break;
                }
            }
            assert_eq!(text, b"hello!");
            // On another thread, where the stream cannot be asked.
            let elsewhere = thread::spawn(move || AsyncWrite::is_write_vectored(&far));
            assert!(!elsewhere.join().expect("no panic"));
        });
    });
}

/// Counts its drops on any thread.
struct CountDrop(Arc<AtomicUsize>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_loop_handle_executes_futures_from_any_thread() {
    on_every_driver(|case| {
        let handle = case.run(async {
            let handle = LoopHandle::current().expect("inside of a loop");
            let here = thread::current().id();
            let (send, receive) = mpsc::channel();
            let (first, second) = (send.clone(), send);
            handle.execute(async move { first.send(thread::current().id()).expect("it waits") });
            // On its own loop the future is spawned directly: it runs in the next turn, as any task.
            windlass::task::yield_now().await;
            assert_eq!(receive.try_recv(), Ok(here));
            let elsewhere = handle.clone();
            let sent = thread::spawn(move || {
                elsewhere.execute(async move { second.send(thread::current().id()).expect("it waits") });
            });
            sent.join().expect("no panic");
            let ran_on = loop {
                match receive.try_recv() {
                    Ok(id) => break id,
                    Err(_) => windlass::task::yield_now().await,
                }
            };
            assert_eq!(ran_on, here);
            handle
        });
        let drops = Arc::new(AtomicUsize::new(0));
        let counted = CountDrop(drops.clone());
        handle.execute(async move { drop(counted) });
        assert_eq!(drops.load(SeqCst), 1, "a closed loop drops the future");
    });
}
