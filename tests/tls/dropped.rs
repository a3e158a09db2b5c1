//! Futures that are dropped at any point.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::io::{DuplexStream, duplex};
use windlass::task::join;
use windlass::time::timeout;
use windlass::tls::{TlsStream, TlsTransport};

use super::{connector_and_acceptor, handshake, tls_pair};
use crate::child::in_own_process;
use crate::support::{
    Case, Random, on_every_driver, open_descriptors, pair, poll_once, poll_with, quiet, rounds, turns, waker_cloning,
};

/// Polls a future at most `polls` times, with a turn in between, and drops it if it is still pending.
async fn for_some_polls<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        turns(1).await;
    }
    None
}

/// A message contains its number and its length, and a pattern that depends on both.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend(number.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend((0..len).map(|at| (at as u32 ^ number) as u8));
    bytes
}

/// Writes messages, many of which are dropped half-way, and returns the numbers of those that were not.
async fn write_and_drop<S: TlsTransport>(stream: &TlsStream<S>, count: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut written = Vec::new();
    for number in 0..count {
        // At most one write call: then it is written as a whole or not at all.
        let bytes = message(number, random.below(40_000) as usize);
        let polls = match random.below(3) {
            0 => u64::MAX,
            _ => random.below(4),
        };
        if let Some((result, _)) = for_some_polls(polls, stream.write(bytes.clone())).await {
            assert_eq!(result.expect("write"), bytes.len());
            written.push(number);
        }
    }
    stream.shutdown().await.expect("shutdown");
    written
}

/// Reads messages with reads that are dropped half-way, and returns their numbers.
async fn read_and_drop<S: TlsTransport>(stream: &TlsStream<S>, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::new();
    let mut numbers = Vec::new();
    loop {
        let polls = random.below(4);
        match random.below(3) {
            0 => {
                if let Some(result) = for_some_polls(polls, stream.read_managed()).await {
                    let part = result.expect("read");
                    if part.is_empty() {
                        break;
                    }
                    bytes.extend_from_slice(&part);
                }
            }
            1 => {
                let buf = Vec::with_capacity(1 + random.below(20_000) as usize);
                if let Some((result, part)) = for_some_polls(polls, stream.read(buf)).await {
                    if result.expect("read") == 0 {
                        break;
                    }
                    bytes.extend_from_slice(&part);
                }
            }
            _ => {
                let buf = vec![0; 1 + random.below(50_000) as usize];
                if let Some((result, part)) = for_some_polls(polls, stream.read_exact(buf)).await
                    && result.is_ok()
                {
                    bytes.extend_from_slice(&part);
                }
            }
        }
        while bytes.len() >= 8 {
            let number = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
            let len = u32::from_be_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
            assert!(len < 40_000, "bytes were lost or came twice");
            if bytes.len() < len + 8 {
                break;
            }
            assert!(
                bytes[..len + 8] == message(number, len),
                "message {number} is not what was sent"
            );
            bytes.drain(..len + 8);
            numbers.push(number);
        }
    }
    assert!(bytes.is_empty(), "half a message at the end");
    numbers
}

async fn check<S: TlsTransport>((one, other): (TlsStream<S>, TlsStream<S>), count: u32, seed: u64) {
    let (up, down, up_seen, down_seen) = join((
        write_and_drop(&one, count, seed),
        write_and_drop(&other, count, seed + 1),
        read_and_drop(&other, seed + 2),
        read_and_drop(&one, seed + 3),
    ))
    .await;
    for (written, seen) in [(up, up_seen), (down, down_seen)] {
        assert!(seen.is_sorted_by(|a, b| a < b), "out of order or twice: {seen:?}");
        for number in &written {
            assert!(
                seen.binary_search(number).is_ok(),
                "message {number} was written and never came"
            );
        }
        // Some must have been dropped, or the test would prove nothing.
        assert!(count < 50 || written.len() < count as usize, "no write was dropped");
    }
}

#[test]
fn reads_and_writes_dropped_at_any_point_lose_nothing() {
    on_every_driver(|case| {
        let count = (rounds() / 5).clamp(10, 20_000) as u32;
        case.run(async move {
            check(tls_pair().await, count, 11).await;
            check(
                handshake(&connector_and_acceptor(), duplex(3_000)).await,
                count.min(1_000),
                23,
            )
            .await;
        });
    });
}

