//! Kernel failures: resource limits, resets, signals, and a kernel without io_uring.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass::driver::{
    Completion, Control, Description, Driver, DriverCounters, Fd, Notify, Op, OpId, OpResult, Reply, Scratch, Start,
    Wait,
};
use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};
use windlass::{Builder, DriverChoice};

use crate::child::{UNDISTURBED, in_own_process, suite_with};
use crate::support::hoard;
use crate::support::{
    Case, connect_error, on_every_driver, on_every_kernel_driver, open_descriptors, pair, refuse_io_uring,
    reset_on_close,
};

/// Counts the exceptions that the handler receives, all of which must be EMFILE.
fn count_exceptions(event_loop: &windlass::EventLoop) -> Rc<Cell<usize>> {
    let reported = Rc::new(Cell::new(0));
    let count = reported.clone();
    event_loop.set_exception_handler(move |exception| {
        println!("reported: {exception}");
        assert_eq!(exception.io_error().and_then(windlass::os_code), Some(libc::EMFILE));
        count.set(count.get() + 1);
    });
    reported
}

/// Connects a client that sends a byte and expects it back.
fn client(addr: SocketAddr) -> StdStream {
    let mut client = StdStream::connect(addr).expect("connect");
    client.write_all(&[7]).expect("write");
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a timeout");
    client
}

fn expect_echo(clients: &mut [StdStream]) {
    for (number, client) in clients.iter_mut().enumerate() {
        let mut byte = [0];
        match client.read_exact(&mut byte) {
            Ok(()) => assert_eq!(byte, [7]),
            Err(error) => panic!("client {number} was not served: {error}"),
        }
    }
}

/// Echoes one byte and keeps the connection open.
async fn serve_one(stream: windlass::net::TcpStream, held: Rc<RefCell<Vec<windlass::net::TcpStream>>>) {
    let (result, byte) = stream.read_exact([0]).await;
    result.expect("read");
    stream.write_all(byte).await.0.expect("write");
    held.borrow_mut().push(stream);
}

#[test]
fn accept_waits_for_descriptors_after_emfile() {
    in_own_process(
        "faults::accept_waits_for_descriptors_after_emfile",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| exhaust(case, None));
        },
    );
}

/// A server whose accepts time out every few milliseconds must not retry or report more often.
#[test]
fn accept_under_a_timeout_waits_for_descriptors_after_emfile() {
    let test = "faults::accept_under_a_timeout_waits_for_descriptors_after_emfile";
    in_own_process(test, &UNDISTURBED, || {
        on_every_kernel_driver(|case| exhaust(case, Some(Duration::from_millis(5))));
    });
}

/// The accepts in flight.
const AHEAD: u32 = 16;

