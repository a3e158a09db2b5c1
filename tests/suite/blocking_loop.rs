//! An event loop and its two thread pools: separate pools for jobs and files, file operations on pool threads,
//! shutdown, and threads that cannot be started.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use windlass::blocking::{BlockingHandle, Shutdown};
use windlass::fs::File;
use windlass::io::{IoBuf, IoBufMut};
use windlass::net::TcpListener;
use windlass::{EventLoop, spawn_blocking};

use crate::blocking::{Gate, eventually};
use crate::support::{Case, exceptions_of, on_every_driver, on_every_kernel_driver, poll_once, turns};

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, SeqCst);
        let path = std::env::temp_dir().join(format!("windlass-blocking-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    /// A file with known contents.
    fn file(&self) -> PathBuf {
        let path = self.0.join("file");
        std::fs::write(&path, "contents").expect("write");
        path
    }

    /// A named pipe: opening it for reading blocks until a writer opens it.
    fn pipe(&self) -> PathBuf {
        let path = self.0.join("pipe");
        let name = std::ffi::CString::new(path.to_str().expect("text")).expect("no NUL");
        // SAFETY: the name ends in NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a pipe for reading and writing, which does not block.
fn both_ends(path: &Path) -> std::fs::File {
    let mut options = std::fs::File::options();
    options.read(true).write(true).open(path).expect("open a pipe")
}

/// Runs a test on each driver that uses the thread pool for file operations.
fn where_threads_do_files(body: impl Fn(Case) + Send + Clone + 'static) {
    on_every_driver(move |case| {
        if !case.has_rings() && !cfg!(miri) {
            body(case);
        }
    });
}

/// A buffer that records when it is dropped.
struct Watched {
    bytes: Box<[u8]>,
    dropped: Arc<AtomicBool>,
}

impl Watched {
    fn new(len: usize) -> (Watched, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        let bytes = vec![7; len].into_boxed_slice();
        (
            Watched {
                bytes,
                dropped: dropped.clone(),
            },
            dropped,
        )
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.dropped.store(true, SeqCst);
    }
}

// SAFETY: the value owns the bytes; they are on the heap, at an address that does not change when the value moves.
unsafe impl IoBuf for Watched {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above; all of the bytes are initialised.
unsafe impl IoBufMut for Watched {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.bytes.len()
    }
    unsafe fn set_filled(&mut self, _len: usize) {}
}

// Two pools.

#[test]
fn blocking_jobs_do_not_starve_file_operations_and_name_lookups() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        let path = folder.file();
        let event_loop = case
            .builder()
            .max_blocking_threads(2)
            .max_blocking_queue(2)
            .build()
            .expect("a loop");
        let gate = Gate::default();
        let result = event_loop.run_until_complete(async {
            let job = || {
                let gate = gate.clone();
                spawn_blocking(move || gate.pass())
            };
            let mut jobs: Vec<_> = (0..5).map(|_| job()).collect();
            gate.wait_for(2);
            assert!(poll_once(Pin::new(&mut jobs[4])).await.is_pending());
            assert_eq!(windlass::fs::read(&path).await.expect("read"), b"contents");
            let listener = TcpListener::bind("localhost:0").await.expect("bind");
            assert!(listener.local_addr().expect("an address").ip().is_loopback());
            assert_eq!(
                windlass::fs::canonicalize(&path).await.expect("a path").file_name(),
                path.file_name()
            );
            let counters = windlass::counters();
            assert_eq!((counters.blocking.done, counters.blocking.queued), (0, 2));
            gate.open();
            for job in jobs {
                job.await.expect("no panic");
            }
        });
        result.expect("the loop runs");
    });
}

/// The reverse: a blocked file operation does not delay `spawn_blocking`.
#[test]
fn file_operations_do_not_starve_blocking_jobs() {
    where_threads_do_files(|case| {
        let folder = Folder::new();
        let pipe = folder.pipe();
        let event_loop = case.builder().max_file_threads(1).build().expect("a loop");
        let result = event_loop.run_until_complete(async {
            let opening = windlass::spawn(File::open(pipe.clone()));
            eventually_turning("a thread waits for the pipe", || {
                windlass::counters().files.threads == 1
            })
            .await;
            assert_eq!(spawn_blocking(|| 1).await.expect("no panic"), 1);
            assert!(!opening.is_finished());
            let _ends = both_ends(&pipe);
            opening.await.expect("no panic").expect("open");
        });
        result.expect("the loop runs");
    });
}

