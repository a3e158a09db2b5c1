//! `copy` and `copy_bidirectional`: every byte arrives in order, through buffers and through splice.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream as StdStream};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::{
    AsyncRead, AsyncWrite, BufReader, BufWriter, Halves, ManagedBuf, copy, copy_bidirectional, duplex, join, repeat,
};
use windlass::net::TcpStream;
use windlass::time::{sleep, timeout};

use crate::buf_reader::within;
use crate::bytes::numbered;
use crate::child::in_own_process;
use crate::readiness::with_std_peer;
use crate::streams::{ShortReads, ShortWrites};
use crate::support::{
    Random, codes, on_every_driver, on_every_kernel_driver, pair, poll_once, reset_on_close, rounds, turns,
};

const MB: usize = 1 << 20;

#[test]
fn a_copy_is_complete_with_any_reader_and_writer() {
    on_every_driver(|case| {
        case.run(async {
            for len in [0, 1, 4_096, 100_000] {
                let all = numbered(len);
                let mut writer = ShortWrites::default();
                assert_eq!(
                    copy(&mut ShortReads(&all[..]), &mut writer).await.expect("copy"),
                    len as u64
                );
                assert!(writer.taken == all && writer.flushed == len);
                assert!(!writer.ended, "a copy leaves the writer open");
                let mut writer = BufWriter::new(Vec::new());
                copy(&mut BufReader::new(&all[..]), &mut writer).await.expect("copy");
                assert!(writer.get_ref() == &all, "the copy flushes at the end");
            }
        });
    });
}

/// Copied bytes do not stay in the writer's buffer until more arrive.
#[test]
fn a_copy_flushes_while_it_waits() {
    on_every_driver(|case| {
        case.run(async {
            let (mut client, mut near) = duplex(64);
            let (far, mut server) = duplex(64);
            let copying = windlass::spawn(async move {
                let mut far = BufWriter::new(far);
                copy(&mut near, &mut far).await
            });
            for _ in 0..3 {
                client.write_all("question").await.0.expect("write");
                let (result, _) = server.read_exact([0u8; 8]).await;
                result.expect("it arrives although nothing follows");
            }
            drop(client);
            assert_eq!(copying.await.expect("no panic").expect("copy"), 24);
        });
    });
}

/// EOF is passed on in one direction; the other stays open until its own EOF.
async fn half_closes<S: AsyncRead + AsyncWrite + Halves + 'static>(
    (mut client, mut near): (S, S),
    (mut far, mut server): (S, S),
) {
    let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
    client.write_all("question").await.0.expect("write");
    client.shutdown().await.expect("shutdown");
    assert_eq!(server.read_to_string(100).await.expect("read until EOF"), "question");
    turns(3).await;
    assert!(!proxy.is_finished());
    for _ in 0..3 {
        server.write_all("answer").await.0.expect("write");
        let (result, bytes) = client.read_exact([0u8; 6]).await;
        result.expect("the other direction works");
        assert_eq!(&bytes, b"answer");
    }
    server.shutdown().await.expect("shutdown");
    assert!(client.read_managed().await.expect("read").is_empty());
    assert_eq!(proxy.await.expect("no panic").expect("both directions ended"), (8, 18));
}

#[test]
fn eof_in_one_direction_keeps_the_other_open() {
    on_every_driver(|case| {
        case.run(async {
            half_closes(pair().await, pair().await).await;
            half_closes(duplex(5), duplex(3)).await;
        });
    });
}

/// A blocked direction does not block the other, and a busy one does not starve it.
#[test]
fn neither_direction_blocks_the_other() {
    on_every_driver(|case| {
        case.run(async {
            let (mut client, mut near) = duplex(100);
            let (mut far, mut server) = duplex(100);
            let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            // The server does not read: this direction fills up.
            let stuck = within(client.write_all(vec![0; 10_000]), 20).await;
            assert!(stuck.is_none());
            for _ in 0..20 {
                server.write_all("through").await.0.expect("write");
                let (result, _) = client.read_exact([0u8; 7]).await;
                result.expect("the other direction works");
            }
            proxy.cancel();
            drop(proxy);

            // In the first direction, reads and writes are always ready.
            let taken = Rc::new(Cell::new(0));
            let mut endless = join(repeat(1), ShortWrites::default());
            let (far, mut server) = duplex(100);
            let (reader, _writer) = windlass::io::split(far);
            let mut far = join(reader, Counting(taken.clone()));
            server.write_all(vec![2; 90]).await.0.expect("write");
            let mut copying = pin!(copy_bidirectional(&mut endless, &mut far));
            for _ in 0..10 {
                assert!(poll_once(copying.as_mut()).await.is_pending());
                turns(1).await;
            }
            assert!(taken.get() > 0);
            let room = within(server.write_all(vec![2; 90]), 1).await;
            room.expect("the earlier bytes were copied").0.expect("write");
        });
    });
}