/// 200 clients connect when 20 descriptors are left. Accept does not spin, no client is lost, and the shortage is
/// reported once per episode.
fn exhaust(case: Case, limit: Option<Duration>) {
    drop(hoard(0));
    let event_loop = case.event_loop();
    let reported = count_exceptions(&event_loop);
    let held = Rc::new(RefCell::new(Vec::new()));
    let served = held.clone();
    let result = event_loop.run_until_complete(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        // Several accepts fail together and count as one attempt.
        listener.set_accept_ahead(AHEAD);
        let addr = listener.local_addr().expect("an address");
        windlass::spawn(async move {
            loop {
                let accepted = match limit {
                    None => listener.accept().await,
                    Some(limit) => match timeout(limit, listener.accept()).await {
                        Ok(accepted) => accepted,
                        Err(_) => continue,
                    },
                };
                let (stream, _) = accepted.expect("accept does not return EMFILE");
                windlass::spawn(serve_one(stream, served.clone()));
            }
        });
        for episode in 1..=2 {
            let mut clients: Vec<_> = (0..200).map(|_| client(addr)).collect();
            let hoard = hoard(20);
            let served_before = held.borrow().len();
            // Clients are served while descriptors last; then the shortage is reported.
            until("20 clients are served", || held.borrow().len() >= served_before + 20).await;
            until("the shortage is reported", || reported.get() == episode).await;
            sleep(Duration::from_millis(50)).await;
            let served_then = held.borrow().len();
            // An accept in flight may have reserved its descriptor before. Without newer features of io_uring, kernel workers
            // wait inside each of them.
            let reserved = if case.is_plain_ring() { AHEAD as usize } else { 1 };
            let served_now = served_then - served_before;
            assert!(
                (20..=20 + reserved).contains(&served_now),
                "{served_now} clients served with 20 descriptors"
            );
            let (before, begin) = (windlass::counters().driver, Instant::now());
            let tries = || windlass::counters().driver.submissions - before.submissions;
            until("accept is retried several times", || tries() >= 3).await;
            let (tries, pauses) = (tries(), begin.elapsed().as_millis() as u64 / 100);
            // One attempt per 100 ms.
            assert!(
                tries <= pauses + 2,
                "{tries} submissions in {pauses} tenths of a second"
            );
            if limit.is_none() {
                // For the attempts, and for the sleeps of this task.
                let enters = windlass::counters().driver.enters - before.enters;
                let most = 10 + 6 * (tries + pauses);
                assert!(enters <= most, "{enters} system calls in {pauses} tenths of a second");
            }
            assert_eq!(held.borrow().len(), served_then);
            assert_eq!(reported.get(), episode, "reported once per episode");

            drop(hoard);
            until("all clients are served", || held.borrow().len() == episode * 200).await;
            expect_echo(&mut clients);
            assert_eq!(reported.get(), episode);
        }
    });
    result.expect("the loop runs");
}

/// Waits until the condition holds, checking ten times per second.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "timed out waiting until {what}"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Connects and resets `count` times.
fn flood(addr: SocketAddr, count: usize) {
    for _ in 0..count {
        reset_on_close(&StdStream::connect(addr).expect("connect"));
    }
}

/// Clients that reset at once, before they are accepted and while they are being accepted.
#[test]
fn a_listener_survives_resets() {
    on_every_kernel_driver(|case| {
        const COUNT: usize = 500;
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address");
            // Before the first accept.
            flood(addr, COUNT);
            let server = windlass::spawn(async move {
                let mut served = 0;
                while served < 2 {
                    let (stream, peer) = listener
                        .accept()
                        .await
                        .expect("a reset ends a connection, not the listener");
                    assert!(peer.ip().is_loopback());
                    let (result, bytes) = stream.read(Vec::with_capacity(8)).await;
                    if result.is_ok_and(|count| count == 4) {
                        served += 1;
                        stream.write_all(bytes).await.0.expect("write");
                    }
                }
            });
            good_client(addr).await;
            // While accepting.
            let flooding = std::thread::spawn(move || flood(addr, COUNT));
            while !flooding.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
            flooding.join().expect("no panic");
            good_client(addr).await;
            server.await.expect("no panic");
        });
    });
}

async fn good_client(addr: SocketAddr) {
    let good = windlass::net::TcpStream::connect(addr).await.expect("connect");
    good.write_all("good").await.0.expect("write");
    let (result, bytes) = timeout(Duration::from_secs(60), good.read_exact([0; 4]))
        .await
        .expect("served");
    result.expect("read");
    assert_eq!(&bytes, b"good");
}

/// A driver whose accepts return the scripted results.
struct Scripted {
    accepts: Vec<Result<u32, i32>>,
    now: windlass::time::Instant,
    starts: Rc<Cell<usize>>,
}

// SAFETY: every operation completes in `start`, so no memory is used afterwards.
unsafe impl Driver for Scripted {
    fn describe(&self) -> Description {
        Description::new("scripted", Vec::new(), "a test")
    }

    fn now(&self) -> windlass::time::Instant {
        self.now
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        let addr = SocketAddr::from(([127, 0, 0, 1], 80));
        match call {
            Control::Socket { .. } => Ok(Reply::Fd(-2 as Fd)),
            Control::PeerName { .. } => Ok(Reply::Name(addr.into())),
            _ => Ok(Reply::Done),
        }
    }

