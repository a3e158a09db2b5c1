//! Edge-triggered readiness: no event is missed. A waiting read or write sees every byte, EOF and error, however they
//! arrive and whatever the buffer sizes. The same holds on every driver.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream};
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};

use crate::support::{
    Random, assert_over, codes, on_every_driver, on_every_kernel_driver, pair, pair_of, reset_on_close, rounds, turns,
};

/// A generous limit for events that should arrive at once.
const SOON: Duration = Duration::from_secs(60);

/// A stream of the loop and its peer, which uses blocking calls: several of them can make one readiness event.
pub(crate) fn with_std_peer() -> (TcpStream, StdStream) {
    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let peer = StdStream::connect(listener.local_addr().expect("an address")).expect("connect");
    peer.set_nodelay(true).expect("nodelay");
    let (ours, _) = listener.accept().expect("accept");
    (TcpStream::from_std(ours).expect("from_std"), peer)
}

/// The read methods under test.
#[derive(Clone, Copy, Debug)]
enum Way {
    Buffer,
    Managed,
    Vectored,
}

const WAYS: [Way; 3] = [Way::Buffer, Way::Managed, Way::Vectored];

/// Reads some bytes, with room for more than the tests send; an empty result is EOF.
async fn read_some(stream: &TcpStream, way: Way) -> Vec<u8> {
    let reading = async {
        match way {
            Way::Buffer => {
                let (result, bytes) = stream.read(Vec::with_capacity(64)).await;
                result.map(|count| bytes[..count].to_vec())
            }
            Way::Managed => stream.read_managed().await.map(|bytes| bytes.to_vec()),
            Way::Vectored => {
                let (result, bytes) = stream.read_vectored(vec![[0u8; 16], [0u8; 16], [0u8; 16]]).await;
                result.map(|count| bytes.concat()[..count].to_vec())
            }
        }
    };
    let result = timeout(SOON, reading).await;
    let result = result.unwrap_or_else(|_| panic!("{way:?}: the available bytes are not reported"));
    result.expect("read")
}

/// Reads until the expected bytes have arrived, and no further.
async fn expect_bytes(stream: &TcpStream, way: Way, expected: &[u8]) {
    let mut bytes = Vec::new();
    while bytes.len() < expected.len() {
        let some = read_some(stream, way).await;
        assert!(!some.is_empty(), "{way:?}: EOF after {bytes:?}");
        bytes.extend(some);
    }
    assert_eq!(bytes, expected, "{way:?}");
}

/// Starts a read that has to wait, calls `happen`, and returns the bytes read.
async fn read_while(stream: &Rc<TcpStream>, way: Way, happen: impl FnOnce()) -> Vec<u8> {
    let reading = windlass::spawn({
        let stream = stream.clone();
        async move { read_some(&stream, way).await }
    });
    // By then the wait is registered and earlier events have been handled.
    sleep(Duration::from_millis(1)).await;
    happen();
    reading.await.expect("no panic")
}

#[test]
fn a_short_read_does_not_lose_readiness() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for way in WAYS {
                let (stream, mut peer) = with_std_peer();
                let stream = Rc::new(stream);
                for round in 0..20u8 {
                    let bytes = read_while(&stream, way, || peer.write_all(&[round, 1]).expect("write")).await;
                    assert_eq!(bytes, [round, 1]);
                    // The same before a read is started.
                    peer.write_all(&[round, 2, 3]).expect("write");
                    expect_bytes(&stream, way, &[round, 2, 3]).await;
                    // The same when the event arrived before the read was started.
                    peer.write_all(&[round, 4]).expect("write");
                    sleep(Duration::from_millis(1)).await;
                    expect_bytes(&stream, way, &[round, 4]).await;
                }
            }
        });
    });
}

