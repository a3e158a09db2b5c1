//! The standard streams as pipes, files and terminals: read and written without changing the state that other processes
//! share. Each test replaces a stream, so it runs in its own process.

use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use windlass::io::{stderr, stdin, stdout};
use windlass::time::{sleep, timeout};

use crate::child::in_own_process;
use crate::support::{
    Case, Folder, Random, exceptions_of, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, rounds,
    variable,
};

/// Runs `body` with another descriptor, or none, as a standard stream.
fn with_stream<T>(number: i32, instead: Option<&dyn AsRawFd>, body: impl FnOnce() -> T) -> T {
    // SAFETY: these calls take integers; the original stream is restored, and the tests of a process run one after the
    // other.
    unsafe {
        let saved = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 10);
        assert!(saved >= 0);
        match instead {
            Some(instead) => assert_eq!(libc::dup2(instead.as_raw_fd(), number), number),
            None => assert_eq!(libc::close(number), 0),
        }
        let result = body();
        assert_eq!(libc::dup2(saved, number), number);
        libc::close(saved);
        result
    }
}

/// Runs a future on a new loop and closes the loop, which reports operations that it stopped waiting for.
fn run_and_close(case: Case, future: impl Future<Output = ()>) {
    let event_loop = case.event_loop();
    let reported = exceptions_of(&event_loop);
    event_loop.run_until_complete(future).expect("the loop runs");
    drop(event_loop);
    assert!(reported.borrow().is_empty(), "{reported:?}");
}

fn flags_of(fd: i32) -> i32 {
    // SAFETY: fcntl(2) takes integers here.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

/// A pseudo-terminal: (the test's end, the program's end).
fn terminal() -> (std::fs::File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: the kernel writes two integers; the other pointers are null.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, none, none as *mut _, none as *mut _) };
    assert_eq!(opened, 0, "{}", io::Error::last_os_error());
    // SAFETY: both descriptors are new and have no other owner.
    unsafe { (std::fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// Reads one piece as text.
async fn read_text() -> String {
    let (result, bytes) = stdin().read(Vec::with_capacity(64)).await;
    assert_eq!(result.expect("it can be read"), bytes.len());
    String::from_utf8(bytes).expect("text")
}

#[test]
fn reading_a_pipe_does_not_change_its_flags() {
    in_own_process("stdio::reading_a_pipe_does_not_change_its_flags", &[], || {
        on_every_kernel_driver(|case| {
            for non_blocking in [false, true] {
                let before = open_descriptors();
                let (reader, mut writer) = io::pipe().expect("a pipe");
                if non_blocking {
                    // `O_NONBLOCK` was set by another process.
                    let flags = flags_of(reader.as_raw_fd()) | libc::O_NONBLOCK;
                    // SAFETY: fcntl(2) takes integers here.
                    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, flags) }, 0);
                }
                let flags = flags_of(reader.as_raw_fd());
                with_stream(0, Some(&reader), || {
                    case.run(async {
                        writer.write_all(b"at once").expect("a pipe");
                        assert_eq!(read_text().await, "at once");
                        let reading = windlass::spawn(read_text());
                        sleep(Duration::from_millis(10)).await;
                        assert!(!reading.is_finished());
                        writer.write_all(b"later").expect("a pipe");
                        assert_eq!(reading.await.expect("no panic"), "later");
                        assert_eq!(flags_of(0), flags);
                        // In FIFO order across handles.
                        let readers: Vec<_> = (0..3).map(|_| windlass::spawn(stdin().read_one())).collect();
                        writer.write_all(b"abc").expect("a pipe");
                        for (reader, expected) in readers.into_iter().zip(*b"abc") {
                            assert_eq!(reader.await.expect("no panic"), expected);
                        }
                        let error = stdin().read(Vec::new()).await.0.expect_err("an empty buffer");
                        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
                        drop(writer);
                        assert_eq!(read_text().await, "");
                        assert_eq!(read_text().await, "");
                    });
                });
                assert_eq!(flags_of(reader.as_raw_fd()), flags);
                drop(reader);
                assert_eq!(open_descriptors(), before);
            }
        });
    });
}

trait ReadOne {
    async fn read_one(self) -> u8;
}

impl ReadOne for windlass::io::Stdin {
    async fn read_one(self) -> u8 {
        let (result, bytes) = self.read(vec![0u8; 1].into_boxed_slice()).await;
        assert_eq!(result.expect("it can be read"), 1);
        bytes[0]
    }
}

