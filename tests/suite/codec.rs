//! Framing: codecs over every driver, with dropped calls, limits and errors.

use std::io::{self, ErrorKind};
use std::time::Duration;

use ::bytes::{Buf, BufMut, Bytes, BytesMut};
use windlass::io::codec::{
    Decoder, Encoder, FrameBuf, Framed, FramedRead, FramedWrite, LengthDelimitedCodec, LinesCodec,
};
use windlass::io::{AsyncRead, AsyncWrite, NotUtf8, TooLong, duplex};
use windlass::time::timeout;

use crate::buf_reader::within;
use crate::bytes::numbered;
use crate::streams::ShortReads;
use crate::support::{Random, on_every_driver, pair, poll_once, rounds, turns};

/// Frames of many lengths: empty, small, and longer than a pool buffer or the step in which memory is reserved.
fn frames() -> Vec<Bytes> {
    let mut random = Random::new(31);
    let mut len = || match random.below(12) {
        0 => random.below(200_000),
        1 | 2 => random.below(10_000),
        _ => random.below(60),
    };
    (0..(rounds() / 4).max(20))
        .map(|_| numbered(len() as usize).into())
        .collect()
}

/// Writes frames with every method, in random order, with pauses.
async fn write_frames<W: AsyncWrite>(writer: W, frames: Vec<Bytes>, seed: u64) {
    let mut random = Random::new(seed);
    let mut writer = FramedWrite::new(writer, LengthDelimitedCodec::new());
    for frame in frames {
        match random.below(3) {
            0 => writer.send(frame).await.expect("send"),
            _ => writer.feed(frame).await.expect("feed"),
        }
        assert!(writer.buffered() <= 64 * 1024 + 200_000 + 8, "{}", writer.buffered());
        turns(random.below(2)).await;
    }
    writer.close().await.expect("close");
}

/// Reads frames and drops most calls at a random point.
async fn read_frames<R: AsyncRead>(reader: R, frames: &[Bytes], seed: u64) {
    let mut random = Random::new(seed);
    let mut reader = FramedRead::new(reader, LengthDelimitedCodec::new());
    let (mut dropped, mut kept) = (0, Vec::new());
    for (number, expected) in frames.iter().enumerate() {
        let frame = loop {
            match within(reader.next(), random.below(4)).await {
                Some(frame) => break frame.expect("not the end").expect("a frame"),
                None => dropped += 1,
            }
            turns(1).await;
        };
        assert!(frame == *expected, "frame {number}");
        // Frames that share the buffer's memory must not change when more is read.
        kept.push((number, frame));
        if kept.len() > 20 {
            for (number, frame) in kept.drain(..) {
                assert!(frame == frames[number], "frame {number} changed");
            }
        }
    }
    assert!(reader.next().await.is_none());
    assert!(reader.next().await.is_none(), "the end stays the end");
    assert!(dropped > 0, "no call was dropped");
}

#[test]
fn dropped_reads_of_frames_lose_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let frames = frames();
            let (client, server) = pair().await;
            let writing = windlass::spawn(write_frames(client, frames.clone(), 32));
            read_frames(server, &frames, 33).await;
            writing.await.expect("no panic");
            let (client, server) = duplex(3_000);
            let writing = windlass::spawn(write_frames(client, frames.clone(), 34));
            read_frames(server, &frames, 35).await;
            writing.await.expect("no panic");
        });
    });
}

/// A frame arrives byte by byte, and a call is dropped before each byte.
#[test]
fn a_read_of_a_frame_is_dropped_before_every_byte() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut server = Framed::new(server, LengthDelimitedCodec::new());
            for _ in 0..rounds() / 50 {
                for byte in *b"\0\0\0\x06slowly" {
                    assert!(within(server.next(), 2).await.is_none());
                    client.write_all([byte]).await.0.expect("write");
                }
                let frame = server.next().await.expect("a frame").expect("a frame");
                assert_eq!(frame, "slowly");
            }
            client.write_all("\0\0\0\x01.\0\0\0\x09rest").await.0.expect("write");
            assert_eq!(server.next().await.expect("a frame").expect("a frame"), ".");
            client.write_all("!").await.0.expect("write");
            assert!(within(server.next(), 2).await.is_none());
            while server.read_buffer().len() < 9 {
                assert!(within(server.next(), 2).await.is_none());
            }
            let (_, rest) = server.into_parts();
            assert_eq!(rest, "\0\0\0\x09rest!");
        });
    });
}