/// A read that fills its buffer does not tell whether bytes are left.
#[test]
fn a_read_that_fills_its_buffer_does_not_lose_readiness() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for length in [1, 4, 8] {
                let (stream, mut peer) = with_std_peer();
                let read = async |stream: &TcpStream| {
                    let (result, bytes) = stream.read(Vec::with_capacity(4)).await;
                    bytes[..result.expect("read")].to_vec()
                };
                // The first wait registers the descriptor; later events arrive as edges.
                timeout(Duration::from_millis(1), read(&stream)).await.ok();
                for round in 0..20u8 {
                    peer.write_all(&vec![round; length]).expect("write");
                    let mut left = length;
                    while left > 0 {
                        let bytes = timeout(SOON, read(&stream)).await.expect("the bytes have arrived");
                        assert!(!bytes.is_empty() && bytes.iter().all(|&byte| byte == round));
                        left -= bytes.len();
                    }
                    timeout(Duration::from_micros(100), read(&stream))
                        .await
                        .expect_err("there is no more");
                }
                drop(peer);
                assert_eq!(timeout(SOON, read(&stream)).await.expect("EOF"), []);
            }
        });
    });
}

/// EOF arrives in one event with the last bytes, right after them, or long after. Later reads return EOF again.
#[test]
fn eof_is_always_reported() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for way in WAYS {
                for waits_first in [false, true] {
                    for lag in [None, Some(0), Some(1), Some(20)] {
                        let (stream, mut peer) = with_std_peer();
                        let stream = Rc::new(stream);
                        let mut send_last = || {
                            peer.write_all(b"bye").expect("write");
                            if lag.is_none() {
                                peer.shutdown(Shutdown::Write).expect("shutdown");
                            }
                        };
                        if waits_first {
                            assert_eq!(read_while(&stream, way, send_last).await, b"bye");
                        } else {
                            send_last();
                            expect_bytes(&stream, way, b"bye").await;
                        }
                        if let Some(lag) = lag {
                            let end = || peer.shutdown(Shutdown::Write).expect("shutdown");
                            match lag {
                                0 => end(),
                                1 => assert_eq!(read_while(&stream, way, end).await, [], "{way:?}"),
                                lag => {
                                    sleep(Duration::from_millis(lag)).await;
                                    end();
                                    sleep(Duration::from_millis(lag)).await;
                                }
                            }
                        }
                        for _ in 0..3 {
                            assert_eq!(read_some(&stream, way).await, [], "{way:?} {waits_first} {lag:?}");
                        }
                        // Only one direction has ended.
                        stream.write_all("still here").await.0.expect("write");
                        let mut answer = [0; 10];
                        peer.read_exact(&mut answer).expect("the other direction is open");
                    }
                }
            }
        });
    });
}

pub(crate) fn send_urgent(peer: &StdStream, byte: u8) {
    let sent = socket2::SockRef::from(peer).send_out_of_band(&[byte]);
    assert_eq!(sent.expect("a send"), 1);
}

/// A read stops before an urgent byte although more bytes follow, without another readiness event.
#[test]
fn bytes_after_an_urgent_byte_arrive() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for way in WAYS {
                for waits_first in [false, true] {
                    let (stream, mut peer) = with_std_peer();
                    let stream = Rc::new(stream);
                    for round in 0..10u8 {
                        let mut send = || {
                            peer.write_all(&[round, 1]).expect("write");
                            send_urgent(&peer, 0xff);
                            peer.write_all(&[round, 2]).expect("write");
                        };
                        if waits_first {
                            let first = read_while(&stream, way, send).await;
                            assert_eq!(first, [round, 1], "the kernel stops at the urgent byte");
                        } else {
                            send();
                            expect_bytes(&stream, way, &[round, 1]).await;
                        }
                        expect_bytes(&stream, way, &[round, 2]).await;
                    }
                    drop(peer);
                    assert_eq!(read_some(&stream, way).await, []);
                }
            }
        });
    });
}

