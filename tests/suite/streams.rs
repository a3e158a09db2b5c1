//! The stream traits and sub-slices of buffers, with windlass's streams and with user-defined readers and writers.

use std::io::{Cursor, ErrorKind};
use std::pin::pin;
use std::rc::Rc;

use windlass::fs::File;
use windlass::io::{
    AlignedBuf, AsyncBufRead, AsyncRead, AsyncWrite, BufReader, BufResult, BufWriter, IoBuf, IoBufMut, NotUtf8,
    TooLong, copy, duplex, empty, join, repeat, sink, split,
};

use crate::bytes::numbered;
use crate::support::{Folder, Random, on_every_driver, on_every_exact_driver, pair, poll_once, rounds, turns};

/// A user-defined reader without unsafe code: returns at most three bytes at a time.
pub(crate) struct ShortReads<R>(pub R);

impl<R: AsyncRead> AsyncRead for ShortReads<R> {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        let room = buf.capacity().min(3);
        match self.0.read(Vec::with_capacity(room)).await {
            (Ok(_), sip) => (Ok(buf.fill_from(&sip)), buf),
            (Err(error), _) => (Err(error), buf),
        }
    }
}

/// A user-defined writer without unsafe code: accepts at most three bytes at a time, and fails once if configured to.
#[derive(Debug, Default)]
pub(crate) struct ShortWrites {
    pub taken: Vec<u8>,
    pub flushed: usize,
    pub ended: bool,
    /// Fails once when this many bytes have been written.
    pub refuse_at: Option<usize>,
}

impl AsyncWrite for ShortWrites {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if self.refuse_at.is_some_and(|at| self.taken.len() >= at) {
            self.refuse_at = None;
            return (Err(ErrorKind::TimedOut.into()), buf);
        }
        let bytes = buf.as_slice();
        let count = bytes.len().min(3);
        self.taken.extend_from_slice(&bytes[..count]);
        (Ok(count), buf)
    }
    async fn flush(&mut self) -> std::io::Result<()> {
        self.flushed = self.taken.len();
        Ok(())
    }
    async fn shutdown(&mut self) -> std::io::Result<()> {
        self.flush().await?;
        self.ended = true;
        Ok(())
    }
}

#[test]
fn a_user_defined_reader_has_every_method() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(100);
            let mut reader = ShortReads(&all[..]);
            let (result, buf) = reader.read_exact(vec![0; 10]).await;
            result.expect("there are enough");
            assert_eq!(buf, &all[..10]);
            let (result, array) = reader.read_exact([0u8; 10]).await;
            result.expect("there are enough");
            assert_eq!(array, all[10..20]);
            let bufs = vec![Vec::new(), Vec::with_capacity(2), vec![1; 9]];
            let (result, bufs) = reader.read_vectored(bufs).await;
            assert_eq!(result.expect("read"), 2);
            assert_eq!(bufs, [&[][..], &all[20..22], &[]]);
            assert_eq!(&*reader.read_managed().await.expect("read"), &all[22..25]);
            let mut rest = b"front".to_vec();
            assert_eq!(reader.read_to_end(&mut rest, 75).await.expect("just the limit"), 75);
            assert_eq!(rest, [b"front", &all[25..]].concat());
            let (result, _) = reader.read_exact(vec![0; 1]).await;
            assert_eq!(result.expect_err("the end").kind(), ErrorKind::UnexpectedEof);
            let (result, _) = reader.read(Vec::new()).await;
            assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);
            let (result, _) = reader.read_exact(Vec::with_capacity(8)).await;
            assert_eq!(result.expect_err("a length of zero").kind(), ErrorKind::InvalidInput);
        });
    });
}

#[test]
fn a_user_defined_writer_has_every_method() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(100);
            let mut writer = ShortWrites::default();
            writer.write_all(all[..50].to_vec()).await.0.expect("write");
            let bufs: Vec<Vec<u8>> = vec![all[50..60].to_vec(), Vec::new(), all[60..100].to_vec()];
            let (result, bufs) = writer.write_all_vectored(bufs).await;
            result.expect("write");
            assert_eq!(bufs.concat(), &all[50..]);
            let (result, _) = writer.write_vectored(vec![&b""[..], b"more"]).await;
            assert_eq!(result.expect("write"), 3);
            assert_eq!(writer.taken, [&all[..], b"mor"].concat());
            // On failure the unwritten bytes stay in order.
            writer.refuse_at = Some(110);
            let bufs: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; 4]).collect();
            let (result, back) = writer.write_all_vectored(bufs.clone()).await;
            assert_eq!(result.expect_err("it refuses").kind(), ErrorKind::TimedOut);
            assert_eq!(back, bufs);
        });
    });
}