async fn eventually_turning(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "timed out waiting until {what}"
        );
        thread::yield_now();
        turns(1).await;
    }
}

#[test]
fn counters_separate_blocking_jobs_and_file_operations() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        let path = folder.file();
        case.run(async {
            for _ in 0..10 {
                windlass::fs::read(&path).await.expect("read");
            }
            let counters = windlass::counters();
            assert_eq!(counters.blocking, Default::default());
            if case.has_rings() {
                assert_eq!(counters.files, Default::default(), "io_uring needs no thread for this");
            } else {
                eventually("all are counted", || windlass::counters().files.done >= 30);
                assert!(counters.files.started >= 1);
            }
            assert_eq!(
                (counters.in_flight, counters.ops, counters.stale_completions),
                (0, 0, 0)
            );
        });
    });
}

/// The loop copies small reads from the page cache itself; long reads go to a thread.
#[test]
#[cfg(target_os = "linux")]
fn a_small_cached_read_needs_no_thread_and_a_large_one_does() {
    where_threads_do_files(|case| {
        if !case.is_kernel() {
            return;
        }
        let folder = Folder::new();
        let path = folder.file();
        std::fs::write(&path, vec![7; 1 << 20]).expect("write");
        case.run(async {
            let file = File::open(&path).await.expect("open");
            eventually("the thread is idle", || windlass::counters().files.idle == 1);
            let before = windlass::counters().files.done;
            for _ in 0..200 {
                let (result, bytes) = file.read_at(vec![0; 4096], 8192).await;
                assert_eq!((result.expect("read"), bytes[4095]), (4096, 7));
            }
            assert_eq!(windlass::counters().files.done, before);
            let (result, _) = file.read_exact_at(vec![0; 1 << 20], 0).await;
            result.expect("read");
            eventually("it is counted", || windlass::counters().files.done > before);
        });
    });
}

// File operations on pool threads.

/// One blocked thread, a queue of limited length, and many operations.
#[test]
fn operations_that_find_the_queue_full_run_in_order() {
    where_threads_do_files(|case| {
        for queue in [0, 1, 3] {
            run_in_order(case, queue);
        }
    });
}

fn run_in_order(case: Case, queue: usize) {
    let folder = Folder::new();
    let (pipe, path) = (folder.pipe(), folder.file());
    let builder = case.builder().max_file_threads(1).max_file_queue(queue);
    let event_loop = builder.build().expect("a loop");
    let result = event_loop.run_until_complete(async {
        let file = std::rc::Rc::new(File::open(&path).await.expect("open"));
        eventually("the thread is idle", || windlass::counters().files.idle == 1);
        let stuck = windlass::spawn(File::open(pipe.clone()));
        eventually_turning("it is stuck", || windlass::counters().files.idle == 0).await;
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let start = |number: usize| {
            let (file, order) = (file.clone(), order.clone());
            windlass::spawn(async move {
                // A read into one buffer would be served from the page cache at once.
                let (result, bytes) = file.read_vectored_at(vec![vec![0; 8]], 0).await;
                assert_eq!((result.expect("read"), &bytes[0][..]), (8, &b"contents"[..]));
                order.borrow_mut().push(number);
            })
        };
        let mut reads: Vec<_> = (0..20).map(start).collect();
        turns(2).await;
        assert_eq!(windlass::counters().in_flight, 21);
        assert_eq!(
            windlass::counters().files.queued,
            queue,
            "the queue stays within its limit"
        );
        // A cancelled operation completes at once, whether it is in the queue or waits for room there.
        for number in [19, 10, 0] {
            let read = reads.remove(number);
            read.cancel();
            assert!(read.await.expect_err("cancelled").is_cancelled());
        }
        assert_eq!(windlass::counters().in_flight, 18);
        let _ends = both_ends(&pipe);
        for read in reads {
            read.await.expect("no panic");
        }
        let expected: Vec<_> = (1..19).filter(|&number| number != 10).collect();
        assert_eq!(*order.borrow(), expected);
        stuck.await.expect("no panic").expect("open");
        let counters = windlass::counters();
        assert_eq!((counters.in_flight, counters.stale_completions), (0, 0));
    });
    result.expect("the loop runs");
}