/// A waiting read and a waiting write both fail, and so do later calls.
#[test]
fn a_reset_wakes_all_waiters() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let (stream, peer) = with_std_peer();
            let stream = Rc::new(stream);
            let reading = windlass::spawn({
                let stream = stream.clone();
                async move { stream.read(Vec::with_capacity(8)).await.0 }
            });
            let writing = windlass::spawn({
                let stream = stream.clone();
                // Far more than the socket buffers hold.
                async move { stream.write_all(vec![7u8; 64 << 20]).await.0 }
            });
            sleep(Duration::from_millis(20)).await;
            assert!(!reading.is_finished() && !writing.is_finished(), "both wait");
            reset_on_close(&peer);
            drop(peer);
            let ends = timeout(SOON, async {
                (reading.await.expect("no panic"), writing.await.expect("no panic"))
            });
            let (read, write) = ends.await.expect("the reset is reported");
            // The kernel reports the reset once; afterwards reads return EOF and writes fail with EPIPE.
            let (read, write) = (
                read.map_err(|error| error.raw_os_error()),
                write.map_err(|error| error.raw_os_error()),
            );
            assert!(matches!(read, Ok(0) | Err(Some(codes::RESET))), "{read:?} {write:?}");
            assert!(
                matches!(write, Err(Some(codes::RESET | codes::BROKEN_PIPE))),
                "{read:?} {write:?}"
            );
            // These drivers try the read first.
            assert!(read.is_err() || !case.tries_first(), "{read:?} {write:?}");
            let later = timeout(SOON, stream.write_all([7u8])).await.expect("it does not wait");
            later.0.expect_err("the connection is gone");
            let later = timeout(SOON, stream.read([0u8])).await.expect("it does not wait");
            assert_over(later.0);
        });
    });
}

/// Limits each send to a few KiB.
fn shorten_send_buffer(stream: &TcpStream) {
    let shortened = socket2::SockRef::from(stream).set_send_buffer_size(8 << 10);
    shortened.expect("an option");
}

/// Each send is short; the socket becomes writable again later.
#[test]
fn a_slow_peer_gets_every_byte() {
    on_every_kernel_driver(|case| {
        let total = 2 << 20;
        let byte_at = |position: usize| (position % 251) as u8;
        case.run(async move {
            for vectored in [false, true] {
                let (stream, mut peer) = with_std_peer();
                shorten_send_buffer(&stream);
                let reader = std::thread::spawn(move || {
                    let mut position = 0;
                    let mut bytes = vec![0; 48 << 10];
                    let mut reads = 0;
                    loop {
                        let count = peer.read(&mut bytes).expect("read");
                        for &byte in &bytes[..count] {
                            assert_eq!(byte, byte_at(position), "at {position}");
                            position += 1;
                        }
                        if count == 0 {
                            return position;
                        }
                        reads += 1;
                        if reads % 4 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
                let bytes: Vec<u8> = (0..total).map(byte_at).collect();
                let result = if vectored {
                    let parts = bytes.chunks(10_000).map(<[u8]>::to_vec).collect();
                    timeout(4 * SOON, stream.write_all_vectored(parts))
                        .await
                        .expect("written in time")
                        .0
                } else {
                    timeout(4 * SOON, stream.write_all(bytes))
                        .await
                        .expect("written in time")
                        .0
                };
                result.expect("write");
                drop(stream);
                while !reader.is_finished() {
                    sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(reader.join().expect("the bytes arrive in order"), total);
            }
        });
    });
}

/// Both directions of many connections, with unaligned write and read sizes and pauses in between.
#[test]
fn unaligned_sizes_lose_no_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let streams = 4;
            let total = rounds() * 100;
            let mut tasks = Vec::new();
            for number in 0..streams {
                let (one, other) = pair().await;
                for (stream, seed) in [(one, 2 * number), (other, 2 * number + 1)] {
                    let stream = Rc::new(stream);
                    tasks.push(windlass::spawn(write_in_pieces(stream.clone(), total, seed)));
                    tasks.push(windlass::spawn(read_in_pieces(stream, total, seed ^ 1)));
                }
            }
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    });
}

fn byte_of(seed: u64, position: usize) -> u8 {
    (position as u64 * 31 + position as u64 / 251 + seed * 77) as u8
}

async fn write_in_pieces(stream: Rc<TcpStream>, total: usize, seed: u64) {
    let mut random = Random::new(seed + 100);
    let mut position = 0;
    while position < total {
        let most = if random.below(8) == 0 { 20_000 } else { 200 };
        let count = (1 + random.below(most) as usize).min(total - position);
        let piece: Vec<u8> = (position..position + count)
            .map(|position| byte_of(seed, position))
            .collect();
        stream.write_all(piece).await.0.expect("write");
        position += count;
        if random.below(4) == 0 {
            turns(random.below(4)).await;
        }
    }
    stream.shutdown(Shutdown::Write).await.expect("shutdown");
}

async fn read_in_pieces(stream: Rc<TcpStream>, total: usize, seed: u64) {
    let mut random = Random::new(seed + 200);
    let mut position = 0;
    loop {
        let room = 1 + random.below(400) as usize;
        let bytes = match random.below(3) {
            0 => stream.read_managed().await.expect("read").to_vec(),
            1 => {
                let (result, parts) = stream.read_vectored(vec![vec![0; room], vec![0; 7]]).await;
                parts.concat()[..result.expect("read")].to_vec()
            }
            _ => {
                let (result, bytes) = stream.read(vec![0; room]).await;
                bytes[..result.expect("read")].to_vec()
            }
        };
        if bytes.is_empty() {
            assert_eq!(position, total);
            return;
        }
        for byte in bytes {
            assert_eq!(byte, byte_of(seed, position), "at {position} of stream {seed}");
            position += 1;
        }
        if random.below(4) == 0 {
            turns(random.below(4)).await;
        }
    }
}

/// The peer is a thread, so that bytes also arrive between the EAGAIN and the wait.
#[test]
fn bytes_that_arrive_between_eagain_and_wait_are_reported() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, mut peer) = with_std_peer();
            stream.set_nodelay(true).expect("nodelay");
            let exchanges = rounds();
            let echo = std::thread::spawn(move || {
                let mut random = Random::new(5);
                let mut bytes = [0; 2];
                for _ in 0..exchanges {
                    peer.read_exact(&mut bytes).expect("read");
                    for _ in 0..random.below(2_000) {
                        std::hint::spin_loop();
                    }
                    // In two pieces, which may arrive as one or as two.
                    peer.write_all(&bytes[..1]).expect("write");
                    peer.write_all(&bytes[1..]).expect("write");
                }
            });
            for exchange in 0..exchanges {
                let question = [exchange as u8, (exchange >> 8) as u8];
                stream.write_all(question).await.0.expect("write");
                let mut answer = Vec::new();
                while answer.len() < 2 {
                    let (result, bytes) = timeout(SOON, stream.read([0u8; 2]))
                        .await
                        .unwrap_or_else(|_| panic!("the bytes of exchange {exchange} are not reported"));
                    let count = result.expect("read");
                    assert!(count > 0);
                    answer.extend_from_slice(&bytes[..count]);
                }
                assert_eq!(answer, question);
            }
            echo.join().expect("no panic");
        });
    });
}

