//! `BufReader`: lines and other reads lose no byte when calls are dropped, refused or cancelled.

use std::future::Future;
use std::io::{BufRead, ErrorKind};
use std::pin::pin;
use std::task::Poll;

use windlass::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, NotUtf8, TooLong, duplex};

use crate::bytes::numbered;
use crate::streams::ShortReads;
use crate::support::{Random, on_every_driver, pair, poll_once, rounds, turns};

/// The output of a future that is ready within `count` polls, one turn apart; otherwise the future is dropped.
pub(crate) async fn within<F: Future>(future: F, count: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..count {
        if let Poll::Ready(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        turns(1).await;
    }
    None
}

/// Writes bytes in pieces of random size, with pauses.
async fn write_in_pieces<W: AsyncWrite>(mut writer: W, bytes: Vec<u8>, seed: u64) {
    let mut random = Random::new(seed);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(3_000) as usize));
        writer.write_all(piece.to_vec()).await.0.expect("write");
        turns(random.below(3)).await;
        rest = behind;
    }
    writer.shutdown().await.expect("shutdown");
}

/// Reads with every method and drops half of the calls: every byte arrives once, in order.
async fn read_and_drop<R: AsyncRead>(reader: R, expected: &[u8], seed: u64) {
    let mut random = Random::new(seed);
    let mut reader = BufReader::new(reader).max_line_len(1 << 20);
    let mut read = Vec::with_capacity(expected.len());
    let (mut kept, mut dropped) = (0, 0);
    loop {
        let before = read.len();
        let polls = random.below(3);
        let is_kept = match random.below(6) {
            0 => within(reader.read_until(b'7', &mut read), polls)
                .await
                .map(|result| result.map(drop)),
            1 => within(reader.read(Vec::with_capacity(1 + random.below(9_000) as usize)), polls)
                .await
                .map(|(result, bytes)| {
                    read.extend_from_slice(&bytes);
                    result.map(drop)
                }),
            2 => within(reader.read_managed(), polls)
                .await
                .map(|result| result.map(|bytes| read.extend_from_slice(&bytes))),
            3 if expected.len() - read.len() > 5_000 => {
                let len = 1 + random.below(5_000) as usize;
                within(reader.read_exact(vec![0; len]), polls)
                    .await
                    .map(|(result, bytes)| {
                        read.extend_from_slice(&bytes);
                        result
                    })
            }
            4 => {
                let filled = within(reader.fill_buf(), polls).await;
                let filled =
                    filled.map(|result| result.map(|bytes| read.extend_from_slice(&bytes[..bytes.len().min(100)])));
                reader.consume(read.len() - before);
                filled
            }
            _ => within(reader.read_to_end(&mut read, 1_000), polls)
                .await
                .map(|result| {
                    if let Err(error) = result {
                        assert!(error.to_string().contains("limit of 1000"), "{error}");
                    }
                })
                .map(Ok),
        };
        match is_kept {
            Some(result) => {
                result.expect("read");
                kept += 1;
            }
            None => dropped += 1,
        }
        assert!(read[before..] == expected[before..read.len()], "at {before}");
        if read.len() == expected.len() {
            break;
        }
        turns(1).await;
    }
    assert!(reader.read_managed().await.expect("EOF").is_empty());
    assert!(kept > 0 && dropped > 0, "{kept} reads, {dropped} dropped");
}

/// A thousand bytes per round: 100 MB in the long run.
#[test]
fn dropped_reads_deliver_every_byte_once() {
    on_every_driver(|case| {
        case.run(async move {
            let all = numbered(rounds() * 1_000);
            let (client, server) = pair().await;
            let writing = windlass::spawn(write_in_pieces(client, all.clone(), 3));
            read_and_drop(server, &all, 4).await;
            writing.await.expect("no panic");
            let (client, server) = duplex(1_000);
            let writing = windlass::spawn(write_in_pieces(client, all.clone(), 5));
            read_and_drop(server, &all, 6).await;
            writing.await.expect("no panic");
        });
    });
}

/// Compares with std, for all kinds of text, in pieces of all sizes.
#[test]
fn lines_match_std() {
    on_every_driver(|case| {
        case.run(async move {
            let mut random = Random::new(9);
            for _ in 0..rounds() / 10 {
                let len = random.below(200);
                let text: String = (0..len)
                    .map(|_| ['a', 'ß', '\n', '\n', '\r', '€', ' '][random.below(7) as usize])
                    .collect();
                let expected: Vec<String> = text.as_bytes().lines().map(|line| line.expect("UTF-8")).collect();
                let mut lines = BufReader::new(ShortReads(text.as_bytes())).lines();
                let mut found = Vec::new();
                while let Some(line) = lines.next_line().await.expect("a line") {
                    found.push(line);
                }
                assert_eq!(found, expected, "{text:?}");
                let mut reader = BufReader::new(text.as_bytes());
                let (mut joined, mut oracle) = (String::new(), text.as_bytes());
                loop {
                    let count = reader.read_line(&mut joined).await.expect("a line");
                    assert_eq!(count, oracle.read_line(&mut String::new()).expect("a line"));
                    if count == 0 {
                        break;
                    }
                }
                assert_eq!(joined, text);
            }
        });
    });
}

