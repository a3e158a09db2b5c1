//! The traits of futures-io and tokio.

use std::future::poll_fn;
use std::pin::Pin;

use futures_util::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use windlass::compat::Bridge;
use windlass::io::duplex;

use crate::support::{on_every_driver, pair};

#[test]
fn futures_io_reads_lines_and_copies() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (near, mut far) = (Bridge::new(near), Bridge::new(far));
            let writing = windlass::spawn(async move {
                for number in 0..1_000 {
                    far.write_all(format!("line {number}\n").as_bytes()).await?;
                }
                far.close().await?;
                let mut rest = String::new();
                far.read_to_string(&mut rest).await?;
                Ok::<_, std::io::Error>(rest)
            });
            // Split by the library into two halves of one bridge.
            let (reader, mut writer) = near.split();
            let mut lines = futures_util::io::BufReader::new(reader).lines();
            for number in 0..1_000 {
                let line = futures_util::StreamExt::next(&mut lines).await.expect("a line");
                assert_eq!(line.expect("read"), format!("line {number}"));
            }
            assert!(futures_util::StreamExt::next(&mut lines).await.is_none());
            writer.write_all(b"thank you").await.expect("write");
            writer.close().await.expect("close");
            assert_eq!(writing.await.expect("no panic").expect("read"), "thank you");
        });
    });
}

#[test]
fn futures_io_buf_read_lends_its_buffer() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = duplex(64);
            let (mut near, mut far) = (Bridge::new(near), Bridge::new(far));
            AsyncWriteExt::write_all(&mut far, b"key=value;rest")
                .await
                .expect("write");
            let mut key = Vec::new();
            near.read_until(b';', &mut key).await.expect("read");
            assert_eq!(key, b"key=value;");
            assert_eq!(AsyncBufReadExt::fill_buf(&mut near).await.expect("read"), b"rest");
        });
    });
}

#[test]
fn tokio_traits_transfer_bytes() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let (mut near, mut far) = (Bridge::new(near), Bridge::new(far));
            assert!(AsyncWrite::is_write_vectored(&near));
            let slices = [std::io::IoSlice::new(b"he"), std::io::IoSlice::new(b"llo")];
            let count = poll_fn(|cx| AsyncWrite::poll_write_vectored(Pin::new(&mut near), cx, &slices)).await;
            assert_eq!(count.expect("write"), 5);
            poll_fn(|cx| AsyncWrite::poll_flush(Pin::new(&mut near), cx))
                .await
                .expect("flush");
            poll_fn(|cx| AsyncWrite::poll_shutdown(Pin::new(&mut near), cx))
                .await
                .expect("shutdown");

            let lent = poll_fn(|cx| AsyncBufRead::poll_fill_buf(Pin::new(&mut far), cx).map_ok(<[u8]>::to_vec)).await;
            assert_eq!(lent.expect("read"), b"hello");
            AsyncBufRead::consume(Pin::new(&mut far), 1);
            // Into uninitialised memory, after the filled part.
            let mut memory = [std::mem::MaybeUninit::uninit(); 8];
            let mut buf = ReadBuf::uninit(&mut memory);
            buf.put_slice(b">> ");
            for _ in 0..2 {
                poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut far), cx, &mut buf))
                    .await
                    .expect("read");
            }
            assert_eq!(buf.filled(), b">> ello");
            let error = async {
                poll_fn(|cx| AsyncWrite::poll_write(Pin::new(&mut near), cx, b"x")).await?;
                poll_fn(|cx| AsyncWrite::poll_flush(Pin::new(&mut near), cx)).await
            };
            assert_eq!(error.await.expect_err("ended").kind(), std::io::ErrorKind::BrokenPipe);
        });
    });
}
