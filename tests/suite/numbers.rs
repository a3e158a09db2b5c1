//! Descriptors' numbers: given away, duplicated, used again, closed behind our back. News of the one is never delivered to
//! the other, and nobody is woken for a descriptor that is not ours any more.

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
use crate::edges::with_std_peer;
use crate::support::{exceptions_of, keep_forever, on_every_kernel_driver, quiet, rounds};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(60);

/// A duplicate, under the lowest number from `least` on that is free.
fn duplicate(fd: &impl AsRawFd, least: RawFd) -> OwnedFd {
    // SAFETY: the call touches no memory, and the new number is nobody else's.
    unsafe {
        let duplicate = libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
        assert!(duplicate >= least, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(duplicate)
    }
}

/// Moves a socket under this number. What was there is closed by the same call, so no other thread gets the number.
fn move_to(socket: StdStream, number: RawFd) -> StdStream {
    // SAFETY: the call touches no memory; whoever had the number before has given it up, or is being robbed on purpose.
    unsafe {
        assert_eq!(libc::dup2(socket.as_raw_fd(), number), number);
        StdStream::from_raw_fd(number)
    }
}

/// Waits for bytes in vain, so that the driver knows of the descriptor what it ever will.
async fn read_in_vain(stream: &TcpStream) {
    timeout(2 * MS, stream.read([0u8; 8]))
        .await
        .expect_err("nothing was sent");
}

/// How many system calls the loop makes in a sleep, while the peer sends a byte ten times.
async fn enters_while_sending(mut peer: &StdStream) -> u64 {
    // What a cancel left to do is done by then.
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

/// A sleep takes two calls on epoll: whole milliseconds, and the rest. The machine may end one early.
const OF_A_SLEEP: u64 = 4;

/// A duplicate keeps the kernel's file open, so closing our number alone would not end its news.
#[test]
fn a_duplicate_wakes_nobody() {
    in_own_process("numbers::a_duplicate_wakes_nobody", &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (stream, peer) = with_std_peer();
                read_in_vain(&stream).await;
                let duplicate = StdStream::from(duplicate(&stream, 3));
                drop(stream);
                let enters = enters_while_sending(&peer).await;
                assert!(
                    enters <= OF_A_SLEEP,
                    "{enters} system calls for somebody else's descriptor"
                );
                let mut bytes = [0; 10];
                duplicate.set_nonblocking(false).expect("blocking");
                (&duplicate)
                    .read_exact(&mut bytes)
                    .expect("they are the duplicate's to read");
            });
            assert_eq!(case.event_loop().counters().driver.stale_events, 0);
        });
    });
}

/// The same for a stream that is given away; and it can come back.
#[test]
fn a_stream_that_is_given_away_wakes_nobody() {
    in_own_process(
        "numbers::a_stream_that_is_given_away_wakes_nobody",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                case.run(async {
                    let (mut stream, peer) = with_std_peer();
                    for round in 0..3 {
                        read_in_vain(&stream).await;
                        sleep(MS).await;
                        let given = stream.into_std().expect("nothing is under way");
                        let enters = enters_while_sending(&peer).await;
                        assert!(enters <= OF_A_SLEEP, "{enters} system calls in round {round}");
                        given.set_nonblocking(false).expect("blocking");
                        let mut bytes = [0; 9];
                        (&given).read_exact(&mut bytes).expect("read");
                        stream = TcpStream::from_std(given).expect("from_std");
                        let (result, byte) = timeout(SOON, stream.read([0u8; 8])).await.expect("one byte is left");
                        assert_eq!((result.expect("read"), byte[0]), (1, 7));
                        (&peer).write_all(b"again").expect("write");
                        let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 5])).await.expect("told");
                        result.expect("read");
                        assert_eq!(&bytes, b"again");
                    }
                });
            });
        },
    );
}

/// A foreign descriptor is closed behind our back, but a duplicate of it lives. Its number goes to a stream of ours. News of
/// the old one is for nobody.
#[test]
fn news_for_an_earlier_owner_of_a_number_is_not_delivered() {
    in_own_process(
        "numbers::news_for_an_earlier_owner_of_a_number_is_not_delivered",
        &[],
        || {
            on_every_kernel_driver(|case| {
                case.run(async move {
                    let (foreign, mut foreign_peer) = UnixStream::pair().expect("a pair");
                    let number = foreign.as_raw_fd();
                    let _alive = duplicate(&foreign, 3);
                    // Neither is told to us: that somebody else has the number now, and that the watching is over.
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
                        assert_eq!(after.stale_events - before.stale_events, 1, "it is recognised");
                        assert_eq!(after.completions - before.completions, 0, "and nobody is told");
                    }
                    assert!(!reading.is_finished());
                    peer.write_all(b"new").expect("write");
                    let (result, bytes) = timeout(SOON, reading).await.expect("told").expect("no panic");
                    assert_eq!(&bytes[..result.expect("read")], b"new");
                });
            });
        },
    );
}

/// Whoever waits for a descriptor whose number was taken from it is told, instead of waiting for the other's news.
#[test]
fn who_waits_for_a_stolen_number_is_told() {
    in_own_process("numbers::who_waits_for_a_stolen_number_is_told", &[], || {
        on_every_kernel_driver(|case| {
            // io_uring holds the file itself, so there the old one goes on.
            if !case.tries_first() {
                return;
            }
            let event_loop = case.event_loop();
            let told = exceptions_of(&event_loop);
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
                let (result, bytes) = timeout(SOON, stream.read([0u8; 8])).await.expect("told");
                assert_eq!(&bytes[..result.expect("read")], b"new");
                assert!(!windlass::remove_reader(&number), "the reader is gone already");
            });
            result.expect("the loop runs");
            assert_eq!(told.borrow().len(), 1, "{:?}", told.borrow());
            assert!(
                told.borrow()[0].contains("cannot be watched any more"),
                "{:?}",
                told.borrow()
            );
        });
    });
}

#[test]
fn high_numbers_are_as_good_as_low_ones() {
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
                    read_in_vain(&stream).await;
                    peer.write_all(b"high").expect("write");
                    let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 4])).await.expect("told");
                    result.expect("read");
                    stream.write_all(bytes).await.0.expect("write");
                    let mut echo = [0; 4];
                    peer.read_exact(&mut echo).expect("read");
                    assert_eq!(&echo, b"high");
                }
                drop(stream);
                assert_eq!(peer.read(&mut [0]).expect("read"), 0, "closing it ends the connection");
            }
        });
    });
}

/// One number, a new socket each time, with a read under way when the old one goes. Each gets its own bytes.
#[test]
fn a_number_that_is_used_again_starts_anew() {
    in_own_process("numbers::a_number_that_is_used_again_starts_anew", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                // High enough to be given to nobody else.
                let number = 500;
                for round in 0..rounds().min(2_000) {
                    let (stream, mut peer) = with_std_peer();
                    let stream = stream.into_std().expect("nothing is under way");
                    let stream = TcpStream::from_std(move_to(stream, number)).expect("from_std");
                    let tag = round.to_le_bytes();
                    match round % 4 {
                        // Known to the kernel when it goes, or not; with news on its way, or not.
                        0 => {}
                        1 => read_once(&stream).await,
                        2 => {
                            read_once(&stream).await;
                            peer.write_all(&tag).expect("write");
                        }
                        _ => {
                            read_once(&stream).await;
                            peer.write_all(&tag).expect("write");
                            let (result, bytes) = timeout(SOON, stream.read_exact([0u8; 8])).await.expect("told");
                            result.expect("read");
                            assert_eq!(bytes, tag, "somebody else's bytes");
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
