//! The loop embedded in another loop: it turns only when its descriptor is readable or its deadline has passed.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use windlass::EventLoop;
use windlass::io::AsyncFd;
use windlass::net::{TcpListener, TcpStream};
use windlass::time::sleep;

use crate::descriptors::{pipe, unix_pair};
use crate::support::{
    Case, assert_one_is_quick, is_interrupted, on_every_driver, on_every_kernel_driver, rounds, turns,
};

/// An outer loop that waits longer than this was not woken.
const TOO_LONG: Duration = Duration::from_secs(60);

/// Whether a descriptor becomes readable in time, by poll(2).
fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let left = milliseconds(deadline - Instant::now());
        // SAFETY: the kernel reads and writes the one local structure.
        match unsafe { libc::poll(&mut poll, 1, left) } {
            0 => return false,
            1 => return true,
            _ => assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::Interrupted),
        }
    }
}

/// Rounded up, so that the outer loop does not wake too early and turn for nothing.
fn milliseconds(duration: Duration) -> i32 {
    duration.as_micros().div_ceil(1_000) as i32
}

/// How the outer loop waits.
#[derive(Clone, Copy, Debug)]
enum Way {
    Poll,
    #[cfg(target_os = "linux")]
    LevelTriggered,
    #[cfg(target_os = "linux")]
    EdgeTriggered,
}

const WAYS: &[Way] = &[
    Way::Poll,
    #[cfg(target_os = "linux")]
    Way::LevelTriggered,
    #[cfg(target_os = "linux")]
    Way::EdgeTriggered,
];

/// An outer loop.
struct Outer<'a> {
    event_loop: &'a EventLoop,
    ours: BorrowedFd<'a>,
    way: Way,
    #[cfg(target_os = "linux")]
    epoll: linux::Epoll,
    iterations: Cell<usize>,
}

impl<'a> Outer<'a> {
    fn new(event_loop: &'a EventLoop, way: Way) -> Outer<'a> {
        let ours = event_loop.pollable().expect("this driver can be embedded");
        Outer {
            event_loop,
            ours,
            way,
            #[cfg(target_os = "linux")]
            epoll: linux::Epoll::watching(ours, matches!(way, Way::EdgeTriggered)),
            iterations: Cell::new(0),
        }
    }

    fn wait(&self, within: Duration) -> bool {
        match self.way {
            Way::Poll => is_readable(self.ours, within),
            #[cfg(target_os = "linux")]
            Way::LevelTriggered | Way::EdgeTriggered => self.epoll.wait(within),
        }
    }

    /// One iteration. The descriptor must become readable, unless the loop has a deadline.
    fn iterate(&self) {
        self.iterations.set(self.iterations.get() + 1);
        self.event_loop.flush().expect("flush");
        let left = self
            .event_loop
            .next_deadline()
            .map(|deadline| deadline - self.event_loop.time());
        let readable = self.wait(left.unwrap_or(TOO_LONG).min(TOO_LONG));
        assert!(
            readable || left.is_some(),
            "{:?}: the outer loop was not woken",
            self.way
        );
        self.event_loop.turn_nowait().expect("a turn");
    }

    /// Iterates until `is_done`, at most `at_most` times.
    fn run(&self, at_most: usize, is_done: impl Fn() -> bool) {
        let before = self.iterations.get();
        while !is_done() {
            self.iterate();
            let count = self.iterations.get() - before;
            assert!(count <= at_most, "{:?}: busy, {count} iterations", self.way);
        }
    }

    /// Asserts that nothing is left to do and that the descriptor is not readable.
    fn assert_idle(&self) {
        // Operations that were in flight may still complete, and on a busy machine a kernel notification may come much
        // later; but not in each attempt.
        for _ in 0..5 {
            self.event_loop.turn_nowait().expect("a turn");
            self.event_loop.flush().expect("flush");
            if is_readable(self.ours, Duration::from_millis(3)) {
                continue;
            }
            assert_eq!(self.event_loop.next_deadline(), None);
            // A second flush does not make it readable.
            self.event_loop.flush().expect("flush");
            if !is_readable(self.ours, Duration::ZERO) {
                return;
            }
        }
        panic!("{:?}: readable although nothing is ready", self.way);
    }
}

/// Runs a test on each driver that has a descriptor, for each kind of outer loop.
fn in_every_way(body: impl Fn(Case, Way) + Send + Clone + 'static) {
    on_every_kernel_driver(move |case| WAYS.iter().for_each(|&way| body(case, way)));
}

#[test]
fn the_null_driver_cannot_be_embedded() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        if case.is_kernel() {
            let (one, two) = (event_loop.pollable().unwrap(), event_loop.pollable().unwrap());
            assert_eq!(one.as_raw_fd(), two.as_raw_fd());
            return;
        }
        let error = event_loop.pollable().expect_err("the null driver has no descriptor");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        event_loop.flush().expect("a flush is harmless");
        let ran = Rc::new(Cell::new(false));
        event_loop.call_soon({
            let ran = ran.clone();
            move || ran.set(true)
        });
        assert_eq!(event_loop.next_deadline(), Some(event_loop.time()));
        event_loop.turn_nowait().expect("a turn");
        assert!(ran.get());
        assert_eq!(event_loop.next_deadline(), None);
        event_loop.turn_nowait().expect("an idle turn does not block");
    });
}

