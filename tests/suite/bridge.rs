//! `Bridge`: poll-based calls on the runtime's streams lose no byte, apply backpressure, and shut down cleanly.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::compat::{Bridge, PollRead, PollWrite};
use windlass::io::{AsyncRead, duplex};
use windlass::net::TcpStream;
use windlass::time::{sleep, timeout};

use crate::bytes::numbered;
use crate::support::{
    Random, on_every_driver, on_every_kernel_driver, pair, poll_once, reset_on_close, rounds, turns, waker_cloning,
};

async fn fill<S: PollRead>(bridge: &mut Bridge<S>) -> Vec<u8> {
    poll_fn(|cx| bridge.poll_fill_buf(cx).map_ok(<[u8]>::to_vec))
        .await
        .expect("read")
}

/// A bridge whose buffer holds these bytes, and its peer. A read may return a part of what was written: then another
/// connection is tried.
async fn filled(bytes: &'static str) -> (Bridge<TcpStream>, TcpStream) {
    loop {
        let (near, far) = pair().await;
        let mut near = Bridge::new(near);
        far.write_all(bytes).await.0.expect("write");
        let buffered = fill(&mut near).await;
        assert!(!buffered.is_empty() && bytes.as_bytes().starts_with(&buffered));
        if buffered.len() == bytes.len() {
            return (near, far);
        }
    }
}

async fn read<S: PollRead>(bridge: &mut Bridge<S>, most: usize) -> std::io::Result<Vec<u8>> {
    let mut buf = vec![0; most];
    let count = poll_fn(|cx| bridge.poll_read(cx, &mut buf)).await?;
    buf.truncate(count);
    Ok(buf)
}

async fn read_exactly<S: PollRead>(bridge: &mut Bridge<S>, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let piece = read(bridge, count - all.len()).await.expect("read");
        assert!(
            !piece.is_empty(),
            "the stream ended after {} bytes of {count}",
            all.len()
        );
        all.extend(piece);
    }
    all
}

async fn write_all<S: PollWrite>(bridge: &mut Bridge<S>, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|cx| bridge.poll_write(cx, bytes)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

async fn flush<S: PollWrite>(bridge: &mut Bridge<S>) -> std::io::Result<()> {
    poll_fn(|cx| bridge.poll_flush(cx)).await
}

async fn shut_down<S: PollWrite>(bridge: &mut Bridge<S>) -> std::io::Result<()> {
    poll_fn(|cx| bridge.poll_shutdown(cx)).await
}

/// Waits until the orphaned operations have completed.
async fn no_operation_left() {
    for _ in 0..1_000 {
        if windlass::counters().ops == 0 {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("operations left: {:?}", windlass::metrics::metrics().ops);
}

#[test]
fn fill_buf_returns_the_same_bytes_until_they_are_consumed() {
    on_every_driver(|case| {
        case.run(async {
            let (mut near, far) = filled("hello").await;
            near.consume(0);
            assert_eq!(fill(&mut near).await, b"hello");
            near.consume(2);
            // While the buffer holds bytes, nothing more is read from the kernel.
            far.write_all("again").await.0.expect("write");
            turns(3).await;
            assert_eq!(fill(&mut near).await, b"llo");
            assert_eq!(read(&mut near, 1).await.expect("read"), b"l");
            assert_eq!(read(&mut near, 16).await.expect("read"), b"lo");
            assert_eq!(read_exactly(&mut near, 5).await, b"again");
            assert_eq!(read(&mut near, 0).await.expect("an empty buffer"), b"");
            drop(far);
            assert_eq!(fill(&mut near).await, b"");
            assert_eq!(fill(&mut near).await, b"");
        });
    });
}

#[test]
#[should_panic(expected = "cannot advance by 6 of 5 bytes")]
fn consuming_more_than_was_buffered_panics() {
    windlass::run(async {
        let (near, mut far) = duplex(16);
        let mut near = Bridge::new(near);
        windlass::io::AsyncWrite::write_all(&mut far, "hello")
            .await
            .0
            .expect("write");
        fill(&mut near).await;
        near.consume(6);
    })
    .expect("a loop");
}

#[test]
fn into_inner_returns_the_unconsumed_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (mut near, far) = filled("0123456789").await;
            near.consume(4);
            let mut near = Bridge::new(near.into_inner());
            assert_eq!(read(&mut near, 2).await.expect("read"), b"45");
            let near = near.into_inner();
            let (result, buf) = near.read(vec![0; 3]).await;
            assert_eq!((result.expect("read"), &buf[..]), (3, &b"678"[..]));
            // A read that was polled once and then abandoned loses nothing either.
            let mut near = Bridge::new(near);
            assert_eq!(read(&mut near, 1).await.expect("read"), b"9");
            assert!(poll_once(pin!(fill(&mut near))).await.is_pending());
            far.write_all("late").await.0.expect("write");
            turns(3).await;
            let near = near.into_inner();
            assert_eq!(near.read_exact(vec![0; 4]).await.1, b"late");
        });
    });
}