    unsafe fn start(&mut self, _id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        assert!(matches!(op, Op::Accept { .. }));
        self.starts.set(self.starts.get() + 1);
        Start::Done(OpResult::new(self.accepts.pop().expect("more accepts than scripted")))
    }

    fn cancel(&mut self, _id: OpId, _op: &Op) {}

    fn poll(&mut self, _completed: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        match wait {
            Wait::No | Wait::Poll => {}
            Wait::Until(deadline) | Wait::Between(_, deadline) => self.now = self.now.max(deadline),
            Wait::Forever => panic!("a wait would never end"),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        struct NoNotify;
        impl Notify for NoNotify {
            fn notify(&self) {}
        }
        Arc::new(NoNotify)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

/// The result of an accept for which the kernel returns these results, how often it was started, and the time it took.
fn accept_after(outcomes: &[Result<u32, i32>]) -> (io::Result<()>, usize, Duration) {
    let starts = Rc::new(Cell::new(0));
    let driver = Scripted {
        accepts: outcomes.iter().rev().copied().collect(),
        now: windlass::time::Instant::from_origin(Duration::from_secs(1)),
        starts: starts.clone(),
    };
    let event_loop = Builder::new().with_driver(Box::new(driver)).build().expect("a loop");
    event_loop.set_exception_handler(|_| {});
    let begin = event_loop.time();
    let accepted = event_loop.run_until_complete(async {
        let listener = TcpListener::bind("127.0.0.1:80").await.expect("bind");
        listener.accept().await.map(|_| ())
    });
    let took = event_loop.time().duration_since(begin);
    (accepted.expect("the loop runs"), starts.get(), took)
}

/// On Linux, `accept` returns pending network errors of a connection; they do not concern the listener.
#[test]
fn accept_skips_errors_of_single_connections() {
    for code in [
        libc::ECONNABORTED,
        libc::EPROTO,
        libc::EINTR,
        libc::ENETDOWN,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ] {
        let (accepted, starts, took) = accept_after(&[Err(code), Err(code), Ok(0)]);
        accepted.unwrap_or_else(|error| panic!("{code} ended the accept: {error}"));
        assert_eq!((starts, took), (3, Duration::ZERO));
    }
}

#[test]
fn accept_retries_after_exhaustion_and_returns_other_errors() {
    for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
        let (accepted, starts, took) = accept_after(&[Err(code), Err(code), Ok(0)]);
        accepted.unwrap_or_else(|error| panic!("{code} ended the accept: {error}"));
        assert_eq!(starts, 3);
        assert!(took >= Duration::from_millis(200), "only {took:?} for two pauses");
        assert!(took <= Duration::from_secs(2), "{took:?} until the retry");
    }
    let (accepted, ..) = accept_after(&[Err(libc::EINVAL), Ok(0)]);
    assert_eq!(accepted.expect_err("not a listener").raw_os_error(), Some(libc::EINVAL));
}

/// A driver whose wait fails after it has accepted a receive, as `io_uring_enter` can after submitting one.
struct FailingWait {
    /// The receive in flight, and its buffer.
    receive: Option<(OpId, *mut u8)>,
    failures: usize,
    dropped: Rc<Cell<bool>>,
}

impl Drop for FailingWait {
    fn drop(&mut self) {
        self.dropped.set(true);
    }
}

// SAFETY: the buffer of a receive is written to only before its completion is reported.
unsafe impl Driver for FailingWait {
    fn describe(&self) -> Description {
        Description::new("failing", Vec::new(), "a test")
    }

    fn now(&self) -> windlass::time::Instant {
        windlass::time::Instant::from_origin(Duration::from_secs(1))
    }

    fn control(&mut self, call: Control<'_>) -> io::Result<Reply> {
        match call {
            Control::Socket { .. } => Ok(Reply::Fd(-2 as Fd)),
            _ => Ok(Reply::Done),
        }
    }

    unsafe fn start(&mut self, id: OpId, op: &Op, _scratch: *mut Scratch) -> Start {
        match *op {
            Op::Connect { .. } => Start::Done(OpResult::new(Ok(0))),
            Op::Recv { ptr, .. } => {
                self.receive = Some((id, ptr));
                Start::Pending
            }
            op => panic!("not expected: {op:?}"),
        }
    }

    fn cancel(&mut self, _id: OpId, _op: &Op) {}

    fn poll(&mut self, completed: &mut Vec<Completion>, _wait: Wait) -> io::Result<()> {
        let Some((id, ptr)) = self.receive else {
            return Ok(());
        };
        if self.failures > 0 {
            self.failures -= 1;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.receive = None;
        // SAFETY: the loop keeps the buffer until the completion below, and it has room for 5 bytes.
        unsafe { ptr.copy_from(b"hello".as_ptr(), 5) };
        completed.push(Completion {
            id,
            result: OpResult::new(Ok(5)),
        });
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        struct Silent;
        impl Notify for Silent {
            fn notify(&self) {}
        }
        Arc::new(Silent)
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

/// A buffer that records when it is dropped.
struct Tracked(Vec<u8>, Rc<Cell<bool>>);

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.set(true);
    }
}

// SAFETY: the vector's memory does not move.
unsafe impl windlass::io::IoBuf for Tracked {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above.
unsafe impl windlass::io::IoBufMut for Tracked {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    fn capacity(&self) -> usize {
        self.0.capacity()
    }
    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.set_len(len) };
    }
}

/// After a failed wait the kernel may still use the buffer: it is neither returned nor freed before the completion.
#[test]
fn a_failed_wait_does_not_return_buffers() {
    for failures in [1, usize::MAX] {
        let (buffer_dropped, driver_dropped) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let driver = FailingWait {
            receive: None,
            failures,
            dropped: driver_dropped.clone(),
        };
        let event_loop = Builder::new().with_driver(Box::new(driver)).build().expect("a loop");
        event_loop.set_exception_handler(|_| {});
        let buffer = Tracked(Vec::with_capacity(16), buffer_dropped.clone());
        let read = event_loop.spawn(async move {
            let stream = TcpStream::connect("127.0.0.1:80").await.expect("connect");
            let (result, buffer) = stream.read(buffer).await;
            (result.map_err(|error| error.to_string()), buffer.0.clone())
        });
        for _ in 0..10 {
            // The error may end this turn; the operation stays in flight.
            let _ = event_loop.turn();
        }
        if failures == 1 {
            assert!(read.is_finished());
            let output = event_loop.run_until_complete(read).expect("the loop runs");
            assert_eq!(output.expect("no panic"), (Ok(5), b"hello".to_vec()));
            assert!(buffer_dropped.get());
        } else {
            assert!(!read.is_finished());
            drop(read);
            drop(event_loop);
            assert!(!buffer_dropped.get(), "the buffer is freed while the kernel uses it");
            assert!(!driver_dropped.get(), "the driver is freed with an operation in flight");
        }
    }
}

/// A timer signal interrupts every blocking system call 1,000 times per second.
#[test]
fn signals_do_not_disturb_the_loop() {
    let settings = [("WINDLASS_TEST_ITIMER", "1")];
    in_own_process("faults::signals_do_not_disturb_the_loop", &settings, || {
        on_every_kernel_driver(|case| {
            let long = libc::timespec { tv_sec: 5, tv_nsec: 0 };
            // SAFETY: the kernel reads the local timespec.
            let slept = unsafe { libc::nanosleep(&long, std::ptr::null_mut()) };
            assert_eq!(slept, -1, "no signal interrupts this thread");
            let event_loop = case.event_loop();
            let result = event_loop.run_until_complete(async {
                let begin = Instant::now();
                sleep(Duration::from_millis(200)).await;
                assert!(begin.elapsed() >= Duration::from_millis(200));
                let (client, server) = pair().await;
                let writer = windlass::spawn(async move {
                    for _ in 0..20 {
                        sleep(Duration::from_millis(5)).await;
                        client.write_all([7u8]).await.0.expect("write");
                    }
                });
                for _ in 0..20 {
                    server.read_exact([0u8]).await.0.expect("read");
                }
                writer.await.expect("no panic");
                // A wait without a deadline.
                let (client, server) = pair().await;
                let other = std::thread::spawn(move || std::thread::sleep(Duration::from_millis(100)));
                let read = windlass::spawn(async move { server.read_exact([0u8]).await.0 });
                while !other.is_finished() {
                    sleep(Duration::from_millis(30)).await;
                }
                client.write_all([7u8]).await.0.expect("write");
                read.await.expect("no panic").expect("read");
            });
            result.expect("a signal is not an error");
        });
    });
}

/// The same for a part of the suite.
#[test]
fn the_suite_passes_under_signals() {
    suite_with(&["ring::", "pool::"], &[("WINDLASS_TEST_ITIMER", "1")]);
}

// Errors.

async fn bind_error(addr: &str) -> io::Error {
    TcpListener::bind(addr).await.expect_err("the address cannot be bound")
}

/// Asserts the kind, the OS code if there was one, and that the message names the subject.
fn expect_error(error: &io::Error, kind: io::ErrorKind, code: Option<i32>, names: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(windlass::os_code(error), code, "{error}");
    assert!(error.to_string().contains(names), "{error} does not name {names}");
}

#[test]
fn a_port_in_use_and_a_refused_connection_are_errors() {
    on_every_driver(|case| {
        case.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let addr = listener.local_addr().expect("an address").to_string();
            let error = bind_error(&addr).await;
            expect_error(&error, io::ErrorKind::AddrInUse, Some(libc::EADDRINUSE), &addr);
            drop(listener);
            let error = connect_error(addr.as_str()).await;
            expect_error(
                &error,
                io::ErrorKind::ConnectionRefused,
                Some(libc::ECONNREFUSED),
                &addr,
            );
            // The loop still works.
            pair().await;
        });
    });
}