async fn echo_server(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.expect("accept");
        windlass::spawn(async move {
            let mut buf = vec![0; 1024];
            loop {
                let (read, filled) = stream.read(buf).await;
                match read {
                    Ok(0) | Err(_) => return,
                    Ok(count) => buf = filled[..count].to_vec(),
                }
                stream.write_all(buf).await.0.expect("write");
                buf = vec![0; 1024];
            }
        });
    }
}

#[test]
fn clients_and_a_server_run_inside_another_loop() {
    const CLIENTS: usize = 5;
    const MESSAGES: usize = 40;
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let bound = Rc::new(Cell::new(None));
        let binding = {
            let bound = bound.clone();
            event_loop.spawn(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
                bound.set(listener.local_addr().ok());
                windlass::spawn(echo_server(listener));
            })
        };
        outer.run(20, || binding.is_finished());
        let addr = bound.get().expect("an address");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                event_loop.spawn(async move {
                    let stream = TcpStream::connect(addr).await.expect("connect");
                    for message in 0..MESSAGES {
                        let text = format!("message {message} of client {client}");
                        stream.write_all(text.clone().into_bytes()).await.0.expect("write");
                        let (read, buf) = stream.read(vec![0; 1024]).await;
                        assert_eq!(&buf[..read.expect("read")], text.as_bytes());
                    }
                })
            })
            .collect();
        let is_done = || clients.iter().all(|client| client.is_finished());
        outer.run(CLIENTS * MESSAGES * 8, is_done);
        outer.assert_idle();
    });
}

#[test]
fn timers_fire_on_time_without_busy_waiting() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        assert_eq!(event_loop.next_deadline(), None);
        for millis in [1, 7, 20] {
            let length = Duration::from_millis(millis);
            assert_one_is_quick("a sleep", length + Duration::from_millis(500), || {
                let begun = Instant::now();
                let sleeping = event_loop.spawn(sleep(length));
                outer.run(8, || sleeping.is_finished());
                assert!(begun.elapsed() >= length, "{:?}", begun.elapsed());
                begun.elapsed()
            });
        }
        outer.assert_idle();
        // A timer at infinity is no deadline.
        let handle = event_loop.call_later(Duration::MAX, || {});
        assert_eq!(event_loop.next_deadline(), None);
        handle.cancel();
    });
}

