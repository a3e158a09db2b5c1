//! Watching foreign kernel descriptors: pipes, sockets, eventfds, timerfds, and files that cannot be watched.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use windlass::io::AsyncFd;
use windlass::time::sleep;
use windlass::{EventLoop, add_reader, add_writer, remove_reader, remove_writer};

use crate::child::in_own_process;
use crate::support::{
    exceptions_of, is_interrupted, on_every_kernel_driver, open_descriptors, reset_on_close, rounds, turns,
};

/// A pipe whose ends do not block.
pub(crate) fn pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    set_nonblocking(&reader);
    set_nonblocking(&writer);
    (reader, writer)
}

fn set_nonblocking(fd: &impl AsRawFd) {
    // SAFETY: fcntl(2) changes a flag of an open descriptor and touches no memory of ours.
    let result = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(result, 0, "O_NONBLOCK: {}", io::Error::last_os_error());
}

pub(crate) fn unix_pair() -> (UnixStream, UnixStream) {
    let (one, two) = UnixStream::pair().expect("a pair");
    one.set_nonblocking(true).expect("set");
    two.set_nonblocking(true).expect("set");
    (one, two)
}

fn tcp_pair() -> (StdStream, StdStream) {
    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let one = StdStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (two, _) = listener.accept().expect("accept");
    one.set_nonblocking(true).expect("set");
    two.set_nonblocking(true).expect("set");
    (one, two)
}

/// Atomically makes `number` refer to the same file as `source` and closes the previous file.
fn replace_file_of(number: BorrowedFd<'_>, source: &impl AsFd) {
    let source = source.as_fd().as_raw_fd();
    // SAFETY: both are open descriptors of this test; dup2(2) touches no memory of ours.
    let result = unsafe { libc::dup2(source, number.as_raw_fd()) };
    assert_eq!(result, number.as_raw_fd(), "dup2: {}", io::Error::last_os_error());
}

/// Reads one byte per call: the callback runs for each byte, for later bytes, and for EOF.
fn assert_called_for_every_byte(
    event_loop: &EventLoop,
    name: &str,
    reader: impl Read + AsRawFd + 'static,
    mut writer: impl Write,
) {
    const COUNT: usize = 50;
    let got = Rc::new(RefCell::new(Vec::new()));
    let ended = Rc::new(Cell::new(false));
    let other_runs = Rc::new(Cell::new(0));
    let fd = Number(reader.as_raw_fd());
    let mut reader = reader;
    event_loop
        .add_reader(&fd, {
            let (got, ended, other_runs) = (got.clone(), ended.clone(), other_runs.clone());
            let fd = fd.0;
            move || {
                let mut byte = [0];
                match reader.read(&mut byte).expect("the descriptor is readable") {
                    0 => {
                        ended.set(true);
                        remove_reader(&Number(fd));
                    }
                    _ => got.borrow_mut().push((byte[0], other_runs.get())),
                }
            }
        })
        .expect("it can be watched");
    let bytes: Vec<u8> = (0..COUNT as u8).collect();
    event_loop
        .run_until_complete(async {
            writer.write_all(&bytes).expect("the buffer has room");
            while got.borrow().len() < COUNT {
                other_runs.set(other_runs.get() + 1);
                turns(1).await;
            }
            assert!(
                got.borrow().iter().map(|(byte, _)| *byte).eq(0..COUNT as u8),
                "{name}: {got:?}"
            );
            // Other tasks run between two calls.
            let fair = got.borrow().windows(2).all(|pair| pair[0].1 < pair[1].1);
            assert!(fair, "{name}: {got:?}");
            turns(5).await;
            assert_eq!(got.borrow().len(), COUNT, "{name}: drained");
            for more in 0..3 {
                sleep(Duration::from_millis(1)).await;
                writer.write_all(&[more]).expect("the buffer has room");
                while got.borrow().len() == COUNT + more as usize {
                    sleep(Duration::from_micros(100)).await;
                }
            }
            drop(writer);
            while !ended.get() {
                sleep(Duration::from_micros(100)).await;
            }
        })
        .expect("the loop runs");
    assert!(!event_loop.remove_reader(&fd), "{name}: the callback removed itself");
}

/// A descriptor number that can be watched.
struct Number(RawFd);

impl AsRawFd for Number {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

#[test]
fn a_reader_is_called_until_drained_and_again_for_new_bytes() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, writer) = pipe();
        assert_called_for_every_byte(&event_loop, "a pipe", reader, writer);
        let (reader, writer) = unix_pair();
        assert_called_for_every_byte(&event_loop, "a Unix stream", reader, writer);
        let (reader, writer) = tcp_pair();
        assert_called_for_every_byte(&event_loop, "a TCP stream", reader, writer);
        assert_eq!(event_loop.counters().tasks, 0);
        event_loop.run_until_complete(turns(3)).expect("the loop runs");
        assert_eq!(event_loop.counters().in_flight, 0);
    });
}

