//! Foreign descriptors of the kernel's: pipes, sockets, counters, timers, and what cannot be waited for.

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

/// Makes `number` name the same file as `source`; what it named before is closed. No other thread can come in between.
fn put_in_place_of(number: BorrowedFd<'_>, source: &impl AsFd) {
    let source = source.as_fd().as_raw_fd();
    // SAFETY: both are open descriptors of this test; dup2(2) touches no memory of ours.
    let result = unsafe { libc::dup2(source, number.as_raw_fd()) };
    assert_eq!(result, number.as_raw_fd(), "dup2: {}", io::Error::last_os_error());
}

/// Reads one byte per call; each kind of stream is told of each byte, of later ones, and of the end.
fn every_byte_is_told(
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
                match reader.read(&mut byte).expect("it is said to be readable") {
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
            writer.write_all(&bytes).expect("there is room");
            while got.borrow().len() < COUNT {
                other_runs.set(other_runs.get() + 1);
                turns(1).await;
            }
            assert!(
                got.borrow().iter().map(|(byte, _)| *byte).eq(0..COUNT as u8),
                "{name}: {got:?}"
            );
            // Between two calls the others had a turn.
            let fair = got.borrow().windows(2).all(|pair| pair[0].1 < pair[1].1);
            assert!(fair, "{name}: {got:?}");
            turns(5).await;
            assert_eq!(got.borrow().len(), COUNT, "{name}: drained");
            for more in 0..3 {
                sleep(Duration::from_millis(1)).await;
                writer.write_all(&[more]).expect("there is room");
                while got.borrow().len() == COUNT + more as usize {
                    sleep(Duration::from_micros(100)).await;
                }
            }
            drop(writer);
            while !ended.get() {
                sleep(Duration::from_micros(100)).await;
            }
        })
        .expect("it runs");
    assert!(!event_loop.remove_reader(&fd), "{name}: it has removed itself");
}

/// A descriptor's number as something that can be watched.
struct Number(RawFd);

impl AsRawFd for Number {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

#[test]
fn a_reader_is_called_until_nothing_is_left_and_again_when_more_comes() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, writer) = pipe();
        every_byte_is_told(&event_loop, "a pipe", reader, writer);
        let (reader, writer) = unix_pair();
        every_byte_is_told(&event_loop, "a Unix stream", reader, writer);
        let (reader, writer) = tcp_pair();
        every_byte_is_told(&event_loop, "a TCP stream", reader, writer);
        assert_eq!(event_loop.counters().tasks, 0);
        event_loop.run_until_complete(turns(3)).expect("it runs");
        assert_eq!(event_loop.counters().in_flight, 0);
    });
}

#[test]
fn a_reset_is_told() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (mut ours, theirs) = tcp_pair();
        let error = Rc::new(Cell::new(None));
        let fd = Number(ours.as_raw_fd());
        event_loop
            .add_reader(&fd, {
                let (error, handle) = (error.clone(), event_loop.handle());
                move || {
                    // The kernel tells it once.
                    let again = ours.read(&mut [0; 8]).err().map(|error| error.kind());
                    error.set(error.get().or(again));
                    handle.stop().expect("the loop is there");
                }
            })
            .expect("it can be watched");
        event_loop.run_until_complete(turns(5)).expect("it runs");
        assert_eq!(error.get(), None);
        reset_on_close(&theirs);
        drop(theirs);
        event_loop.run_forever().expect("it runs");
        assert_eq!(error.get(), Some(io::ErrorKind::ConnectionReset));
        assert!(event_loop.remove_reader(&fd));
    });
}

/// Fills a stream up, and gives how many bytes went in.
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

/// Takes out so many bytes.
fn drain(mut reader: impl Read, mut count: usize) {
    let mut bytes = vec![0; 65_536];
    while count > 0 {
        let wanted = count.min(bytes.len());
        count -= reader.read(&mut bytes[..wanted]).expect("bytes are there");
    }
}

