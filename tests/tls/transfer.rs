//! Large transfers in both directions, and slow readers.

use std::hash::{DefaultHasher, Hasher};
use std::pin::pin;
use std::time::Duration;

use windlass::io::duplex;
use windlass::task::join;
use windlass::time::sleep;
use windlass::tls::{TlsStream, TlsTransport};

use super::{connector_and_acceptor, handshake, tls_pair};
use crate::support::{Random, on_every_driver, on_every_kernel_driver, poll_once, turns, variable};

/// Bytes to transfer in each direction; `.ci/soak` asks for a GiB.
fn transfer_len() -> usize {
    variable("WINDLASS_TEST_TLS_MIB").unwrap_or(8) * 1024 * 1024
}

/// Writes this many bytes in pieces of many sizes, and shuts down; returns their checksum.
async fn send<S: TlsTransport>(stream: &TlsStream<S>, len: usize, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut hasher = DefaultHasher::new();
    let mut left = len;
    let mut piece = Vec::new();
    while left > 0 {
        let count = left.min(1 + random.below(200_000) as usize);
        piece.clear();
        piece.resize_with(count.div_ceil(8), || random.next());
        let bytes: Vec<u8> = piece.iter().flat_map(|word| word.to_ne_bytes()).take(count).collect();
        hasher.write(&bytes);
        stream.write_all(bytes).await.0.expect("write");
        left -= count;
    }
    stream.shutdown().await.expect("shutdown");
    hasher.finish()
}

/// Reads to the end, in pieces of many sizes; returns the length and the checksum.
async fn receive<S: TlsTransport>(stream: &TlsStream<S>, seed: u64) -> (usize, u64) {
    let mut random = Random::new(seed);
    let mut hasher = DefaultHasher::new();
    let (mut total, mut buf) = (0, Vec::new());
    loop {
        if random.below(2) == 0 {
            let bytes = stream.read_managed().await.expect("read");
            if bytes.is_empty() {
                return (total, hasher.finish());
            }
            hasher.write(&bytes);
            total += bytes.len();
            continue;
        }
        buf.clear();
        buf.reserve(1 + random.below(100_000) as usize);
        let (result, back) = stream.read(buf).await;
        buf = back;
        if result.expect("read") == 0 {
            return (total, hasher.finish());
        }
        hasher.write(&buf);
        total += buf.len();
    }
}

#[test]
fn large_transfers_both_ways_match_their_checksums() {
    on_every_driver(|case| {
        let len = match case.is_kernel() {
            true => transfer_len(),
            false => 1 << 20,
        };
        case.run(async move {
            let (client, server) = tls_pair().await;
            let (up, down, up_seen, down_seen) = join((
                send(&client, len, 3),
                send(&server, len, 5),
                receive(&server, 7),
                receive(&client, 9),
            ))
            .await;
            assert_eq!(up_seen, (len, up));
            assert_eq!(down_seen, (len, down));
        });
    });
}

#[test]
fn a_slow_reader_makes_the_writer_wait() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(4096)).await;
            let body: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
            let mut writing = pin!(client.write_all(body.clone()));
            for _ in 0..50 {
                assert!(
                    poll_once(writing.as_mut()).await.is_pending(),
                    "everything was written without a reader"
                );
                turns(1).await;
            }
            // At most the pipe and the records of one write are in between.
            let mut seen = Vec::new();
            let reading = async {
                while seen.len() < body.len() {
                    let (result, part) = server.read(Vec::with_capacity(7_001)).await;
                    assert!(result.expect("read") > 0, "EOF after {} bytes", seen.len());
                    seen.extend(part);
                    if seen.len() % 5 == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            let ((result, _), ()) = join((writing, reading)).await;
            result.expect("write");
            assert!(seen == body, "not what was sent");
        });
    });
}

#[test]
fn vectored_writes_arrive_whole() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            let bufs: Vec<Vec<u8>> = (0..300_usize).map(|n| vec![n as u8; n * 3]).collect();
            let whole = bufs.concat();
            let writing = async {
                let (result, bufs) = client.write_all_vectored(bufs).await;
                result.expect("write");
                assert_eq!(bufs.len(), 300);
                let (result, _) = client
                    .write_vectored(vec![b"a".to_vec(), b"".to_vec(), b"bc".to_vec()])
                    .await;
                assert_eq!(result.expect("write"), 3);
                client.shutdown().await.expect("shutdown");
            };
            let reading = async {
                let mut seen = Vec::new();
                windlass::io::AsyncRead::read_to_end(&mut &server, &mut seen, 1 << 20)
                    .await
                    .expect("read");
                seen
            };
            let ((), seen) = join((writing, reading)).await;
            assert_eq!(seen.len(), whole.len() + 3);
            assert_eq!(&seen[..whole.len()], &whole[..]);
            assert_eq!(&seen[whole.len()..], b"abc");
        });
    });
}

#[test]
fn idle_connections_hold_no_buffer_of_the_pool() {
    on_every_kernel_driver(|case| {
        let event_loop = case.builder().managed_buffers(1, 16 * 1024).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            let (one, other) = crate::support::pair().await;
            one.write_all("plain").await.0.expect("write");
            if !other.read_managed().await.expect("read").is_pooled() {
                return println!("-- SKIPPED: this kernel has no buffer rings");
            }
            let mut waiting = Vec::new();
            for _ in 0..4 {
                let (client, server) = tls_pair().await;
                client.write_all("once").await.0.expect("write");
                assert_eq!(&*server.read_managed().await.expect("read"), b"once");
                waiting.push((
                    windlass::spawn(async move { server.read_managed().await.expect("read") }),
                    client,
                ));
            }
            turns(10).await;
            // The only buffer is available for another stream.
            one.write_all("plain").await.0.expect("write");
            let bytes = other.read_managed().await.expect("read");
            assert!(bytes.is_pooled(), "an idle TLS connection holds the buffer");
            for (reading, client) in waiting {
                client.write_all("again").await.0.expect("write");
                assert_eq!(&*reading.await.expect("no panic"), b"again");
            }
        });
        result.expect("the loop runs");
    });
}