/// `select` with a read of frames, as in a server that also waits for something else.
#[test]
fn a_lost_timeout_loses_no_frame() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut server = FramedRead::new(server, LinesCodec::new());
            for part in ["he", "ll", "o"] {
                client.write_all(part).await.0.expect("write");
                let waited = timeout(Duration::from_millis(2), server.next()).await;
                assert!(waited.is_err(), "{waited:?}");
            }
            client.write_all("\n").await.0.expect("write");
            assert_eq!(server.next().await.expect("a line").expect("a line"), "hello");
        });
    });
}

#[test]
fn lines_are_decoded_like_those_of_a_buf_reader() {
    on_every_driver(|case| {
        case.run(async {
            let mut random = Random::new(36);
            for _ in 0..rounds() / 10 {
                let len = random.below(200);
                let text: String = (0..len)
                    .map(|_| ['a', 'ß', '\n', '\n', '\r', '€', ' '][random.below(7) as usize])
                    .collect();
                let expected: Vec<&str> = text.lines().collect();
                let mut lines = FramedRead::new(ShortReads(text.as_bytes()), LinesCodec::new());
                let mut found = Vec::new();
                while let Some(line) = lines.next().await {
                    found.push(line.expect("UTF-8"));
                }
                assert_eq!(found, expected, "{text:?}");
            }
        });
    });
}

async fn read_around_refused_lines<R: AsyncRead>(reader: R) {
    let mut lines = FramedRead::new(reader, LinesCodec::new().max_len(10));
    let mut next = async || lines.next().await;
    assert_eq!(next().await.expect("a line").expect("short"), "first");
    let error = next().await.expect("a line").expect_err("too long");
    let too_long = error.get_ref().and_then(|error| error.downcast_ref::<TooLong>());
    assert_eq!(too_long.expect("TooLong").limit(), 10);
    assert_eq!(next().await.expect("a line").expect("short"), "after");
    let error = next().await.expect("a line").expect_err("not UTF-8");
    assert!(error.get_ref().is_some_and(|error| error.is::<NotUtf8>()), "{error:?}");
    next().await.expect("a line").expect_err("too long");
    assert!(next().await.is_none(), "the end of the stream ends the skipped line");
}

#[test]
fn a_refused_line_is_skipped_and_the_next_is_read() {
    on_every_driver(|case| {
        case.run(async {
            let text = b"first\n0123456789x\nafter\n\xff\xfe\nthis one is much too long and has no end";
            read_around_refused_lines(&text[..]).await;
            read_around_refused_lines(ShortReads(&text[..])).await;
        });
    });
}

