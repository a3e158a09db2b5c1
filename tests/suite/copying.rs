//! Copies in one direction and in both: every byte, in order, whichever way it takes.

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

use crate::bytes::numbered;
use crate::child::in_own_process;
use crate::edges::with_std_peer;
use crate::lines::within;
use crate::streams::{ShortReads as Sips, ShortWrites as Stingy};
use crate::support::{
    Random, codes, on_every_driver, on_every_kernel_driver, pair, poll_once, reset_on_close, rounds, turns,
};

const MB: usize = 1 << 20;

#[test]
fn a_copy_is_whole_through_any_reader_and_writer() {
    on_every_driver(|case| {
        case.run(async {
            for len in [0, 1, 4_096, 100_000] {
                let all = numbered(len);
                let mut writer = Stingy::default();
                assert_eq!(copy(&mut Sips(&all[..]), &mut writer).await.expect("copy"), len as u64);
                assert!(writer.taken == all && writer.flushed == len);
                assert!(!writer.ended, "a copy leaves the writer open");
                let mut writer = BufWriter::new(Vec::new());
                copy(&mut BufReader::new(&all[..]), &mut writer).await.expect("copy");
                assert!(writer.get_ref() == &all, "it is flushed at the end");
            }
        });
    });
}

/// What was copied does not wait in a buffer until more comes.
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
                result.expect("it came though nothing follows");
            }
            drop(client);
            assert_eq!(copying.await.expect("no panic").expect("copy"), 24);
        });
    });
}

/// An end goes through and only one way: the other direction lives until its own end.
async fn half_closes<S: AsyncRead + AsyncWrite + Halves + 'static>(
    (mut client, mut near): (S, S),
    (mut far, mut server): (S, S),
) {
    let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
    client.write_all("question").await.0.expect("write");
    client.shutdown().await.expect("shutdown");
    assert_eq!(server.read_to_string(100).await.expect("up to its end"), "question");
    turns(3).await;
    assert!(!proxy.is_finished());
    for _ in 0..3 {
        server.write_all("answer").await.0.expect("write");
        let (result, bytes) = client.read_exact([0u8; 6]).await;
        result.expect("it goes on");
        assert_eq!(&bytes, b"answer");
    }
    server.shutdown().await.expect("shutdown");
    assert!(client.read_managed().await.expect("read").is_empty());
    assert_eq!(proxy.await.expect("no panic").expect("both ended"), (8, 18));
}

#[test]
fn the_end_of_one_direction_is_not_that_of_the_other() {
    on_every_driver(|case| {
        case.run(async {
            half_closes(pair().await, pair().await).await;
            half_closes(duplex(5), duplex(3)).await;
        });
    });
}

/// One direction is stuck, the other is not; and a busy one does not starve the other.
#[test]
fn neither_direction_waits_for_the_other() {
    on_every_driver(|case| {
        case.run(async {
            let (mut client, mut near) = duplex(100);
            let (mut far, mut server) = duplex(100);
            let proxy = windlass::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            // Nobody reads at the server: this direction fills up.
            let stuck = within(client.write_all(vec![0; 10_000]), 20).await;
            assert!(stuck.is_none());
            for _ in 0..20 {
                server.write_all("through").await.0.expect("write");
                let (result, _) = client.read_exact([0u8; 7]).await;
                result.expect("it is not stuck");
            }
            proxy.cancel();
            drop(proxy);

            // Always something to read, always somebody to take it, in the first direction.
            let taken = Rc::new(Cell::new(0));
            let mut endless = join(repeat(1), Stingy::default());
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
            room.expect("what was written before was taken").0.expect("write");
        });
    });
}

/// Counts what it takes.
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
fn an_error_says_which_side_it_is_of() {
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
            far.write_all("to nobody").await.0.expect("write");
            let error = copy_bidirectional(&mut near, &mut other)
                .await
                .expect_err("nobody is there");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            let expected = "copy from the first stream to the second, writing after 0 bytes";
            assert!(error.to_string().starts_with(expected), "{error}");
        });
    });
}