/// Counts the bytes written to it.
struct Counting(Rc<Cell<usize>>);

impl AsyncWrite for Counting {
    async fn write<B: windlass::io::IoBuf>(&mut self, buf: B) -> windlass::io::BufResult<usize, B> {
        self.0.set(self.0.get() + buf.len());
        (Ok(buf.len()), buf)
    }
    async fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
    async fn shutdown(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_names_its_side() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (client, mut near) = pair().await;
            client.write_all("before").await.0.expect("write");
            reset_on_close(&client);
            let mut taken = Vec::new();
            let copying = windlass::spawn(async move { copy(&mut near, &mut taken).await });
            turns(3).await;
            drop(client);
            let error = copying.await.expect("no panic").expect_err("reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(error.to_string().starts_with("copy, reading after "), "{error}");
            assert_eq!(windlass::os_code(&error), Some(codes::RESET));

            let (mut near, mut far) = duplex(16);
            let (mut other, gone) = duplex(16);
            drop(gone);
            far.write_all("to no one").await.0.expect("write");
            let error = copy_bidirectional(&mut near, &mut other)
                .await
                .expect_err("the peer is gone");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            let expected = "copy from the first stream to the second, writing after 0 bytes";
            assert!(error.to_string().starts_with(expected), "{error}");
        });
    });
}

/// Bytes that a buffered reader holds after a header are copied too.
#[test]
fn copying_after_a_buffered_header_loses_no_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (client, near) = pair().await;
            let (mut far, server) = pair().await;
            client.write_all("CONNECT somewhere\nbody").await.0.expect("write");
            let mut near = BufReader::new(near);
            let mut header = String::new();
            near.read_line(&mut header).await.expect("a line");
            assert_eq!(header, "CONNECT somewhere\n");
            let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            client.shutdown(Shutdown::Write).await.expect("shutdown");
            assert_eq!((&server).read_to_string(10).await.expect("read"), "body");
            drop(server);
            assert_eq!(proxy.await.expect("no panic").expect("both directions ended"), (4, 0));
        });
    });
}

/// EOF is passed on to a pipe by closing it.
#[test]
fn eof_is_passed_on_to_pipes() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let ((to_child, childs_input), (childs_output, from_child)) = (
                windlass::io::pipe::pipe().expect("a pipe"),
                windlass::io::pipe::pipe().expect("a pipe"),
            );
            // The child answers after it has read everything.
            windlass::spawn(async move {
                let mut input = String::new();
                BufReader::new(childs_input)
                    .read_line(&mut input)
                    .await
                    .expect("a line");
                let mut childs_output = childs_output;
                childs_output.write_all(input.to_uppercase()).await.0.expect("write");
                childs_output.shutdown().await.expect("shutdown");
                childs_output.write_all("more").await.0.expect_err("it was shut down");
                turns(1_000).await;
            });
            let mut child = join(from_child, to_child);
            let (client, mut near) = pair().await;
            let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut child).await });
            client.write_all("without a newline").await.0.expect("write");
            client.shutdown(Shutdown::Write).await.expect("shutdown");
            assert_eq!((&client).read_to_string(100).await.expect("read"), "WITHOUT A NEWLINE");
            assert_eq!(proxy.await.expect("no panic").expect("both directions ended"), (17, 17));
        });
    });
}

/// Sends all bytes from a thread.
fn send(mut to: StdStream, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        to.write_all(&bytes).expect("write");
        to.shutdown(Shutdown::Write).expect("shutdown");
        // Waits until the other end closes, so that the connection is not reset.
        let _ = to.read(&mut [0]);
    })
}

/// Receives everything in a thread, with pauses so that the writer has to wait.
fn receive(mut from: StdStream, seed: u64) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut random = Random::new(seed);
        let (mut all, mut piece) = (Vec::new(), vec![0; 300_000]);
        loop {
            let room = 1 + random.below(300_000) as usize;
            match from.read(&mut piece[..room]).expect("read") {
                0 => return all,
                count => all.extend_from_slice(&piece[..count]),
            }
            if random.below(20) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(2_000)));
            }
        }
    })
}