#[test]
fn a_line_beyond_the_limit_is_an_error_and_is_skipped() {
    on_every_driver(|case| {
        case.run(async {
            let (mut client, server) = duplex(1 << 20);
            let long = "x".repeat(11);
            client
                .write_all(format!("first\n{}\n{long}\nafter\n{long}", &long[1..]))
                .await
                .0
                .expect("write");
            let mut lines = BufReader::new(ShortReads(server)).max_line_len(10).lines();
            assert_eq!(lines.next_line().await.expect("short").as_deref(), Some("first"));
            assert_eq!(
                lines.next_line().await.expect("just long enough").as_deref(),
                Some(&long[1..])
            );
            let error = lines.next_line().await.expect_err("too long");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.get_ref().is_some_and(|error| error.is::<TooLong>()), "{error:?}");
            assert!(error.to_string().contains("limit of 10 bytes"), "{error}");
            assert!(
                lines.get_ref().buffer().len() <= 10 + 3,
                "no more is buffered than needed to detect it"
            );
            assert_eq!(lines.next_line().await.expect("the next").as_deref(), Some("after"));
            // A peer that sends endlessly costs no memory, and EOF ends the line.
            lines.next_line().await.expect_err("too long");
            let sending = windlass::spawn(async move {
                for _ in 0..100 {
                    client.write_all(vec![b'x'; 10_000]).await.0.expect("write");
                }
            });
            assert_eq!(lines.next_line().await.expect("EOF"), None);
            sending.await.expect("no panic");
            assert!(lines.get_ref().buffer().is_empty());
        });
    });
}

/// A refused line can still be read: with a larger limit, or in parts.
#[test]
fn a_refused_line_can_still_be_read() {
    on_every_driver(|case| {
        case.run(async {
            let mut reader = BufReader::new(&b"0123456789\nnext\n0123456789\nlast"[..]).max_line_len(4);
            let mut line = Vec::new();
            reader.read_until(b'\n', &mut line).await.expect_err("too long");
            reader.set_max_line_len(10);
            assert_eq!(reader.read_until(b'\n', &mut line).await.expect("long enough"), 11);
            reader.set_max_line_len(4);
            reader.read_until(b'\n', &mut line).await.expect("short");
            assert_eq!(line, b"0123456789\nnext\n");
            reader.read_until(b'\n', &mut line).await.expect_err("too long");
            let (result, taken) = reader.read_exact([0u8; 8]).await;
            result.expect("still there");
            assert_eq!(&taken, b"01234567");
            let mut rest = String::new();
            reader.read_line(&mut rest).await.expect("the rest of it is short");
            reader.read_line(&mut rest).await.expect("short");
            assert_eq!(rest, "89\nlast");
            assert_eq!(reader.read_line(&mut rest).await.expect("EOF"), 0);
            // Skipping a line continues after a dropped call.
            let (mut client, server) = duplex(64);
            let mut reader = BufReader::new(server).max_line_len(4);
            client.write_all("too long").await.0.expect("write");
            reader.read_line(&mut rest).await.expect_err("too long");
            assert!(within(reader.read_line(&mut rest), 2).await.is_none());
            client.write_all(" as it is\nok\n").await.0.expect("write");
            rest.clear();
            assert_eq!(reader.read_line(&mut rest).await.expect("short"), 3);
            assert_eq!(rest, "ok\n");
        });
    });
}

#[test]
fn the_error_of_an_invalid_line_contains_its_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let mut reader = BufReader::new(ShortReads(&b"one\ntw\xffo\nthree"[..]));
            let mut text = String::new();
            reader.read_line(&mut text).await.expect("text");
            let error = reader.read_line(&mut text).await.expect_err("not UTF-8");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("the line is not UTF-8"), "{error}");
            let not_utf8 = error
                .into_inner()
                .and_then(|error| error.downcast::<NotUtf8>().ok())
                .expect("NotUtf8");
            assert_eq!(not_utf8.utf8_error().valid_up_to(), 2);
            assert_eq!(not_utf8.into_bytes(), b"tw\xffo\n");
            assert_eq!(
                reader.read_line(&mut text).await.expect("the last line has no newline"),
                5
            );
            assert_eq!(text, "one\nthree");
            // `read_to_string` takes all of a stream or nothing.
            let mut reader = BufReader::new(ShortReads(&b"four"[..]));
            let error = reader.read_to_string(3).await.expect_err("too long");
            assert!(
                error.to_string().contains("all bytes are still in the reader"),
                "{error}"
            );
            assert_eq!(reader.read_to_string(4).await.expect("just the limit"), "four");
        });
    });
}