/// Accepted bytes are sent although the writer never polls the bridge again.
#[test]
fn bytes_are_sent_without_a_flush() {
    on_every_driver(|case| {
        case.run(async move {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let pieces = numbered(3_000);
            for mut piece in pieces.chunks(100) {
                while !piece.is_empty() {
                    let count = poll_fn(|cx| near.poll_write(cx, piece)).await.expect("write");
                    assert!(count == 100 || case.has_quirks(), "{count}");
                    piece = &piece[count..];
                }
            }
            let received = timeout(Duration::from_secs(60), far.read_exact(vec![0; 3_000])).await;
            assert!(received.expect("the bytes arrive").1 == pieces);
            drop(near);
        });
    });
}

/// Accepted bytes are sent after the bridge is gone, before bytes written through the stream's own methods.
#[test]
fn accepted_bytes_are_sent_after_the_bridge_is_gone() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let all = numbered(16 << 20);
            let mut taken = 0;
            let filling = async {
                loop {
                    taken += poll_fn(|cx| near.poll_write(cx, &all[taken..])).await.expect("write");
                }
            };
            let full = timeout(Duration::from_millis(100), filling).await;
            full.expect_err("the peer does not read");
            let near = near.into_inner();
            let writing = windlass::spawn(async move { near.write_all("the end").await.0 });
            let mut received = far.read_exact(vec![0; taken]).await;
            received.0.expect("read");
            assert!(received.1 == all[..taken], "other bytes arrived");
            received = far.read_exact(vec![0; 7]).await;
            assert_eq!(received.1, b"the end");
            writing.await.expect("no panic").expect("write");
        });
    });
}

#[test]
fn a_slow_reader_applies_backpressure() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let all = numbered(16 << 20);
            let mut taken = 0;
            // The kernel's buffers fill up; beyond that the bridge buffers no more than its limit.
            let filling = async {
                loop {
                    taken += poll_fn(|cx| near.poll_write(cx, &all[taken..])).await.expect("write");
                }
            };
            let full = timeout(Duration::from_millis(200), filling).await;
            full.expect_err("the peer does not read");
            assert!(taken < all.len(), "all {} bytes were accepted", all.len());
            let unsent: usize = format!("{near:?}")
                .split("unsent: ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next()?.parse().ok())
                .expect("the count of unsent bytes");
            assert!((1..=64 << 10).contains(&unsent), "{unsent} bytes buffered");
            let rest = all[taken..].to_vec();
            let writing = windlass::spawn(async move {
                write_all(&mut near, &rest).await.expect("write");
                shut_down(&mut near).await.expect("shutdown");
            });
            let mut received = Vec::new();
            loop {
                let bytes = far.read_managed().await.expect("read");
                if bytes.is_empty() {
                    break;
                }
                received.extend_from_slice(&bytes);
            }
            assert!(received == all);
            writing.await.expect("no panic");
        });
    });
}

#[test]
fn slices_are_written_in_order() {
    on_every_driver(|case| {
        case.run(async move {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let slices = [
                IoSlice::new(b""),
                IoSlice::new(b"one "),
                IoSlice::new(b"two "),
                IoSlice::new(b"three"),
            ];
            let count = poll_fn(|cx| near.poll_write_vectored(cx, &slices))
                .await
                .expect("write");
            assert!(count == 13 || case.has_quirks(), "{count}");
            assert_eq!(
                poll_fn(|cx| near.poll_write_vectored(cx, &[])).await.expect("nothing"),
                0
            );
            assert_eq!(far.read_exact(vec![0; count]).await.1, b"one two three"[..count]);
        });
    });
}

#[test]
fn each_direction_shuts_down_separately() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (mut near, mut far) = (Bridge::new(near), Bridge::new(far));
            write_all(&mut near, b"last words").await.expect("write");
            shut_down(&mut near).await.expect("shutdown");
            assert_eq!(read_exactly(&mut far, 10).await, b"last words");
            assert_eq!(fill(&mut far).await, b"");
            let error = write_all(&mut near, b"more").await.and(flush(&mut near).await);
            assert_eq!(error.expect_err("ended").kind(), ErrorKind::BrokenPipe);
            // The other direction stays open.
            write_all(&mut far, b"still here").await.expect("write");
            flush(&mut far).await.expect("flush");
            assert_eq!(read_exactly(&mut near, 10).await, b"still here");
        });
    });
}

