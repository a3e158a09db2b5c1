//! Readers and writers: `open_connection` and `start_server`.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use windlass::net::{StreamReader, StreamWriter, TcpListener, TcpStream, open_connection, start_server};
use windlass::protocol::{IncompleteRead, LimitOverrun};
use windlass::time::{sleep, timeout};

use crate::child;
use crate::support::{
    Case, Random, exceptions_of, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, reset_on_close,
    rounds, turns,
};

/// A reader and a writer, and a plain stream at the other end.
async fn opened() -> (StreamReader, StreamWriter, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let opening = windlass::spawn(async move { open_connection(addr).await });
    let (peer, _) = listener.accept().await.unwrap();
    let (reader, writer) = opening.await.unwrap().unwrap();
    assert_eq!(writer.peer_addr().unwrap(), addr);
    assert_eq!(reader.local_addr().unwrap(), peer.peer_addr().unwrap());
    (reader, writer, peer)
}

async fn read_all(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let bytes = stream.read_managed().await?;
        if bytes.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&bytes);
    }
}

#[test]
fn reads_by_line_by_length_and_to_the_end() {
    on_every_driver(|case| {
        case.run(async {
            let (mut reader, _writer, peer) = opened().await;
            peer.write_all("first\nsecond\r\n\nabc--def--12345tail")
                .await
                .0
                .unwrap();
            assert_eq!(reader.read_line().await.unwrap(), "first\n");
            assert_eq!(reader.read_line().await.unwrap(), "second\r\n");
            assert_eq!(reader.read_line().await.unwrap(), "\n");
            assert_eq!(reader.read_until("--").await.unwrap(), b"abc--");
            assert_eq!(reader.read_until(b"--").await.unwrap(), b"def--");
            assert_eq!(reader.read(0).await.unwrap(), b"");
            assert_eq!(reader.read_exactly(5).await.unwrap(), b"12345");
            assert_eq!(reader.read_exactly(0).await.unwrap(), b"");
            assert!(!reader.at_eof());
            peer.shutdown(Shutdown::Write).await.unwrap();
            assert_eq!(reader.read_line().await.unwrap(), "tail");
            assert_eq!(reader.read_line().await.unwrap(), "");
            assert!(reader.at_eof());
            assert!(reader.read(10).await.unwrap().is_empty());
            assert!(reader.read_to_end(0).await.unwrap().is_empty());
        });
    });
}

/// Too long, too short, not UTF-8: the error says so, and every byte can still be read.
#[test]
fn read_errors_lose_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            let (mut reader, _writer, peer) = opened().await;
            reader.set_limit(10);
            assert_eq!(reader.limit(), 10);
            peer.write_all("0123456789\n0123456789x\nöb".as_bytes().to_vec())
                .await
                .0
                .unwrap();
            peer.write_all([0xff, b'\n']).await.0.unwrap();
            assert_eq!(
                reader.read_line().await.unwrap(),
                "0123456789\n",
                "the limit itself is allowed"
            );
            for _ in 0..3 {
                let error = reader.read_line().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                let overrun = LimitOverrun::of(&error).unwrap();
                assert_eq!((overrun.consumed(), overrun.limit()), (11, 10), "{error}");
            }
            assert_eq!(reader.read(6).await.unwrap(), b"012345");
            assert_eq!(reader.read_line().await.unwrap(), "6789x\n");

            let error = reader.read_line().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("utf-8"), "{error}");
            assert!(LimitOverrun::of(&error).is_none());
            assert_eq!(reader.read_until("\n").await.unwrap(), b"\xc3\xb6b\xff\n");

            let error = reader.read_until("").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);

            // Too long without a separator: fails as soon as the limit is exceeded.
            peer.write_all("abcdefghijkl").await.0.unwrap();
            let error = reader.read_until("--").await.unwrap_err();
            assert_eq!(LimitOverrun::of(&error).unwrap().consumed(), 11);
            assert_eq!(reader.read_exactly(12).await.unwrap(), b"abcdefghijkl");

            peer.write_all("rest").await.0.unwrap();
            drop(peer);
            let error = reader.read_exactly(5).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            let incomplete = IncompleteRead::of(&error).unwrap();
            assert_eq!((incomplete.partial(), incomplete.expected()), (&b"rest"[..], Some(5)));
            let error = reader.read_until("\n").await.unwrap_err();
            assert_eq!(IncompleteRead::of(&error).unwrap().partial(), b"");

            let (mut reader, _writer, peer) = opened().await;
            windlass::spawn(async move { peer.write_all(vec![1; 100_000]).await.0.unwrap() });
            let error = reader.read_to_end(99_999).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(reader.read_to_end(100_000).await.unwrap().len(), 100_000);
        });
    });
}