#[test]
fn binding_a_foreign_address_is_an_error() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let error = bind_error("192.0.2.1:0").await;
            let kind = io::ErrorKind::AddrNotAvailable;
            expect_error(&error, kind, Some(libc::EADDRNOTAVAIL), "192.0.2.1:0");
        });
    });
}

#[test]
fn bad_addresses_are_errors() {
    on_every_driver(|case| {
        case.run(async {
            for bad in [
                "nonsense",
                "127.0.0.1",
                "127.0.0.1:99999",
                ":",
                "",
                "[::1]",
                "127.0.0.1:-1",
            ] {
                let kind = io::ErrorKind::InvalidInput;
                expect_error(&bind_error(bad).await, kind, None, bad);
                expect_error(&connect_error(bad).await, kind, None, bad);
            }
            let none: &[SocketAddr] = &[];
            let error = TcpListener::bind(none).await.expect_err("no address");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        });
    });
}

/// `.invalid` is reserved. The resolver may fail in several ways, but must fail.
#[test]
fn an_unknown_name_is_an_error() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let name = "does-not-exist.invalid:1";
            let error = connect_error(name).await;
            let std_error = std::net::ToSocketAddrs::to_socket_addrs(name).expect_err("no such name");
            assert_eq!(error.kind(), std_error.kind(), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        });
    });
}