/// The limit itself is allowed, one byte more is an error, and no byte is lost.
#[test]
fn read_to_end_keeps_its_limit_and_loses_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            for (len, limit) in [
                (0, 0),
                (1, 0),
                (1, 1),
                (9_999, 9_999),
                (10_000, 9_999),
                (300_000, 65_536),
            ] {
                let all = numbered(len);
                let mut cursor = Cursor::new(&all[..]);
                let mut bytes = Vec::new();
                let result = cursor.read_to_end(&mut bytes, limit).await;
                if len <= limit {
                    assert_eq!(result.expect("within the limit"), len);
                } else {
                    let error = result.expect_err("more than the limit");
                    assert_eq!(error.kind(), ErrorKind::InvalidData);
                    assert!(error.to_string().contains("raise the limit"), "{error}");
                    let too_long: &TooLong = error.get_ref().and_then(|error| error.downcast_ref()).expect("TooLong");
                    assert_eq!(too_long.limit(), limit);
                    assert_eq!(bytes.len(), limit + 1, "read more than needed to detect it");
                    cursor.read_to_end(&mut bytes, len).await.expect("the rest");
                }
                assert_eq!(bytes, all);
            }
        });
    });
}

#[test]
fn invalid_utf8_is_returned_with_the_error() {
    on_every_driver(|case| {
        case.run(async {
            let error = (&b"caf\xe9"[..]).read_to_string(10).await.expect_err("not UTF-8");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            let not_utf8 = error.into_inner().and_then(|error| error.downcast::<NotUtf8>().ok());
            assert_eq!(not_utf8.expect("NotUtf8").into_bytes(), b"caf\xe9");
            let error = (&b"four"[..]).read_to_string(3).await.expect_err("too long");
            let too_long = error.into_inner().and_then(|error| error.downcast::<TooLong>().ok());
            assert_eq!(too_long.expect("TooLong").into_bytes(), b"four");
            let text = ShortReads("grüße".as_bytes()).read_to_string(7).await;
            assert_eq!(text.expect("just the limit"), "grüße");
        });
    });
}

async fn read_exact_of<R: AsyncRead>(mut reader: R, len: usize) -> Vec<u8> {
    let (result, buf) = reader.read_exact(vec![0; len]).await;
    result.expect("there are enough");
    buf
}

/// Generic code gets the guarantees of the stream itself: a dropped `read_exact` loses no byte.
#[test]
fn dropped_reads_through_the_traits_lose_no_byte() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(64);
            let (client, mut server) = pair().await;
            let (mut near, mut far) = duplex(8);
            for _ in 0..rounds() / 50 {
                client.write_all(all[..20].to_vec()).await.0.expect("write");
                {
                    let mut reading = pin!(read_exact_of(&mut server, 64));
                    assert!(poll_once(reading.as_mut()).await.is_pending());
                    turns(2).await;
                    assert!(poll_once(reading.as_mut()).await.is_pending());
                }
                client.write_all(all[20..].to_vec()).await.0.expect("write");
                assert_eq!(read_exact_of(&mut &server, 64).await, all);

                let writing = async { near.write_all(all.clone()).await.0.expect("write") };
                let mut writing = pin!(writing);
                assert!(poll_once(writing.as_mut()).await.is_pending());
                {
                    let mut reading = pin!(read_exact_of(&mut far, 60));
                    assert!(poll_once(reading.as_mut()).await.is_pending());
                    assert!(poll_once(writing.as_mut()).await.is_pending());
                }
                let mut reading = pin!(read_exact_of(&mut far, 64));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                writing.await;
                assert_eq!(reading.await, all);
            }
        });
    });
}

