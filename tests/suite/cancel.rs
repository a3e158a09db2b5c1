//! Abandoned operations: no buffer is freed while the kernel uses it, and no byte, connection or descriptor is lost.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::hint::black_box;
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use windlass::net::{TcpListener, TcpStream};
use windlass::time::{sleep, timeout};

use crate::child::in_own_process;
use crate::support::{
    Case, Random, assert_over, on_every_driver, on_every_kernel_driver, open_descriptors, pair, pair_of, poll_once,
    reset_on_close, rounds, settle, turns,
};

/// The bytes the peer sends, and the contents of memory that the kernel must not write to.
const PAYLOAD: u8 = 0xEE;
const PATTERN: u8 = 0x55;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// The future is dropped; the stream lives on.
    Dropped,
    /// The future is forgotten, then the stream is dropped.
    Forgotten,
    /// The task unwinds.
    Unwound,
    /// The task is cancelled.
    Cancelled,
}

const WAYS: [Way; 4] = [Way::Dropped, Way::Forgotten, Way::Unwound, Way::Cancelled];

/// Blocks of the buffer's size, which the allocator would carve from a buffer that was freed too early.
struct Blocks(Vec<Vec<u8>>);

impl Blocks {
    fn allocate(len: usize) -> Blocks {
        Blocks((0..8).map(|_| black_box(vec![PATTERN; len])).collect())
    }

    fn check(&self, what: impl std::fmt::Debug) {
        for block in &self.0 {
            let intact = black_box(block).iter().all(|&byte| byte == PATTERN);
            assert!(intact, "the kernel wrote into freed memory: {what:?}");
        }
    }
}

/// Sends without the loop, so that the bytes arrive before a cancel that is not submitted yet.
fn send_now(stream: &TcpStream, bytes: &[u8]) {
    let sent = socket2::SockRef::from(stream).send(bytes).expect("a send");
    assert_eq!(sent, bytes.len());
}

#[test]
fn a_buffer_outlives_its_abandoned_read() {
    on_every_driver(|case| {
        case.run(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut random = Random::new(1);
            for round in 0..rounds() {
                let way = WAYS[round % WAYS.len()];
                // Miri would rightly report the forgotten future as a leak.
                if way == Way::Forgotten && cfg!(miri) {
                    continue;
                }
                let armed = is_armed(case, round % 8 >= 4);
                let len = 16 + random.below(1000) as usize;
                match way {
                    Way::Dropped | Way::Forgotten => abandon_future(case, way, armed, len, &listener).await,
                    Way::Unwound | Way::Cancelled => abandon_task(case, way, armed, len, &listener).await,
                }
            }
            assert_eq!(windlass::counters().stale_completions, 0);
        });
    });
}

/// The null driver has no kernel that could wait, and a reactor receives available bytes at once.
fn is_armed(case: Case, wanted: bool) -> bool {
    case.tries_first() || (wanted && case.is_kernel())
}

async fn let_cancel_complete(case: Case) {
    match case.has_quirks() {
        true => settle().await,
        false => turns(3).await,
    }
}

/// Armed: the kernel was already waiting for bytes when the read is abandoned, and they arrive before the cancel. Not
/// armed: the bytes have already arrived, and the receive is submitted together with its cancel.
async fn abandon_future(case: Case, way: Way, armed: bool, len: usize, listener: &TcpListener) {
    let (client, server) = pair_of(listener).await;
    if !armed {
        client.write_all(vec![PAYLOAD; len]).await.0.unwrap();
    }
    let mut reading = Box::pin(server.read(Vec::with_capacity(len)));
    if poll_once(reading.as_mut()).await.is_ready() {
        assert!(case.has_quirks(), "the read is not pending when it is abandoned");
        return;
    }
    if armed {
        turns(2).await;
    }
    let server = match way {
        Way::Forgotten => {
            crate::support::keep_forever(reading);
            drop(server);
            None
        }
        _ => {
            drop(reading);
            Some(server)
        }
    };
    let blocks = Blocks::allocate(len);
    if armed {
        send_now(&client, &vec![PAYLOAD; len]);
    }
    let_cancel_complete(case).await;
    blocks.check((way, armed));
    if let Some(server) = server {
        let (result, buf) = server.read_exact(vec![0; len]).await;
        result.unwrap();
        assert!(buf.iter().all(|&byte| byte == PAYLOAD), "{way:?}");
    }
}

