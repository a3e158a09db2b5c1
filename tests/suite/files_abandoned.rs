//! Abandoned file operations: no buffer is freed while the kernel or a thread uses it, and no byte, position or
//! descriptor is lost.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use windlass::fs::{File, OpenOptions};
use windlass::time::timeout;

use crate::bytes::{assert_filled_in_order, numbered};
use crate::child::in_own_process;
use crate::support::{Case, Folder, Random, on_every_driver, open_descriptors, poll_once, quiet, rounds, turns};

/// A dropped read does not advance the position: the next one starts where it did.
#[test]
fn a_dropped_read_does_not_move_the_position() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(64 * rounds().max(200));
            let file = File::open(folder.file("a", &whole)).await.unwrap();
            let mut random = Random::new(11);
            let mut received = Vec::new();
            let mut dropped = 0;
            while received.len() < whole.len() {
                let len = 1 + random.below(200) as usize;
                // A plain read is served from the page cache at once; one with several buffers is queued.
                let vectored = !cfg!(miri) && random.below(2) == 0;
                let mut reading = Box::pin(async {
                    match vectored {
                        true => {
                            let (result, bufs) = file.read_vectored(vec![vec![0; len]; 2]).await;
                            (result, bufs.concat())
                        }
                        false => file.read(vec![0; len]).await,
                    }
                });
                let patience = random.below(4);
                let mut done = poll_once(reading.as_mut()).await;
                for _ in 0..patience {
                    if done.is_pending() {
                        turns(1).await;
                        done = poll_once(reading.as_mut()).await;
                    }
                }
                drop(reading);
                match done {
                    Poll::Ready((result, bytes)) => {
                        assert!(result.unwrap() > 0);
                        received.extend(bytes);
                    }
                    Poll::Pending => dropped += 1,
                }
                assert_eq!(file.stream_position().await.unwrap(), received.len() as u64);
                // Makes progress however slow the threads are.
                if dropped % 8 == 7 {
                    let (result, bytes) = file.read(vec![0; 8]).await;
                    result.unwrap();
                    received.extend(bytes);
                    dropped += 1;
                }
            }
            assert!(received == whole);
            assert!(dropped > 0);
            quiet().await;
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

/// A dropped write does not advance the position either, and the next write waits until it has completed.
#[test]
fn a_dropped_write_completes_before_the_next_begins() {
    on_every_driver(|case| {
        case.run(async {
            let folder = Folder::new();
            let len = if cfg!(miri) { 100 } else { 60_000 };
            for round in 0..rounds() / 5 {
                let path = folder.file("a", "");
                let file = OpenOptions::new().write(true).open(&path).await.unwrap();
                let mut writing = Box::pin(file.write_all(vec![1u8; len]));
                let mut done = poll_once(writing.as_mut()).await.is_ready();
                for _ in 0..round % 3 {
                    done = done || {
                        turns(1).await;
                        poll_once(writing.as_mut()).await.is_ready()
                    };
                }
                drop(writing);
                file.write_all(vec![2u8; len]).await.0.unwrap();
                quiet().await;
                let bytes = std::fs::read(&path).unwrap();
                match done {
                    true => assert!(bytes == [vec![1; len], vec![2; len]].concat()),
                    false => assert!(bytes == vec![2; len], "the dropped write completed last"),
                }
            }
        });
    });
}

/// Opens a pipe for reading and writing, which does not block.
async fn open_pipe(path: &Path) -> (File, std::fs::File) {
    let ours = OpenOptions::new().read(true).write(true).open(path).await.unwrap();
    let theirs = std::fs::File::options().read(true).write(true).open(path).unwrap();
    (ours, theirs)
}

/// A pipe has no position: the next read returns the bytes that a dropped one received.
#[test]
fn a_dropped_read_of_a_pipe_loses_no_byte() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let (ours, mut theirs) = open_pipe(&folder.pipe("pipe")).await;
            let whole = numbered(8 * rounds());
            let mut random = Random::new(12);
            let (mut sent, mut received, mut dropped) = (0, Vec::new(), 0);
            while received.len() < whole.len() {
                let len = 1 + random.below(60) as usize;
                let mut reading = Box::pin(async {
                    match len % 3 {
                        0 => {
                            let (result, bufs) = ours.read_vectored(vec![vec![9; 3], vec![9; len]]).await;
                            assert_filled_in_order(&bufs, *result.as_ref().unwrap());
                            (result, bufs.concat())
                        }
                        _ => ours.read(vec![0; len]).await,
                    }
                });
                let mut done = poll_once(reading.as_mut()).await;
                for _ in 0..random.below(3) {
                    if done.is_pending() {
                        turns(1).await;
                        done = poll_once(reading.as_mut()).await;
                    }
                }
                if sent == received.len() && sent < whole.len() {
                    let more = (1 + random.below(100) as usize).min(whole.len() - sent);
                    theirs.write_all(&whole[sent..sent + more]).unwrap();
                    sent += more;
                }
                for _ in 0..random.below(3) {
                    if done.is_pending() {
                        turns(1).await;
                        done = poll_once(reading.as_mut()).await;
                    }
                }
                drop(reading);
                match done {
                    Poll::Ready((result, bytes)) => {
                        assert!(result.unwrap() > 0);
                        received.extend(bytes);
                    }
                    Poll::Pending => dropped += 1,
                }
                // A thread of the pool may read, and has to get a processor meanwhile.
                if dropped > 1_000 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                assert!(dropped < 1_000 * rounds(), "{} of {sent} bytes arrived", received.len());
            }
            assert!(received == whole, "bytes were lost or duplicated");
            assert!(dropped > 0);
            // The pipe is empty, so a read that is still in flight is cancelled or gets these bytes.
            theirs.write_all(b"end").unwrap();
            assert_eq!(ours.read(vec![0; 9]).await.0.unwrap(), 3);
        });
    });
}