/// The result is available when the thread is done, not before.
#[test]
fn an_operation_completes_when_its_thread_is_done() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        let pipe = folder.pipe();
        let mut ends = both_ends(&pipe);
        let other = ends.try_clone().expect("a second descriptor");
        case.run(async {
            const LEN: usize = 1 << 20;
            let file = File::from_std(other);
            let (buffer, dropped) = Watched::new(LEN);
            // More than a pipe holds: the write waits for the reader.
            let mut writing = std::pin::pin!(file.write_all(buffer));
            for _ in 0..50 {
                assert!(poll_once(writing.as_mut()).await.is_pending());
                assert!(!dropped.load(SeqCst));
                windlass::time::sleep(Duration::from_millis(1)).await;
            }
            let reader = thread::spawn(move || {
                let mut bytes = vec![0; LEN];
                ends.read_exact(&mut bytes).expect("read");
                bytes
            });
            let (result, buffer) = writing.await;
            result.expect("write");
            assert_eq!(buffer.bytes.len(), LEN);
            assert!(reader.join().expect("no panic").iter().all(|&byte| byte == 7));
        });
    });
}

/// The pool thread owns the buffer until its read completes, also after the future was dropped.
#[test]
fn a_buffer_outlives_a_dropped_read_on_a_thread() {
    where_threads_do_files(|case| {
        let folder = Folder::new();
        let pipe = folder.pipe();
        let mut ends = both_ends(&pipe);
        let other = ends.try_clone().expect("a second descriptor");
        case.run(async {
            let file = File::from_std(other);
            let (buffer, dropped) = Watched::new(64);
            {
                let mut reading = Box::pin(file.read(buffer));
                assert!(poll_once(reading.as_mut()).await.is_pending());
                eventually("a thread reads", || {
                    let files = windlass::counters().files;
                    files.idle == 0 && files.queued == 0
                });
            }
            turns(10).await;
            assert!(!dropped.load(SeqCst), "freed while the thread used it");
            assert_eq!(windlass::counters().in_flight, 1);
            ends.write_all(b"left over!").expect("write");
            eventually_turning("the read completes", || windlass::counters().in_flight == 0).await;
            // The next read returns the bytes that the dropped one received.
            let (result, bytes) = file.read(vec![0; 64]).await;
            assert_eq!((result.expect("read"), &bytes[..]), (10, &b"left over!"[..]));
            assert!(dropped.load(SeqCst));
        });
    });
}

// Closing the loop.

/// A loop whose only blocking thread is held at the gate, with a second job in the queue and a third waiting for room.
/// The `Weak` tells whether the second job is still queued.
fn with_jobs(case: Case, how: Shutdown) -> (EventLoop, Gate, Vec<BlockingHandle<()>>, Weak<()>) {
    let builder = case.builder().blocking_shutdown(how);
    let event_loop = builder
        .max_blocking_threads(1)
        .max_blocking_queue(1)
        .build()
        .expect("a loop");
    let gate = Gate::default();
    let jobs = event_loop.run_until_complete(async {
        let job = |held: Arc<()>| {
            let gate = gate.clone();
            spawn_blocking(move || {
                let _held = held;
                gate.pass();
            })
        };
        let mut jobs = vec![job(Arc::default())];
        gate.wait_for(1);
        let second = Arc::default();
        let queued = Arc::downgrade(&second);
        jobs.extend([job(second), job(Arc::default())]);
        assert!(poll_once(Pin::new(&mut jobs[2])).await.is_pending());
        (jobs, queued)
    });
    let (jobs, queued) = jobs.expect("the loop runs");
    (event_loop, gate, jobs, queued)
}

/// Jobs that had not begun are cancelled; the one that had begun returns its result, on another loop.
fn expect_ends(case: Case, gate: &Gate, jobs: Vec<BlockingHandle<()>>) {
    case.run(async {
        for (number, job) in jobs.into_iter().enumerate() {
            let result = job.await;
            match number {
                0 => result.expect("the job had begun"),
                _ => assert!(result.expect_err("the job had not begun").is_cancelled()),
            }
        }
    });
    assert_eq!(gate.begun(), 1);
}