async fn abandon_task(case: Case, way: Way, armed: bool, len: usize, listener: &TcpListener) {
    let (client, server) = pair_of(listener).await;
    if !armed {
        client.write_all(vec![PAYLOAD; len]).await.0.unwrap();
    }
    let is_pending = Rc::new(Cell::new(false));
    let task = windlass::spawn({
        let is_pending = is_pending.clone();
        async move {
            let mut reading = pin!(server.read(Vec::with_capacity(len)));
            let is_ready = poll_once(reading.as_mut()).await.is_ready();
            assert!(
                !is_ready || case.has_quirks(),
                "the read is not pending when it is abandoned"
            );
            if armed {
                turns(2).await;
            }
            is_pending.set(true);
            match way {
                // Unwinds as a panic does, but without a message on standard error.
                Way::Unwound => std::panic::resume_unwind(Box::new("unwound")),
                _ => std::future::pending().await,
            }
        }
    });
    while !is_pending.get() {
        turns(1).await;
    }
    task.cancel();
    let blocks = Blocks::allocate(len);
    if armed {
        send_now(&client, &vec![PAYLOAD; len]);
    }
    let_cancel_complete(case).await;
    blocks.check((way, armed));
    let error: windlass::JoinError = task.await.unwrap_err();
    assert_eq!(error.is_panic(), way == Way::Unwound);
    blocks.check((way, armed));
}

/// When dropped, allocates blocks of the buffer's size and makes the peer send.
struct SendOnDrop {
    len: usize,
    client: TcpStream,
    sends: bool,
    blocks: Rc<RefCell<Option<Blocks>>>,
}

impl Drop for SendOnDrop {
    fn drop(&mut self) {
        *self.blocks.borrow_mut() = Some(Blocks::allocate(self.len));
        if self.sends {
            send_now(&self.client, &vec![PAYLOAD; self.len]);
        }
    }
}

#[test]
fn a_buffer_outlives_its_loop() {
    on_every_driver(|case| {
        let mut random = Random::new(2);
        for round in 0..rounds().div_ceil(4) {
            let armed = is_armed(case, round % 2 == 0);
            let len = 16 + random.below(1000) as usize;
            drop_loop_mid_read(case, armed, len);
        }
    });
}

fn drop_loop_mid_read(case: Case, armed: bool, len: usize) {
    let event_loop = case.event_loop();
    let (client, server) = event_loop.run_until_complete(pair()).unwrap();
    if !armed {
        let sending = client.write_all(vec![PAYLOAD; len]);
        event_loop.run_until_complete(sending).unwrap().0.unwrap();
    }
    // The stream outlives the loop, so that only the cancel stops the receive.
    let server = Rc::new(server);
    let is_pending = Rc::new(Cell::new(false));
    let blocks = Rc::new(RefCell::new(None));
    let send_on_drop = SendOnDrop {
        len,
        client,
        sends: armed,
        blocks: blocks.clone(),
    };
    drop(event_loop.spawn({
        let (server, is_pending) = (server.clone(), is_pending.clone());
        async move {
            // Declared before the read, so dropped right after it.
            let _send_on_drop = send_on_drop;
            let mut reading = pin!(server.read(Vec::with_capacity(len)));
            let is_ready = poll_once(reading.as_mut()).await.is_ready();
            assert!(
                !is_ready || case.has_quirks(),
                "the read is not pending when it is abandoned"
            );
            if armed {
                turns(2).await;
            }
            is_pending.set(true);
            std::future::pending::<()>().await
        }
    }));
    while !is_pending.get() {
        event_loop.turn().unwrap();
    }
    drop(event_loop);
    let blocks = blocks.take().expect("closing a loop drops its tasks");
    blocks.check(("loop dropped", armed));
}

