//! `File::scan`: every byte of a file once, at the right offset, in bounded memory.

use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::task::Poll;

use windlass::fs::{File, OpenOptions, Scan};

use crate::bytes::numbered;
use crate::support::{Folder, Random, codes, exceptions_of, on_every_driver, poll_once, quiet, rounds, turns};

/// Takes every chunk, checks it, and returns the number of distinct buffers.
async fn assert_scanned(mut scan: Scan, whole: &[u8], chunk_len: usize, in_order: bool) -> usize {
    let mut covered = 0;
    let mut places = HashSet::new();
    let mut offsets = HashSet::new();
    while let Some(chunk) = scan.next().await {
        let chunk = chunk.unwrap();
        let offset = chunk.offset() as usize;
        assert!(!chunk.is_empty());
        assert!(
            chunk[..] == whole[offset..offset + chunk.len()],
            "wrong bytes at {offset}"
        );
        assert!(offsets.insert(offset), "{offset} came twice");
        assert_eq!(offset % chunk_len, 0);
        assert_eq!(chunk.len(), chunk_len.min(whole.len() - offset));
        if in_order {
            assert_eq!(offset, covered);
        }
        covered += chunk.len();
        places.insert(chunk.as_ptr());
        assert_eq!(scan.file_len(), Some(whole.len() as u64));
    }
    assert_eq!(covered, whole.len());
    assert!(scan.next().await.is_none(), "the end stays the end");
    places.len()
}

#[test]
fn a_scan_returns_every_byte_once() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            // (chunk length, largest number of chunks)
            let sizes = match cfg!(miri) {
                true => vec![(3, 4)],
                false => vec![(1, 100), (7, 60), (512, 40), (4_096, 30), (5_000, 30), (128 << 10, 12)],
            };
            for (chunk_len, count) in sizes {
                let lens = [0, 1, chunk_len - 1, chunk_len, chunk_len * count, chunk_len * count + 1];
                for len in lens {
                    let whole = numbered(len);
                    let path = folder.file("a", &whole);
                    for depth in if cfg!(miri) { vec![2] } else { vec![1, 8, 64] } {
                        for in_order in [true, false] {
                            let scan = File::open(&path).await.unwrap().scan();
                            let scan = scan.chunk_len(chunk_len).depth(depth);
                            let scan = if in_order { scan } else { scan.unordered() };
                            let buffers = assert_scanned(scan, &whole, chunk_len, in_order).await;
                            assert!(buffers <= depth + 1, "{buffers} buffers at depth {depth}");
                        }
                    }
                }
            }
            turns(3).await;
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

/// However long the caller waits, at most `depth` chunks are read ahead.
#[test]
fn a_scan_reads_at_most_depth_chunks_ahead() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let count = if cfg!(miri) { 10 } else { 100 };
            let whole = numbered(50 * count);
            for depth in [1, 5] {
                let file = File::open(folder.file("a", &whole)).await.unwrap();
                let mut scan = file.scan().chunk_len(50).depth(depth);
                let tasks = windlass::counters().tasks;
                let mut held = vec![scan.next().await.unwrap().unwrap()];
                assert!(windlass::counters().tasks <= tasks + depth);
                turns(20).await;
                quiet().await;
                turns(3).await;
                assert_eq!(windlass::counters().ops, 0);
                // Chunks that were read ahead have the old contents; later reads have the new ones.
                std::fs::write(folder.join("a"), vec![0xAA; whole.len()]).unwrap();
                let mut old = 1;
                while let Some(chunk) = scan.next().await {
                    let chunk = chunk.unwrap();
                    old += usize::from(chunk[..] == whole[chunk.offset() as usize..][..50]);
                    held.push(chunk);
                }
                assert_eq!(held.len(), count);
                assert!(old <= depth, "{old} chunks were read at depth {depth}");
            }
        });
    });
}

/// A dropped `next` loses no chunk and returns none twice.
#[test]
fn a_dropped_next_loses_no_chunk() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(16 * rounds());
            let path = folder.file("a", &whole);
            for in_order in [true, false] {
                let scan = File::open(&path).await.unwrap().scan().chunk_len(100).depth(4);
                let mut scan = if in_order { scan } else { scan.unordered() };
                let mut random = Random::new(21);
                let (mut got, mut covered) = (vec![0; whole.len()], 0);
                loop {
                    let next = {
                        let mut next = Box::pin(scan.next());
                        let mut polled = poll_once(next.as_mut()).await;
                        for _ in 0..random.below(3) {
                            if polled.is_pending() {
                                turns(1).await;
                                polled = poll_once(next.as_mut()).await;
                            }
                        }
                        polled
                    };
                    let chunk = match next {
                        Poll::Pending => {
                            // Dropped.
                            turns(random.below(2)).await;
                            continue;
                        }
                        Poll::Ready(None) => break,
                        Poll::Ready(Some(chunk)) => chunk.unwrap(),
                    };
                    let offset = chunk.offset() as usize;
                    assert!(!in_order || offset == covered, "{offset} instead of {covered}");
                    got[offset..offset + chunk.len()].copy_from_slice(&chunk);
                    covered += chunk.len();
                }
                assert_eq!(covered, whole.len());
                assert!(got == whole);
            }
        });
    });
}