/// The outer loop has no timeout: timers and ready tasks make the descriptor readable.
#[test]
fn timers_and_ready_tasks_make_the_descriptor_readable() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let wait_and_turn = || {
            event_loop.flush().expect("flush");
            assert!(event_loop.arms_deadlines());
            assert!(outer.wait(TOO_LONG), "{way:?}: the outer loop was not woken");
            event_loop.turn_nowait().expect("a turn");
        };
        let run = |at_most: usize, is_done: &dyn Fn() -> bool| {
            let mut waits = 0;
            while !is_done() {
                wait_and_turn();
                waits += 1;
                assert!(waits <= at_most || case.has_quirks(), "{way:?}: {waits} waits");
            }
        };
        // A turn leaves ready tasks behind.
        let yielding = event_loop.spawn(turns(5));
        run(7, &|| yielding.is_finished());
        for micros in [0, 100, 900, 5_000] {
            let nap = event_loop.spawn(sleep(Duration::from_micros(micros)));
            // The spawn, the deadline, the end of the task; io_uring also reports that the notification was read.
            run(6, &|| nap.is_finished());
        }
        // Each deadline is earlier than the one that is armed.
        let naps: Vec<_> = [30_000, 20_000, 10_000, 1]
            .map(|micros| {
                let nap = event_loop.spawn(sleep(Duration::from_micros(micros)));
                event_loop.turn_nowait().expect("a turn");
                event_loop.flush().expect("flush");
                nap
            })
            .into();
        run(16, &|| naps.iter().all(|nap| nap.is_finished()));
        outer.assert_idle();
        // A deadline that moves on is reached in the end, and one that is cancelled costs one wake-up at most.
        let moving = event_loop.spawn(async {
            for _ in 0..50 {
                let _ = windlass::time::timeout(Duration::from_millis(20), turns(3)).await;
            }
            sleep(Duration::from_millis(5)).await;
        });
        run(250, &|| moving.is_finished());
        let cancelled = event_loop.call_later(Duration::from_millis(3), || {});
        event_loop.flush().expect("flush");
        cancelled.cancel();
        run(3, &|| is_readable(outer.ours, Duration::from_millis(20)));
        event_loop.turn_nowait().expect("a turn");
        outer.assert_idle();
    });
}

#[test]
fn a_deadline_that_has_not_changed_costs_no_system_call() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, Way::Poll);
        outer.assert_idle();
        if case.has_quirks() || is_interrupted() {
            return;
        }
        let timer = event_loop.call_later(Duration::from_secs(3600), || {});
        event_loop.flush().expect("flush");
        let before = event_loop.counters().driver;
        let later = event_loop.call_later(Duration::from_secs(7200), || {});
        for _ in 0..10 {
            event_loop.flush().expect("flush");
        }
        let after = event_loop.counters().driver;
        assert_eq!((after.enters, after.submissions), (before.enters, before.submissions));
        timer.cancel();
        later.cancel();
    });
}

/// The other thread calls before the flush, between the flush and the wait, or during the wait.
#[test]
fn a_call_from_another_thread_wakes_the_outer_loop() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let ran = Arc::new(AtomicUsize::new(0));
        let (order, orders) = mpsc::channel::<(Duration, mpsc::Sender<()>)>();
        let caller = std::thread::spawn({
            let (handle, ran) = (event_loop.handle(), ran.clone());
            move || {
                for (delay, done) in orders {
                    let until = Instant::now() + delay;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    let ran = ran.clone();
                    let call = move || {
                        ran.fetch_add(1, SeqCst);
                    };
                    handle.call_soon_threadsafe(call).expect("the loop is open");
                    done.send(()).expect("the test waits");
                }
            }
        });
        let call = |delay: Duration| {
            let (done, is_done) = mpsc::channel();
            order.send((delay, done)).expect("the caller runs");
            is_done
        };
        for round in 0..rounds() {
            let mut called = None;
            match round % 3 {
                0 => call(Duration::ZERO).recv().expect("called"),
                1 => {}
                _ => called = Some(call(Duration::from_micros(round as u64 % 90))),
            }
            event_loop.flush().expect("flush");
            if round % 3 == 1 {
                call(Duration::ZERO).recv().expect("called");
            }
            // Whatever the deadline says, the descriptor alone must wake the outer loop.
            assert!(outer.wait(TOO_LONG), "round {round}, {way:?}: the wake was missed");
            event_loop.turn_nowait().expect("a turn");
            if let Some(called) = called {
                called.recv().expect("called");
            }
            // At most one more turn: the wake may have arrived before the call.
            let more = usize::from(ran.load(SeqCst) == round);
            for _ in 0..more * 2 {
                event_loop.turn_nowait().expect("a turn");
            }
            assert_eq!(ran.load(SeqCst), round + 1, "round {round}, {way:?}");
        }
        drop(order);
        caller.join().expect("no panic");
        outer.assert_idle();
    });
}