/// A stream and its pending read are dropped while the loop is not running: the peer still sees EOF.
#[test]
fn a_stream_dropped_outside_of_a_running_loop_closes_the_connection() {
    on_every_kernel_driver(|case| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let event_loop = case.event_loop();
        let reading = event_loop
            .run_until_complete(async {
                let stream = TcpStream::connect(addr).await.unwrap();
                let mut reading = Box::pin(async move { stream.read(vec![0; 8]).await.0 });
                assert!(poll_once(reading.as_mut()).await.is_pending());
                windlass::task::yield_now().await;
                Some(reading)
            })
            .unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        drop(reading);
        peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let received = std::io::Read::read(&mut peer, &mut [0; 8]);
        assert_eq!(received.unwrap(), 0, "EOF");
    });
}

/// Many clients, and a server whose accepts are dropped repeatedly: every client is served, and no descriptor leaks.
#[test]
fn a_dropped_accept_loses_no_connection() {
    if cfg!(miri) {
        // Miri has no processes and no descriptors to count.
        return on_every_driver(|case| case.run(serve_with_dropped_accepts(rounds())));
    }
    in_own_process("cancel::a_dropped_accept_loses_no_connection", &[], || {
        on_every_driver(|case| {
            let before = if case.is_kernel() { open_descriptors() } else { 0 };
            case.run(serve_with_dropped_accepts(rounds()));
            let after = if case.is_kernel() { open_descriptors() } else { 0 };
            assert_eq!(after, before, "descriptors were left open on {}", case.name);
        });
    });
}

async fn serve_with_dropped_accepts(connections: usize) {
    const CLIENTS: usize = 8;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            windlass::spawn(async move {
                for number in (client..connections).step_by(CLIENTS) {
                    let stream = TcpStream::connect(addr).await.unwrap();
                    let question = number.to_le_bytes();
                    stream.write_all(question).await.0.unwrap();
                    let (result, answer) = stream.read_exact([0; 8]).await;
                    result.unwrap_or_else(|error| panic!("connection {number} was not served: {error}"));
                    assert_eq!(answer, question);
                    // No TIME_WAIT: a long run has more connections than the machine has ports.
                    reset_on_close(&stream);
                }
            })
        })
        .collect();
    let mut random = Random::new(3);
    let mut served = 0;
    let mut dropped = 0;
    while served < connections {
        let accepted = match random.below(3) {
            0 => {
                let patience = random.below(3);
                let accepted = give_up_after(patience, listener.accept()).await;
                turns(1).await;
                accepted
            }
            _ => {
                let patience = Duration::from_micros(random.below(100));
                timeout(patience, listener.accept()).await.ok()
            }
        };
        let Some(accepted) = accepted else {
            dropped += 1;
            assert!(
                dropped < 10_000 + connections * 1_000,
                "{served} of {connections} connections were accepted"
            );
            continue;
        };
        let (stream, _) = accepted.unwrap();
        served += 1;
        windlass::spawn(async move {
            let (result, question) = stream.read_exact([0; 8]).await;
            result.unwrap();
            stream.write_all(question).await.0.unwrap();
        });
    }
    assert!(dropped > connections / 100, "only {dropped} accepts were dropped");
    for client in clients {
        client.await.unwrap();
    }
}

/// Polls a future up to `patience` more times, one turn apart, then drops it.
async fn give_up_after<F: Future>(patience: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for polls_left in (0..=patience).rev() {
        if let Poll::Ready(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        if polls_left > 0 {
            turns(1).await;
        }
    }
    None
}

/// The byte at this position of the stream.
fn byte_at(position: usize) -> u8 {
    ((position as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

#[test]
fn a_dropped_read_loses_no_byte() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let total = rounds() * 100;
            let writer = windlass::spawn(async move {
                let mut random = Random::new(4);
                let mut at = 0;
                while at < total {
                    let end = total.min(at + 1 + random.below(400) as usize);
                    let chunk: Vec<u8> = (at..end).map(byte_at).collect();
                    client.write_all(chunk).await.0.unwrap();
                    at = end;
                    turns(random.below(6)).await;
                }
            });
            read_with_drops(server, total, &Reads::default()).await;
            writer.await.unwrap();
        });
    });
}