/// Reads fill the given sub-slice of any kind of buffer, and the bytes of a dropped read go to the next.
#[test]
fn reads_fill_a_slice_of_a_buffer() {
    // One read returns all bytes.
    on_every_exact_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            let mut vec = b"head".to_vec();
            vec.reserve(100);
            client.write_all("tail").await.0.expect("write");
            let (result, part) = server.read(vec.spare()).await;
            assert_eq!(result.expect("read"), 4);
            let vec = part.into_inner();
            assert_eq!(vec, b"headtail");

            client.write_all("XYZ").await.0.expect("write");
            let (result, part) = server.read_exact(vec.slice_mut(1..3)).await;
            result.expect("read");
            let vec = part.into_inner();
            assert_eq!(vec, b"hXYdtail");

            let (result, part) = server.read([0u8; 8].slice_mut(6..)).await;
            assert_eq!(result.expect("read"), 1);
            assert_eq!(part.into_inner(), *b"\0\0\0\0\0\0Z\0");

            let block = AlignedBuf::with_capacity(4096, 4096);
            client.write_all("aligned").await.0.expect("write");
            let (result, part) = server.read(block.slice_mut(..3)).await;
            assert_eq!((result.expect("read"), &*part.into_inner()), (3, &b"ali"[..]));

            let boxed: Box<[u8]> = vec![0; 6].into();
            let (result, part) = server.read(boxed.slice_mut(2..)).await;
            assert_eq!((result.expect("read"), &*part.into_inner()), (4, &b"\0\0gned"[..]));

            let bufs = vec![Vec::with_capacity(8).spare(), b"ab".to_vec().slice_mut(1..2)];
            client.write_all("012345678").await.0.expect("write");
            let (result, bufs) = server.read_vectored(bufs).await;
            assert_eq!(result.expect("read"), 9);
            let bufs: Vec<Vec<u8>> = bufs.into_iter().map(|part| part.into_inner()).collect();
            assert_eq!(bufs, [&b"01234567"[..], b"a8"]);

            let (result, _) = server.read(b"full".to_vec().slice_mut(4..4)).await;
            assert_eq!(result.expect_err("no room").kind(), ErrorKind::InvalidInput);

            {
                let mut reading = pin!(server.read(vec.slice_mut(2..6)));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                client.write_all("kept").await.0.expect("write");
                turns(2).await;
            }
            assert_eq!(&*server.read_managed().await.expect("read"), b"kept");
            let managed = windlass::io::ManagedBuf::from(b"managed".to_vec());
            client.write_all(managed.slice(3..)).await.0.expect("write");
            assert_eq!(&*server.read_managed().await.expect("read"), b"aged");
        });
    });
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_are_buffers() {
    on_every_driver(|case| {
        case.run(async {
            let (client, server) = pair().await;
            client
                .write_all(bytes::Bytes::from(numbered(300)))
                .await
                .0
                .expect("write");
            let mut buf = bytes::BytesMut::with_capacity(128);
            while buf.len() < 300 {
                buf.reserve(64);
                let (result, part) = server.read(buf.spare()).await;
                assert!(result.expect("read") > 0);
                buf = part.into_inner();
            }
            assert_eq!(&buf[..], numbered(300));
            let tail = buf.split_off(200).freeze();
            client
                .write_all_vectored(vec![tail.clone(), buf.freeze()])
                .await
                .0
                .expect("write");
            let (result, back) = server.read_exact(bytes::BytesMut::zeroed(300)).await;
            result.expect("read");
            assert_eq!((&back[..100], &back[100..]), (&tail[..], &numbered(200)[..]));
        });
    });
}

#[test]
fn a_buf_writer_keeps_bytes_that_it_could_not_write() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(40);
            let inner = ShortWrites {
                refuse_at: Some(7),
                ..ShortWrites::default()
            };
            let mut writer = BufWriter::with_capacity(16, inner);
            for part in all[..15].chunks(5) {
                writer.write_all(part.to_vec()).await.0.expect("it fits");
            }
            assert_eq!((writer.get_ref().taken.len(), writer.buffer().len()), (0, 15));
            let (result, part) = writer.write_all(all[15..30].to_vec()).await;
            assert_eq!(result.expect_err("it refuses").kind(), ErrorKind::TimedOut);
            assert_eq!(writer.buffer(), &all[9..15], "unwritten bytes stay in the buffer");
            writer.write_all(part).await.0.expect("the second time");
            // A write larger than the buffer bypasses it, after the buffered bytes.
            writer.write_all(all[30..].repeat(3)).await.0.expect("write");
            writer.write_all("end").await.0.expect("write");
            writer.shutdown().await.expect("shutdown");
            assert!(writer.get_ref().ended && writer.get_ref().flushed == writer.get_ref().taken.len());
            let inner = writer.into_inner().await.expect("nothing is left");
            assert_eq!(inner.taken, [&all[..30], &all[30..].repeat(3), b"end"].concat());
        });
    });
}