#[test]
fn the_options_of_the_length_are_respected() {
    on_every_driver(|case| {
        case.run(async {
            let builder = LengthDelimitedCodec::builder;
            let cases = [
                (builder(), &b"\0\0\0\x02hi\0\0\0\0"[..], &["hi", ""][..]),
                (builder().length_field_length(1), b"\x02hi\x01!", &["hi", "!"]),
                (builder().length_field_length(3).little_endian(), b"\x02\0\0hi", &["hi"]),
                (
                    builder().length_field_length(8).big_endian(),
                    b"\0\0\0\0\0\0\0\x02hi",
                    &["hi"],
                ),
                // A header of two bytes before the length is skipped with it.
                (
                    builder().length_field_offset(2).length_field_length(2),
                    b"XY\0\x02hi",
                    &["hi"],
                ),
                // The length counts itself.
                (
                    builder().length_field_length(2).length_adjustment(-2),
                    b"\0\x04hi",
                    &["hi"],
                ),
                // A trailer that the length does not count.
                (
                    builder().length_field_length(2).length_adjustment(1),
                    b"\0\x02hi.",
                    &["hi."],
                ),
                // The header is kept, and the length counts it or does not.
                (builder().length_field_length(1).num_skip(0), b"\x03hi", &["\x03hi"]),
                (
                    builder().length_field_length(1).length_adjustment(1).num_skip(0),
                    b"\x02hi",
                    &["\x02hi"],
                ),
            ];
            for (options, bytes, expected) in cases {
                let mut reader = FramedRead::new(ShortReads(bytes), options.clone().new_codec());
                for frame in expected {
                    let found = reader.next().await.expect("a frame").expect("a frame");
                    assert_eq!(found, frame, "{options:?}");
                }
                assert!(reader.next().await.is_none(), "{options:?}");
            }
            // What is encoded is decoded again.
            for options in [
                builder().length_field_length(2).little_endian(),
                builder().length_adjustment(-4),
                builder().length_field_length(8).max_frame_length(5),
            ] {
                let mut writer = FramedWrite::new(Vec::new(), options.clone().new_codec());
                writer.send("hello").await.expect("send");
                let bytes = writer.into_inner();
                let mut reader = FramedRead::new(&bytes[..], options.new_codec());
                assert_eq!(reader.next().await.expect("a frame").expect("a frame"), "hello");
            }
        });
    });
}

async fn error_of(options: windlass::io::codec::LengthDelimitedBuilder, bytes: &[u8]) -> io::Error {
    let mut reader = FramedRead::new(bytes, options.new_codec());
    let error = reader.next().await.expect("an error").expect_err("malformed");
    assert!(reader.next().await.is_none(), "the error is final");
    error
}

#[test]
fn malformed_lengths_are_final_errors() {
    on_every_driver(|case| {
        case.run(async {
            let builder = LengthDelimitedCodec::builder;
            let error = error_of(builder().max_frame_length(3), b"\0\0\0\x04").await;
            let too_long = error.get_ref().and_then(|error| error.downcast_ref::<TooLong>());
            assert_eq!(too_long.expect("TooLong").limit(), 3);
            error_of(builder().length_field_length(8), &[0xff; 8]).await;
            error_of(builder().length_field_length(8).length_adjustment(1), &[0xff; 8]).await;
            let error = error_of(builder().length_adjustment(-4), b"\0\0\0\x03").await;
            assert!(error.to_string().contains("less than that of its header"), "{error}");
            let error = error_of(builder().num_skip(0), b"\0\0\0\0").await;
            assert!(error.to_string().contains("no bytes"), "{error}");
            let error = error_of(builder(), b"\0\0\0\x03hi").await;
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("after 6 of its bytes"), "{error}");

            let mut writer = FramedWrite::new(Vec::new(), builder().length_field_length(1).new_codec());
            writer.feed("ok").await.expect("fits");
            writer.feed(vec![0; 256]).await.expect_err("does not fit");
            writer.send("!").await.expect("an item that is refused leaves no trace");
            assert_eq!(writer.into_inner(), b"\x02ok\x01!");
            let mut writer = FramedWrite::new(Vec::new(), builder().length_field_offset(1).new_codec());
            let error = writer.send("x").await.expect_err("no header");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        });
    });
}

/// A peer that announces a large frame and sends little does not make the reader allocate it.
#[test]
fn memory_is_reserved_as_bytes_arrive() {
    let mut codec = LengthDelimitedCodec::new();
    let mut buf = BytesMut::from(&b"\0\x7f\0\0x"[..]);
    assert!(codec.decode(&mut buf).expect("incomplete").is_none());
    assert!((1_000..200_000).contains(&buf.capacity()), "{}", buf.capacity());
}

/// A codec that pushes a large part and then fails.
struct Fails;

impl Encoder<usize> for Fails {
    type Error = io::Error;