/// A line that arrives byte by byte, with a dropped call before each byte.
#[test]
fn a_dropped_read_line_loses_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut reader = BufReader::new(server);
            for _ in 0..rounds() / 50 {
                let mut line = String::new();
                for byte in "slowly\n".bytes() {
                    assert!(within(reader.read_line(&mut line), 1).await.is_none());
                    assert_eq!(line, "");
                    client.write_all([byte]).await.0.expect("write");
                }
                assert_eq!(reader.read_line(&mut line).await.expect("a line"), 7);
                assert_eq!(line, "slowly\n");
            }
            // `into_parts` returns the buffered bytes.
            client.write_all("line\nrest").await.0.expect("write");
            reader.read_line(&mut String::new()).await.expect("a line");
            let (server, rest) = reader.into_parts();
            drop(client);
            let mut all = rest;
            (&server).read_to_end(&mut all, 4).await.expect("read");
            assert_eq!(all, b"rest");
        });
    });
}

/// Parses frames of every length; each call is dropped after a random number of polls, in a select for instance.
async fn parse_and_drop<R: AsyncRead>(reader: R, frames: &[Vec<u8>], seed: u64) {
    let mut random = Random::new(seed);
    let mut reader = BufReader::new(reader);
    let mut dropped = 0;
    for (number, frame) in frames.iter().enumerate() {
        let mut wanted = 2;
        loop {
            let buffered = reader.buffer().to_vec();
            let polls = random.below(3);
            let Some(result) = within(reader.fill_at_least(wanted), polls).await else {
                dropped += 1;
                assert!(reader.buffer().starts_with(&buffered), "frame {number}");
                turns(1).await;
                continue;
            };
            let bytes = result.expect("there are enough");
            assert!(bytes.len() >= wanted, "{} of {wanted} in frame {number}", bytes.len());
            let len = 2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            if bytes.len() >= len {
                assert!(bytes[2..len] == **frame, "frame {number}");
                reader.consume(len);
                break;
            }
            // Either the length, or one byte more, as a parser that cannot know the length.
            wanted = [len, bytes.len() + 1][random.below(2) as usize];
        }
    }
    assert!(reader.fill_at_least(1).await.expect("EOF").is_empty());
    assert!(dropped > 0, "no call was dropped");
}

#[test]
fn dropped_fills_lose_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            let mut random = Random::new(21);
            let len = |random: &mut Random| match random.below(10) {
                0 => random.below(40_000),
                _ => random.below(50),
            };
            let frames: Vec<Vec<u8>> = (0..(rounds() / 5).max(20))
                .map(|_| numbered(len(&mut random) as usize))
                .collect();
            let mut all = Vec::new();
            for frame in &frames {
                all.extend_from_slice(&(frame.len() as u16).to_be_bytes());
                all.extend_from_slice(frame);
            }
            let (client, server) = pair().await;
            let writing = windlass::spawn(write_in_pieces(client, all.clone(), 22));
            parse_and_drop(server, &frames, 23).await;
            writing.await.expect("no panic");
            let (client, server) = duplex(500);
            let writing = windlass::spawn(write_in_pieces(client, all.clone(), 24));
            parse_and_drop(server, &frames, 25).await;
            writing.await.expect("no panic");
            let (client, server) = windlass::io::pipe::pipe().expect("a pipe");
            let writing = windlass::spawn(write_in_pieces(client, all, 26));
            parse_and_drop(server, &frames, 27).await;
            writing.await.expect("no panic");
        });
    });
}

/// A fill that waits for more than one byte is dropped before each of them.
#[test]
fn a_fill_is_dropped_before_every_byte() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut reader = BufReader::new(server);
            for _ in 0..rounds() / 50 {
                for byte in b"slowly" {
                    assert!(within(reader.fill_at_least(6), 2).await.is_none());
                    client.write_all([*byte]).await.0.expect("write");
                }
                assert_eq!(reader.fill_at_least(6).await.expect("all of them"), b"slowly");
                reader.consume(6);
            }
        });
    });
}

#[test]
fn a_fill_reports_the_end_and_the_limit() {
    on_every_driver(|case| {
        case.run(async {
            let mut reader = BufReader::new(ShortReads(&b"0123456"[..])).max_buffer_len(8);
            let error = reader.fill_at_least(9).await.expect_err("too much");
            let too_long = error.get_ref().and_then(|error| error.downcast_ref::<TooLong>());
            assert_eq!(too_long.expect("TooLong").limit(), 8);
            assert!(error.to_string().contains("max_buffer_len"), "{error}");
            assert_eq!(reader.buffer(), b"", "nothing was read");
            assert_eq!(
                reader.fill_at_least(0).await.expect("nothing"),
                b"",
                "no read is needed"
            );
            let error = reader.fill_at_least(8).await.expect_err("one is missing");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("after 7 of 8 bytes"), "{error}");
            assert_eq!(reader.fill_at_least(7).await.expect("still there"), b"0123456");
            reader.consume(5);
            reader.set_max_buffer_len(2);
            assert_eq!(reader.fill_at_least(2).await.expect("buffered"), b"56");
            reader.consume(2);
            assert_eq!(reader.fill_at_least(1).await.expect("the end"), b"");
        });
    });
}