/// The case that a plain write cannot handle: part of a record is sent, its write is dropped, another follows.
#[test]
fn a_dropped_write_is_completed_before_the_next() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(100)).await;
            {
                let mut dropped = pin!(client.write_all(vec![b'a'; 1000]));
                for _ in 0..3 {
                    assert!(poll_once(dropped.as_mut()).await.is_pending());
                }
            }
            let writing = async {
                client.write_all("b").await.0.expect("write");
                client.shutdown().await.expect("shutdown");
            };
            let reading = async {
                let mut seen = Vec::new();
                loop {
                    let part = server.read_managed().await.expect("the records are whole");
                    if part.is_empty() {
                        return seen;
                    }
                    seen.extend_from_slice(&part);
                }
            };
            let ((), seen) = join((writing, reading)).await;
            let mut expected = vec![b'a'; 1000];
            expected.push(b'b');
            assert!(seen == expected, "{} bytes", seen.len());
        });
    });
}

/// A task that only reads still sends the rest of a dropped write.
#[test]
fn a_reader_completes_a_dropped_write() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = handshake(&connector_and_acceptor(), duplex(100)).await;
            {
                let mut dropped = pin!(client.write_all(vec![b'a'; 1000]));
                assert!(poll_once(dropped.as_mut()).await.is_pending());
            }
            let answering = async {
                let (result, bytes) = server.read_exact(vec![0; 1000]).await;
                result.expect("all of it");
                assert_eq!(bytes, [b'a'; 1000]);
                server.write_all("thanks").await.0.expect("write");
            };
            let (answer, ()) = join((client.read_managed(), answering)).await;
            assert_eq!(&*answer.expect("read"), b"thanks");
        });
    });
}

/// Two streams over a small pipe, with no record left to answer.
async fn settled() -> (TlsStream<DuplexStream>, TlsStream<DuplexStream>) {
    let (client, server) = handshake(&connector_and_acceptor(), duplex(100)).await;
    let (written, (read, _)) = join((server.write_all("x"), client.read_exact(vec![0; 1]))).await;
    written.0.expect("write");
    read.expect("read");
    (client, server)
}

/// The peer waits for the rest of a message and then replies.
async fn expect_rest(server: &TlsStream<DuplexStream>) {
    let reading = timeout(Duration::from_secs(60), server.read_exact(vec![0; 1000]));
    let (result, bytes) = reading.await.expect("the record is completed");
    result.expect("all of it");
    assert_eq!(bytes, [b'a'; 1000]);
    server.write_all("thanks").await.0.expect("write");
}

/// The same with a reader that waits already when the write starts.
#[test]
fn a_waiting_reader_completes_a_dropped_write() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = settled().await;
            let client = Rc::new(client);
            let other = client.clone();
            let reading = windlass::spawn(async move { other.read_managed().await.map(|bytes| bytes.to_vec()) });
            turns(3).await;
            {
                let mut dropped = pin!(client.write_all(vec![b'a'; 1000]));
                assert!(poll_once(dropped.as_mut()).await.is_pending());
            }
            expect_rest(&server).await;
            assert_eq!(reading.await.expect("no panic").expect("read"), b"thanks");
        });
    });
}

/// The write queue passes from the dropped write to a waiting one, which is dropped before it is polled.
#[test]
fn a_waiting_reader_completes_a_write_when_the_queue_is_dropped() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = settled().await;
            let client = Rc::new(client);
            let other = client.clone();
            let reading = windlass::spawn(async move { other.read_managed().await.map(|bytes| bytes.to_vec()) });
            turns(3).await;
            let mut first = Box::pin(client.write_all(vec![b'a'; 1000]));
            let mut second = Box::pin(client.write_all("never"));
            assert!(poll_once(first.as_mut()).await.is_pending());
            assert!(poll_once(second.as_mut()).await.is_pending());
            drop(first);
            turns(3).await;
            drop(second);
            expect_rest(&server).await;
            assert_eq!(reading.await.expect("no panic").expect("read"), b"thanks");
        });
    });
}