#[test]
fn a_reader_is_called_for_a_reset() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (mut ours, theirs) = tcp_pair();
        let error = Rc::new(Cell::new(None));
        let fd = Number(ours.as_raw_fd());
        event_loop
            .add_reader(&fd, {
                let (error, handle) = (error.clone(), event_loop.handle());
                move || {
                    // The kernel reports the reset once.
                    let again = ours.read(&mut [0; 8]).err().map(|error| error.kind());
                    error.set(error.get().or(again));
                    handle.stop().expect("the loop is open");
                }
            })
            .expect("it can be watched");
        event_loop.run_until_complete(turns(5)).expect("the loop runs");
        assert_eq!(error.get(), None);
        reset_on_close(&theirs);
        drop(theirs);
        event_loop.run_forever().expect("the loop runs");
        assert_eq!(error.get(), Some(io::ErrorKind::ConnectionReset));
        assert!(event_loop.remove_reader(&fd));
    });
}

/// Fills a stream, and returns the number of bytes written.
fn fill(mut writer: impl Write) -> usize {
    let mut count = 0;
    loop {
        match writer.write(&[7; 4096]) {
            Ok(written) => count += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads `count` bytes.
fn drain(mut reader: impl Read, mut count: usize) {
    let mut bytes = vec![0; 65_536];
    while count > 0 {
        let wanted = count.min(bytes.len());
        count -= reader.read(&mut bytes[..wanted]).expect("the bytes have arrived");
    }
}

#[test]
fn a_writer_is_called_when_writable_and_when_the_reader_closes() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (one, two) = unix_pair();
            let (reader, writer) = pipe();
            let ours: [OwnedFd; 2] = [one.into(), writer.into()];
            let theirs: [OwnedFd; 2] = [two.into(), reader.into()];
            for (ours, theirs) in ours.into_iter().zip(theirs) {
                let calls = Rc::new(Cell::new(0));
                let (file, theirs) = (File::from(ours), File::from(theirs));
                for _ in 0..3 {
                    let count = fill(&file);
                    add_writer(&file, {
                        let calls = calls.clone();
                        move || calls.set(calls.get() + 1)
                    })
                    .expect("it can be watched");
                    sleep(Duration::from_millis(2)).await;
                    assert_eq!(calls.get(), 0, "the buffer is full");
                    drain(&theirs, count);
                    while calls.get() < 3 {
                        turns(1).await;
                    }
                    assert!(remove_writer(&file));
                    calls.set(0);
                }
                fill(&file);
                add_writer(&file, {
                    let calls = calls.clone();
                    move || calls.set(calls.get() + 1)
                })
                .expect("it can be watched");
                turns(5).await;
                assert_eq!(calls.get(), 0);
                drop(theirs);
                while calls.get() < 3 {
                    turns(1).await;
                }
                assert!(remove_writer(&file));
            }
        });
    });
}

/// All pipes get the same descriptor number; each reader must see the bytes of its own pipe only.
#[test]
fn a_reused_descriptor_number_is_watched_anew() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (watched, _writer) = pipe();
            let mut watched = watched;
            for round in 0..rounds().min(300) {
                let (next, mut writer) = pipe();
                // The old registration is removed first, or left in place.
                if round % 2 == 0 {
                    remove_reader(&watched);
                }
                replace_file_of(watched.as_fd(), &next);
                drop(next);
                let call_count = Rc::new(Cell::new(0));
                add_reader(&watched, {
                    let call_count = call_count.clone();
                    move || call_count.set(call_count.get() + 1)
                })
                .expect("it can be watched");
                turns(if round % 3 == 0 { 0 } else { 3 }).await;
                assert_eq!(call_count.get(), 0, "round {round}");
                writer.write_all(&[round as u8]).expect("the pipe has room");
                let begun = std::time::Instant::now();
                while call_count.get() == 0 {
                    assert!(
                        begun.elapsed() < Duration::from_secs(60),
                        "round {round}: the reader is never called"
                    );
                    turns(1).await;
                }
                let mut byte = [0];
                watched.read_exact(&mut byte).expect("the byte has arrived");
                assert_eq!(byte, [round as u8]);
                // The reader is waiting when the next pipe replaces this one.
                turns(3).await;
            }
            assert!(remove_reader(&watched));
        });
    });
}

