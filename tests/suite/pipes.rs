//! Pipes: bytes in one direction, with std at the other end.

use std::future::Future;
#[cfg(unix)]
use std::io::{self, Read};
use std::io::{ErrorKind, Write};
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::time::{Duration, Instant};

use windlass::io::pipe::pipe;
#[cfg(unix)]
use windlass::io::pipe::{Receiver, Sender};
use windlass::time::timeout;

use crate::bytes::numbered;
use crate::child::in_own_process;
use crate::support::{
    Random, codes, gather, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, quiet, rounds, turns,
};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn bytes_arrive_until_eof() {
    on_every_driver(|case| {
        case.run(async move {
            let (sender, receiver) = pipe().unwrap();
            sender.write_all("one ").await.0.unwrap();
            sender.write_all_vectored(vec!["two ", "three"]).await.0.unwrap();
            let (result, buf) = receiver.read_exact([0; 8]).await;
            result.unwrap();
            assert_eq!(&buf, b"one two ");
            let (result, bufs) = receiver.read_vectored(vec![[0; 2], [0; 2], [0; 2]]).await;
            let count = result.unwrap();
            assert_eq!(bufs.concat()[..count], b"three"[..count]);
            // Windows fills one buffer at a time.
            assert!(count == 5 || cfg!(windows) || case.has_quirks(), "{count}");
            if count < 5 {
                let (result, rest) = receiver.read_exact(vec![0; 5 - count]).await;
                result.unwrap();
                assert_eq!(rest, b"three"[count..]);
            }
            sender.write_all("last").await.0.unwrap();
            drop(sender);
            assert_eq!(gather(4, || receiver.read_managed()).await, b"last");
            // EOF is returned by every later read, of every kind.
            for _ in 0..2 {
                assert!(receiver.read_managed().await.unwrap().is_empty());
                assert_eq!(receiver.read([0; 4]).await.0.unwrap(), 0);
                assert_eq!(receiver.read_vectored(vec![[0; 4]]).await.0.unwrap(), 0);
                assert_eq!(
                    receiver.read_exact([0; 4]).await.0.unwrap_err().kind(),
                    ErrorKind::UnexpectedEof
                );
            }
        });
    });
}

#[test]
fn a_waiting_reader_gets_bytes_and_eof() {
    on_every_driver(|case| {
        case.run(async move {
            let (sender, receiver) = pipe().unwrap();
            for round in 0..20u8 {
                let mut reading = pin!(receiver.read_managed());
                assert!(poll_once(reading.as_mut()).await.is_pending());
                turns(u64::from(round % 3)).await;
                sender.write_all([round; 3]).await.0.unwrap();
                let first = timeout(SOON, reading).await.expect("bytes").unwrap();
                assert!(first.len() == 3 || case.has_quirks(), "{first:?}");
                let rest = gather(3 - first.len(), || receiver.read_managed()).await;
                assert_eq!([&*first, &*rest].concat(), [round; 3]);
            }
            let mut reading = pin!(receiver.read([0; 4]));
            assert!(poll_once(reading.as_mut()).await.is_pending());
            turns(2).await;
            drop(sender);
            assert_eq!(timeout(SOON, reading).await.expect("the end").0.unwrap(), 0);
        });
    });
}