#[test]
fn a_closed_stream_does_not_affect_others() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let mut clients = Vec::new();
            let mut reading = Vec::new();
            for _ in 0..20 {
                let (client, server) = pair_of(&listener).await;
                clients.push(client);
                reading.push(windlass::spawn(async move { server.read_exact([0u8; 2]).await }));
            }
            turns(3).await;
            // Every third stream is closed with its read in flight; new streams reuse the descriptor numbers.
            for number in (0..20).step_by(3) {
                reading[number].cancel();
            }
            turns(3).await;
            let new_pairs = [pair_of(&listener).await, pair_of(&listener).await];
            for (number, client) in clients.iter().enumerate() {
                let result = client.write_all([number as u8, 7]).await.0;
                assert!(result.is_ok() || number % 3 == 0, "{number}");
            }
            for (number, task) in reading.into_iter().enumerate() {
                match timeout(SOON, task).await.expect("the read completes") {
                    Ok((result, bytes)) => {
                        result.expect("read");
                        assert_eq!(bytes, [number as u8, 7]);
                    }
                    Err(error) => assert!(error.is_cancelled() && number % 3 == 0),
                }
            }
            for (client, server) in new_pairs {
                client.write_all([9u8]).await.0.expect("write");
                let (result, byte) = timeout(SOON, server.read_exact([0u8]))
                    .await
                    .expect("the read completes");
                assert_eq!((result.expect("read"), byte), ((), [9]));
            }
        });
    });
}