#[test]
fn a_failed_send_is_reported_by_a_later_call() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            reset_on_close(&far);
            drop(far);
            turns(3).await;
            let mut failed = None;
            // The first write may be accepted: its send fails later.
            for _ in 0..3 {
                let result = write_all(&mut near, b"anybody?").await.and(flush(&mut near).await);
                failed = failed.or(result.err());
            }
            let kind = failed.expect("a reset is reported").kind();
            assert!(
                matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
                "{kind:?}"
            );
        });
    });
}

#[test]
fn one_task_reads_while_another_writes() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (reader, writer) = near.into_split();
            let (mut reader, mut writer) = (Bridge::new(reader), Bridge::new(writer));
            let all = Rc::new(numbered(200_000));
            let expected = all.clone();
            let reading = windlass::spawn(async move { read_exactly(&mut reader, expected.len()).await == *expected });
            let sent = all.clone();
            let writing =
                windlass::spawn(async move { write_all(&mut writer, &sent).await.and(shut_down(&mut writer).await) });
            loop {
                let bytes = far.read_managed().await.expect("read");
                if bytes.is_empty() {
                    break;
                }
                far.write_all(bytes).await.0.expect("write");
            }
            assert!(reading.await.expect("no panic"));
            writing.await.expect("no panic").expect("write");
        });
    });
}

/// The stream's own methods and the bridge share one queue per direction.
#[test]
fn a_read_of_the_stream_waits_for_the_bridges_read() {
    on_every_driver(|case| {
        case.run(async move {
            let (near, far) = pair().await;
            let mut bridge = Bridge::new(&near);
            assert!(poll_once(pin!(fill(&mut bridge))).await.is_pending());
            let mut native = Box::pin(near.read_exact(vec![0; 4]));
            assert!(poll_once(native.as_mut()).await.is_pending());
            far.write_all("one ").await.0.expect("write");
            let first = fill(&mut bridge).await;
            assert!(first == b"one " || case.has_quirks(), "{first:?}");
            bridge.consume(first.len());
            far.write_all("two three").await.0.expect("write");
            // Whatever the bridge's read left unread.
            assert_eq!(native.await.1, b"one two "[first.len()..first.len() + 4]);
            let third = fill(&mut bridge).await;
            assert!(b"one two three"[first.len() + 4..].starts_with(&third), "{third:?}");
        });
    });
}

#[test]
fn a_dropped_bridge_leaves_no_operation() {
    on_every_driver(|case| {
        case.run(async {
            for round in 0..rounds().min(200) {
                let (near, far) = pair().await;
                let mut near = Bridge::new(near);
                if round % 2 == 0 {
                    assert!(poll_once(pin!(fill(&mut near))).await.is_pending());
                }
                if round % 3 == 0 {
                    let _ = poll_once(pin!(write_all(&mut near, &[7; 1_000]))).await;
                }
                drop(near);
                // The peer always sees the end of the stream.
                while !far.read_managed().await.unwrap_or_default().is_empty() {}
            }
            no_operation_left().await;
        });
    });
}

/// Reads and writes are abandoned at random points, bridges are removed and created anew: each byte arrives once, in
/// order.
#[test]
fn calls_abandoned_at_random_points_lose_no_byte() {
    on_every_driver(|case| {
        for seed in 0..(rounds() / 50).clamp(2, 200) as u64 {
            case.run(async move {
                let (near, far) = pair().await;
                exchange(near, far, seed).await;
                let (near, far) = duplex(1 + (seed as usize * 37) % 5_000);
                exchange(near, far, seed).await;
                no_operation_left().await;
            });
        }
    });
}