#[test]
fn a_closing_loop_waits_for_jobs_that_have_begun() {
    on_every_driver(|case| {
        let (event_loop, gate, jobs, queued) = with_jobs(case, Shutdown::default());
        let opener = thread::spawn({
            let gate = gate.clone();
            move || {
                // The loop has closed the pool and emptied its queue.
                eventually("the queue is emptied", || queued.strong_count() == 0);
                thread::sleep(Duration::from_millis(20));
                gate.open();
            }
        });
        drop(event_loop);
        assert!(jobs[0].is_finished(), "the loop waited for the job");
        expect_ends(case, &gate, jobs);
        opener.join().expect("no panic");
    });
}

#[test]
fn a_closing_loop_waits_no_longer_than_configured() {
    on_every_driver(|case| {
        for how in [Shutdown::Detach, Shutdown::Within(Duration::from_millis(30))] {
            let (event_loop, gate, jobs, _) = with_jobs(case, how);
            let begin = Instant::now();
            drop(event_loop);
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(60), "{took:?}");
            if let Shutdown::Within(limit) = how {
                assert!(took >= limit, "{took:?}");
            }
            assert!(!jobs[0].is_finished());
            // The result arrives after the loop is gone.
            gate.open();
            expect_ends(case, &gate, jobs);
        }
    });
}

/// Jobs without a handle, one of which panics when there is no exception handler left.
#[test]
fn jobs_may_end_after_their_loop() {
    on_every_driver(|case| {
        let event_loop = case.builder().blocking_shutdown(Shutdown::Detach).build();
        let event_loop = event_loop.expect("a loop");
        let reported = exceptions_of(&event_loop);
        let (gate, ended) = (Gate::default(), Arc::new(AtomicU64::new(0)));
        let result = event_loop.run_until_complete(async {
            for fails in [false, true] {
                let (gate, ended) = (gate.clone(), ended.clone());
                drop(spawn_blocking(move || {
                    gate.pass();
                    ended.fetch_add(1, SeqCst);
                    assert!(!fails, "after the loop");
                }));
            }
            gate.wait_for(2);
        });
        result.expect("the loop runs");
        drop(event_loop);
        gate.open();
        eventually("both end", || ended.load(SeqCst) == 2);
        assert_eq!(reported.borrow().len(), 0);
    });
}

/// A pool thread reads into an operation's buffer when the loop closes: the loop waits for it.
#[test]
fn a_closing_loop_waits_for_operations_on_threads() {
    where_threads_do_files(|case| {
        let folder = Folder::new();
        let pipe = folder.pipe();
        let (mut ends, dropped, event_loop) = with_a_read(case.event_loop(), &pipe);
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            let freed = dropped.load(SeqCst);
            ends.write_all(b"late").expect("write");
            (freed, dropped)
        });
        let reported = exceptions_of(&event_loop);
        drop(event_loop);
        let (freed, dropped) = writer.join().expect("no panic");
        assert!(!freed, "freed while the thread used it");
        assert!(dropped.load(SeqCst), "leaked although the read had completed");
        assert_eq!(reported.borrow().len(), 0, "{:?}", reported.borrow());
    });
}

/// As above, but the thread does not return in time: the buffer is leaked.
#[test]
fn a_closing_loop_leaks_a_buffer_that_a_thread_still_uses() {
    on_every_kernel_driver(|case| {
        if !case.tries_first() {
            return;
        }
        let folder = Folder::new();
        let pipe = folder.pipe();
        let builder = case.builder().close_within(Duration::from_millis(500));
        let (mut ends, dropped, event_loop) = with_a_read(builder.build().expect("a loop"), &pipe);
        let reported = exceptions_of(&event_loop);
        drop(event_loop);
        assert_eq!(reported.borrow().len(), 1, "{:?}", reported.borrow());
        assert!(!dropped.load(SeqCst), "freed while the thread used it");
        ends.write_all(b"very late").expect("write");
        thread::sleep(Duration::from_millis(20));
        assert!(!dropped.load(SeqCst));
    });
}

/// A loop with a task whose read of a pipe blocks a pool thread.
fn with_a_read(event_loop: EventLoop, pipe: &Path) -> (std::fs::File, Arc<AtomicBool>, EventLoop) {
    let ends = both_ends(pipe);
    let other = ends.try_clone().expect("a second descriptor");
    let (buffer, dropped) = Watched::new(64);
    let result = event_loop.run_until_complete(async {
        let file = File::from_std(other);
        windlass::spawn(async move { file.read(buffer).await.0 });
        eventually_turning("a thread reads", || {
            let files = windlass::counters().files;
            files.started == 1 && files.idle == 0 && files.queued == 0
        })
        .await;
    });
    result.expect("the loop runs");
    (ends, dropped, event_loop)
}