#[test]
fn writing_without_a_reader_is_a_broken_pipe() {
    on_every_driver(|case| {
        case.run(async {
            let (sender, receiver) = pipe().unwrap();
            drop(receiver);
            for _ in 0..2 {
                let error = sender.write_all("x").await.0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                assert_eq!(windlass::os_code(&error), Some(codes::BROKEN_PIPE));
            }
            let error = sender.write_all_vectored(vec!["x", "y"]).await.0.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            // A writer that waits for space fails too.
            let (sender, receiver) = pipe().unwrap();
            let writing = windlass::spawn(async move { sender.write_all(vec![7; 1 << 20]).await.0 });
            receiver.read_exact(vec![0; 1000]).await.0.unwrap();
            turns(3).await;
            drop(receiver);
            let error = timeout(SOON, writing)
                .await
                .expect("the write fails")
                .unwrap()
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    });
}

/// A writer waits while the pipe is full and continues when there is space: a slow reader bounds the memory used.
#[test]
fn a_full_pipe_makes_the_writer_wait() {
    on_every_driver(|case| {
        case.run(async {
            const LEN: usize = 1 << 20;
            let (sender, receiver) = pipe().unwrap();
            let mut writing = Box::pin(sender.write_all(numbered(LEN)));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {
                assert!(
                    poll_once(writing.as_mut()).await.is_pending(),
                    "a pipe holds less than 1 MiB"
                );
                turns(1).await;
            }
            drop(writing);
            // The pipe contains a prefix of the dropped write, and then only the next write.
            let writing = windlass::spawn(async move { sender.write_all("end").await.0.unwrap() });
            let mut bytes = Vec::new();
            loop {
                let some = timeout(SOON, receiver.read_managed()).await.expect("more").unwrap();
                if some.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&some);
            }
            writing.await.unwrap();
            assert!(bytes.len() < LEN && bytes.ends_with(b"end"), "{} bytes", bytes.len());
            let sent = bytes.len() - 3;
            // Windows may cancel the whole write.
            assert!(sent >= 4096 || cfg!(windows), "{sent}");
            assert!(bytes[..sent] == numbered(LEN)[..sent]);
        });
    });
}

#[test]
fn large_transfers_work_with_both_kinds_of_reads() {
    on_every_driver(|case| {
        case.run(async {
            let len = 3 << 20;
            let (sender, receiver) = pipe().unwrap();
            let writing = windlass::spawn(async move { sender.write_all(numbered(len)).await.0.unwrap() });
            let mut bytes = Vec::new();
            for round in 0.. {
                let some = match round % 2 {
                    0 => receiver.read_managed().await.unwrap().to_vec(),
                    _ => receiver.read(Vec::with_capacity(10_000)).await.1,
                };
                if some.is_empty() {
                    break;
                }
                bytes.extend(some);
            }
            writing.await.unwrap();
            assert!(bytes == numbered(len));
        });
    });
}

#[test]
fn dropped_reads_lose_no_byte() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let mut random = Random::new(3);
            let len = rounds() * 40;
            let (receiver, mut theirs) = crate::support::pipe_from_std();
            // std writes on its own thread, and waits for a dropped read now and then.
            let (drops, dropped_one) = std::sync::mpsc::channel();
            let writer = std::thread::spawn(move || {
                let bytes = numbered(len);
                for (number, chunk) in bytes.chunks(97).enumerate() {
                    if number % 16 == 0 {
                        dropped_one.recv().unwrap();
                    }
                    theirs.write_all(chunk).unwrap();
                }
            });
            let mut bytes = Vec::new();
            let mut dropped = 0;
            while bytes.len() < len {
                let want = 1 + random.below(200) as usize;
                let patience = random.below(3);
                let before = dropped;
                match random.below(3) {
                    0 => {
                        let mut reading = pin!(receiver.read(Vec::with_capacity(want)));
                        match poll_some(patience, reading.as_mut()).await {
                            Some((result, some)) => {
                                assert_eq!(result.unwrap(), some.len());
                                bytes.extend(some);
                            }
                            None => dropped += 1,
                        }
                    }
                    1 => {
                        let mut reading = pin!(receiver.read_managed());
                        match poll_some(patience, reading.as_mut()).await {
                            Some(some) => bytes.extend_from_slice(&some.unwrap()),
                            None => dropped += 1,
                        }
                    }
                    _ => {
                        let want = want.min(len - bytes.len());
                        let mut reading = pin!(receiver.read_exact(vec![0; want]));
                        match poll_some(patience, reading.as_mut()).await {
                            Some((result, some)) => {
                                result.unwrap();
                                bytes.extend(some);
                            }
                            None => dropped += 1,
                        }
                    }
                }
                if dropped > before {
                    // The writer has ended if this fails.
                    let _ = drops.send(());
                }
            }
            writer.join().unwrap();
            assert!(dropped >= len / 97 / 16, "{dropped} reads were dropped");
            assert!(bytes == numbered(len), "bytes are lost or out of order");
            assert!(receiver.read_managed().await.unwrap().is_empty());
        });
    });
}

/// Polls a future `times + 1` times, with a turn of the loop in between; `None` if it is still pending.
async fn poll_some<F: Future>(times: u64, mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    for _ in 0..=times {
        if let std::task::Poll::Ready(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        turns(1).await;
    }
    None
}

#[cfg(unix)]
#[test]
fn ends_convert_from_std_and_back() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (theirs, mut ours) = io::pipe().unwrap();
            let receiver = Receiver::from_fd(theirs).unwrap();
            ours.write_all(b"from std").unwrap();
            assert_eq!(&*receiver.read_managed().await.unwrap(), b"from std");
            // Refused while a read is in flight or its bytes are still unread.
            {
                let mut reading = pin!(receiver.read([0; 16]));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                ours.write_all(b"kept").unwrap();
            }
            let refused = receiver.into_fd().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
            let receiver = refused.into_inner();
            assert_eq!(&*receiver.read_managed().await.unwrap(), b"kept");
            let number = receiver.as_raw_fd();
            let fd = receiver.into_fd().unwrap();
            assert_eq!(fd.as_raw_fd(), number);
            let mut plain = io::PipeReader::from(fd);
            let mut buf = [0; 16];
            assert_eq!(plain.read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            ours.write_all(b"plain").unwrap();
            assert_eq!(plain.read(&mut buf).unwrap(), 5);

            let (mut ours, theirs) = io::pipe().unwrap();
            let sender = Sender::from_fd(theirs).unwrap();
            sender.write_all("to std").await.0.unwrap();
            drop(sender.into_fd().unwrap());
            let mut text = String::new();
            ours.read_to_string(&mut text).unwrap();
            assert_eq!(text, "to std");
        });
    });
}

/// Pipes that are dropped together with an abandoned read.
async fn abandon_reads(count: usize) {
    for _ in 0..count {
        let (sender, receiver) = pipe().unwrap();
        {
            let mut reading = pin!(receiver.read_managed());
            assert!(poll_once(reading.as_mut()).await.is_pending());
        }
        sender.write_all("x").await.0.unwrap();
    }
    quiet().await;
}

#[test]
fn ends_close_and_nothing_leaks() {
    in_own_process("pipes::ends_close_and_nothing_leaks", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                // One-time costs and cached resources are not leaks.
                abandon_reads(rounds().min(1_000)).await;
                let before = open_descriptors();
                abandon_reads(rounds().min(1_000)).await;
                assert_eq!(open_descriptors(), before);
            });
        });
    });
}

#[cfg(unix)]
#[test]
fn ends_close_on_exec() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (sender, receiver) = pipe().unwrap();
            for fd in [sender.as_raw_fd(), receiver.as_raw_fd()] {
                // SAFETY: the descriptor is open, and fcntl(2) only reads its flags.
                let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
                assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            }
        });
    });
}