async fn exchange<S: PollRead + PollWrite + 'static>(near: S, far: S, seed: u64) {
    const LEN: usize = 60_000;
    let all = Rc::new(numbered(LEN));
    let sent = all.clone();
    let writing = windlass::spawn(async move {
        let mut random = Random::new(seed);
        let mut near = Bridge::new(near);
        let mut done = 0;
        while done < LEN {
            let end = (done + 1 + random.below(9_000) as usize).min(LEN);
            // One poll, perhaps without another: bytes it accepted are sent.
            let written = match random.below(3) {
                0 => match poll_fn(|cx| Poll::Ready(near.poll_write(cx, &sent[done..end]))).await {
                    Poll::Ready(result) => result.expect("write"),
                    Poll::Pending => 0,
                },
                1 => {
                    let timed_out = timeout(Duration::from_micros(random.below(100)), flush(&mut near)).await;
                    timed_out.unwrap_or(Ok(())).expect("flush");
                    0
                }
                _ => poll_fn(|cx| near.poll_write(cx, &sent[done..end]))
                    .await
                    .expect("write"),
            };
            done += written;
            turns(random.below(2)).await;
            if random.below(8) == 0 {
                near = Bridge::new(near.into_inner());
            }
        }
        shut_down(&mut near).await.expect("shutdown");
        near
    });
    let mut random = Random::new(seed + 1);
    let mut far = Bridge::new(far);
    let mut received = Vec::new();
    loop {
        let most = 1 + random.below(5_000) as usize;
        match random.below(4) {
            0 => {
                let _ = poll_once(pin!(fill(&mut far))).await;
            }
            1 => {
                let piece = timeout(Duration::from_micros(random.below(100)), read(&mut far, most)).await;
                received.extend(piece.unwrap_or(Ok(Vec::new())).expect("read"));
            }
            2 => {
                let len = fill(&mut far).await.len().min(most);
                received.extend_from_slice(&fill(&mut far).await[..len]);
                far.consume(len);
                if len == 0 {
                    break;
                }
            }
            _ => far = Bridge::new(far.into_inner()),
        }
        turns(random.below(2)).await;
    }
    assert_eq!(received.len(), LEN);
    assert!(received == *all, "bytes were duplicated or reordered");
    drop(writing.await.expect("no panic"));
}

#[test]
fn shutdown_closes_a_pipe() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (sender, receiver) = windlass::io::pipe::pipe().expect("a pipe");
            let (mut sender, mut receiver) = (Bridge::new(sender), Bridge::new(receiver));
            write_all(&mut sender, b"through the pipe").await.expect("write");
            shut_down(&mut sender).await.expect("shutdown");
            assert_eq!(read_exactly(&mut receiver, 16).await, b"through the pipe");
            assert_eq!(fill(&mut receiver).await, b"");
            let error = write_all(&mut sender, b"more").await.and(flush(&mut sender).await);
            assert_eq!(error.expect_err("closed").kind(), ErrorKind::BrokenPipe);
        });
    });
}

/// A bridge that never has to wait must not starve a timer.
#[test]
fn a_busy_bridge_yields_to_other_tasks() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = duplex(1 << 10);
            let busy = windlass::spawn(async move {
                let (mut near, mut far) = (Bridge::new(near), Bridge::new(far));
                loop {
                    write_all(&mut near, &[1; 64]).await.expect("write");
                    read_exactly(&mut far, 64).await;
                }
            });
            sleep(Duration::from_millis(1)).await;
            busy.cancel();
            // The same with a socket that is always ready.
            let (near, far) = pair().await;
            let busy = windlass::spawn(async move {
                let (mut near, mut far) = (Bridge::new(near), Bridge::new(far));
                loop {
                    write_all(&mut near, &[1; 64]).await.expect("write");
                    read_exactly(&mut far, 64).await;
                }
            });
            sleep(Duration::from_millis(1)).await;
            busy.cancel();
        });
    });
}

/// When the buffer pool is empty, reads use the heap.
#[test]
fn an_empty_buffer_pool_is_not_eof() {
    on_every_kernel_driver(|case| {
        let event_loop = case.builder().managed_buffers(1, 4096).build().expect("a loop");
        let run = event_loop.run_until_complete(async {
            let (near, far) = pair().await;
            let (other, elsewhere) = pair().await;
            elsewhere.write_all("held").await.0.expect("write");
            let _held = other.read_managed().await.expect("read");
            let mut near = Bridge::new(near);
            far.write_all("from the heap").await.0.expect("write");
            assert_eq!(read_exactly(&mut near, 13).await, b"from the heap");
        });
        run.expect("the loop runs");
    });
}

#[test]
fn a_bridge_may_outlive_its_loop() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let bridge: Bridge<TcpStream> = event_loop
            .run_until_complete(async {
                let (near, far) = pair().await;
                let mut near = Bridge::new(near);
                assert!(poll_once(pin!(fill(&mut near))).await.is_pending());
                let full = timeout(Duration::from_millis(50), write_all(&mut near, &vec![1; 32 << 20])).await;
                full.expect_err("the peer does not read");
                crate::support::keep_forever(far);
                near
            })
            .expect("the loop runs");
        drop(event_loop);
        drop(bridge);
    });
}