/// An unprivileged user cannot bind port 1. The bare system call changes the ids of this thread only; a process of its
/// own keeps other tests independent of that.
#[test]
fn binding_a_privileged_port_is_an_error() {
    in_own_process("faults::binding_a_privileged_port_is_an_error", &[], || {
        let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
        if first.trim() == "0" {
            println!("-- SKIPPED: every port is unprivileged here");
            return;
        }
        on_every_kernel_driver(|case| {
            const NOBODY: libc::uid_t = 65_534;
            // SAFETY: getuid and setresuid touch no memory of ours.
            let result = unsafe {
                match libc::getuid() {
                    0 => libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY),
                    _ => 0,
                }
            };
            if result != 0 {
                println!("-- SKIPPED: {}", io::Error::last_os_error());
                return;
            }
            case.run(async {
                let error = bind_error("127.0.0.1:1").await;
                let kind = io::ErrorKind::PermissionDenied;
                expect_error(&error, kind, Some(libc::EACCES), "127.0.0.1:1");
            });
        });
    });
}

#[test]
fn invalid_settings_are_errors() {
    on_every_driver(|case| {
        let refused = [
            (case.builder().ring_entries(0), "ring_entries"),
            (
                case.builder().ring_entries(64).completion_entries(32),
                "completion_entries",
            ),
            (case.builder().completion_entries(0), "completion_entries"),
            (case.builder().managed_buffers(0, 64), "managed_buffers"),
            (case.builder().managed_buffers(64, 0), "managed_buffers"),
            (case.builder().managed_buffers(u16::MAX, 64), "managed_buffers"),
            (case.builder().managed_buffers(64, usize::MAX), "managed_buffers"),
        ];
        for (builder, names) in refused {
            let error = builder.build().expect_err("an invalid setting");
            expect_error(&error, io::ErrorKind::InvalidInput, None, names);
        }
    });
}