/// A peer that never ends its line cannot make the reader buffer more than the limit and one piece.
#[test]
fn an_endless_line_is_not_buffered() {
    on_every_driver(|case| {
        case.run(async {
            let (mut reader, writer, peer) = opened().await;
            let sent = Rc::new(Cell::new(0));
            let sending = windlass::spawn({
                let sent = sent.clone();
                async move {
                    while peer.write_all(vec![b'x'; 100_000]).await.0.is_ok() {
                        sent.set(sent.get() + 100_000);
                    }
                }
            });
            let error = reader.read_line().await.unwrap_err();
            assert!(LimitOverrun::of(&error).unwrap().consumed() <= (64 << 10) + (8 << 10));
            writer.abort();
            sending.await.unwrap();
            assert!(sent.get() < 40_000_000);
        });
    });
}

#[test]
fn drain_waits_for_a_slow_peer() {
    on_every_driver(|case| {
        case.run(async {
            let (_reader, writer, peer) = opened().await;
            writer.drain().await.unwrap();
            let most = Rc::new(Cell::new(0));
            let all = if cfg!(miri) { 1 << 20 } else { 30_000_000 };
            let sending = windlass::spawn({
                let most = most.clone();
                async move {
                    let mut left = all;
                    while left > 0 {
                        let len = left.min(7_000);
                        writer.write(vec![1; len]);
                        left -= len;
                        most.set(most.get().max(writer.get_write_buffer_size()));
                        writer.drain().await.unwrap();
                    }
                    writer.close();
                    writer.wait_closed().await.unwrap();
                    assert_eq!(writer.get_write_buffer_size(), 0);
                    writer.drain().await.unwrap();
                }
            });
            sleep(Duration::from_millis(50)).await;
            assert!(!sending.is_finished(), "the peer has not read");
            assert_eq!(read_all(&peer).await.unwrap().len(), all);
            sending.await.unwrap();
            assert!(most.get() <= (64 << 10) + 7_000, "{} bytes queued", most.get());
        });
    });
}

#[test]
fn drain_returns_a_write_error() {
    on_every_driver(|case| {
        case.run(async {
            let (mut reader, writer, peer) = opened().await;
            writer.write("unread");
            sleep(Duration::from_millis(10)).await;
            reset_on_close(&peer);
            drop(peer);
            let failed = async {
                loop {
                    writer.write(vec![1; 100_000]);
                    if let Err(error) = writer.drain().await {
                        return error;
                    }
                    turns(1).await;
                }
            };
            let error = timeout(Duration::from_secs(60), failed).await.unwrap();
            let is_expected =
                |error: &io::Error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
            assert!(is_expected(&error), "{error}");
            assert_eq!(writer.get_write_buffer_size(), 0);
            // Every later call fails too.
            assert_eq!(writer.drain().await.unwrap_err().kind(), error.kind());
            if let Err(error) = reader.read(1).await {
                assert!(is_expected(&error), "{error}");
            }
            writer.close();
            assert_eq!(writer.wait_closed().await.unwrap_err().kind(), error.kind());
        });
    });
}

#[test]
fn closing_ends_a_pending_read() {
    on_every_driver(|case| {
        case.run(async {
            let (mut reader, writer, peer) = opened().await;
            let reading = windlass::spawn(async move {
                let count = reader.read(10).await.map(<[u8]>::len);
                (count, reader.at_eof())
            });
            turns(3).await;
            writer.write(vec![2; 1 << 20]);
            writer.close();
            writer.close();
            assert!(writer.is_closing());
            writer.write("too late");
            assert_eq!(read_all(&peer).await.unwrap().len(), 1 << 20);
            writer.wait_closed().await.unwrap();
            let (count, at_eof) = reading.await.unwrap();
            assert_eq!((count.unwrap(), at_eof), (0, true));

            // After an abort the peer sees a reset.
            let (mut reader, writer, peer) = opened().await;
            writer.write(vec![2; 16 << 20]);
            let reading = windlass::spawn(async move { reader.read(10).await.map(<[u8]>::len) });
            turns(3).await;
            writer.abort();
            let error = writer.wait_closed().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            assert_eq!(reading.await.unwrap().unwrap(), 0);
            crate::support::assert_reset(read_all(&peer).await);
        });
    });
}