/// The same with a writer on another thread, whose bytes arrive at any time between a receive and its cancel.
#[test]
fn a_dropped_read_loses_no_byte_of_another_thread() {
    on_every_kernel_driver(|case| {
        let total = rounds() * 100;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let reads = Arc::new(Reads::default());
        let seen = reads.clone();
        let writer = std::thread::spawn(move || {
            let mut random = Random::new(5);
            let mut at = 0;
            while at < total {
                let end = total.min(at + 1 + random.below(400) as usize);
                let chunk: Vec<u8> = (at..end).map(byte_at).collect();
                client.write_all(&chunk).unwrap();
                at = end;
                // Regularly waits until the reader drops a read, or waits for bytes that are not written yet.
                if random.below(8) == 0 {
                    let before = seen.dropped.load(Ordering::Relaxed);
                    while seen.dropped.load(Ordering::Relaxed) == before && seen.waits_for.load(Ordering::Relaxed) <= at
                    {
                        std::thread::yield_now();
                    }
                }
                for _ in 0..random.below(2_000) {
                    std::hint::spin_loop();
                }
            }
        });
        case.run(async move { read_with_drops(TcpStream::from_std(server).unwrap(), total, &reads).await });
        writer.join().unwrap();
    });
}

/// What [`read_with_drops`] is doing.
#[derive(Default)]
struct Reads {
    dropped: AtomicUsize,
    /// If the present read is not dropped before it ends: how many bytes of the stream it needs in all.
    waits_for: AtomicUsize,
}

async fn read_with_drops(stream: TcpStream, total: usize, reads: &Reads) {
    let mut random = Random::new(6);
    let mut at = 0;
    loop {
        let len = 1 + random.below(300) as usize;
        let patience = [0, 1, 2, 3, 1_000_000][random.below(5) as usize];
        let kind = random.below(4);
        let needs = if kind == 1 { len } else { 1 };
        let waits_for = if patience > 3 { at + needs } else { 0 };
        reads.waits_for.store(waits_for, Ordering::Relaxed);
        let received = match kind {
            0 => give_up_after(patience, stream.read(Vec::with_capacity(len)))
                .await
                .map(|(result, buf)| result.map(|_| buf)),
            1 => give_up_after(patience, stream.read_exact(vec![0; len]))
                .await
                .map(|(result, buf)| result.map(|()| buf)),
            2 => give_up_after(patience, stream.read_managed())
                .await
                .map(|result| result.map(|buf| buf.to_vec())),
            _ => {
                let bufs = vec![Vec::with_capacity(len / 2), Vec::new(), Vec::with_capacity(len)];
                give_up_after(patience, stream.read_vectored(bufs))
                    .await
                    .map(|(result, bufs)| result.map(|_| bufs.concat()))
            }
        };
        match received {
            None => drop(reads.dropped.fetch_add(1, Ordering::Relaxed)),
            Some(Ok(bytes)) if bytes.is_empty() => break,
            Some(Ok(bytes)) => {
                for byte in bytes {
                    assert_eq!(byte, byte_at(at), "at byte {at} of {total}");
                    at += 1;
                }
            }
            // Too few bytes before EOF for this call: they are still to be read.
            Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
        }
    }
    assert_eq!(at, total, "every byte exactly once");
    let dropped = reads.dropped.load(Ordering::Relaxed);
    assert!(dropped > total / 10_000, "only {dropped} reads were dropped");
}

/// A dropped `read_exact` had received a part, then the connection was reset: later reads return both.
#[test]
fn a_dropped_read_loses_neither_its_prefix_nor_its_error() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            // Unread data makes the client's close a reset.
            server.write_all("unread").await.0.unwrap();
            client.write_all("half").await.0.unwrap();
            let mut reading = Box::pin(server.read_exact([0; 8]));
            for _ in 0..10 {
                assert!(poll_once(reading.as_mut()).await.is_pending());
                sleep(Duration::from_millis(2)).await;
            }
            drop(client);
            // The error completes a read that is not polled any more.
            sleep(Duration::from_millis(20)).await;
            drop(reading);
            let (result, _) = server.read_exact([0; 8]).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
            let bytes = server.read_managed().await.unwrap();
            assert_eq!(&*bytes, b"half");
            assert_over(server.read_managed().await.map(|bytes| bytes.len()));
        });
    });
}

