//! tokio-util's codecs over a bridge, against those of `windlass::io::codec`.

use std::future::poll_fn;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::sink::Sink;
use tokio_util::codec;
use windlass::compat::Bridge;
use windlass::io::codec::{Framed, LengthDelimitedCodec, LinesCodec};

use crate::support::{on_every_driver, pair};

/// Sends an item through tokio-util's `Sink`.
async fn send<T>(mut sink: impl Sink<T, Error: std::fmt::Debug> + Unpin, item: T) {
    poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx)).await.expect("ready");
    Pin::new(&mut sink).start_send(item).expect("encode");
    poll_fn(|cx| Pin::new(&mut sink).poll_flush(cx)).await.expect("flush");
}

#[test]
fn lines_of_tokio_util_and_ours_understand_each_other() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = pair().await;
            let mut theirs = codec::Framed::new(Bridge::new(near), codec::LinesCodec::new());
            let mut ours = Framed::new(far, LinesCodec::new());
            for number in 0..300 {
                let line = format!("line {number}");
                send(&mut theirs, line.clone()).await;
                assert_eq!(ours.next().await.expect("a line").expect("a line"), line);
                ours.send(&line).await.expect("send");
                assert_eq!(theirs.next().await.expect("a line").expect("a line"), line);
            }
            ours.close().await.expect("close");
            assert!(theirs.next().await.is_none());
        });
    });
}

#[test]
fn frames_of_tokio_util_and_ours_understand_each_other() {
    on_every_driver(|case| {
        case.run(async {
            for (len, adjustment) in [(2, 0), (4, -4), (8, 3)] {
                let (near, far) = pair().await;
                let their_codec = codec::LengthDelimitedCodec::builder()
                    .length_field_length(len)
                    .length_adjustment(adjustment)
                    .little_endian()
                    .new_codec();
                let our_codec = LengthDelimitedCodec::builder()
                    .length_field_length(len)
                    .length_adjustment(adjustment)
                    .little_endian()
                    .new_codec();
                let mut theirs = codec::Framed::new(Bridge::new(near), their_codec);
                let mut ours = Framed::new(far, our_codec);
                for size in [3, 10, 5_000, 60_000] {
                    let frame = bytes::Bytes::from(vec![size as u8; size]);
                    let sending = send(&mut theirs, frame.clone());
                    let (_, received) = windlass::task::join((sending, ours.next())).await;
                    assert!(received.expect("a frame").expect("a frame") == frame, "{size}");
                    let sending = ours.send(frame.clone());
                    let (sent, received) = windlass::task::join((sending, theirs.next())).await;
                    sent.expect("send");
                    assert!(received.expect("a frame").expect("a frame") == frame, "{size}");
                }
            }
        });
    });
}