/// A copy that moves bytes inside the kernel waits for its source when a bridge of the same stream is dropped: it copies
/// the bytes that the bridge puts back.
#[test]
fn a_waiting_bulk_copy_gets_the_bytes_of_a_dropped_bridge() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let ((source, from), (sink, to)) = (pair().await, pair().await);
            let source = Rc::new(source);
            let mut bridge = Bridge::new(&*source);
            from.write_all("abc").await.0.expect("write");
            assert_eq!(fill(&mut bridge).await, b"abc");
            let reader = source.clone();
            let copying = windlass::spawn(async move {
                let (mut reader, mut sink) = (&*reader, sink);
                windlass::io::copy(&mut reader, &mut sink).await
            });
            // Enough for a bulk copy, which has then nothing more to move.
            let many = 4 << 20;
            let sending = windlass::spawn(async move {
                from.write_all(vec![7; many]).await.0.expect("write");
                from
            });
            assert_eq!(to.read_exact(vec![0; many]).await.1, vec![7; many]);
            let from = sending.await.expect("no panic");
            turns(10).await;
            drop(bridge);
            assert_eq!(to.read_exact(vec![0; 3]).await.1, b"abc");
            drop(from);
            let copied = copying.await.expect("no panic").expect("copy");
            assert_eq!(copied, many as u64 + 3);
        });
    });
}

/// A read of the stream's own already waits when the bridge is dropped: it gets the bytes that the bridge returns to
/// the stream, then the rest.
#[test]
fn a_waiting_read_gets_the_bytes_of_a_dropped_bridge() {
    on_every_driver(|case| {
        case.run(async move {
            let (near, far) = pair().await;
            let near = Rc::new(near);
            // The kinds differ only in the call that waits.
            for kind in 0..5 {
                let mut bridge = Bridge::new(&*near);
                far.write_all("abc").await.0.expect("write");
                let filled = fill(&mut bridge).await;
                assert!(filled == b"abc" || case.has_quirks(), "{filled:?}");
                let stream = near.clone();
                let waiting = windlass::spawn(async move {
                    match kind {
                        0 => stream.read_managed().await.map(|bytes| bytes.to_vec()),
                        1 => {
                            let (result, buf) = stream.read(Vec::with_capacity(16)).await;
                            result.map(|_| buf)
                        }
                        2 => {
                            let (result, buf) = stream.read_exact(vec![0; 3]).await;
                            result.map(|()| buf)
                        }
                        3 => {
                            let bufs = vec![Vec::with_capacity(0), Vec::with_capacity(16)];
                            let (result, bufs) = stream.read_vectored(bufs).await;
                            result.map(|_| bufs.concat())
                        }
                        _ => Ok(fill(&mut Bridge::new(&*stream)).await),
                    }
                });
                turns(3).await;
                // With quirks, bytes may be left in the socket, which the read gets before the bridge returns its own.
                let is_early = waiting.is_finished();
                assert!(!is_early || case.has_quirks(), "kind {kind}");
                drop(bridge);
                let woken = timeout(Duration::from_secs(60), waiting)
                    .await
                    .expect("the read is woken");
                let bytes = woken.expect("no panic").expect("read");
                if is_early {
                    near.read_exact(vec![0; if kind == 4 { 3 } else { 3 - bytes.len() }])
                        .await
                        .0
                        .expect("read");
                    continue;
                }
                assert!(
                    bytes.starts_with(&filled) && b"abc".starts_with(&bytes),
                    "kind {kind}: {bytes:?}"
                );
                // The second bridge has not consumed the bytes.
                let left = if kind == 4 { b"abc" } else { &b"abc"[bytes.len()..] };
                assert_eq!(near.read_exact(vec![0; left.len()]).await.1, left);
            }
            far.write_all("the rest").await.0.expect("write");
            assert_eq!(near.read_exact(vec![0; 8]).await.1, b"the rest");
        });
    });
}