#[test]
fn all_calls_of_a_burst_run() {
    const THREADS: usize = 3;
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let ran = Arc::new(AtomicUsize::new(0));
        let total = THREADS * rounds();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (handle, ran) = (event_loop.handle(), ran.clone());
                scope.spawn(move || {
                    for i in 0..rounds() {
                        let ran = ran.clone();
                        let call = move || {
                            ran.fetch_add(1, SeqCst);
                        };
                        handle.call_soon_threadsafe(call).expect("the loop is open");
                        if i % 100 == thread {
                            std::thread::sleep(Duration::from_micros(200));
                        }
                    }
                });
            }
            outer.run(total * 3 + 10, || ran.load(SeqCst) == total);
        });
        outer.assert_idle();
    });
}

/// Operations started in a turn may complete at the flush, after the driver was last polled.
#[test]
fn a_completion_during_flush_makes_the_descriptor_readable() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let (ours, mut theirs) = unix_pair();
        theirs.write_all(b"x").expect("the buffer has room");
        let ours = Rc::new(
            event_loop
                .run_until_complete(async { AsyncFd::new(ours).expect("watched") })
                .unwrap(),
        );
        for _ in 0..rounds().min(200) {
            let waiting = event_loop.spawn({
                let ours = ours.clone();
                async move { ours.readable().await }
            });
            // The task runs and starts to wait for a byte that has already arrived.
            event_loop.turn_nowait().expect("a turn");
            assert!(!waiting.is_finished());
            event_loop.flush().expect("flush");
            assert_eq!(event_loop.next_deadline(), None);
            outer.run(4, || waiting.is_finished());
        }
        drop(ours);
        outer.assert_idle();
    });
}

/// Completions are already pending when the descriptor is requested.
#[test]
fn a_descriptor_requested_late_reports_earlier_events() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let (reader, mut writer) = pipe();
        let waiting = event_loop.spawn(async move { AsyncFd::new(reader).expect("watched").readable().await });
        for _ in 0..3 {
            event_loop.turn_nowait().expect("a turn");
        }
        writer.write_all(b"x").expect("the pipe has room");
        let outer = Outer::new(&event_loop, Way::Poll);
        outer.run(4, || waiting.is_finished());
        outer.assert_idle();
    });
}

#[test]
fn an_idle_loop_is_not_readable() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        outer.assert_idle();
        // With waits in flight, and after calls, wakes and cancels.
        let (reader, writer) = pipe();
        let waiting = event_loop.spawn(async move { AsyncFd::new(reader).expect("watched").readable().await });
        outer.assert_idle();
        let handle = event_loop.handle();
        let called = Arc::new(AtomicUsize::new(0));
        let caller = std::thread::spawn({
            let called = called.clone();
            let call = move || {
                called.fetch_add(1, SeqCst);
            };
            move || handle.call_soon_threadsafe(call).expect("the loop is open")
        });
        outer.run(5, || called.load(SeqCst) == 1);
        caller.join().expect("no panic");
        outer.assert_idle();
        waiting.cancel();
        outer.run(5, || waiting.is_finished());
        outer.assert_idle();
        let sleeping = event_loop.spawn(sleep(Duration::from_millis(1)));
        outer.run(8, || sleeping.is_finished());
        outer.assert_idle();
        drop(writer);
    });
}