/// A connection is closed while its read is pending, and a new one could get the same descriptor number: bytes sent to
/// the new connection must not reach the old read.
#[test]
fn a_descriptor_number_is_not_reused_during_a_pending_read() {
    on_every_kernel_driver(|case| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = move || {
            let client = std::net::TcpStream::connect(addr).unwrap();
            let (peer, _) = listener.accept().unwrap();
            (client, peer)
        };
        case.run(async move {
            for round in 0..rounds() as u64 {
                let (old, mut old_peer) = connect();
                let old = TcpStream::from_std(old).unwrap();
                reset_on_close(&old);
                let mut reading = Box::pin(old.read(Vec::with_capacity(64)));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                turns(round % 3).await;
                drop(reading);
                drop(old);

                let (new, mut new_peer) = connect();
                new_peer.write_all(&(2 * round).to_le_bytes()).unwrap();
                let _ = old_peer.write_all(&(2 * round + 1).to_le_bytes());
                let new = TcpStream::from_std(new).unwrap();
                let reading = timeout(Duration::from_secs(60), new.read_exact([0; 8]));
                let (result, tag) = reading.await.expect("another read got the bytes");
                result.unwrap();
                assert_eq!(u64::from_le_bytes(tag), 2 * round, "bytes of another connection");
                reset_on_close(&new);
            }
            assert_eq!(windlass::counters().stale_completions, 0);
        });
    });
}

/// The peer sees EOF at once, whatever the state of the read.
#[test]
fn a_dropped_stream_closes_the_connection() {
    on_every_driver(|case| {
        case.run(async move {
            for forgotten in [false, true] {
                if forgotten && cfg!(miri) {
                    continue;
                }
                let (client, server) = pair().await;
                let mut reading = Box::pin(server.read(Vec::with_capacity(64)));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                turns(3).await;
                match forgotten {
                    true => crate::support::keep_forever(reading),
                    false => drop(reading),
                }
                drop(server);
                assert_eof(&client).await;
            }
        });
    });
}

#[test]
fn a_stream_dropped_with_its_task_closes_the_connection() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let task = windlass::spawn(async move {
                let _ = server.read_managed().await;
            });
            turns(3).await;
            task.cancel();
            assert_eof(&client).await;
            assert!(task.await.unwrap_err().is_cancelled());
        });
    });
}

/// A send in flight waits for room in the socket buffer when the stream is dropped.
#[test]
fn a_stream_dropped_mid_write_closes_the_connection() {
    on_every_driver(|case| {
        case.run(async move {
            let (client, server) = pair().await;
            let len = if case.is_kernel() { 64 << 20 } else { 1 << 20 };
            let mut writing = Box::pin(server.write_all(vec![PAYLOAD; len]));
            assert!(poll_once(writing.as_mut()).await.is_pending());
            turns(3).await;
            drop(writing);
            drop(server);
            let ended = async {
                let mut received = 0;
                loop {
                    match client.read_managed().await.unwrap().len() {
                        0 => return received,
                        count => received += count,
                    }
                }
            };
            let received = timeout(Duration::from_secs(60), ended).await.expect("EOF");
            assert!(received < len, "the dropped write was not cancelled");
        });
    });
}

async fn assert_eof(peer: &TcpStream) {
    let reading = timeout(Duration::from_secs(60), peer.read(Vec::with_capacity(8)));
    let (result, _) = reading.await.expect("the peer sees no EOF");
    assert_eq!(result.unwrap(), 0);
}

/// A listener is dropped while an accept is pending: no descriptor is left open.
#[test]
fn a_listener_dropped_with_its_accept_leaks_nothing() {
    async fn abandon_accepts(count: usize) {
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            {
                let mut accepting = pin!(listener.accept());
                assert!(poll_once(accepting.as_mut()).await.is_pending());
            }
            turns(2).await;
        }
        crate::support::quiet().await;
    }

    in_own_process("cancel::a_listener_dropped_with_its_accept_leaks_nothing", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                abandon_accepts(10).await;
                let before = open_descriptors();
                abandon_accepts(100).await;
                assert_eq!(open_descriptors(), before);
            });
        });
    });
}