/// `into_std` is refused while an operation is in flight, since its bytes would be lost.
#[test]
fn into_std_is_refused_during_an_operation() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let (ours, mut theirs) = open_pipe(&folder.pipe("pipe")).await;
            let mut reading = Box::pin(ours.read(vec![0; 9]));
            assert!(poll_once(reading.as_mut()).await.is_pending());
            begun().await;
            drop(reading);
            let refused = ours.into_std().unwrap_err();
            assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
            let ours = refused.into_inner();
            theirs.write_all(b"hello").unwrap();
            assert_eq!(ours.read(vec![0; 9]).await.1, b"hello");
            quiet().await;
            ours.into_std().unwrap();
        });
    });
}

/// The bytes that are read, and the contents of memory that no operation may write to.
const PAYLOAD: u8 = 0xEE;
const PATTERN: u8 = 0x55;

/// Blocks of the buffer's size, which the allocator would carve from a buffer that was freed too early.
struct Blocks(Vec<Vec<u8>>);

impl Blocks {
    fn allocate(len: usize) -> Blocks {
        Blocks((0..8).map(|_| black_box(vec![PATTERN; len])).collect())
    }

    fn check(&self, what: &str) {
        for block in &self.0 {
            let intact = black_box(block).iter().all(|&byte| byte == PATTERN);
            assert!(intact, "an operation wrote into freed memory: {what}");
        }
    }
}

/// The number of bytes in a pipe.
fn waiting(pipe: &std::fs::File) -> libc::c_int {
    let mut count = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer to the local.
    let result = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &mut count) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    count
}

/// Waits until the kernel or a thread has begun to read an empty pipe.
async fn begun() {
    turns(3).await;
    while windlass::counters().files.queued > 0 {
        windlass::task::yield_now().await;
    }
}

#[test]
fn a_buffer_outlives_its_abandoned_read_of_a_pipe() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        let event_loop = case.builder().max_file_threads(1).build().unwrap();
        let body = async move {
            let folder = Folder::new();
            let (ours, mut theirs) = open_pipe(&folder.pipe("pipe")).await;
            let mut random = Random::new(13);
            for round in 0..rounds() / 4 {
                let len = 16 + random.below(1_000) as usize;
                let mut reading = Box::pin(ours.read(Vec::with_capacity(len)));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                if round % 2 == 0 {
                    begun().await;
                }
                drop(reading);
                turns(round as u64 % 3).await;
                let blocks = Blocks::allocate(len);
                theirs.write_all(&vec![PAYLOAD; len]).unwrap();
                // A thread that has begun to read cannot be cancelled.
                while round % 2 == 0 && !case.has_rings() && waiting(&theirs) > 0 {
                    std::thread::yield_now();
                }
                turns(1).await;
                blocks.check("read dropped, bytes taken");
                let mut received = Vec::new();
                while received.len() < len {
                    let reading = ours.read(vec![0; len]);
                    let (result, bytes) = match case.is_kernel() {
                        true => timeout(Duration::from_secs(60), reading)
                            .await
                            .expect("the bytes are lost"),
                        // The virtual clock would not wait for a thread.
                        false => reading.await,
                    };
                    assert!(result.unwrap() > 0);
                    received.extend(bytes);
                }
                assert!(received == vec![PAYLOAD; len]);
                blocks.check("read dropped");
            }
            assert_eq!(windlass::counters().stale_completions, 0);
        };
        event_loop.run_until_complete(body).unwrap();
    });
}

/// When dropped, allocates blocks of the buffer's size and lets the read complete.
struct WriteOnDrop {
    len: usize,
    pipe: std::fs::File,
    blocks: Rc<RefCell<Option<Blocks>>>,
}

impl Drop for WriteOnDrop {
    fn drop(&mut self) {
        *self.blocks.borrow_mut() = Some(Blocks::allocate(self.len));
        self.pipe.write_all(&vec![PAYLOAD; self.len]).unwrap();
    }
}