#[test]
fn files_are_streams() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let (from, to) = (folder.join("from"), folder.join("to"));
            let text: String = (0..5_000).map(|number| format!("line {number}\n")).collect();
            windlass::fs::write(&from, text.clone()).await.expect("write");
            let mut file = File::open(&from).await.expect("open");
            let mut target = File::create(&to).await.expect("create");
            assert_eq!(copy(&mut file, &mut target).await.expect("copy"), text.len() as u64);
            assert_eq!(windlass::fs::read_to_string(&to).await.expect("read"), text);
            let mut lines = BufReader::new(File::open(&to).await.expect("open")).lines();
            let mut count = 0;
            while let Some(line) = lines.next_line().await.expect("a line") {
                assert_eq!(line, format!("line {count}"));
                count += 1;
            }
            assert_eq!(count, 5_000);
            // A failed `read_exact` does not move the position.
            let file = File::open(&to).await.expect("open");
            let (result, _) = file.read_exact(vec![0; text.len() + 1]).await;
            assert_eq!(result.expect_err("too short").kind(), ErrorKind::UnexpectedEof);
            let (result, bytes) = file.read_exact([0u8; 6]).await;
            result.expect("read");
            assert_eq!(
                (&bytes, file.stream_position().await.expect("position")),
                (b"line 0", 6)
            );
            let mut reader = File::open(&to).await.expect("open").reader();
            assert_eq!(AsyncBufRead::fill_buf(&mut reader).await.expect("read")[..4], *b"line");
            let mut read = Vec::new();
            reader.read_to_end(&mut read, text.len()).await.expect("read");
            assert!(read == text.as_bytes());
        });
    });
}

#[test]
fn in_memory_streams_yield_to_other_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let mut cursor = Cursor::new(Vec::new());
            cursor.write_all("hello").await.0.expect("write");
            cursor.set_position(1);
            assert_eq!(cursor.read_to_string(10).await.expect("read"), "ello");
            let mut fixed = Cursor::new([0u8; 4]);
            let (result, _) = fixed.write_all("too much").await;
            assert_eq!(result.expect_err("full").kind(), ErrorKind::WriteZero);
            assert_eq!(copy(&mut empty(), &mut sink()).await.expect("copy"), 0);
            let mut both = join(ShortReads(&b"in"[..]), Vec::new());
            both.write_all("out").await.0.expect("write");
            assert_eq!(both.read_to_string(2).await.expect("read"), "in");
            // A copy from an endless source must not starve other tasks.
            let endless = windlass::spawn(async { copy(&mut repeat(7), &mut sink()).await });
            let sipping =
                windlass::spawn(async { copy(&mut ShortReads(repeat(7)), &mut ShortWrites::default()).await });
            turns(5).await;
            endless.cancel();
            sipping.cancel();
        });
    });
}

#[test]
fn split_halves_work_in_two_tasks() {
    on_every_driver(|case| {
        case.run(async {
            let (stream, peer) = pair().await;
            let (mut reader, mut writer) = split(stream);
            let reading = windlass::spawn(async move {
                let mut all = Vec::new();
                let result = reader.read_to_end(&mut all, 1 << 20).await;
                (result, all, reader)
            });
            let echo = windlass::spawn(async move {
                let (mut reader, mut writer) = peer.split();
                copy(&mut reader, &mut writer).await
            });
            let mut random = Random::new(5);
            let all = numbered(100_000);
            let mut at = 0;
            while at < all.len() {
                let end = all.len().min(at + 1 + random.below(9_000) as usize);
                writer.write_all(all[at..end].to_vec()).await.0.expect("write");
                at = end;
            }
            writer.shutdown().await.expect("shutdown");
            assert_eq!(echo.await.expect("no panic").expect("echo"), 100_000);
            let (result, back, reader) = reading.await.expect("no panic");
            assert_eq!(result.expect("read"), 100_000);
            assert!(back == all);
            let (other, _) = duplex(1);
            drop(split(other));
            let stream = Rc::new(reader.unsplit(writer).expect("halves of the same stream"));
            assert!(stream.read_managed().await.expect("read").is_empty());
        });
    });
}
