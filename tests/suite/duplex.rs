//! `duplex`: in-memory connections are bounded, ordered, and report when the other end is dropped.

use std::io::ErrorKind;
use std::rc::Rc;

use windlass::io::{AsyncRead, AsyncWrite, Halves, duplex};

use crate::buf_reader::within;
use crate::bytes::numbered;
use crate::support::{Random, on_every_driver, rounds, turns};

#[test]
fn at_most_the_capacity_is_buffered() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(100_000);
            for capacity in [0, 1, 7, 1_000] {
                let (mut near, mut far) = duplex(capacity);
                let bytes = match capacity {
                    0..10 => all[..2_000].to_vec(),
                    _ => all.clone(),
                };
                let expected = bytes.clone();
                let writing = windlass::spawn(async move { near.write_all(bytes).await.0 });
                let mut read = Vec::new();
                loop {
                    turns(2).await;
                    assert!(!writing.is_finished() || read.len() + capacity.max(1) >= expected.len());
                    let piece = far.read_managed().await.expect("read");
                    assert!(piece.len() <= capacity.max(1), "{} bytes were buffered", piece.len());
                    if piece.is_empty() {
                        break;
                    }
                    read.extend_from_slice(&piece);
                }
                writing.await.expect("no panic").expect("write");
                assert!(read == expected);
            }
        });
    });
}

#[test]
fn dropping_an_end_is_reported() {
    on_every_driver(|case| {
        case.run(async {
            // Bytes written before the drop are read first.
            let (mut near, mut far) = duplex(16);
            near.write_all("last words").await.0.expect("write");
            drop(near);
            assert_eq!(far.read_to_string(10).await.expect("read"), "last words");
            assert_eq!(
                far.write_all("too late")
                    .await
                    .0
                    .expect_err("the other end is dropped")
                    .kind(),
                ErrorKind::BrokenPipe
            );
            assert_eq!(
                far.write("too late")
                    .await
                    .0
                    .expect_err("the other end is dropped")
                    .kind(),
                ErrorKind::BrokenPipe
            );
            // A waiting reader and a waiting writer are woken.
            let (near, mut far) = duplex(16);
            let reading = windlass::spawn(async move { (far.read_managed().await, far) });
            turns(2).await;
            drop(near);
            assert!(reading.await.expect("no panic").0.expect("read").is_empty());
            let (near, mut far) = duplex(16);
            let writing = windlass::spawn(async move { far.write_all(vec![0; 100]).await.0 });
            turns(2).await;
            drop(near);
            let error = writing.await.expect("no panic").expect_err("the other end is dropped");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            // One direction is shut down, the other stays open.
            let (mut near, mut far) = duplex(16);
            near.shutdown().await.expect("shutdown");
            assert_eq!(
                near.write("more").await.0.expect_err("it was shut down").kind(),
                ErrorKind::BrokenPipe
            );
            assert!(far.read_managed().await.expect("read").is_empty());
            far.write_all("still").await.0.expect("write");
            let (result, bytes) = near.read_exact([0u8; 5]).await;
            result.expect("read");
            assert_eq!(&bytes, b"still");
        });
    });
}

#[test]
fn a_dropped_read_exact_takes_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let all = numbered(1_000);
            let (near, far) = duplex(10);
            let near = Rc::new(near);
            let writing = windlass::spawn({
                let (near, all) = (near.clone(), all.clone());
                async move { (&*near).write_all(all).await.0 }
            });
            // Longer than the capacity, and dropped repeatedly.
            let mut random = Random::new(7);
            for _ in 0..rounds().min(200) {
                let len = 100 + random.below(400) as usize;
                let dropped = within((&far).read_exact(vec![0; 2_000 + len]), 1 + random.below(3)).await;
                assert!(dropped.is_none());
            }
            let (result, bytes) = (&far).read_exact(vec![0; 600]).await;
            result.expect("enough bytes");
            assert!(bytes == all[..600]);
            writing.await.expect("no panic").expect("write");
            (&*near).shutdown().await.expect("shutdown");
            let (result, _) = (&far).read_exact(vec![0; 401]).await;
            assert_eq!(result.expect_err("one byte too many").kind(), ErrorKind::UnexpectedEof);
            let (result, bytes) = (&far).read_exact(vec![0; 400]).await;
            result.expect("nothing was lost");
            assert!(bytes == all[600..]);
        });
    });
}

/// Tasks write to one end concurrently: each call is written in one piece.
#[test]
fn concurrent_writes_do_not_interleave() {
    on_every_driver(|case| {
        case.run(async {
            let (near, mut far) = duplex(5);
            let near = Rc::new(near);
            for name in [b'a', b'b', b'c'] {
                let near = near.clone();
                windlass::spawn(async move {
                    for _ in 0..50 {
                        (&*near).write_all(vec![name; 16]).await.0.expect("write");
                    }
                });
            }
            drop(near);
            let mut all = Vec::new();
            far.read_to_end(&mut all, 3 * 50 * 16).await.expect("read");
            assert_eq!(all.len(), 3 * 50 * 16);
            for record in all.chunks(16) {
                assert!(record.iter().all(|byte| *byte == record[0]), "{record:?}");
            }
        });
    });
}

/// Both directions of both ends at once, one task per end.
#[test]
fn both_directions_are_independent() {
    on_every_driver(|case| {
        case.run(async {
            let (near, far) = duplex(64);
            let all = numbered(10_000);
            let tasks = [near, far].map(|mut end| {
                let all = all.clone();
                windlass::spawn(async move {
                    let (mut reader, mut writer) = end.halves();
                    let expected = all.clone();
                    let writing = async {
                        writer.write_all(all).await.0.expect("write");
                        writer.shutdown().await.expect("shutdown");
                    };
                    let mut writing = std::pin::pin!(writing);
                    let mut read = Vec::new();
                    let mut is_written = false;
                    loop {
                        is_written = is_written || crate::support::poll_once(writing.as_mut()).await.is_ready();
                        match within(reader.read_managed(), 2).await {
                            Some(piece) if piece.as_ref().expect("read").is_empty() => break,
                            Some(piece) => read.extend_from_slice(&piece.expect("read")),
                            None => {}
                        }
                    }
                    if !is_written {
                        writing.await;
                    }
                    assert!(read == expected);
                })
            });
            for task in tasks {
                task.await.expect("no panic");
            }
        });
    });
}