#[test]
fn the_loop_can_be_run_by_itself_in_between() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        for _ in 0..3 {
            outer.assert_idle();
            // The flush marked the loop as asleep; now it runs and sleeps by itself.
            let before = event_loop.counters().turns;
            event_loop
                .run_until_complete(sleep(Duration::from_millis(20)))
                .expect("the loop runs");
            let turned = event_loop.counters().turns - before;
            assert!(turned <= 6 || is_interrupted(), "{turned} turns in one sleep");
            // Another thread wakes it from that sleep too.
            event_loop.flush().expect("flush");
            let woken = Arc::new(AtomicUsize::new(0));
            let caller = std::thread::spawn({
                let (handle, woken) = (event_loop.handle(), woken.clone());
                move || {
                    std::thread::sleep(Duration::from_millis(5));
                    let call = move || {
                        woken.fetch_add(1, SeqCst);
                    };
                    handle.call_soon_threadsafe(call).expect("the loop is open");
                }
            });
            let before = event_loop.counters().turns;
            while woken.load(SeqCst) == 0 {
                event_loop.turn().expect("a turn");
            }
            let turned = event_loop.counters().turns - before;
            assert!(turned <= 6 || is_interrupted(), "{turned} turns until the call");
            caller.join().expect("no panic");
            // The outer loop continues.
            let sleeping = event_loop.spawn(sleep(Duration::from_millis(2)));
            outer.run(8, || sleeping.is_finished());
        }
    });
}

/// A turn with ready callbacks polls the driver as well, since the descriptor was readable for its events.
#[test]
fn events_are_handled_in_a_turn_with_ready_callbacks() {
    in_every_way(|case, way| {
        let event_loop = case.event_loop();
        let outer = Outer::new(&event_loop, way);
        let (ours, theirs) = unix_pair();
        let ours = Rc::new(
            event_loop
                .run_until_complete(async { AsyncFd::new(ours).expect("watched") })
                .unwrap(),
        );
        for round in 0..rounds().min(300) {
            let waiting = event_loop.spawn({
                let ours = ours.clone();
                async move {
                    ours.read_with(|mut stream| io::Read::read(&mut stream, &mut [0; 8]))
                        .await
                }
            });
            for _ in 0..2 {
                event_loop.turn_nowait().expect("a turn");
            }
            event_loop.flush().expect("flush");
            (&theirs).write_all(b"x").expect("the buffer has room");
            // The outer loop is woken, and also schedules a callback.
            assert!(outer.wait(TOO_LONG), "round {round}: the outer loop was not woken");
            match round % 2 {
                0 => drop(event_loop.call_soon(|| {})),
                _ => event_loop
                    .handle()
                    .call_soon_threadsafe(|| {})
                    .expect("the loop is open"),
            }
            event_loop.turn_nowait().expect("a turn");
            outer.run(4, || waiting.is_finished());
        }
        drop(ours);
        outer.assert_idle();
    });
}