#[test]
fn watching_files_and_folders_is_refused_on_every_driver() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let file = File::open(std::env::current_exe().expect("this program")).expect("it can be read");
        let folder = File::open("/").expect("it can be opened");
        let plain = io::Error::from_raw_os_error(libc::EPERM);
        for target in [&file, &folder] {
            let fd = target.as_raw_fd();
            let wrapped = async { AsyncFd::new(Number(fd)).map(drop) };
            let errors = [
                event_loop.add_reader(target, || {}),
                event_loop.add_writer(target, || {}),
                event_loop.run_until_complete(wrapped).expect("the loop runs"),
            ];
            for error in errors {
                let error = error.expect_err("a file is always ready");
                assert_eq!(error.kind(), plain.kind(), "{error}");
                assert_eq!(windlass::os_code(&error), Some(libc::EPERM), "{error}");
                assert!(error.to_string().contains("file or folder"), "{error}");
                assert!(error.to_string().contains(&format!("descriptor {fd}")), "{error}");
            }
            assert!(!event_loop.remove_reader(target));
        }
    });
}

/// Standard input is often such a device.
#[test]
fn devices_that_are_always_ready_can_be_watched() {
    on_every_kernel_driver(|case| {
        if !cfg!(target_os = "linux") {
            return;
        }
        case.run(async {
            let null = AsyncFd::new(File::open("/dev/null").expect("/dev/null exists")).expect("it can be watched");
            null.readable().await.expect("always readable");
            assert_eq!(null.read_with(|mut file| file.read(&mut [0; 8])).await.expect("EOF"), 0);
            let calls = Rc::new(Cell::new(0));
            let zero = File::open("/dev/zero").expect("/dev/zero exists");
            add_reader(&zero, {
                let calls = calls.clone();
                move || calls.set(calls.get() + 1)
            })
            .expect("it can be watched");
            turns(10).await;
            assert!(calls.get() > 3);
            assert!(remove_reader(&zero));
        });
    });
}

#[test]
fn a_closed_watched_descriptor_is_reported_once_and_costs_nothing() {
    let test = "descriptors::a_closed_watched_descriptor_is_reported_once_and_costs_nothing";
    in_own_process(test, &[], || {
        on_every_kernel_driver(|case| {
            let event_loop = case.event_loop();
            let exceptions = exceptions_of(&event_loop);
            // Closed by its own callback.
            let (reader, writer) = pipe();
            let number = Number(reader.as_raw_fd());
            let mut reader = Some(reader);
            let calls = Rc::new(Cell::new(0));
            (&writer).write_all(b"x").expect("the pipe has room");
            event_loop
                .add_reader(&number, {
                    let calls = calls.clone();
                    move || {
                        calls.set(calls.get() + 1);
                        drop(reader.take());
                    }
                })
                .expect("it can be watched");
            event_loop.run_until_complete(turns(10)).expect("the loop runs");
            assert_eq!(calls.get(), 1);
            assert_eq!(exceptions.borrow().len(), 1, "{exceptions:?}");
            assert!(
                exceptions.borrow()[0].contains("can no longer be watched"),
                "{exceptions:?}"
            );
            assert!(!event_loop.remove_reader(&number));
            // Closed elsewhere, while a duplicate is open.
            let (reader, mut writer) = pipe();
            let duplicate = reader.try_clone().expect("a duplicate");
            let number = Number(reader.as_raw_fd());
            event_loop.add_reader(&number, || {}).expect("it can be watched");
            event_loop.run_until_complete(turns(3)).expect("the loop runs");
            drop(reader);
            writer.write_all(b"x").expect("the pipe has room");
            event_loop
                .run_until_complete(sleep(Duration::from_millis(5)))
                .expect("the loop runs");
            assert_eq!(exceptions.borrow().len(), 2, "{exceptions:?}");
            let before = event_loop.counters().turns;
            event_loop
                .run_until_complete(sleep(Duration::from_millis(20)))
                .expect("the loop runs");
            let turned = event_loop.counters().turns - before;
            assert!(turned < 10 || is_interrupted(), "{turned} turns");
            drop(duplicate);
        });
    });
}

/// Bytes for a duplicate of a descriptor that is no longer watched must not wake the loop.
#[test]
fn a_duplicate_of_an_unwatched_descriptor_does_not_wake_the_loop() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, writer) = unix_pair();
        let duplicate = reader.try_clone().expect("a duplicate");
        event_loop.add_reader(&reader, || {}).expect("it can be watched");
        event_loop.run_until_complete(turns(3)).expect("the loop runs");
        assert!(event_loop.remove_reader(&reader));
        drop(reader);
        assert_sleeps_through(&event_loop, &duplicate, &writer);
        // The same with `AsyncFd`, which closes the descriptor itself.
        let ours = duplicate.try_clone().expect("a duplicate");
        event_loop
            .run_until_complete(async {
                let ours = AsyncFd::new(ours).expect("it can be watched");
                let waited = windlass::time::timeout(Duration::from_millis(1), ours.readable()).await;
                assert!(waited.is_err(), "nothing was sent");
            })
            .expect("the loop runs");
        assert_sleeps_through(&event_loop, &duplicate, &writer);
        // The same when `AsyncFd` returns the descriptor.
        let ours = event_loop
            .run_until_complete(async {
                let ours = AsyncFd::new(duplicate.try_clone().expect("a duplicate")).expect("it can be watched");
                let waited = windlass::time::timeout(Duration::from_millis(1), ours.readable()).await;
                assert!(waited.is_err(), "nothing was sent");
                ours.into_inner()
            })
            .expect("the loop runs");
        assert_sleeps_through(&event_loop, &ours, &writer);
    });
}