/// Whichever half is dropped first: the written bytes arrive, then EOF; the reader reads on.
#[test]
fn dropped_halves_close_gracefully() {
    on_every_driver(|case| {
        case.run(async {
            for has_written in [false, true] {
                let len = if has_written { 1 << 20 } else { 0 };
                // The writer is dropped first.
                let (mut reader, writer, peer) = opened().await;
                writer.write(vec![3; len]);
                drop(writer);
                assert_eq!(read_all(&peer).await.unwrap().len(), len);
                peer.write_all("an answer").await.0.unwrap();
                assert_eq!(reader.read_exactly(9).await.unwrap(), b"an answer");
                drop(reader);
                write_until_closed(&peer).await;
                // The reader is dropped first.
                let (reader, writer, peer) = opened().await;
                drop(reader);
                writer.write(vec![3; len]);
                drop(writer);
                assert_eq!(read_all(&peer).await.unwrap().len(), len);
                write_until_closed(&peer).await;
                // The writer is dropped first, and the reader before everything is sent.
                let (reader, writer, peer) = opened().await;
                writer.write(vec![3; len]);
                drop(writer);
                drop(reader);
                assert_eq!(read_all(&peer).await.unwrap().len(), len);
                write_until_closed(&peer).await;
            }
        });
    });
}

/// Writes until the write fails because the other end is closed.
async fn write_until_closed(peer: &TcpStream) {
    let failed = async {
        while peer.write_all("anybody?").await.0.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), failed)
        .await
        .expect("the other end is closed");
}

#[test]
fn each_direction_can_be_closed_alone() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let (mut reader, writer, peer) = opened().await;
            assert!(writer.can_write_eof());
            writer.writelines(["a question", "?"]);
            writer.write_eof();
            writer.write("after the end");
            assert_eq!(read_all(&peer).await.unwrap(), b"a question?");
            peer.write_all("an answer").await.0.unwrap();
            drop(peer);
            assert_eq!(reader.read_to_end(100).await.unwrap(), b"an answer");
            assert!(!writer.is_closing());
            writer.close();
            writer.wait_closed().await.unwrap();
        });
        run.unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
    });
}

#[test]
fn a_server_runs_a_handler_per_connection() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let run = event_loop.run_until_complete(async {
            let received: Rc<RefCell<Vec<String>>> = Rc::default();
            let handler = {
                let received = received.clone();
                move |mut reader: StreamReader, writer: StreamWriter| {
                    let received = received.clone();
                    async move {
                        let line = reader.read_line().await?.trim_end().to_owned();
                        received.borrow_mut().push(line.clone());
                        match line.as_str() {
                            "panic" => panic!("on purpose"),
                            "error" => return Err(io::Error::other("the handler failed")),
                            _ => {}
                        }
                        writer.write(format!("you said {line}\n"));
                        Ok(())
                    }
                }
            };
            let server = start_server(handler, "127.0.0.1:0").await.unwrap();
            let addr = server.local_addr().unwrap();
            for (line, answer) in [
                ("hello", "you said hello\n"),
                ("panic", ""),
                ("error", ""),
                ("x", "you said x\n"),
            ] {
                let (mut reader, writer) = open_connection(addr).await.unwrap();
                writer.write(format!("{line}\n"));
                assert_eq!(reader.read_line().await.unwrap(), answer);
                assert_eq!(reader.read_line().await.unwrap(), "");
            }
            // A connection whose handler is still running.
            let (mut reader, writer) = open_connection(addr).await.unwrap();
            while server.connections() == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            server.close();
            assert!(timeout(Duration::from_millis(50), server.wait_closed()).await.is_err());
            writer.write("late\n");
            server.wait_closed().await;
            assert_eq!(reader.read_line().await.unwrap(), "you said late\n");
            assert_eq!(received.borrow()[..], ["hello", "panic", "error", "x", "late"]);
        });
        run.unwrap();
        let exceptions = exceptions.borrow();
        assert_eq!(exceptions.len(), 2, "{exceptions:?}");
        assert!(exceptions[0].contains("on purpose"), "{exceptions:?}");
        assert!(exceptions[1].contains("the handler failed"), "{exceptions:?}");
    });
}