#[test]
fn a_dropped_scan_leaves_no_operation() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("a", numbered(100_000));
            for round in 0..rounds() / 10 {
                let mut scan = File::open(&path).await.unwrap().scan().chunk_len(1_000).depth(16);
                match round % 3 {
                    0 => drop(poll_once(Box::pin(scan.next()).as_mut()).await),
                    1 => drop(scan.next().await),
                    _ => {
                        let chunk = scan.next().await.unwrap().unwrap();
                        drop(scan);
                        // A chunk outlives its scan.
                        assert!(chunk[..] == numbered(1_000));
                        continue;
                    }
                }
                turns(round as u64 % 4).await;
            }
            turns(3).await;
            quiet().await;
            turns(3).await;
            assert_eq!((windlass::counters().ops, windlass::counters().tasks), (0, 1));
        });
    });
}

/// A file that shrinks during the scan is an error, and all bytes before it are right; a file that grows may show its
/// new bytes. Neither leaves a gap.
#[test]
fn a_scan_of_a_changing_file_has_no_gaps() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(400);
            let chunk_len = if cfg!(miri) { 50 } else { 10 };
            for (before, after) in [(400, 150), (400, 0), (400, 153), (200, 400), (207, 400), (0, 100)] {
                for depth in [1, 3] {
                    let path = folder.file("a", &whole[..before]);
                    let mut scan = File::open(&path)
                        .await
                        .unwrap()
                        .scan()
                        .chunk_len(chunk_len)
                        .depth(depth);
                    let mut got = Vec::new();
                    for _ in 0..2 {
                        if let Some(chunk) = scan.next().await {
                            got.extend_from_slice(&chunk.unwrap());
                        }
                    }
                    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
                    match before < after {
                        true => file.write_all(&whole[before..after]).unwrap(),
                        false => file.set_len(after as u64).unwrap(),
                    }
                    let mut failed = None;
                    while let Some(chunk) = scan.next().await {
                        match chunk {
                            Ok(chunk) => got.extend_from_slice(&chunk),
                            Err(error) => failed = Some(error),
                        }
                    }
                    assert!(whole.starts_with(&got), "{before} to {after} at depth {depth}");
                    // Only the chunk in which the file ended is missing.
                    assert!(got.len() + chunk_len > before.min(after));
                    match failed {
                        Some(error) => {
                            assert!(after < before, "{error}");
                            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                            let said = error.to_string();
                            assert!(
                                said.contains(path.to_str().unwrap()) && said.contains("shrank"),
                                "{said}"
                            );
                        }
                        None => assert!(got.len() >= before, "{before} to {after}: an end after {}", got.len()),
                    }
                    // These files end at a chunk boundary, so the scan needs one more read to see the end.
                    if before == 200 {
                        assert_eq!(got.len(), 400);
                    }
                }
            }

            // Truncated, and extended again past the chunk that has seen the end.
            let path = folder.file("a", &whole);
            let mut scan = File::open(&path).await.unwrap().scan().chunk_len(10).depth(2);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for offset in [0, 10] {
                assert_eq!(scan.next().await.unwrap().unwrap().offset(), offset);
                // Until the read-ahead has seen the end, and then the length.
                for _ in 0..3 {
                    turns(5).await;
                    quiet().await;
                }
                file.set_len(0).unwrap();
            }
            std::fs::write(&path, &whole).unwrap();
            let error = scan.next().await.unwrap().expect_err("a chunk behind a gap");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(scan.next().await.is_none(), "a chunk after an error");
        });
    });
}

#[test]
fn a_scan_returns_its_error_once() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let path = folder.file("some name", numbered(100));
            let file = OpenOptions::new().write(true).open(&path).await.unwrap();
            let mut scan = file.scan().chunk_len(10).depth(4);
            let error = scan.next().await.unwrap().unwrap_err();
            assert_eq!(windlass::os_code(&error), Some(codes::BAD_FD));
            assert!(error.to_string().contains("some name"), "{error}");
            assert!(scan.next().await.is_none());
            // Windows cannot open folders as files.
            if !cfg!(miri) && !cfg!(windows) {
                let mut scan = File::open(folder.path()).await.unwrap().scan();
                assert_eq!(scan.next().await.unwrap().unwrap_err().kind(), ErrorKind::IsADirectory);
                assert!(scan.next().await.is_none());
            }
            turns(3).await;
            quiet().await;
        });
    });
}