/// Cloning the reader's waker drops the write, which finds no reader to wake. The reader completes it nevertheless.
#[test]
fn a_reader_completes_a_write_dropped_by_its_waker() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = settled().await;
            let client = Rc::new(client);
            let other = client.clone();
            let mut writing = Box::pin(async move { other.write_all(vec![b'a'; 1000]).await });
            assert!(poll_once(writing.as_mut()).await.is_pending());
            let writing = Cell::new(Some(writing));
            let woken = Rc::new(Cell::new(0));
            let waker = waker_cloning(&woken, move || drop(writing.take()));
            let mut reading = pin!(client.read_managed());
            assert!(poll_with(&waker, reading.as_mut()).is_pending());
            assert_eq!(Rc::strong_count(&client), 1, "the write was dropped");
            let mut answering = pin!(expect_rest(&server));
            let (mut seen, mut has_answered) = (0, false);
            for _ in 0..1_000 {
                has_answered = has_answered || poll_once(answering.as_mut()).await.is_ready();
                turns(1).await;
                if woken.get() > seen {
                    seen = woken.get();
                    if let Poll::Ready(answer) = poll_with(&waker, reading.as_mut()) {
                        assert_eq!(&*answer.expect("read"), b"thanks");
                        return;
                    }
                }
            }
            panic!("the reader was not woken to complete the write");
        });
    });
}

#[test]
fn a_dropped_read_exact_keeps_its_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = tls_pair().await;
            client.write_all("hello").await.0.expect("write");
            {
                let mut dropped = pin!(server.read_exact(vec![0; 8]));
                for _ in 0..20 {
                    assert!(poll_once(dropped.as_mut()).await.is_pending());
                    turns(1).await;
                }
            }
            client.write_all(" you").await.0.expect("write");
            let (result, bytes) = server.read_exact(vec![0; 9]).await;
            result.expect("all of it");
            assert_eq!(bytes, b"hello you");

            // And so does one that reaches the end.
            client.write_all("bye").await.0.expect("write");
            client.shutdown().await.expect("shutdown");
            let (result, _) = server.read_exact(vec![0; 8]).await;
            assert_eq!(
                result.expect_err("too little").kind(),
                std::io::ErrorKind::UnexpectedEof
            );
            assert_eq!(&*server.read_managed().await.expect("read"), b"bye");
            assert!(server.read_managed().await.expect("the end").is_empty());
        });
    });
}

#[test]
fn dropped_handshakes_and_streams_leak_nothing() {
    let test = "dropped::dropped_handshakes_and_streams_leak_nothing";
    // Other tests open descriptors too.
    in_own_process(test, &[], || on_every_driver(drop_in_the_middle));
}

fn drop_in_the_middle(case: Case) {
    let event_loop = case.event_loop();
    let before = open_descriptors();
    let result = event_loop.run_until_complete(async {
        let (connector, acceptor) = connector_and_acceptor();
        let mut random = Random::new(99);
        let finished = Rc::new(Cell::new(0));
        for _ in 0..(rounds() / 10).max(20) {
            let (client, server) = pair().await;
            let (polls, other) = (random.below(12), random.below(12));
            let connecting = for_some_polls(polls, connector.connect("localhost", client));
            let accepting = for_some_polls(other, acceptor.accept(server));
            let (client, server) = join((connecting, accepting)).await;
            if let (Some(Ok(client)), Some(Ok(server))) = (client, server) {
                finished.set(finished.get() + 1);
                // Streams that are dropped during reads and writes.
                let writing = for_some_polls(random.below(5), client.write_all(vec![7; 300_000]));
                let reading = for_some_polls(random.below(5), server.read_managed());
                join((writing, reading)).await;
            }
        }
        assert!(finished.get() > 0, "no handshake finished");
        quiet().await;
    });
    result.expect("the loop runs");
    let counters = event_loop.counters();
    assert_eq!((counters.in_flight, counters.ops, counters.tasks), (0, 0, 0));
    if case.is_kernel() {
        assert_eq!(open_descriptors(), before, "a connection is still open");
    }
}