#[test]
fn a_writer_is_called_when_there_is_room_and_when_nobody_reads_any_more() {
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
                    assert_eq!(calls.get(), 0, "it is full");
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

/// What each reader was told of must be its own pipe's bytes, though all pipes have the same number.
#[test]
fn a_number_that_goes_to_another_file_is_watched_anew() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (place, _writer) = pipe();
            let mut place = place;
            for round in 0..rounds().min(300) {
                let (next, mut writer) = pipe();
                // Two ways: as it should be, and behind our back.
                if round % 2 == 0 {
                    remove_reader(&place);
                }
                put_in_place_of(place.as_fd(), &next);
                drop(next);
                let told = Rc::new(Cell::new(0));
                add_reader(&place, {
                    let told = told.clone();
                    move || told.set(told.get() + 1)
                })
                .expect("it can be watched");
                turns(if round % 3 == 0 { 0 } else { 3 }).await;
                assert_eq!(told.get(), 0, "round {round}");
                writer.write_all(&[round as u8]).expect("there is room");
                let begun = std::time::Instant::now();
                while told.get() == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "round {round}: never told");
                    turns(1).await;
                }
                let mut byte = [0];
                place.read_exact(&mut byte).expect("it is there");
                assert_eq!(byte, [round as u8]);
                // The reader waits for more when the next one comes.
                turns(3).await;
            }
            assert!(remove_reader(&place));
        });
    });
}

#[test]
fn files_and_folders_are_refused_everywhere_alike() {
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
                event_loop.run_until_complete(wrapped).expect("it runs"),
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

/// Standard input is often this.
#[test]
fn devices_that_are_always_ready_can_be_watched() {
    on_every_kernel_driver(|case| {
        if !cfg!(target_os = "linux") {
            return;
        }
        case.run(async {
            let null = AsyncFd::new(File::open("/dev/null").expect("it is there")).expect("it can be watched");
            null.readable().await.expect("always");
            assert_eq!(
                null.read_with(|mut file| file.read(&mut [0; 8]))
                    .await
                    .expect("the end"),
                0
            );
            let calls = Rc::new(Cell::new(0));
            let zero = File::open("/dev/zero").expect("it is there");
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
fn a_descriptor_closed_behind_our_back_is_told_once_and_costs_nothing() {
    let test = "descriptors::a_descriptor_closed_behind_our_back_is_told_once_and_costs_nothing";
    in_own_process(test, &[], || {
        on_every_kernel_driver(|case| {
            let event_loop = case.event_loop();
            let told = exceptions_of(&event_loop);
            // By its own callback.
            let (reader, writer) = pipe();
            let number = Number(reader.as_raw_fd());
            let mut reader = Some(reader);
            let calls = Rc::new(Cell::new(0));
            (&writer).write_all(b"x").expect("there is room");
            event_loop
                .add_reader(&number, {
                    let calls = calls.clone();
                    move || {
                        calls.set(calls.get() + 1);
                        drop(reader.take());
                    }
                })
                .expect("it can be watched");
            event_loop.run_until_complete(turns(10)).expect("it runs");
            assert_eq!(calls.get(), 1);
            assert_eq!(told.borrow().len(), 1, "{told:?}");
            assert!(told.borrow()[0].contains("can no longer be watched"), "{told:?}");
            assert!(!event_loop.remove_reader(&number));
            // By somebody else, while a duplicate lives.
            let (reader, mut writer) = pipe();
            let duplicate = reader.try_clone().expect("a duplicate");
            let number = Number(reader.as_raw_fd());
            event_loop.add_reader(&number, || {}).expect("it can be watched");
            event_loop.run_until_complete(turns(3)).expect("it runs");
            drop(reader);
            writer.write_all(b"x").expect("there is room");
            event_loop
                .run_until_complete(sleep(Duration::from_millis(5)))
                .expect("it runs");
            assert_eq!(told.borrow().len(), 2, "{told:?}");
            let before = event_loop.counters().turns;
            event_loop
                .run_until_complete(sleep(Duration::from_millis(20)))
                .expect("it runs");
            let turned = event_loop.counters().turns - before;
            assert!(turned < 10 || is_interrupted(), "{turned} turns");
            drop(duplicate);
        });
    });
}

/// Bytes that come for a duplicate of a descriptor that is watched no more wake nobody.
#[test]
fn a_duplicate_of_what_is_not_watched_any_more_wakes_nobody() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, writer) = unix_pair();
        let duplicate = reader.try_clone().expect("a duplicate");
        event_loop.add_reader(&reader, || {}).expect("it can be watched");
        event_loop.run_until_complete(turns(3)).expect("it runs");
        assert!(event_loop.remove_reader(&reader));
        drop(reader);
        assert_sleeps_through(&event_loop, &duplicate, &writer);
        // The same with the wrapper, which closes the descriptor itself.
        let ours = duplicate.try_clone().expect("a duplicate");
        event_loop
            .run_until_complete(async {
                let ours = AsyncFd::new(ours).expect("it can be watched");
                let waited = windlass::time::timeout(Duration::from_millis(1), ours.readable()).await;
                assert!(waited.is_err(), "nothing has come");
            })
            .expect("it runs");
        assert_sleeps_through(&event_loop, &duplicate, &writer);
        // And when the wrapper gives the descriptor back.
        let ours = event_loop
            .run_until_complete(async {
                let ours = AsyncFd::new(duplicate.try_clone().expect("a duplicate")).expect("it can be watched");
                let waited = windlass::time::timeout(Duration::from_millis(1), ours.readable()).await;
                assert!(waited.is_err(), "nothing has come");
                ours.into_inner()
            })
            .expect("it runs");
        assert_sleeps_through(&event_loop, &ours, &writer);
    });
}

/// Sleeps, while bytes arrive on a stream that nobody watches, without waking up.
fn assert_sleeps_through(event_loop: &EventLoop, mut reader: &UnixStream, mut writer: &UnixStream) {
    let before = event_loop.counters();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..30 {
                writer.write_all(b"x").expect("there is room");
                std::thread::sleep(Duration::from_micros(500));
                // Emptied, so that the next byte is news again.
                reader.read_exact(&mut [0]).expect("it is there");
            }
        });
        event_loop
            .run_until_complete(sleep(Duration::from_millis(40)))
            .expect("it runs");
    });
    let after = event_loop.counters();
    let entered = after.driver.enters - before.driver.enters;
    assert!(entered <= 10 || is_interrupted(), "{entered} system calls in one sleep");
    assert_eq!(after.driver.stale_events, before.driver.stale_events);
}