/// Asserts that the loop sleeps without waking while bytes arrive on an unwatched stream.
fn assert_sleeps_through(event_loop: &EventLoop, mut reader: &UnixStream, mut writer: &UnixStream) {
    let before = event_loop.counters();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..30 {
                writer.write_all(b"x").expect("the buffer has room");
                std::thread::sleep(Duration::from_micros(500));
                // Emptied, so that the next byte is a new edge.
                reader.read_exact(&mut [0]).expect("the byte has arrived");
            }
        });
        event_loop
            .run_until_complete(sleep(Duration::from_millis(40)))
            .expect("the loop runs");
    });
    let after = event_loop.counters();
    let entered = after.driver.enters - before.driver.enters;
    assert!(entered <= 10 || is_interrupted(), "{entered} system calls in one sleep");
    assert_eq!(after.driver.stale_events, before.driver.stale_events);
}

#[test]
fn watchers_leak_no_descriptor() {
    let test = "descriptors::watchers_leak_no_descriptor";
    in_own_process(test, &[], || {
        on_every_kernel_driver(|case| {
            let before = open_descriptors();
            for _ in 0..20 {
                let event_loop = case.event_loop();
                for _ in 0..5 {
                    let (reader, writer) = tcp_pair();
                    let (read, write) = (Number(reader.as_raw_fd()), Number(writer.as_raw_fd()));
                    event_loop
                        .add_reader(&read, move || drop(reader.peek(&mut [0])))
                        .expect("added");
                    event_loop
                        .add_writer(&write, move || drop(writer.peek(&mut [0])))
                        .expect("added");
                    // A stream of the loop, which keeps a reference to the loop.
                    let (ours, other) = tcp_pair();
                    let number = Number(ours.as_raw_fd());
                    let streams = event_loop
                        .run_until_complete(async move {
                            let ours = windlass::net::TcpStream::from_std(ours).expect("taken");
                            (ours, windlass::net::TcpStream::from_std(other).expect("taken"))
                        })
                        .expect("the loop runs");
                    event_loop
                        .add_writer(&number, move || {
                            let _ = &streams;
                        })
                        .expect("added");
                }
                event_loop.run_until_complete(turns(5)).expect("the loop runs");
                drop(event_loop);
            }
            assert_eq!(open_descriptors(), before);
        });
    });
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::FromRawFd;

    use super::*;

    fn owned(fd: RawFd) -> File {
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just created and has no other owner.
        File::from(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    #[test]
    fn eventfds_and_timerfds_can_be_watched() {
        on_every_kernel_driver(|case| {
            case.run(async {
                // SAFETY: these calls touch no memory of ours.
                let (counter, timer) = unsafe {
                    let counter = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
                    let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
                    (owned(counter), owned(timer))
                };
                let calls = Rc::new(Cell::new(0));
                add_reader(&counter, {
                    let calls = calls.clone();
                    move || calls.set(calls.get() + 1)
                })
                .expect("it can be watched");
                turns(5).await;
                assert_eq!(calls.get(), 0);
                (&counter).write_all(&5u64.to_ne_bytes()).expect("eventfd write");
                while calls.get() < 3 {
                    turns(1).await;
                }
                let mut count = [0; 8];
                (&counter).read_exact(&mut count).expect("eventfd read");
                assert_eq!(u64::from_ne_bytes(count), 5);
                assert!(remove_reader(&counter));

                let ours = AsyncFd::new(timer).expect("it can be watched");
                let every = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 2_000_000,
                };
                let period = libc::itimerspec {
                    it_interval: every,
                    it_value: every,
                };
                // SAFETY: the structure is a local that the kernel reads.
                let set = unsafe { libc::timerfd_settime(ours.as_raw_fd(), 0, &period, std::ptr::null_mut()) };
                assert_eq!(set, 0);
                let mut expired = 0;
                let begun = std::time::Instant::now();
                while expired < 5 {
                    let mut count = [0; 8];
                    ours.read_with(|mut file| file.read_exact(&mut count))
                        .await
                        .expect("timerfd read");
                    expired += u64::from_ne_bytes(count);
                }
                assert!(begun.elapsed() >= Duration::from_millis(9), "{:?}", begun.elapsed());
            });
        });
    }
}