/// Accepts that complete at once use the task's budget: a server with a full backlog lets other tasks run.
#[test]
fn a_full_backlog_does_not_starve_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let count = if cfg!(miri) { 130 } else { 300 };
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(TcpStream::connect(addr).await.expect("connect"));
            }
            let ran = Rc::new(std::cell::Cell::new(0));
            let other = windlass::spawn({
                let ran = ran.clone();
                async move {
                    loop {
                        ran.set(ran.get() + 1);
                        yield_now().await;
                    }
                }
            });
            yield_now().await;
            let before = ran.get();
            let mut served = Vec::new();
            for _ in 0..count {
                served.push(listener.accept().await.expect("accept"));
            }
            let ran = ran.get() - before;
            assert!(
                ran >= count / 64 - 1,
                "another task ran {ran} times during {count} accepts"
            );
            other.cancel();
        });
    });
}

/// On the reactor, the kernel has no part in cancelling a read: the cancel must wake the loop itself.
#[test]
fn a_cancelled_read_completes_at_once() {
    on_every_driver(|case| {
        // A virtual clock would jump to the deadline.
        let limit = if case.is_kernel() { SOON } else { Duration::MAX };
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            for _ in 0..10 {
                let (_client, server) = pair_of(&listener).await;
                let task = windlass::spawn(async move {
                    let reading = server.read(Vec::with_capacity(8));
                    let _ = timeout(Duration::from_micros(10), reading).await;
                });
                // A task completes when its operations have completed.
                let begin = std::time::Instant::now();
                let result = timeout(limit, task).await.expect("the task ends");
                result.expect("no panic");
                // Nothing else wakes the loop here.
                let took = begin.elapsed();
                assert!(!case.is_kernel() || took < SOON / 2, "the loop slept for {took:?}");
            }
        });
    });
}

#[cfg(target_os = "linux")]
mod connecting {
    use super::*;

    /// A listener whose backlog is full, and the connection that fills it: the kernel drops further SYNs, and the
    /// client retries after a second.
    fn full_listener() -> (StdListener, StdStream) {
        let listener = StdListener::bind("127.0.0.1:0").expect("bind");
        // A backlog of 0 has room for one connection.
        socket2::SockRef::from(&listener).listen(0).expect("listen");
        let filler = StdStream::connect(listener.local_addr().expect("an address")).expect("connect");
        (listener, filler)
    }

    /// A connect that has to wait completes when the connection is established or refused, not before.
    #[test]
    fn a_waiting_connect_reports_its_result() {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (accepting, filler) = full_listener();
                let (closing, _filler) = full_listener();
                let connects = [&accepting, &closing].map(|listener| {
                    let addr = listener.local_addr().expect("an address");
                    windlass::spawn(TcpStream::connect(addr))
                });
                sleep(Duration::from_millis(50)).await;
                assert!(connects.iter().all(|connect| !connect.is_finished()), "both wait");
                drop(closing);
                accepting.accept().expect("the one that filled the queue");
                drop(filler);
                let [accepted, refused] = connects;
                let limit = 4 * SOON;
                let accepted = timeout(limit, accepted)
                    .await
                    .expect("the connect completes")
                    .expect("no panic");
                let client = accepted.expect("connect");
                let (mut server, _) = accepting.accept().expect("accept");
                client.write_all("hello").await.0.expect("write");
                server.read_exact(&mut [0; 5]).expect("the connection is established");
                let refused = timeout(limit, refused)
                    .await
                    .expect("the connect completes")
                    .expect("no panic");
                let error = refused.expect_err("the listener is closed");
                assert_eq!(windlass::os_code(&error), Some(codes::REFUSED), "{error}");
            });
        });
    }

    /// A dropped connect does not retry.
    #[test]
    fn a_dropped_connect_closes_its_socket() {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (listener, _filler) = full_listener();
                let addr = listener.local_addr().expect("an address");
                timeout(Duration::from_millis(20), TcpStream::connect(addr))
                    .await
                    .expect_err("it waits");
                listener.accept().expect("the one that filled the queue");
                listener.set_nonblocking(true).expect("non-blocking");
                sleep(Duration::from_millis(1_500)).await;
                let error = listener.accept().expect_err("no connection attempt is left");
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            });
        });
    }
}