/// A reader returns the bytes in order, in portions of any size.
#[test]
fn a_scan_reader_returns_the_file_in_order() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let len = if cfg!(miri) { 300 } else { 30_000 };
            let whole = numbered(len);
            let path = folder.file("a", &whole);
            for (chunk_len, depth) in [(1_000, 1), (77, 8), (len, 2), (128 << 10, 8)] {
                let mut reader = File::open(&path)
                    .await
                    .unwrap()
                    .reader()
                    .chunk_len(chunk_len)
                    .depth(depth);
                let mut random = Random::new(22);
                let mut got = Vec::new();
                while got.len() < whole.len() {
                    match random.below(3) {
                        0 => {
                            let mut reading = Box::pin(reader.read(vec![0; 50]));
                            if let Poll::Ready((result, bytes)) = poll_once(reading.as_mut()).await {
                                result.unwrap();
                                got.extend(bytes);
                            }
                        }
                        1 => {
                            let (result, bytes) = reader.read(vec![9; 1 + random.below(200) as usize]).await;
                            assert_eq!(result.unwrap(), bytes.len());
                            got.extend(bytes);
                        }
                        _ => {
                            let bytes = reader.fill_buf().await.unwrap();
                            let count = random.below(bytes.len() as u64 + 1) as usize;
                            got.extend_from_slice(&bytes[..count]);
                            reader.consume(count);
                        }
                    }
                }
                assert!(got == whole);
                assert_eq!(
                    reader.read(Vec::new()).await.0.unwrap_err().kind(),
                    ErrorKind::InvalidInput
                );
                for _ in 0..2 {
                    assert_eq!(reader.read(vec![0; 9]).await.0.unwrap(), 0);
                    assert!(reader.fill_buf().await.unwrap().is_empty());
                }
                reader.consume(0);
            }
        });
    });
}

/// The same without ordering: the complete chunks come first, then the error. It is reported once, although
/// several reads ahead have failed.
#[test]
fn an_unordered_scan_of_a_file_that_shrinks_is_an_error() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let main = event_loop.run_until_complete(async {
            let folder = Folder::new();
            let whole = numbered(400);
            for after in [0, 5, 200, 399] {
                let path = folder.file("a", &whole);
                let scan = File::open(&path).await.unwrap().scan().chunk_len(10).depth(4);
                let mut scan = scan.unordered();
                scan.next().await.unwrap().unwrap();
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.set_len(after).unwrap();
                let error = loop {
                    match scan.next().await.expect("an error before the end") {
                        Ok(chunk) => assert!(whole[chunk.offset() as usize..].starts_with(&chunk)),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "cut to {after}: {error}");
                assert!(scan.next().await.is_none());
            }
        });
        main.unwrap();
        drop(event_loop);
        assert!(exceptions.borrow().is_empty(), "{exceptions:?}");
    });
}

/// sysfs reports a length of one page for every file, which must not count as shrinking.
#[cfg(target_os = "linux")]
#[test]
fn a_scan_accepts_a_sysfs_file_shorter_than_its_length() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let path = "/sys/kernel/mm/transparent_hugepage/enabled";
            let Ok(whole) = std::fs::read(path) else {
                return println!("-- SKIPPED: there is no {path}");
            };
            assert!(std::fs::metadata(path).unwrap().len() > whole.len() as u64);
            let mut scan = File::open(path).await.unwrap().scan();
            assert_eq!(&scan.next().await.unwrap().unwrap()[..], whole);
            assert!(scan.next().await.is_none());
        });
    });
}

/// procfs reports a length of zero for files that have contents.
#[cfg(target_os = "linux")]
#[test]
fn a_scan_reads_a_procfs_file_of_length_zero() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            for path in ["/proc/filesystems", "/proc/version"] {
                let whole = std::fs::read(path).unwrap();
                for depth in [1, 8] {
                    let mut scan = File::open(path).await.unwrap().scan().chunk_len(13).depth(depth);
                    let mut got = Vec::new();
                    while let Some(chunk) = scan.next().await {
                        got.extend_from_slice(&chunk.unwrap());
                    }
                    assert_eq!(got, whole);
                }
                assert_eq!(windlass::fs::read(path).await.unwrap(), whole);
            }
        });
    });
}
