//! A buffer pool for managed reads that is too small: the streams keep working, and every buffer returns to the pool.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use windlass::EventLoop;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};

use crate::support::{self, Case, Random, gather, on_every_kernel_driver, pair, pair_of, rounds};

fn loop_with(case: Case, count: u16, len: usize) -> EventLoop {
    case.builder().managed_buffers(count, len).build().expect("a loop")
}

/// Runs a test on every driver that has a buffer pool; kernels before 5.19 have none.
fn on_every_driver(body: impl Fn(Case) + Send + Clone + 'static) {
    support::on_every_driver(move |case| {
        let description = case.event_loop().describe();
        if case.has_rings() && !description.features.contains(&"buffer ring") {
            return println!("-- SKIPPED, no pool: {description}");
        }
        body(case);
    });
}

fn pattern(stream: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (stream * 31 + at) as u8).collect()
}

/// One buffer and a burst on many connections, each of which keeps the bytes that it received.
#[test]
fn streams_survive_an_empty_pool() {
    on_every_driver(|case| {
        let (streams, len) = if cfg!(miri) { (4, 200) } else { (50, 1_000) };
        let event_loop = loop_with(case, 1, 64);
        let result = event_loop.run_until_complete(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let mut readers = Vec::new();
            let mut writers = Vec::new();
            for stream in 0..streams {
                let (client, server) = pair_of(&listener).await;
                readers.push(windlass::spawn(async move {
                    let mut held = Vec::new();
                    loop {
                        let bytes = server.read_managed().await.expect("an empty pool is not an error");
                        if bytes.is_empty() {
                            return (stream, held);
                        }
                        held.push(bytes);
                    }
                }));
                writers.push(client);
            }
            for (stream, client) in writers.into_iter().enumerate() {
                client.write_all(pattern(stream, len)).await.0.expect("write");
            }
            let mut pooled = 0;
            let mut on_heap = 0;
            let mut all_held = Vec::new();
            for reader in readers {
                let (stream, held) = reader.await.expect("no panic");
                let bytes: Vec<u8> = held.iter().flat_map(|part| part.iter().copied()).collect();
                assert!(bytes == pattern(stream, len), "stream {stream} is not as it was sent");
                pooled += held.iter().filter(|part| part.is_pooled()).count();
                on_heap += held.iter().filter(|part| !part.is_pooled()).count();
                all_held.extend(held);
            }
            // With quirks, the pool may seem empty each time.
            assert!(
                pooled == 1 || (pooled == 0 && case.has_quirks()),
                "{pooled} of one buffer are held"
            );
            assert!(on_heap > 0);
            drop(all_held);
            assert_pool_is_complete(case, 1).await;
        });
        result.expect("the loop runs");
        assert!(event_loop.counters().driver.pool_empty > 0);
    });
}

/// Exactly `count` buffers of the pool can be held at once.
async fn assert_pool_is_complete(case: Case, count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    // Dropped buffers are returned to the kernel in the next turn.
    yield_now().await;
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for number in 0..=count {
        let (client, server) = pair_of(&listener).await;
        loop {
            client.write_all("here").await.0.expect("write");
            let bytes = server.read_managed().await.expect("read");
            let (result, rest) = server.read_exact(vec![0; 4 - bytes.len()]).await;
            result.expect("read");
            assert_eq!([&*bytes, &*rest].concat(), b"here");
            // With quirks, the pool sometimes seems empty.
            if case.has_quirks() && number < count && !bytes.is_pooled() {
                continue;
            }
            assert_eq!(bytes.is_pooled(), number < count, "buffer {number} of {count}");
            held.push(bytes);
            break;
        }
        streams.push((client, server));
    }
}

fn poll_once(future: std::pin::Pin<&mut impl Future>) {
    let is_ready = future.poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!is_ready, "nothing was sent yet");
}