    fn encode(&mut self, len: usize, buf: &mut FrameBuf) -> io::Result<()> {
        buf.bytes_mut().put_u8(b'[');
        buf.push(Bytes::from(vec![b'.'; len]));
        buf.bytes_mut().put_u8(b']');
        match len % 2 {
            0 => Ok(()),
            _ => Err(io::Error::other("odd")),
        }
    }
}

impl Decoder for Fails {
    type Item = u8;
    type Error = io::Error;

    fn decode(&mut self, buf: &mut BytesMut) -> io::Result<Option<u8>> {
        if buf.is_empty() {
            return Ok(None);
        }
        match buf.get_u8() {
            b'!' => Err(io::Error::other("refused")),
            byte => Ok(Some(byte)),
        }
    }
}

#[test]
fn an_item_that_cannot_be_encoded_leaves_no_trace() {
    on_every_driver(|case| {
        case.run(async {
            for (good, bad) in [(2, 3), (2, 10_001), (10_000, 3), (10_000, 10_001)] {
                let mut writer = FramedWrite::new(Vec::new(), Fails);
                let mut expected = Vec::new();
                for _ in 0..3 {
                    writer.feed(good).await.expect("even");
                    expected.extend_from_slice(format!("[{}]", ".".repeat(good)).as_bytes());
                    writer.feed(bad).await.expect_err("odd");
                    assert_eq!(writer.buffered(), expected.len());
                }
                writer.flush().await.expect("flush");
                assert!(writer.into_inner() == expected, "{good} {bad}");
            }
        });
    });
}

#[test]
fn decoding_continues_after_an_error_that_consumed_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let mut reader = FramedRead::new(&b"a!b!"[..], Fails);
            assert_eq!(reader.next().await.expect("a").expect("a"), b'a');
            reader.next().await.expect("!").expect_err("refused");
            assert_eq!(reader.next().await.expect("b").expect("b"), b'b');
            reader.next().await.expect("!").expect_err("refused");
            assert!(reader.next().await.is_none());
        });
    });
}

/// Small frames are coalesced until a flush, and large ones are written without waiting for one.
#[test]
fn feeds_are_buffered_up_to_the_maximum() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = duplex(1 << 20);
            let mut writer = FramedWrite::new(near, LinesCodec::new());
            let mut reader = FramedRead::new(far, LinesCodec::new());
            writer.set_max_buffered(10);
            writer.feed("01234").await.expect("feed");
            writer.feed("56789").await.expect("feed");
            assert_eq!(writer.buffered(), 12);
            assert!(
                within(reader.next(), 2).await.is_none(),
                "nothing is written before a flush"
            );
            writer.feed("x").await.expect("feed");
            assert_eq!(writer.buffered(), 2, "above the maximum, a feed writes first");
            assert_eq!(reader.next().await.expect("a line").expect("a line"), "01234");
            assert_eq!(reader.next().await.expect("a line").expect("a line"), "56789");
            assert!(within(reader.next(), 2).await.is_none());
            writer.flush().await.expect("flush");
            assert_eq!(reader.next().await.expect("a line").expect("a line"), "x");
        });
    });
}

/// After a dropped write, of which a part may have been sent, nothing more is sent.
#[test]
fn a_dropped_send_makes_further_writes_fail() {
    on_every_driver(|case| {
        case.run(async {
            let (near, mut far) = duplex(16);
            let mut writer = FramedWrite::new(near, LengthDelimitedCodec::new());
            writer.send("fits").await.expect("send");
            {
                let mut sending = std::pin::pin!(writer.send(vec![7; 100]));
                assert!(poll_once(sending.as_mut()).await.is_pending());
            }
            for _ in 0..2 {
                let error = writer.send("more").await.expect_err("out of step");
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                assert!(error.to_string().contains("close the connection"), "{error}");
                assert_eq!(
                    writer.flush().await.expect_err("out of step").kind(),
                    ErrorKind::BrokenPipe
                );
            }
            drop(writer);
            let mut all = Vec::new();
            far.read_to_end(&mut all, 1_000).await.expect("read");
            assert!(all.starts_with(b"\0\0\0\x04fits") && !all.ends_with(b"more"), "{all:?}");
        });
    });
}
