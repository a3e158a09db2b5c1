//! Poll-based code over TLS, through `Bridge`.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::compat::Bridge;
use windlass::io::{DuplexStream, duplex};
use windlass::task::join;
use windlass::time::timeout;
use windlass::tls::TlsStream;

use super::{connector_and_acceptor, handshake, tls_pair};
use crate::support::{on_every_driver, poll_once, turns};

#[test]
fn bytes_pass_between_bridge_and_stream() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            let mut bridge = Bridge::new(server);
            client.write_all("hello, you").await.0.expect("write");
            let lent = poll_fn(|cx| bridge.poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await;
            assert_eq!(lent.expect("read"), b"hello, you");
            bridge.consume(5);
            let mut some = [0; 2];
            assert_eq!(poll_fn(|cx| bridge.poll_read(cx, &mut some)).await.expect("read"), 2);
            assert_eq!(&some, b", ");
            // A read is pending when the bridge is dropped: its bytes are not lost.
            bridge.consume(3);
            assert!(poll_fn(|cx| Poll::Ready(bridge.poll_fill_buf(cx).is_pending())).await);
            let server = bridge.into_inner();
            client.write_all("again").await.0.expect("write");
            let (result, bytes) = server.read_exact(vec![0; 5]).await;
            result.expect("read");
            assert_eq!(bytes, b"again");

            // And bytes that a stream call had read are read by the bridge.
            client.write_all("part").await.0.expect("write");
            {
                let mut dropped = pin!(server.read_exact(vec![0; 10]));
                for _ in 0..20 {
                    assert!(poll_once(dropped.as_mut()).await.is_pending());
                    turns(1).await;
                }
            }
            let mut bridge = Bridge::new(server);
            let lent = poll_fn(|cx| bridge.poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await;
            assert_eq!(lent.expect("read"), b"part");
            bridge.consume(4);

            client.shutdown().await.expect("shutdown");
            assert_eq!(poll_fn(|cx| bridge.poll_read(cx, &mut some)).await.expect("the end"), 0);
            poll_fn(|cx| bridge.poll_shutdown(cx)).await.expect("shutdown");
            poll_fn(|cx| bridge.poll_shutdown(cx))
                .await
                .expect("a second shutdown succeeds");
            assert!(client.read_managed().await.expect("the end").is_empty());
            let late = poll_fn(|cx| bridge.poll_write(cx, b"late")).await;
            assert_eq!(late.expect_err("it was shut down").kind(), ErrorKind::BrokenPipe);
        });
    });
}

async fn write_all(bridge: &mut Bridge<TlsStream<DuplexStream>>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = poll_fn(|cx| bridge.poll_write(cx, bytes)).await.expect("write");
        bytes = &bytes[count..];
    }
    poll_fn(|cx| bridge.poll_flush(cx)).await.expect("flush");
}

#[test]
fn a_bridged_writer_waits_for_its_reader() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(1000)).await;
            let mut bridge = Bridge::new(client);
            let body: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 253) as u8).collect();
            let mut taken = 0;
            loop {
                // In small pieces, which accumulate behind the record that is being sent.
                let piece = &body[taken..taken + 5_000];
                let polled = poll_fn(|cx| Poll::Ready(bridge.poll_write(cx, piece))).await;
                let Poll::Ready(count) = polled else { break };
                taken += count.expect("write");
            }
            assert!(
                taken > 0 && taken <= 256 * 1024,
                "{taken} bytes were taken without a reader"
            );
            let reading = async {
                let mut seen = Vec::new();
                while seen.len() < body.len() {
                    let part = server.read_managed().await.expect("read");
                    assert!(!part.is_empty());
                    seen.extend_from_slice(&part);
                }
                seen
            };
            let ((), seen) = join((write_all(&mut bridge, &body[taken..]), reading)).await;
            assert!(seen == body, "not what was sent");
        });
    });
}

/// Reader and writer as two tasks over one bridge, as libraries split a stream: neither takes the other's wake-ups.
#[test]
fn two_tasks_share_one_bridge() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(700)).await;
            let bridge = Rc::new(RefCell::new(Bridge::new(client)));
            let echoing = windlass::spawn(async move {
                loop {
                    let bytes = server.read_managed().await.expect("read");
                    if bytes.is_empty() {
                        return server.shutdown().await.expect("shutdown");
                    }
                    server.write_all(bytes).await.0.expect("write");
                }
            });
            let body: Vec<u8> = (0..300_000_u32).map(|n| (n % 249) as u8).collect();
            let writing = windlass::spawn({
                let (bridge, body) = (bridge.clone(), body.clone());
                async move {
                    for piece in body.chunks(3_000) {
                        let mut left = piece;
                        while !left.is_empty() {
                            let count = poll_fn(|cx| bridge.borrow_mut().poll_write(cx, left))
                                .await
                                .expect("write");
                            left = &left[count..];
                        }
                        poll_fn(|cx| bridge.borrow_mut().poll_flush(cx)).await.expect("flush");
                    }
                    poll_fn(|cx| bridge.borrow_mut().poll_shutdown(cx))
                        .await
                        .expect("shutdown");
                }
            });
            let mut seen = Vec::new();
            let mut buf = vec![0; 1024];
            loop {
                match poll_fn(|cx| bridge.borrow_mut().poll_read(cx, &mut buf))
                    .await
                    .expect("read")
                {
                    0 => break,
                    count => seen.extend_from_slice(&buf[..count]),
                }
            }
            assert!(seen == body, "{} bytes of {}", seen.len(), body.len());
            writing.await.expect("no panic");
            echoing.await.expect("no panic");
        });
    });
}

/// The writer's task is cancelled with a record half sent, while the reader's waits.
#[test]
fn a_waiting_bridged_reader_completes_a_dropped_write() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(100)).await;
            let bridge = Rc::new(RefCell::new(Bridge::new(client)));
            let (written, read) = join((
                server.write_all("x"),
                poll_fn(|cx| bridge.borrow_mut().poll_read(cx, &mut [0; 1])),
            ))
            .await;
            written.0.expect("write");
            assert_eq!(read.expect("read"), 1);

            let reader = bridge.clone();
            let reading = windlass::spawn(async move {
                let mut buf = [0; 6];
                let count = poll_fn(|cx| reader.borrow_mut().poll_read(cx, &mut buf)).await;
                count.map(|count| buf[..count].to_vec())
            });
            turns(3).await;
            let writer = bridge.clone();
            let writing = windlass::spawn(async move {
                let taken = poll_fn(|cx| writer.borrow_mut().poll_write(cx, &[b'a'; 1000])).await;
                assert_eq!(taken.expect("write"), 1000);
                poll_fn(|cx| writer.borrow_mut().poll_flush(cx)).await.expect("flush");
            });
            turns(3).await;
            writing.cancel();
            assert!(writing.await.is_err(), "the write finished before it was cancelled");
            let answering = timeout(Duration::from_secs(60), server.read_exact(vec![0; 1000]));
            let (result, bytes) = answering.await.expect("the record is completed");
            result.expect("all of it");
            assert_eq!(bytes, [b'a'; 1000]);
            server.write_all("thanks").await.0.expect("write");
            assert_eq!(reading.await.expect("no panic").expect("read"), b"thanks");
        });
    });
}