/// Enough bytes that the copy uses splice.
#[test]
fn a_bulk_copy_between_sockets_is_complete() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let all = numbered((rounds() * 16_000).min(64 * MB));
            let ((mut source, from), (mut sink, to)) = (with_std_peer(), with_std_peer());
            let sending = send(from.try_clone().expect("a duplicate"), all.clone());
            let receiving = receive(to.try_clone().expect("a duplicate"), 3);
            let copied = timeout(Duration::from_secs(100), copy(&mut source, &mut sink)).await;
            assert_eq!(copied.expect("in time").expect("copy"), all.len() as u64);
            sink.shutdown(Shutdown::Write).await.expect("shutdown");
            assert!(receiving.join().expect("no panic") == all);
            drop((source, sink, from, to));
            sending.join().expect("no panic");
            // Both directions at once.
            let ((mut a, a_peer), (mut b, b_peer)) = (with_std_peer(), with_std_peer());
            let threads: Vec<_> = [(&a_peer, &b_peer, 5), (&b_peer, &a_peer, 6)]
                .into_iter()
                .map(|(from, to, seed)| {
                    let (from, to) = (
                        from.try_clone().expect("a duplicate"),
                        to.try_clone().expect("a duplicate"),
                    );
                    let bytes = all.clone();
                    let sending = std::thread::spawn(move || {
                        (&from).write_all(&bytes).expect("write");
                        from.shutdown(Shutdown::Write).expect("shutdown");
                    });
                    (sending, receive(to, seed))
                })
                .collect();
            let copied = timeout(Duration::from_secs(100), copy_bidirectional(&mut a, &mut b)).await;
            let len = all.len() as u64;
            assert_eq!(copied.expect("in time").expect("copy"), (len, len));
            for (sending, receiving) in threads {
                sending.join().expect("no panic");
                assert!(receiving.join().expect("no panic") == all);
            }
        });
    });
}

/// A copy between sockets is dropped while bytes are in the splice pipe: the reader gets them back, and the next copy
/// continues.
#[test]
fn a_dropped_copy_between_sockets_loses_no_bytes() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let stops = 3;
            let all = numbered(stops * 16 * MB);
            let ((mut source, from), (mut sink, mut to)) = (with_std_peer(), with_std_peer());
            let sending = send(from.try_clone().expect("a duplicate"), all.clone());
            to.set_nonblocking(true).expect("non-blocking");
            let mut received = Vec::new();
            for _ in 0..stops {
                let begin = received.len();
                {
                    // Until the sink's buffers are full, and a little longer.
                    let mut copying = pin!(copy(&mut source, &mut sink));
                    for _ in 0..20 {
                        assert!(poll_once(copying.as_mut()).await.is_pending());
                        sleep(Duration::from_millis(5)).await;
                    }
                }
                // All bytes that were sent, and then none: the copy is dropped.
                let mut piece = vec![0; MB];
                let mut empty_reads = 0;
                while empty_reads < 10 {
                    match to.read(&mut piece) {
                        Ok(count) => {
                            received.extend_from_slice(&piece[..count]);
                            empty_reads = 0;
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            empty_reads += 1;
                            sleep(Duration::from_millis(5)).await;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(received.len() > begin, "bytes arrived");
                assert!(
                    received[begin..] == all[begin..received.len()],
                    "out of order from {begin} on"
                );
                // The next read continues where the copy stopped.
                let (result, next) = source.read_exact(vec![0; 1_000]).await;
                result.expect("read");
                assert!(next == all[received.len()..][..1_000], "at {}", received.len());
                received.extend_from_slice(&next);
            }
            let rest = receive(
                {
                    to.set_nonblocking(false).expect("blocking");
                    to.try_clone().expect("a duplicate")
                },
                8,
            );
            copy(&mut source, &mut sink).await.expect("copy");
            sink.shutdown(Shutdown::Write).await.expect("shutdown");
            received.extend_from_slice(&rest.join().expect("no panic"));
            assert!(received == all);
            drop((source, sink, from, to));
            sending.join().expect("no panic");
        });
    });
}