#[test]
fn an_unknown_driver_is_an_error() {
    let settings = [("WINDLASS_DRIVER", "steam")];
    in_own_process("faults::an_unknown_driver_is_an_error", &settings, || {
        let error = Builder::new().build().expect_err("no such driver");
        expect_error(&error, io::ErrorKind::InvalidInput, None, "steam");
        assert!(
            error.to_string().contains("proactor"),
            "{error} does not list the drivers"
        );
        windlass::run(async {}).expect_err("no such driver");
        // A choice in the program ignores the variable.
        let chosen = Builder::new().driver(DriverChoice::Null).build();
        chosen.expect("the null driver is always available");
    });
}

// A kernel without io_uring.

/// A seccomp filter applies to the thread that installs it, so a thread for each code is enough.
#[test]
fn the_error_explains_a_refused_io_uring() {
    if !cfg!(feature = "proactor") {
        return;
    }
    on_every_kernel_driver(|_| {
        for (code, kind) in [
            (libc::EPERM, io::ErrorKind::PermissionDenied),
            (libc::ENOSYS, io::ErrorKind::Unsupported),
        ] {
            let refused = std::thread::spawn(move || {
                refuse_io_uring(code);
                let error = Builder::new()
                    .driver(DriverChoice::Proactor)
                    .build()
                    .expect_err("refused");
                expect_error(&error, kind, Some(code), "io_uring");
                assert!(
                    error.to_string().contains("seccomp"),
                    "{error} does not name a possible cause"
                );
                // Other drivers still work.
                Builder::new()
                    .driver(DriverChoice::Null)
                    .build()
                    .expect("the null driver")
                    .run_until_complete(pair())
                    .expect("the loop runs");
            });
            refused.join().expect("no panic");
        }
    });
}

#[test]
fn the_error_explains_a_lack_of_descriptors() {
    in_own_process("faults::the_error_explains_a_lack_of_descriptors", &[], || {
        on_every_kernel_driver(|case| {
            let open_before = open_descriptors();
            // No descriptor for the ring, or none for the second one it needs.
            for left in [0, 1] {
                let hoard = hoard(left);
                let error = case.builder().build().expect_err("no descriptor is left");
                expect_error(&error, error.kind(), Some(libc::EMFILE), "descriptor");
                drop(hoard);
                assert_eq!(open_descriptors(), open_before, "a failed build leaks a descriptor");
            }
        });
    });
}

/// Without descriptors, connect and bind return errors, and the loop continues.
#[test]
fn opening_sockets_without_descriptors_is_an_error() {
    in_own_process("faults::opening_sockets_without_descriptors_is_an_error", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (client, server) = pair().await;
                let hoard = hoard(0);
                let error = bind_error("127.0.0.1:0").await;
                expect_error(&error, error.kind(), Some(libc::EMFILE), "127.0.0.1:0");
                let error = connect_error("127.0.0.1:1").await;
                expect_error(&error, error.kind(), Some(libc::EMFILE), "127.0.0.1:1");
                client.write_all("here").await.0.expect("write");
                assert_eq!(&*server.read_managed().await.expect("read"), b"here");
                drop(hoard);
                yield_now().await;
                pair().await;
            });
        });
    });
}