#[test]
fn dropped_reads_lose_no_byte() {
    in_own_process("stdio::dropped_reads_lose_no_byte", &[], || {
        on_every_kernel_driver(|case| {
            let (reader, mut writer) = io::pipe().expect("a pipe");
            let total = (rounds() * 50) as u32;
            let writing = std::thread::spawn(move || {
                let mut random = Random::new(5);
                let mut next = 0u32;
                while next < total {
                    let count = (random.below(300) as u32).min(total - next);
                    let bytes: Vec<u8> = (next..next + count).flat_map(u32::to_le_bytes).collect();
                    writer.write_all(&bytes).expect("a pipe");
                    next += count;
                    if random.below(50) == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
            });
            with_stream(0, Some(&reader), || {
                case.run(async {
                    let mut random = Random::new(7);
                    let mut received: Vec<u8> = Vec::new();
                    loop {
                        let input = stdin();
                        let mut reading = Box::pin(input.read(Vec::with_capacity(1 + random.below(600) as usize)));
                        let mut patience = random.below(4);
                        let completed = loop {
                            match poll_once(reading.as_mut()).await {
                                std::task::Poll::Ready(completed) => break Some(completed),
                                std::task::Poll::Pending if patience == 0 => break None,
                                std::task::Poll::Pending => windlass::task::yield_now().await,
                            }
                            patience -= 1;
                        };
                        drop(reading);
                        let Some((result, bytes)) = completed else { continue };
                        if result.expect("it can be read") == 0 {
                            break;
                        }
                        received.extend(bytes);
                    }
                    let (numbers, rest) = received.as_chunks::<4>();
                    assert!(rest.is_empty());
                    assert_eq!(numbers.len(), total as usize);
                    assert!(numbers.iter().copied().map(u32::from_le_bytes).eq(0..total));
                });
            });
            writing.join().expect("no panic");
        });
    });
}

#[test]
fn a_file_is_read_at_the_shared_position() {
    in_own_process("stdio::a_file_is_read_at_the_shared_position", &[], || {
        on_every_driver(|case| {
            let folder = Folder::new();
            let path = folder.file("input", "one two three");
            let mut file = std::fs::File::open(path).expect("it is there");
            file.seek(io::SeekFrom::Start(4)).expect("a file");
            with_stream(0, Some(&file), || {
                case.run(async {
                    let (result, bytes) = stdin().read(Vec::with_capacity(4)).await;
                    assert_eq!((result.expect("a file"), &bytes[..]), (4, &b"two "[..]));
                });
                // Other users of the open file continue from the same position.
                assert_eq!((&file).stream_position().expect("a file"), 8);
                case.run(async {
                    assert_eq!(read_text().await, "three");
                    assert_eq!(read_text().await, "");
                });
            });
            // And written, after the bytes that others wrote.
            let mut file = std::fs::File::create(folder.join("output")).expect("a file");
            file.write_all(b"theirs ").expect("a file");
            let written = with_stream(1, Some(&file), || {
                case.run(async { stdout().write_all("ours ").await.0 })
            });
            written.expect("a file");
            file.write_all(b"theirs").expect("a file");
            let written = std::fs::read_to_string(folder.join("output")).expect("a file");
            assert_eq!(written, "theirs ours theirs");
        });
    });
}

#[test]
fn a_terminal_is_read_line_by_line() {
    in_own_process("stdio::a_terminal_is_read_line_by_line", &[], || {
        on_every_kernel_driver(|case| {
            let (mut ours, theirs) = terminal();
            let flags = flags_of(theirs.as_raw_fd());
            with_stream(0, Some(&theirs), || {
                with_stream(1, Some(&theirs), || {
                    // Closing the loop does not wait for a line.
                    run_and_close(case, async {
                        let mut reading = pin!(read_text());
                        // Half a line is not delivered yet, and the loop keeps running.
                        ours.write_all(b"ahoy").expect("a terminal");
                        assert!(timeout(Duration::from_millis(20), reading.as_mut()).await.is_err());
                        ours.write_all(b" there\nnext").expect("a terminal");
                        assert_eq!(reading.await, "ahoy there\n");
                        // A dropped read consumes nothing.
                        assert!(timeout(Duration::from_millis(5), read_text()).await.is_err());
                        ours.write_all(b" line\n").expect("a terminal");
                        assert_eq!(read_text().await, "next line\n");
                        stdout().write_all("an answer\n").await.0.expect("a terminal");
                        // Ctrl-D is the end of the input.
                        ours.write_all(&[4]).expect("a terminal");
                        assert_eq!(read_text().await, "");
                        assert!(timeout(Duration::from_millis(5), read_text()).await.is_err());
                    });
                });
            });
            assert_eq!(flags_of(theirs.as_raw_fd()), flags);
            drop(theirs);
            let mut shown = Vec::new();
            // Reading a closed terminal is an error on Linux.
            let _ = ours.read_to_end(&mut shown);
            assert!(String::from_utf8_lossy(&shown).contains("an answer"), "{shown:?}");
        });
    });
}

#[test]
fn closed_and_null_streams_behave_as_in_std() {
    in_own_process("stdio::closed_and_null_streams_behave_as_in_std", &[], || {
        on_every_driver(|case| {
            // Created before, because a new descriptor takes the lowest free number.
            let (input, output) = (case.event_loop(), case.event_loop());
            with_stream(0, None, || {
                let run = async { assert_eq!(read_text().await, "", "as std has it") };
                input.run_until_complete(run).expect("the loop runs");
            });
            with_stream(1, None, || {
                let run = async {
                    stdout().write_all("lost").await.0.expect("as std has it");
                    assert_eq!(stdout().write("lost").await.0.expect("as std has it"), 4);
                };
                output.run_until_complete(run).expect("the loop runs");
            });
            let null = std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .expect("it is there");
            with_stream(0, Some(&null), || {
                case.run(async { assert_eq!(read_text().await, "") });
            });
            with_stream(2, Some(&null), || {
                case.run(async {
                    stderr().write_all(vec![0; 100_000]).await.0.expect("all is taken");
                    assert_eq!(stderr().write("").await.0.expect("nothing"), 0);
                });
            });
        });
    });
}

#[test]
fn a_blocked_write_does_not_block_the_loop() {
    in_own_process("stdio::a_blocked_write_does_not_block_the_loop", &[], || {
        on_every_kernel_driver(|case| {
            const LARGE: usize = 1 << 20;
            let (mut reader, writer) = io::pipe().expect("a pipe");
            let flags = flags_of(writer.as_raw_fd());
            let bytes: Vec<u8> = (0..LARGE).map(|at| (at / 7) as u8).collect();
            let reading = with_stream(1, Some(&writer), || {
                case.run(async {
                    let writing = windlass::spawn({
                        let bytes = bytes.clone();
                        async move { stdout().write_all(bytes).await.0 }
                    });
                    sleep(Duration::from_millis(20)).await;
                    assert!(!writing.is_finished(), "written without a reader");
                    assert_eq!(flags_of(1), flags);
                    let reading = std::thread::spawn(move || {
                        let mut read = vec![0; LARGE];
                        reader.read_exact(&mut read).expect("a pipe");
                        (read, reader)
                    });
                    writing.await.expect("no panic").expect("it is read");
                    reading
                })
            });
            let (read, reader) = reading.join().expect("no panic");
            assert!(read == bytes);

            // Without a reader the write can be dropped, and the loop does not wait for it.
            with_stream(1, Some(&writer), || {
                run_and_close(case, async {
                    let output = stdout();
                    let much = output.write_all(vec![1; LARGE]);
                    assert!(timeout(Duration::from_millis(20), much).await.is_err());
                });
            });
            drop(reader);
            let broken = with_stream(1, Some(&writer), || case.run(async { stdout().write_all("x").await.0 }));
            let broken = broken.expect_err("the pipe has no reader");
            assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
            assert!(broken.to_string().contains("standard output"), "{broken}");
        });
    });
}

/// Loops on several threads read the same pipe: each byte reaches one of them, and a loop that finds no bytes keeps
/// waiting.
#[test]
fn several_loops_share_standard_input() {
    in_own_process("stdio::several_loops_share_standard_input", &[], || {
        on_every_kernel_driver(|case| {
            let (reader, mut writer) = io::pipe().expect("a pipe");
            with_stream(0, Some(&reader), || {
                let loops: Vec<_> = (0..3)
                    .map(|_| {
                        std::thread::spawn(move || {
                            case.run(async {
                                let ticking = windlass::spawn(async {
                                    loop {
                                        sleep(Duration::from_millis(1)).await;
                                    }
                                });
                                let mut count = 0;
                                loop {
                                    let piece = read_text().await.len();
                                    if piece == 0 {
                                        ticking.cancel();
                                        return count;
                                    }
                                    count += piece;
                                }
                            })
                        })
                    })
                    .collect();
                let total = rounds();
                for _ in 0..total {
                    writer.write_all(b"x").expect("a pipe");
                    if variable::<u32>("WINDLASS_TEST_ROUNDS").is_none() {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
                drop(writer);
                let counts: Vec<usize> = loops.into_iter().map(|one| one.join().expect("no panic")).collect();
                assert_eq!(counts.iter().sum::<usize>(), total, "{counts:?}");
            });
        });
    });
}