#[test]
fn watchers_and_what_they_own_leave_no_descriptor_behind() {
    let test = "descriptors::watchers_and_what_they_own_leave_no_descriptor_behind";
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
                    // One of the loop's own, which has a share of the loop.
                    let (ours, other) = tcp_pair();
                    let number = Number(ours.as_raw_fd());
                    let streams = event_loop
                        .run_until_complete(async move {
                            let ours = windlass::net::TcpStream::from_std(ours).expect("taken");
                            (ours, windlass::net::TcpStream::from_std(other).expect("taken"))
                        })
                        .expect("it runs");
                    event_loop
                        .add_writer(&number, move || {
                            let _ = &streams;
                        })
                        .expect("added");
                }
                event_loop.run_until_complete(turns(5)).expect("it runs");
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
        // SAFETY: the descriptor was just made and nobody else owns it.
        File::from(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    #[test]
    fn counters_and_timers_of_the_kernel_are_told() {
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
                (&counter).write_all(&5u64.to_ne_bytes()).expect("it counts");
                while calls.get() < 3 {
                    turns(1).await;
                }
                let mut count = [0; 8];
                (&counter).read_exact(&mut count).expect("it is there");
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
                        .expect("it is there");
                    expired += u64::from_ne_bytes(count);
                }
                assert!(begun.elapsed() >= Duration::from_millis(9), "{:?}", begun.elapsed());
            });
        });
    }
}