/// Bytes that the waiting read has received meanwhile come after the returned ones.
#[test]
fn returned_bytes_come_before_later_ones() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut bridge = Bridge::new(&near);
            far.write_all("abc").await.0.expect("write");
            assert!(b"abc".starts_with(&fill(&mut bridge).await));
            bridge.consume(1);
            let mut native = Box::pin(near.read_exact(vec![0; 5]));
            assert!(poll_once(native.as_mut()).await.is_pending());
            far.write_all("de").await.0.expect("write");
            sleep(Duration::from_millis(5)).await;
            assert!(poll_once(native.as_mut()).await.is_pending());
            drop(bridge);
            sleep(Duration::from_millis(5)).await;
            assert!(poll_once(native.as_mut()).await.is_pending());
            far.write_all("fgh").await.0.expect("write");
            let (result, bytes) = native.await;
            result.expect("read");
            assert_eq!(bytes, b"bcdef");
            assert_eq!(near.read_exact(vec![0; 2]).await.1, b"gh");
            // Again, but the read completes before the bytes are returned, and is then dropped.
            let mut bridge = Bridge::new(&near);
            far.write_all("123").await.0.expect("write");
            assert!(b"123".starts_with(&fill(&mut bridge).await));
            let mut native = Box::pin(near.read_exact(vec![0; 9]));
            assert!(poll_once(native.as_mut()).await.is_pending());
            far.write_all("45").await.0.expect("write");
            sleep(Duration::from_millis(5)).await;
            drop(bridge);
            drop(native);
            assert_eq!(near.read_exact(vec![0; 5]).await.1, b"12345");
        });
    });
}

#[test]
fn a_waiting_duplex_read_gets_the_bytes_of_a_dropped_bridge() {
    on_every_driver(|case| {
        case.run(async {
            let (near, mut far) = duplex(64);
            let near = Rc::new(near);
            let mut bridge = Bridge::new(&*near);
            windlass::io::AsyncWrite::write_all(&mut far, "abc")
                .await
                .0
                .expect("write");
            assert_eq!(fill(&mut bridge).await, b"abc");
            let stream = near.clone();
            let waiting = windlass::spawn(async move {
                let bytes = windlass::io::AsyncRead::read_managed(&mut &*stream).await;
                bytes.map(|bytes| bytes.to_vec())
            });
            turns(3).await;
            drop(bridge);
            let woken = timeout(Duration::from_secs(60), waiting)
                .await
                .expect("the read is woken");
            assert_eq!(woken.expect("no panic").expect("read"), b"abc");
        });
    });
}

/// Writes until no more bytes are accepted, and returns their count.
async fn fill_up<S: PollWrite>(bridge: &mut Bridge<S>) -> usize {
    let mut taken = 0;
    let filling = async {
        loop {
            taken += poll_fn(|cx| bridge.poll_write(cx, &[7; 64 << 10]))
                .await
                .expect("write");
        }
    };
    let full = timeout(Duration::from_millis(100), filling).await;
    full.expect_err("the peer does not read");
    taken
}

/// A peer that reads nothing makes a write, a flush and a shutdown time out; its connection is reset.
#[test]
fn write_timeout_resets_a_peer_that_reads_nothing() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for ending in ["write", "flush", "shutdown"] {
                let (near, far) = pair().await;
                let mut near = Bridge::new(near).write_timeout(Duration::from_millis(50));
                let error = loop {
                    let written = poll_fn(|cx| near.poll_write(cx, &[7; 64 << 10])).await;
                    match written {
                        Ok(_) => continue,
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                let error = match ending {
                    "flush" => flush(&mut near).await.unwrap_err(),
                    "shutdown" => shut_down(&mut near).await.unwrap_err(),
                    _ => error,
                };
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{ending}: {error}");
                drop(near);
                no_operation_left().await;
                let end = loop {
                    match far.read_managed().await {
                        Ok(bytes) if bytes.is_empty() => break Ok(()),
                        Ok(_) => {}
                        Err(error) => break Err(error.kind()),
                    }
                };
                assert_eq!(end, Err(ErrorKind::ConnectionReset), "{ending}");
            }
        });
    });
}

/// The timeout restarts whenever the peer takes a byte, so a slow transfer may take any time. On the virtual clock, so
/// that a slow machine does not matter.
#[test]
fn write_timeout_tolerates_a_slow_peer() {
    let event_loop = windlass::Builder::new().driver(windlass::DriverChoice::Null);
    let event_loop = event_loop.build().expect("the null driver needs nothing");
    let run = event_loop.run_until_complete(async {
        let (near, mut far) = duplex(4);
        let mut near = Bridge::new(near).write_timeout(Duration::from_secs(10));
        let reading = windlass::spawn(async move {
            let mut count = 0;
            while count < 100 {
                sleep(Duration::from_secs(9)).await;
                count += far.read(vec![0; 1]).await.0.expect("read");
            }
            far
        });
        let begin = windlass::time::Instant::now();
        write_all(&mut near, &[7; 100])
            .await
            .expect("each byte is sent in time");
        assert!(begin.elapsed() > Duration::from_secs(90 * 9));
        let _far = reading.await.expect("no panic");
        // Nothing is pending any more, so the timeout does not run.
        sleep(Duration::from_secs(3600)).await;
        write_all(&mut near, &[7; 4]).await.expect("the buffer has room");
    });
    run.expect("the loop runs");
}