/// A managed read that completed with a buffer is dropped, with and without its stream.
#[test]
fn a_dropped_read_returns_its_buffer_to_the_pool() {
    on_every_driver(|case| {
        let event_loop = loop_with(case, 4, 64);
        let result = event_loop.run_until_complete(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            for round in 0..rounds() / 4 {
                let (client, server) = pair_of(&listener).await;
                {
                    let mut read = pin!(server.read_managed());
                    poll_once(read.as_mut());
                    client.write_all("bytes").await.0.expect("write");
                    // On every driver the receive completes in this turn or the next, with a buffer.
                    yield_now().await;
                    yield_now().await;
                }
                match round % 3 {
                    0 => assert_eq!(gather(5, || server.read_managed()).await, b"bytes"),
                    1 => {
                        let (result, bytes) = server.read_exact([0; 5]).await;
                        result.expect("read");
                        assert_eq!(&bytes, b"bytes");
                    }
                    _ => {}
                }
            }
            assert_pool_is_complete(case, 4).await;
        });
        result.expect("the loop runs");
        let found_empty = event_loop.counters().driver.pool_empty;
        assert!(
            found_empty == 1 || case.has_quirks(),
            "{found_empty} and not only the check itself"
        );
    });
}

/// Managed reads are dropped while their cancel races with arriving bytes.
#[test]
fn cancelled_reads_return_their_buffers() {
    on_every_driver(|case| {
        let event_loop = loop_with(case, 4, 64);
        let result = event_loop.run_until_complete(async {
            let mut random = Random::new(7);
            let (mut client, mut server) = pair().await;
            let (mut sent, mut received) = (0usize, 0usize);
            for round in 0..rounds() {
                {
                    let mut read = pin!(server.read_managed());
                    poll_once_if_pending(read.as_mut(), &mut received);
                    for _ in 0..random.below(3) {
                        yield_now().await;
                    }
                    client.write_all("racing").await.0.expect("write");
                    sent += 6;
                    for _ in 0..random.below(3) {
                        yield_now().await;
                    }
                }
                while received < sent {
                    received += timeout(Duration::from_secs(60), server.read_managed())
                        .await
                        .expect("nothing is lost")
                        .expect("read")
                        .len();
                }
                if round % 50 == 49 {
                    // Leaves a read in flight, on a stream that is dropped with it.
                    poll_once(pin!(server.read_managed()));
                    (client, server) = pair().await;
                }
            }
        });
        result.expect("the loop runs");
        event_loop
            .run_until_complete(async move {
                sleep(Duration::from_millis(1)).await;
                assert_pool_is_complete(case, 4).await;
            })
            .expect("the loop runs");
    });
}

fn poll_once_if_pending(
    future: std::pin::Pin<&mut impl Future<Output = std::io::Result<windlass::io::ManagedBuf>>>,
    received: &mut usize,
) {
    if let std::task::Poll::Ready(bytes) = future.poll(&mut Context::from_waker(Waker::noop())) {
        *received += bytes.expect("read").len();
    }
}

/// A pool larger than the machine's memory: the loop works without one.
#[test]
fn a_pool_that_cannot_be_allocated_is_not_an_error() {
    on_every_kernel_driver(|case| {
        let event_loop = loop_with(case, 1 << 15, 1 << 30);
        let result = event_loop.run_until_complete(async {
            let (client, server): (TcpStream, TcpStream) = pair().await;
            client.write_all("here").await.0.expect("write");
            assert_eq!(&*server.read_managed().await.expect("read"), b"here");
        });
        result.expect("the loop runs");
    });
}

/// A buffer that outlives its loop is still readable.
#[test]
fn a_buffer_outlives_its_loop() {
    on_every_driver(|case| {
        let event_loop = loop_with(case, 2, 64);
        let bytes = event_loop.run_until_complete(async move {
            let (client, server) = pair().await;
            loop {
                client.write_all("here").await.0.expect("write");
                let bytes = server.read_managed().await.expect("read");
                // With quirks, the pool sometimes seems empty.
                if bytes.is_pooled() || !case.has_quirks() {
                    return bytes;
                }
                server.read_exact(vec![0; 4 - bytes.len()]).await.0.expect("read");
            }
        });
        drop(event_loop);
        let bytes = bytes.expect("the loop ran");
        assert!(bytes.is_pooled());
        assert_eq!(&*bytes, b"here");
    });
}

