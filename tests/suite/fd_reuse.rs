//! Descriptor numbers that are given away, duplicated, reused, or closed by foreign code. An event for one file is
//! never delivered to another, and no task is woken for a descriptor that the loop no longer owns.

use std::io::{Read, Write};
use std::net::TcpStream as StdStream;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::AsyncFd;
use windlass::net::TcpStream;
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};

use crate::child::{UNDISTURBED, in_own_process};
use crate::readiness::with_std_peer;
use crate::support::{exceptions_of, keep_forever, on_every_kernel_driver, quiet, rounds};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(60);

/// Duplicates the descriptor to the lowest free number at or above `least`.
fn duplicate(fd: &impl AsRawFd, least: RawFd) -> OwnedFd {
    // SAFETY: fcntl(2) touches no memory, and the new descriptor has no other owner.
    unsafe {
        let duplicate = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
        assert!(duplicate >= least, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(duplicate)
    }
}

/// Moves a socket to this number with dup2, which closes the old file in the same call, so no other thread can get the
/// number.
fn move_to(socket: StdStream, number: RawFd) -> StdStream {
    // SAFETY: dup2(2) touches no memory; the number's previous owner has released it, or the test takes it on purpose.
    unsafe {
        assert_eq!(libc::dup2(socket.as_raw_fd(), number), number);
        StdStream::from_raw_fd(number)
    }
}

/// Waits for bytes that never come, so that the driver has registered the descriptor.
async fn read_until_timeout(stream: &TcpStream) {
    timeout(2 * MS, stream.read([0u8; 8]))
        .await
        .expect_err("nothing was sent");
}

/// The number of system calls that the loop makes during a sleep while the peer sends ten single bytes.
async fn syscalls_while_peer_sends(mut peer: &StdStream) -> u64 {
    // Completes what a cancelled read left pending.
    quiet().await;
    sleep(5 * MS).await;
    let sending = peer.try_clone().expect("a duplicate");
    let before = windlass::counters().driver.enters;
    let thread = std::thread::spawn(move || {
        for _ in 0..10 {
            std::thread::sleep(3 * MS);
            (&sending).write_all(&[7]).expect("write");
        }
    });
    let mut sleeps = 0;
    while sleeps == 0 || !thread.is_finished() {
        sleep(100 * MS).await;
        sleeps += 1;
    }
    let enters = windlass::counters().driver.enters - before;
    thread.join().expect("no panic");
    peer.flush().expect("flush");
    enters.div_ceil(sleeps)
}

/// On epoll a sleep takes two calls, one for the whole milliseconds and one for the rest; a loaded machine may need
/// more.
const CALLS_PER_SLEEP: u64 = 4;

/// A duplicate keeps the open file description alive, so closing only our number would leave it registered in epoll.
#[test]
fn a_duplicate_of_a_closed_fd_wakes_no_task() {
    in_own_process(
        "fd_reuse::a_duplicate_of_a_closed_fd_wakes_no_task",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                case.run(async {
                    let (stream, peer) = with_std_peer();
                    read_until_timeout(&stream).await;
                    let duplicate = StdStream::from(duplicate(&stream, 3));
                    drop(stream);
                    let enters = syscalls_while_peer_sends(&peer).await;
                    assert!(
                        enters <= CALLS_PER_SLEEP,
                        "{enters} system calls for a descriptor that is not ours"
                    );
                    let mut bytes = [0; 10];
                    duplicate.set_nonblocking(false).expect("blocking");
                    (&duplicate)
                        .read_exact(&mut bytes)
                        .expect("the duplicate reads the bytes");
                });
                assert_eq!(case.event_loop().counters().driver.stale_events, 0);
            });
        },
    );
}

/// The same for a stream that was converted to std, and back.
#[test]
fn a_stream_converted_to_std_wakes_no_task() {
    in_own_process(
        "fd_reuse::a_stream_converted_to_std_wakes_no_task",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                case.run(async {
                    let (mut stream, peer) = with_std_peer();
                    for round in 0..3 {
                        read_until_timeout(&stream).await;
                        sleep(MS).await;
                        let given = stream.into_std().expect("nothing is under way");
                        let enters = syscalls_while_peer_sends(&peer).await;
                        assert!(enters <= CALLS_PER_SLEEP, "{enters} system calls in round {round}");
                        given.set_nonblocking(false).expect("blocking");
                        let mut bytes = [0; 9];
                        (&given).read_exact(&mut bytes).expect("read");
                        stream = TcpStream::from_std(given).expect("from_std");
                        let (result, byte) = timeout(SOON, stream.read([0u8; 8])).await.expect("one byte is left");
                        assert_eq!((result.expect("read"), byte[0]), (1, 7));
                        (&peer).write_all(b"again").expect("write");
                        let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 5]))
                            .await
                            .expect("a result in time");
                        result.expect("read");
                        assert_eq!(&bytes, b"again");
                    }
                });
            });
        },
    );
}