#[test]
fn a_running_loop_cannot_be_turned_from_inside() {
    on_every_driver(|case| {
        let event_loop = Rc::new(case.event_loop());
        let inner = event_loop.clone();
        let error = event_loop
            .run_until_complete(async move { inner.turn_nowait().expect_err("the loop is running") })
            .expect("the loop runs");
        assert!(error.to_string().contains("already running"), "{error}");
        event_loop.run_until_complete(turns(3)).expect("the loop still runs");
    });
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::child::in_own_process;
    use crate::support::limit_descriptors;

    /// An outer epoll with one descriptor.
    pub(super) struct Epoll(OwnedFd);

    impl Epoll {
        pub(super) fn watching(fd: BorrowedFd<'_>, edge_triggered: bool) -> Epoll {
            // SAFETY: the call touches no memory of ours.
            let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            assert!(epoll >= 0, "{}", io::Error::last_os_error());
            let edge = if edge_triggered { libc::EPOLLET } else { 0 };
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | edge) as u32,
                u64: 0,
            };
            // SAFETY: the descriptor was just created and has no other owner; the kernel reads the local event.
            unsafe {
                let added = libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event);
                assert_eq!(added, 0, "{}", io::Error::last_os_error());
                Epoll(OwnedFd::from_raw_fd(epoll))
            }
        }

        pub(super) fn wait(&self, within: Duration) -> bool {
            let deadline = Instant::now() + within;
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            loop {
                let left = milliseconds(deadline - Instant::now());
                // SAFETY: the kernel writes the one local event.
                match unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, left) } {
                    0 => return false,
                    1 => return true,
                    _ => assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::Interrupted),
                }
            }
        }
    }

    /// The kernel handles an eventfd that is signalled from within a write to another eventfd differently.
    #[test]
    fn a_foreign_eventfd_wakes_the_outer_loop() {
        in_every_way(|case, way| {
            let event_loop = case.event_loop();
            let outer = Outer::new(&event_loop, way);
            // SAFETY: the call touches no memory of ours; the descriptors were just created and have no other owner.
            let counters: Vec<_> = (0..3)
                .map(|_| unsafe {
                    let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
                    assert!(fd >= 0, "{}", io::Error::last_os_error());
                    File::from(OwnedFd::from_raw_fd(fd))
                })
                .collect();
            let total = Rc::new(Cell::new(0));
            for counter in &counters {
                let (total, mut ours) = (total.clone(), counter.try_clone().expect("a duplicate"));
                let count = move || {
                    let mut count = [0; 8];
                    ours.read_exact(&mut count).expect("the eventfd is readable");
                    total.set(total.get() + u64::from_ne_bytes(count));
                };
                event_loop.add_reader(counter, count).expect("it can be watched");
            }
            outer.assert_idle();
            for round in 0..30 {
                let mut counter = &counters[round % 3];
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        std::thread::sleep(Duration::from_micros(round as u64 % 4 * 100));
                        counter.write_all(&1u64.to_ne_bytes()).expect("eventfd write");
                    });
                    outer.run(8, || total.get() == round as u64 + 1);
                });
            }
            outer.assert_idle();
        });
    }

    /// More events at once than one turn handles: the rest is reported again.
    #[test]
    fn more_events_than_one_turn_handles_are_all_reported() {
        in_own_process(
            "embed::linux::more_events_than_one_turn_handles_are_all_reported",
            &[],
            || {
                limit_descriptors(8_192);
                in_every_way(|case, way| {
                    const COUNT: usize = 1_300;
                    let event_loop = case.event_loop();
                    let outer = Outer::new(&event_loop, way);
                    let (waiting, writers): (Vec<_>, Vec<_>) = (0..COUNT)
                        .map(|_| {
                            let (reader, writer) = pipe();
                            let wait = async move { AsyncFd::new(reader).expect("watched").readable().await };
                            (event_loop.spawn(wait), writer)
                        })
                        .unzip();
                    for _ in 0..3 {
                        event_loop.turn_nowait().expect("a turn");
                    }
                    event_loop.flush().expect("flush");
                    assert!(!is_readable(outer.ours, Duration::ZERO));
                    for mut writer in &writers {
                        writer.write_all(b"x").expect("the pipe has room");
                    }
                    outer.run(400, || waiting.iter().all(|waiting| waiting.is_finished()));
                    outer.assert_idle();
                });
            },
        );
    }
}