#[test]
fn a_buffer_outlives_its_loop_on_files() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        let folder = Folder::new();
        let path = folder.pipe("pipe");
        let mut random = Random::new(14);
        for _ in 0..rounds() / 10 {
            let len = 16 + random.below(1_000) as usize;
            let event_loop = case.event_loop();
            let (ours, pipe) = event_loop.run_until_complete(open_pipe(&path)).unwrap();
            let blocks = Rc::new(RefCell::new(None));
            let write_on_drop = WriteOnDrop {
                len,
                pipe,
                blocks: blocks.clone(),
            };
            let is_pending = Rc::new(Cell::new(false));
            drop(event_loop.spawn({
                let is_pending = is_pending.clone();
                async move {
                    // Declared before the read, so dropped right after it.
                    let _write_on_drop = write_on_drop;
                    let mut reading = pin!(ours.read(Vec::with_capacity(len)));
                    assert!(poll_once(reading.as_mut()).await.is_pending());
                    begun().await;
                    is_pending.set(true);
                    std::future::pending::<()>().await
                }
            }));
            while !is_pending.get() {
                event_loop.turn().unwrap();
            }
            drop(event_loop);
            let blocks = blocks.take().expect("closing a loop drops its tasks");
            blocks.check("loop dropped");
        }
    });
}

/// A file that is dropped while reads are in flight is closed after them, so that its descriptor number is not reused
/// meanwhile.
#[test]
fn a_file_dropped_during_reads_is_closed_after_them() {
    on_every_driver(|case| {
        if cfg!(miri) {
            return;
        }
        case.run(async {
            let folder = Folder::new();
            let whole = numbered(1 << 16);
            let path = folder.file("a", &whole);
            let other = folder.file("b", vec![0xFF; 1 << 16]);
            for _ in 0..rounds() / 20 {
                let file = Rc::new(File::open(&path).await.unwrap());
                let reads: Vec<_> = (0..8)
                    .map(|_| {
                        let file = file.clone();
                        windlass::spawn(async move { file.read_vectored_at(vec![vec![0; 1 << 15]; 2], 0).await })
                    })
                    .collect();
                turns(1).await;
                // Half of the reads are cancelled; the last one to end closes the file.
                drop(file);
                for read in &reads[..4] {
                    read.cancel();
                }
                let others = [File::open(&other).await.unwrap(), File::open(&other).await.unwrap()];
                for (number, read) in reads.into_iter().enumerate() {
                    match read.await {
                        Ok((result, bufs)) => {
                            assert_eq!(result.unwrap(), 1 << 16);
                            assert!(bufs.concat() == whole);
                        }
                        Err(error) => assert!(error.is_cancelled() && number < 4),
                    }
                }
                drop(others);
            }
            quiet().await;
            assert_eq!(windlass::counters().ops, 0);
        });
    });
}

/// An open dropped in any state leaves no descriptor open.
#[test]
fn a_dropped_open_leaks_no_descriptor() {
    let test = "files_abandoned::a_dropped_open_leaks_no_descriptor";
    in_own_process(test, &[], || {
        on_every_driver(|case| {
            // The first loop of a process may open descriptors that stay open.
            case.run(async {});
            let folder = Folder::new();
            let path = folder.file("a", "hello");
            let before = open_descriptors();
            case.run(async {
                let mut random = Random::new(15);
                for round in 0..rounds() {
                    let mut opening = Box::pin(File::open(&path));
                    let mut opened = poll_once(opening.as_mut()).await;
                    for _ in 0..random.below(4) {
                        if opened.is_pending() {
                            turns(1).await;
                            opened = poll_once(opening.as_mut()).await;
                        }
                    }
                    // Lets the thread or the kernel complete the open before it is dropped.
                    if round % 4 == 0 {
                        while windlass::counters().in_flight > 0 {
                            windlass::task::yield_now().await;
                        }
                    }
                    drop(opening);
                    if let Poll::Ready(file) = opened {
                        assert_eq!(file.unwrap().read(vec![0; 9]).await.1, b"hello");
                    }
                }
                quiet().await;
                assert_eq!(windlass::counters().ops, 0);
            });
            assert_eq!(
                open_descriptors(),
                before,
                "descriptors were left open on {}",
                case.name
            );

            // The loop is closed while many opens are in flight.
            for _ in 0..rounds() / 20 {
                let event_loop = case.event_loop();
                for _ in 0..20 {
                    let path = path.clone();
                    drop(event_loop.spawn(async move {
                        let file = File::open(path).await;
                        std::future::pending::<()>().await;
                        drop(file);
                    }));
                }
                event_loop.turn().unwrap();
                event_loop.turn().unwrap();
            }
            assert_descriptors(before, case);
        });
    });
}

/// A thread may have opened a file for a loop that is gone, and closes it shortly afterwards.
fn assert_descriptors(expected: usize, case: Case) {
    for _ in 0..6_000 {
        if open_descriptors() == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        open_descriptors(),
        expected,
        "descriptors were left open on {}",
        case.name
    );
}