/// A copy is dropped while it waits for a socket to become readable or writable: `into_std` does not give the socket away
/// while that operation is in flight. Only a copy by `splice` waits like that.
#[cfg(target_os = "linux")]
#[test]
fn a_dropped_bulk_copy_gives_its_sockets_away_when_its_wait_has_ended() {
    on_every_kernel_driver(|case| {
        case.run(async move {
            let waits = || {
                let ops = windlass::metrics::metrics().ops;
                ops.iter()
                    .find(|(name, _)| *name == "readiness")
                    .map_or(0, |(_, count)| *count)
            };
            for waits_for_sink in [false, true] {
                let ((mut source, mut from), (mut sink, mut to)) = (with_std_peer(), with_std_peer());
                from.set_nonblocking(true).expect("non-blocking");
                to.set_nonblocking(true).expect("non-blocking");
                {
                    let mut copying = pin!(copy(&mut source, &mut sink));
                    loop {
                        // As much as fits, so that the copy sees bulk data.
                        let is_full = from.write(&vec![7; MB]).is_err();
                        for _ in 0..10 {
                            assert!(poll_once(copying.as_mut()).await.is_pending());
                            sleep(Duration::from_millis(1)).await;
                        }
                        if waits() > 0 && is_full == waits_for_sink {
                            break;
                        }
                        let mut piece = vec![0; MB];
                        while !waits_for_sink && to.read(&mut piece).is_ok() {}
                    }
                }
                let mut waited_for = if waits_for_sink { sink } else { source };
                while let Err(refused) = waited_for.into_std() {
                    waited_for = refused.into_inner();
                    turns(1).await;
                }
                assert_eq!(waits(), 0, "the operation is still in flight");
            }
        });
    });
}

/// Writing to a closed peer is an error, not a fatal SIGPIPE.
#[test]
fn a_bulk_copy_to_a_closed_peer_raises_no_sigpipe() {
    in_own_process("copying::a_bulk_copy_to_a_closed_peer_raises_no_sigpipe", &[], || {
        on_every_kernel_driver(|case| {
            crate::support::let_signals_kill();
            case.run(async {
                for _ in 0..20 {
                    let ((mut source, from), (mut sink, to)) = (with_std_peer(), with_std_peer());
                    let sending = std::thread::spawn(move || {
                        // Sends until the copy is over.
                        while (&from).write_all(&[7; 100_000]).is_ok() {}
                    });
                    let closing = std::thread::spawn(move || {
                        let mut left = 3 * MB;
                        let mut piece = vec![0; 100_000];
                        while left > 0 {
                            left = left.saturating_sub((&to).read(&mut piece).expect("read"));
                        }
                        // Orderly shutdown: the kernel first reports a reset, then EPIPE.
                        to.shutdown(Shutdown::Both).expect("shutdown");
                    });
                    let error = loop {
                        match copy(&mut source, &mut sink).await {
                            Ok(_) => panic!("the source has no EOF"),
                            Err(error) if error.kind() == ErrorKind::ConnectionReset && cfg!(unix) => {}
                            Err(error) => break error,
                        }
                    };
                    // Windows reports a reset on every call.
                    let expected = [
                        ErrorKind::BrokenPipe,
                        ErrorKind::ConnectionReset,
                        ErrorKind::ConnectionAborted,
                    ];
                    let expected = if cfg!(unix) { &expected[..1] } else { &expected[..] };
                    assert!(expected.contains(&error.kind()), "{error}");
                    assert!(error.to_string().contains("writing after"), "{error}");
                    closing.join().expect("no panic");
                    drop(source);
                    sending.join().expect("no panic");
                }
            });
        });
    });
}

/// Numbered bytes through a copy whose reader drops a read before each read.
#[test]
fn a_copy_with_dropped_reads_delivers_every_byte_once() {
    on_every_driver(|case| {
        case.run(async move {
            let all = numbered(rounds() * 1_000);
            let (client, server) = pair().await;
            let (mut near, mut far) = duplex(1_000);
            let sending = windlass::spawn({
                let all = all.clone();
                async move { client.write_all(all).await.0 }
            });
            let copying = windlass::spawn(async move { copy(&mut Dropping(server), &mut near).await });
            let mut read = Vec::new();
            let mut random = Random::new(8);
            loop {
                if let Some(piece) = within(far.read_managed(), random.below(3)).await {
                    let piece: ManagedBuf = piece.expect("read");
                    if piece.is_empty() {
                        break;
                    }
                    read.extend_from_slice(&piece);
                    assert!(all[..read.len()].ends_with(&piece));
                }
                turns(1).await;
            }
            sending.await.expect("no panic").expect("write");
            assert_eq!(copying.await.expect("no panic").expect("copy"), all.len() as u64);
            assert!(read == all);
        });
    });
}

/// A reader that starts each read twice and drops the first.
struct Dropping(TcpStream);

impl AsyncRead for Dropping {
    async fn read<B: windlass::io::IoBufMut>(&mut self, buf: B) -> windlass::io::BufResult<usize, B> {
        let _ = within(self.0.read([0u8; 0].to_vec()), 1).await;
        self.0.read(buf).await
    }
    async fn read_managed(&mut self) -> std::io::Result<ManagedBuf> {
        match within(self.0.read_managed(), 1).await {
            Some(result) => result,
            None => self.0.read_managed().await,
        }
    }
}