/// What a header's reader holds is not lost when the rest is copied.
#[test]
fn a_proxy_may_read_a_header_first() {
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
            assert_eq!(proxy.await.expect("no panic").expect("both ended"), (4, 0));
        });
    });
}

/// The end goes through a pipe too, which has no other way to tell it than to be closed; and through Unix sockets.
#[test]
fn the_end_goes_through_pipes() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let ((to_child, childs_input), (childs_output, from_child)) = (
                windlass::io::pipe::pipe().expect("a pipe"),
                windlass::io::pipe::pipe().expect("a pipe"),
            );
            // The child answers when it has heard everything.
            windlass::spawn(async move {
                let mut heard = String::new();
                BufReader::new(childs_input)
                    .read_line(&mut heard)
                    .await
                    .expect("a line");
                let mut childs_output = childs_output;
                childs_output.write_all(heard.to_uppercase()).await.0.expect("write");
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
            assert_eq!(proxy.await.expect("no panic").expect("both ended"), (17, 17));
        });
    });
}

/// Sends everything from a thread.
fn send(mut to: StdStream, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        to.write_all(&bytes).expect("write");
        to.shutdown(Shutdown::Write).expect("shutdown");
        // Until the other end closes, so that nothing is reset.
        let _ = to.read(&mut [0]);
    })
}

/// Receives everything in a thread, resting now and then so that the writer has to wait.
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

/// So much that the kernel moves it alone.
#[test]
fn bulk_between_sockets_is_whole() {
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
            // And both ways at once.
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

/// A copy between sockets is dropped while the kernel has bytes on their way from the one to the other: they are the reader's
/// again, and the next copy goes on where this one was.
#[test]
fn a_dropped_copy_between_sockets_loses_nothing() {
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
                    // Until the buffers behind the sink are full, and a little longer.
                    let mut copying = pin!(copy(&mut source, &mut sink));
                    for _ in 0..20 {
                        assert!(poll_once(copying.as_mut()).await.is_pending());
                        sleep(Duration::from_millis(5)).await;
                    }
                }
                // All that was sent, and then nothing: the copy is gone.
                let mut piece = vec![0; MB];
                let mut quiet = 0;
                while quiet < 10 {
                    match to.read(&mut piece) {
                        Ok(count) => {
                            received.extend_from_slice(&piece[..count]);
                            quiet = 0;
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            quiet += 1;
                            sleep(Duration::from_millis(5)).await;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(received.len() > begin, "something came");
                assert!(
                    received[begin..] == all[begin..received.len()],
                    "in order from {begin} on"
                );
                // What comes next is what comes next.
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

/// Writing to a peer that has gone is an error, even where the signal would end the process.
#[test]
fn bulk_to_a_closed_peer_is_no_signal() {
    in_own_process("copying::bulk_to_a_closed_peer_is_no_signal", &[], || {
        on_every_kernel_driver(|case| {
            crate::support::let_signals_kill();
            case.run(async {
                for _ in 0..20 {
                    let ((mut source, from), (mut sink, to)) = (with_std_peer(), with_std_peer());
                    let sending = std::thread::spawn(move || {
                        // Without end, until the copy is over.
                        while (&from).write_all(&[7; 100_000]).is_ok() {}
                    });
                    let closing = std::thread::spawn(move || {
                        let mut left = 3 * MB;
                        let mut piece = vec![0; 100_000];
                        while left > 0 {
                            left = left.saturating_sub((&to).read(&mut piece).expect("read"));
                        }
                        // Orderly: first the kernel says that it takes no more, then that the pipe is broken.
                        to.shutdown(Shutdown::Both).expect("shutdown");
                    });
                    let error = loop {
                        match copy(&mut source, &mut sink).await {
                            Ok(_) => panic!("it has no end"),
                            Err(error) if error.kind() == ErrorKind::ConnectionReset && cfg!(unix) => {}
                            Err(error) => break error,
                        }
                    };
                    // On Windows a reset is told as often as one asks.
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

/// Numbered bytes through a copy whose reader drops every other read of its own.
#[test]
fn every_byte_comes_once_through_a_copy() {
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

/// A reader that begins everything twice.
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