/// Bytes that the kernel has no room for are lost with the stream; the peer gets a reset, not a clean EOF.
#[test]
fn a_peer_that_misses_bytes_gets_a_reset() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let taken = fill_up(&mut near).await;
            drop(near);
            no_operation_left().await;
            let mut received = 0;
            let end = loop {
                match far.read_managed().await {
                    Ok(bytes) if bytes.is_empty() => break Ok(()),
                    Ok(bytes) => received += bytes.len(),
                    Err(error) => break Err(error.kind()),
                }
            };
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{received} of {taken} bytes");
        });
    });
}

/// Bytes that the kernel has room for arrive although the stream is dropped at once.
#[test]
fn bytes_the_kernel_accepts_arrive_after_the_stream_is_dropped() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let all = numbered(60_000);
            for round in 0..rounds().clamp(4, 40) {
                let (near, far) = pair().await;
                let mut near = Bridge::new(near);
                let len = [5, 1_000, 20_000, 60_000][round % 4];
                for piece in all[..len].chunks(3_000) {
                    write_all(&mut near, piece).await.expect("write");
                }
                drop(near);
                let (result, received) = far.read_exact(vec![0; len]).await;
                result.expect("all bytes");
                assert!(received == all[..len]);
                assert!(far.read_managed().await.expect("a clean EOF").is_empty());
            }
            no_operation_left().await;
        });
    });
}

#[test]
fn shutdown_after_a_reset_succeeds() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            reset_on_close(&far);
            drop(far);
            near.read_managed().await.expect_err("a reset");
            let mut near = Bridge::new(near);
            shut_down(&mut near).await.expect("nothing is left to shut down");
            shut_down(&mut near).await.expect("a second shutdown");
        });
    });
}

/// Accepted bytes were lost: every later call returns the same error.
#[test]
fn a_failed_send_is_reported_by_every_later_call() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            fill_up(&mut near).await;
            reset_on_close(&far);
            drop(far);
            let kind = flush(&mut near).await.expect_err("a reset").kind();
            for _ in 0..2 {
                assert_eq!(
                    write_all(&mut near, b"more").await.expect_err("bytes were lost").kind(),
                    kind
                );
                assert_eq!(flush(&mut near).await.expect_err("bytes were lost").kind(), kind);
                assert_eq!(shut_down(&mut near).await.expect_err("bytes were lost").kind(), kind);
            }
        });
    });
}

#[test]
fn a_bridge_keeps_no_descriptor_open() {
    on_every_kernel_driver(|case| {
        case.run(async {
            // Shut down through the inner stream.
            let (sender, receiver) = windlass::io::pipe::pipe().expect("a pipe");
            let mut bridge = Bridge::new(sender);
            write_all(&mut bridge, b"hi").await.expect("write");
            flush(&mut bridge).await.expect("flush");
            windlass::io::AsyncWrite::shutdown(bridge.get_mut())
                .await
                .expect("shutdown");
            assert_eq!(&*receiver.read_managed().await.expect("read"), b"hi");
            let end = timeout(Duration::from_secs(60), receiver.read_managed()).await;
            assert!(end.expect("EOF is reported").expect("read").is_empty());
            // Replaced and dropped.
            let (near, far) = pair().await;
            let (other, elsewhere) = pair().await;
            let mut bridge = Bridge::new(near);
            far.write_all("old").await.0.expect("write");
            assert_eq!(fill(&mut bridge).await, b"old");
            write_all(&mut bridge, b"to the old").await.expect("write");
            flush(&mut bridge).await.expect("flush");
            let old = std::mem::replace(bridge.get_mut(), other);
            elsewhere.write_all("new").await.0.expect("write");
            assert_eq!(fill(&mut bridge).await, b"new");
            assert_eq!(&*old.read_managed().await.expect("read"), b"old");
            drop(old);
            assert_eq!(far.read_exact(vec![0; 10]).await.1, b"to the old");
            let end = timeout(Duration::from_secs(60), far.read_managed()).await;
            assert!(end.expect("EOF is reported").expect("read").is_empty());
        });
    });
}

#[test]
fn flush_applies_to_the_current_inner_stream() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (near, _far) = pair().await;
            let (other, elsewhere) = pair().await;
            let mut bridge = Bridge::new(near);
            fill_up(&mut bridge).await;
            drop(std::mem::replace(bridge.get_mut(), other));
            let flushed = timeout(Duration::from_secs(60), flush(&mut bridge)).await;
            flushed
                .expect("it returns")
                .expect("nothing was written to the new stream");
            write_all(&mut bridge, b"new").await.expect("write");
            assert_eq!(elsewhere.read_exact(vec![0; 3]).await.1, b"new");
        });
    });
}