/// Numbered lines, read by calls that are dropped at random: each line comes once, whole and in order.
#[test]
fn dropped_reads_lose_no_line() {
    on_every_driver(|case| {
        case.run(async {
            let lines = 10 * rounds() as u64;
            let (mut reader, _writer, peer) = opened().await;
            let sending = windlass::spawn(async move {
                let mut random = Random::new(77);
                let mut text = Vec::new();
                for number in 0..lines {
                    text.extend_from_slice(
                        format!("{number}:{}\r\n", "x".repeat(random.below(40) as usize)).as_bytes(),
                    );
                    if random.below(10) == 0 || number + 1 == lines {
                        // Split anywhere, also between the two bytes of a separator.
                        let at = random.below(text.len() as u64 + 1) as usize;
                        let rest = text.split_off(at);
                        peer.write_all(std::mem::take(&mut text)).await.0.unwrap();
                        text = rest;
                        turns(random.below(3)).await;
                    }
                }
                peer.write_all(text).await.0.unwrap();
            });
            let mut random = Random::new(99);
            let mut expected = 0;
            let mut dropped = 0;
            while expected < lines {
                let is_dropped = {
                    let mut reading = std::pin::pin!(reader.read_until("\r\n"));
                    let mut polls = random.below(4);
                    loop {
                        if let std::task::Poll::Ready(result) = poll_once(reading.as_mut()).await {
                            let line = String::from_utf8(result.unwrap().to_vec()).unwrap();
                            let (number, rest) = line.split_once(':').unwrap();
                            assert_eq!(number, expected.to_string());
                            assert!(rest.strip_suffix("\r\n").unwrap().bytes().all(|byte| byte == b'x'));
                            expected += 1;
                            break false;
                        }
                        if polls == 0 {
                            break true;
                        }
                        polls -= 1;
                        turns(1).await;
                    }
                };
                if is_dropped {
                    dropped += 1;
                    turns(random.below(2)).await;
                }
            }
            assert!(dropped > 0);
            sending.await.unwrap();
            assert!(reader.read_line().await.unwrap().is_empty());
        });
    });
}

/// Many connections, half of them abandoned: no descriptor, task or operation is left.
#[test]
fn abandoned_connections_leak_nothing() {
    child::in_own_process("reader_writer::abandoned_connections_leak_nothing", &[], || {
        on_every_kernel_driver(abandon_connections);
    });
}

fn abandon_connections(case: Case) {
    let event_loop = case.event_loop();
    let run = event_loop.run_until_complete(async {
        let handler = |mut reader: StreamReader, writer: StreamWriter| async move {
            while let Ok(line) = reader.read_line().await
                && !line.is_empty()
            {
                writer.write(line);
            }
        };
        let server = start_server(handler, "127.0.0.1:0").await.unwrap();
        let addr = server.local_addr().unwrap();
        let mut before = None;
        for round in 0..rounds().min(400) {
            let (mut reader, writer) = open_connection(addr).await.unwrap();
            writer.write("hello\n");
            match round % 4 {
                0 => drop(reader),
                1 => writer.abort(),
                2 => {
                    writer.write(vec![b'x'; 1 << 20]);
                    writer.close();
                }
                _ => assert_eq!(reader.read_line().await.unwrap(), "hello\n"),
            }
            drop(writer);
            if round == 7 {
                settle(&server).await;
                before = Some((open_descriptors(), windlass::counters()));
            }
        }
        settle(&server).await;
        if let Some((descriptors, counters)) = before {
            let now = windlass::counters();
            assert!(
                open_descriptors() <= descriptors,
                "{} were {descriptors}",
                open_descriptors()
            );
            assert_eq!((now.tasks, now.ops), (counters.tasks, counters.ops));
        }
    });
    run.unwrap();
}

async fn settle(server: &windlass::protocol::Server) {
    let waiting = async {
        while server.connections() > 0 || windlass::counters().tasks > 2 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), waiting)
        .await
        .expect("all connections end");
    sleep(Duration::from_millis(50)).await;
}