// Embedded in another loop.

#[test]
fn a_finished_job_notifies_the_outer_loop() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let ours = event_loop.pollable().expect("a descriptor");
        for _ in 0..20 {
            let gate = Gate::default();
            let job_gate = gate.clone();
            let task = event_loop.spawn(async move {
                let job = spawn_blocking(move || {
                    job_gate.pass();
                    7
                });
                job.await.expect("no panic")
            });
            while gate.begun() == 0 {
                event_loop.turn_nowait().expect("a turn");
            }
            // Processes everything that the last turns left over.
            for _ in 0..3 {
                event_loop.turn_nowait().expect("a turn");
            }
            event_loop.flush().expect("a flush");
            gate.open();
            while !task.is_finished() {
                assert!(is_readable(&ours, 10_000), "the end of the job was not notified");
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("a flush");
            }
        }
    });
}

fn is_readable(fd: &impl std::os::fd::AsRawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: the kernel reads and writes the one local structure.
        let polled = unsafe { libc::poll(&mut poll, 1, timeout_ms) };
        if polled >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return polled == 1;
        }
    }
}

// Threads that cannot be started.

/// The kernel refuses new threads. Calls that need one return an error, and nothing hangs.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    on_every_kernel_driver(|case| {
        let folder = Folder::new();
        let path = folder.file();
        // A loop with a running thread needs no other.
        let started = case.builder().max_blocking_threads(2).build().expect("a loop");
        let gate = Gate::default();
        let mut first = Vec::new();
        let result = started.run_until_complete(async {
            let job_gate = gate.clone();
            first.push(spawn_blocking(move || job_gate.pass()));
        });
        result.expect("the loop runs");
        gate.wait_for(1);
        let event_loop = case.event_loop();
        let reported = exceptions_of(&event_loop);
        for call in [libc::SYS_clone, libc::SYS_clone3] {
            crate::support::refuse_call(call, libc::EAGAIN);
        }
        let result = event_loop.run_until_complete(async {
            let error = spawn_blocking(|| 1).await.expect_err("no thread can be started");
            assert!(!error.is_cancelled() && !error.is_panic(), "{error}");
            expect_no_thread(&error.into());
            // Its handle is dropped and it cannot be run: it is dropped.
            drop(spawn_blocking(|| 1));
            let read = windlass::fs::read(&path).await;
            match case.has_rings() {
                true => assert_eq!(read.expect("io_uring needs no thread"), b"contents"),
                false => {
                    let error = read.expect_err("no thread can be started");
                    assert_eq!(windlass::os_code(&error), Some(libc::EAGAIN), "{error}");
                    assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
                }
            }
            // A lookup, and an operation that no kernel has, are operations like the read.
            let lookup = TcpListener::bind("localhost:0")
                .await
                .expect_err("no thread can be started");
            let path = windlass::fs::canonicalize(&path)
                .await
                .expect_err("no thread can be started");
            for error in [lookup, path] {
                assert_eq!(windlass::os_code(&error), Some(libc::EAGAIN), "{error}");
            }
            let counters = windlass::counters();
            assert_eq!((counters.blocking.threads, counters.blocking.queued), (0, 0));
            assert_eq!(
                (counters.files.threads, counters.files.queued, counters.in_flight),
                (0, 0, 0)
            );
        });
        result.expect("the loop runs");
        assert_eq!(reported.borrow().len(), 0, "{:?}", reported.borrow());
        let second = started.run_until_complete(async {
            let second = spawn_blocking(|| 2);
            gate.open();
            second.await
        });
        assert_eq!(second.expect("the loop runs").expect("the first thread runs it"), 2);
        for first in first {
            started
                .run_until_complete(first)
                .expect("the loop runs")
                .expect("no panic");
        }
    });
}

#[cfg(target_os = "linux")]
fn expect_no_thread(error: &std::io::Error) {
    assert_eq!(windlass::os_code(error), Some(libc::EAGAIN), "{error}");
    assert!(error.to_string().contains("no thread could be started"), "{error}");
}