/// A foreign descriptor is closed without telling the loop while a duplicate lives on, and a stream of the loop gets
/// its number. Events of the old file are discarded.
#[test]
fn an_event_for_the_previous_owner_of_an_fd_is_discarded() {
    in_own_process(
        "fd_reuse::an_event_for_the_previous_owner_of_an_fd_is_discarded",
        &[],
        || {
            on_every_kernel_driver(|case| {
                case.run(async move {
                    let (foreign, mut foreign_peer) = UnixStream::pair().expect("a pair");
                    let number = foreign.as_raw_fd();
                    let _alive = duplicate(&foreign, 3);
                    // Leaked: the loop learns neither that the number has a new owner nor that the watch has ended.
                    keep_forever(AsyncFd::new(foreign).expect("it can be watched"));
                    let (stream, mut peer) = with_std_peer();
                    let stream = stream.into_std().expect("nothing is under way");
                    let stream = Rc::new(TcpStream::from_std(move_to(stream, number)).expect("from_std"));
                    let reading = windlass::spawn({
                        let stream = stream.clone();
                        async move { stream.read([0u8; 8]).await }
                    });
                    sleep(5 * MS).await;
                    let before = windlass::counters().driver;
                    foreign_peer.write_all(b"for the old one").expect("write");
                    sleep(5 * MS).await;
                    let after = windlass::counters().driver;
                    if case.tries_first() {
                        assert_eq!(
                            after.stale_events - before.stale_events,
                            1,
                            "the event is counted as stale"
                        );
                        assert_eq!(after.completions - before.completions, 0, "and completes no operation");
                    }
                    assert!(!reading.is_finished());
                    peer.write_all(b"new").expect("write");
                    let (result, bytes) = timeout(SOON, reading)
                        .await
                        .expect("a result in time")
                        .expect("no panic");
                    assert_eq!(&bytes[..result.expect("read")], b"new");
                });
            });
        },
    );
}

/// A reader of a descriptor whose number was taken over fails, instead of waiting for events of the new file.
#[test]
fn a_reader_whose_fd_was_taken_over_fails() {
    in_own_process("fd_reuse::a_reader_whose_fd_was_taken_over_fails", &[], || {
        on_every_kernel_driver(|case| {
            // io_uring holds a reference to the file itself, so there the old watch goes on.
            if !case.tries_first() {
                return;
            }
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            let result = event_loop.run_until_complete(async move {
                let (foreign, _foreign_peer) = UnixStream::pair().expect("a pair");
                let number = foreign.into_raw_fd();
                windlass::add_reader(&number, || panic!("nothing was sent to it")).expect("it can be watched");
                yield_now().await;
                let (stream, mut peer) = with_std_peer();
                let stream = stream.into_std().expect("nothing is under way");
                let stream = TcpStream::from_std(move_to(stream, number)).expect("from_std");
                sleep(MS).await;
                peer.write_all(b"new").expect("write");
                let (result, bytes) = timeout(SOON, stream.read([0u8; 8])).await.expect("a result in time");
                assert_eq!(&bytes[..result.expect("read")], b"new");
                assert!(!windlass::remove_reader(&number), "the reader was removed already");
            });
            result.expect("the loop runs");
            assert_eq!(exceptions.borrow().len(), 1, "{:?}", exceptions.borrow());
            assert!(
                exceptions.borrow()[0].contains("can no longer be watched"),
                "{:?}",
                exceptions.borrow()
            );
        });
    });
}

#[test]
fn high_fd_numbers_work() {
    on_every_kernel_driver(|case| {
        case.run(async {
            for least in [900, 300, 901] {
                let (stream, mut peer) = with_std_peer();
                let stream = stream.into_std().expect("nothing is under way");
                let high = StdStream::from(duplicate(&stream, least));
                drop(stream);
                assert!(high.as_raw_fd() >= least);
                let stream = TcpStream::from_std(high).expect("from_std");
                for _ in 0..3 {
                    read_until_timeout(&stream).await;
                    peer.write_all(b"high").expect("write");
                    let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 4]))
                        .await
                        .expect("a result in time");
                    result.expect("read");
                    stream.write_all(bytes).await.0.expect("write");
                    let mut echo = [0; 4];
                    peer.read_exact(&mut echo).expect("read");
                    assert_eq!(&echo, b"high");
                }
                drop(stream);
                assert_eq!(
                    peer.read(&mut [0]).expect("read"),
                    0,
                    "the closed stream ends the connection"
                );
            }
        });
    });
}

/// One number, a new socket in each round, and a read in flight when the old socket closes. Each socket receives its
/// own bytes.
#[test]
fn a_reused_fd_starts_with_clean_state() {
    in_own_process("fd_reuse::a_reused_fd_starts_with_clean_state", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                // High enough that no other descriptor gets it.
                let number = 500;
                for round in 0..rounds().min(2_000) {
                    let (stream, mut peer) = with_std_peer();
                    let stream = stream.into_std().expect("nothing is under way");
                    let stream = TcpStream::from_std(move_to(stream, number)).expect("from_std");
                    let tag = round.to_le_bytes();
                    match round % 4 {
                        // Registered with the kernel when it closes, or not; with an event pending, or not.
                        0 => {}
                        1 => read_once(&stream).await,
                        2 => {
                            read_once(&stream).await;
                            peer.write_all(&tag).expect("write");
                        }
                        _ => {
                            read_once(&stream).await;
                            peer.write_all(&tag).expect("write");
                            let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 8]))
                                .await
                                .expect("a result in time");
                            result.expect("read");
                            assert_eq!(bytes, tag, "bytes of another socket");
                            peer.write_all(&[0; 3]).expect("write");
                        }
                    }
                    peer.set_nonblocking(true).expect("non-blocking");
                    let error = peer.read(&mut [0]).expect_err("nothing was written");
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    drop(stream);
                    // SAFETY: the call touches no memory.
                    while unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
                        yield_now().await;
                    }
                }
            });
        });
    });
}

/// Starts a read and drops it.
async fn read_once(stream: &TcpStream) {
    timeout(Duration::ZERO, stream.read([0u8; 8])).await.ok();
}