/// io_uring's driver gives the kernel 64 buffers at first, and more when a receive finds none.
#[test]
fn a_large_pool_is_used_entirely() {
    const COUNT: usize = 200;
    on_every_driver(|case| {
        let event_loop = loop_with(case, COUNT as u16, 64);
        let result = event_loop.run_until_complete(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let (mut held, mut streams) = (Vec::new(), Vec::new());
            let mut on_heap = 0;
            while held.len() < COUNT {
                let (client, server) = pair_of(&listener).await;
                client.write_all("here").await.0.expect("write");
                let bytes = server.read_managed().await.expect("read");
                match bytes.is_pooled() {
                    true => held.push(bytes),
                    false => on_heap += 1,
                }
                // With quirks, bytes may be left to read.
                streams.push((client, server));
            }
            // From 64 to 128 to 200.
            assert!(on_heap <= 2 || case.has_quirks(), "{on_heap} reads found no buffer");
        });
        result.expect("the loop runs");
        assert!(event_loop.counters().driver.pool_empty == 0 || case.has_quirks());
    });
}

/// More bytes than a buffer of the pool holds, so that receives leave data in the socket.
const BULK: usize = 60_000;

/// As much memory as two large buffers.
fn loop_for_bulk(case: Case) -> EventLoop {
    loop_with(case, 16, 8 * 1024)
}

fn is_large(bytes: &windlass::io::ManagedBuf) -> bool {
    bytes.len() > 8 * 1024
}

/// Reads until it holds `count` large buffers and one more that is not, though there was more data.
async fn hold_large_buffers(client: &TcpStream, server: &TcpStream, count: usize) {
    let mut held = Vec::new();
    let mut after_all = 0;
    // A few more than needed: not every piece has arrived when it is read.
    for round in 0..100 {
        client.write_all(pattern(round, BULK)).await.0.expect("write");
        let mut received = Vec::new();
        while received.len() < BULK {
            let bytes = server.read_managed().await.expect("read");
            received.extend_from_slice(&bytes);
            match is_large(&bytes) {
                true => held.push(bytes),
                false if held.len() == count => after_all += 1,
                false => {}
            }
        }
        assert!(received == pattern(round, BULK), "round {round} is not as it was sent");
        assert!(held.len() <= count, "{} of {count} large buffers are held", held.len());
        if held.len() == count && after_all > BULK / 8192 {
            return;
        }
    }
    panic!("{} of {count} large buffers were used", held.len());
}

/// io_uring reports that a receive has left data in the socket: the next one is into a larger buffer, of which there are
/// few.
#[test]
fn bulk_data_is_received_into_large_buffers() {
    on_every_driver(|case| {
        let count = if case.has_rings() { 2 } else { 0 };
        let event_loop = loop_for_bulk(case);
        let result = event_loop.run_until_complete(async move {
            let (client, server) = pair().await;
            for _ in 0..3 {
                hold_large_buffers(&client, &server, count).await;
            }
        });
        result.expect("the loop runs");
    });
}

/// Reads of bulk data are dropped at any time: the next one continues, and the large buffers return.
#[test]
fn dropped_reads_of_bulk_data_lose_nothing() {
    on_every_driver(|case| {
        let count = if case.has_rings() { 2 } else { 0 };
        let event_loop = loop_for_bulk(case);
        let result = event_loop.run_until_complete(async move {
            let (client, server) = pair().await;
            let mut random = Random::new(11);
            for round in 0..rounds() / 20 {
                client.write_all(pattern(round, BULK)).await.0.expect("write");
                let mut received = Vec::new();
                while received.len() < BULK {
                    {
                        let mut read = pin!(server.read_managed());
                        for _ in 0..random.below(3) {
                            if let std::task::Poll::Ready(bytes) = support::poll_once(read.as_mut()).await {
                                received.extend_from_slice(&bytes.expect("read"));
                                break;
                            }
                            yield_now().await;
                        }
                    }
                    if random.below(4) == 0 && received.len() < BULK {
                        let bytes = timeout(Duration::from_secs(60), server.read_managed()).await;
                        received.extend_from_slice(&bytes.expect("nothing is lost").expect("read"));
                    }
                }
                assert!(received == pattern(round, BULK), "round {round} is not as it was sent");
            }
            hold_large_buffers(&client, &server, count).await;
        });
        result.expect("the loop runs");
    });
}