#[test]
fn a_replaced_duplex_stream_is_noticed() {
    on_every_driver(|case| {
        case.run(async {
            let (old, old_peer) = duplex(64);
            let (new, new_peer) = duplex(64);
            let mut bridge = Bridge::new(old);
            let (mut old_peer, mut new_peer) = (Bridge::new(old_peer), Bridge::new(new_peer));
            write_all(&mut bridge, b"1").await.expect("write");
            write_all(&mut old_peer, b"a").await.expect("write");
            write_all(&mut new_peer, b"b").await.expect("write");
            assert_eq!(fill(&mut bridge).await, b"a");
            let old = std::mem::replace(bridge.get_mut(), new);
            write_all(&mut bridge, b"2").await.expect("write");
            assert_eq!(fill(&mut old_peer).await, b"1");
            assert_eq!(fill(&mut new_peer).await, b"2");
            assert_eq!(fill(&mut bridge).await, b"b");
            assert_eq!(fill(&mut Bridge::new(old)).await, b"a");
        });
    });
}

/// Slices that are too long to be copied together are sent from where they are, or gathered.
#[test]
fn long_slices_are_written_in_order() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut near = Bridge::new(near);
            let all = numbered(40_000);
            let mut taken = 0;
            while taken < all.len() {
                let rest = &all[taken..];
                let (one, other) = rest.split_at(rest.len().min(700));
                let slices = [
                    IoSlice::new(one),
                    IoSlice::new(b""),
                    IoSlice::new(&other[..other.len().min(900)]),
                ];
                let count = poll_fn(|cx| near.poll_write_vectored(cx, &slices))
                    .await
                    .expect("write");
                assert!((1..=1_600).contains(&count), "{count} bytes accepted");
                taken += count;
            }
            let (result, received) = far.read_exact(vec![0; all.len()]).await;
            result.expect("read");
            assert!(received == all, "out of order");
        });
    });
}

/// A waker that panics when it is cloned does not cost a waiting bridge its place in the queue, or block it for others.
#[test]
fn a_bridge_keeps_its_place_when_a_waker_panics() {
    on_every_driver(|case| {
        // More than any socket takes while the peer does not read.
        let len = if case.is_kernel() { 64 << 20 } else { 1 << 20 };
        case.run(async move {
            let (client, server) = pair().await;
            {
                // Holds the write queue.
                let mut writing = pin!(client.write_all(vec![7; len]));
                assert!(poll_once(writing.as_mut()).await.is_pending());
                let mut bridge = Bridge::new(&client);
                let waiting = poll_fn(|cx| Poll::Ready(bridge.poll_write(cx, b"later").is_pending()));
                assert!(waiting.await);
                let waker = waker_cloning(&Rc::default(), || panic!("on purpose"));
                let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    bridge
                        .poll_write(&mut std::task::Context::from_waker(&waker), b"later")
                        .is_pending()
                }));
                polled.expect_err("the waker panics");
                let receiving = async {
                    let mut left = len;
                    while left > 0 {
                        left -= server.read(vec![0; 1 << 20]).await.0.expect("read");
                    }
                };
                let ((result, _), ()) = futures_util::future::join(writing, receiving).await;
                result.expect("write");
                write_all(&mut bridge, b"later").await.expect("write");
                flush(&mut bridge).await.expect("flush");
            }
            client.write_all("last").await.0.expect("write");
            assert_eq!(server.read_exact(vec![0; 9]).await.1, b"laterlast");
        });
    });
}

/// `into_std` refuses a stream whose read by a bridge has completed, and leaves the bytes to the bridge.
#[test]
fn a_bridge_reads_on_after_a_refused_conversion() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let (other, _peer) = pair().await;
            let mut bridge = Bridge::new(server);
            let pending = poll_fn(|cx| Poll::Ready(bridge.poll_fill_buf(cx).is_pending()));
            assert!(pending.await);
            client.write_all("kept").await.0.expect("write");
            turns(5).await;
            let server = std::mem::replace(bridge.get_mut(), other);
            let refused = server.into_std().expect_err("a read has completed");
            let other = std::mem::replace(bridge.get_mut(), refused.into_inner());
            assert_eq!(read_exactly(&mut bridge, 4).await, b"kept");
            drop(other);
        });
    });
}
