//! The end of a loop: everything lands, quickly, and the thread is as it was before.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::{Condvar, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use windlass::EventLoop;
use windlass::net::{TcpListener, TcpStream};
use windlass::task::yield_now;

use crate::child::in_own_process;
use crate::support::{Case, on_every_driver, on_every_kernel_driver, open_descriptors, pair, pair_of, rounds};

/// Says that it was dropped.
struct Dropped(Rc<Cell<usize>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A loop with this many reads with the kernel, the other ends of the streams, and a count of the buffers that were
/// given back.
fn loop_with_reads(case: Case, count: usize) -> (EventLoop, Vec<TcpStream>, Rc<Cell<usize>>) {
    let event_loop = case.event_loop();
    let dropped = Rc::new(Cell::new(0));
    let given_back = dropped.clone();
    let clients = event_loop.run_until_complete(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let mut clients = Vec::new();
        for _ in 0..count {
            let (client, server) = pair_of(&listener).await;
            let mark = Dropped(given_back.clone());
            windlass::spawn(async move {
                let _mark = mark;
                server.read(vec![0; 64]).await.0
            });
            clients.push(client);
        }
        drop(listener);
        while windlass::counters().in_flight != count {
            yield_now().await;
        }
        yield_now().await;
        clients
    });
    (event_loop, clients.expect("the loop runs"), dropped)
}

#[test]
fn a_thousand_reads_land_when_their_loop_goes() {
    in_own_process("closing::a_thousand_reads_land_when_their_loop_goes", &[], || {
        on_every_driver(|case| {
            // The null driver looks at each of its operations in each turn.
            let count = rounds().min(if case.is_kernel() { 1_000 } else { 200 });
            for _ in 0..3 {
                let before = open_descriptors();
                let (event_loop, clients, dropped) = loop_with_reads(case, count);
                assert_eq!(event_loop.counters().in_flight, count);
                let told = Rc::new(Cell::new(0));
                event_loop.set_exception_handler({
                    let told = told.clone();
                    move |exception| {
                        println!("{exception}");
                        told.set(told.get() + 1);
                    }
                });
                drop(event_loop);
                assert_eq!(dropped.get(), count, "every task is gone");
                assert_eq!(told.get(), 0, "something did not land");
                if case.is_kernel() {
                    // The clients' ends are open; no server's end is, and nothing of the loop's.
                    assert_eq!(open_descriptors(), before + count);
                }
                drop(clients);
                assert_eq!(open_descriptors(), before, "a descriptor is left");
            }
        });
    });
}

/// Handles and wakers that outlive their loop hold memory, but no descriptor.
#[test]
fn what_outlives_a_loop_keeps_no_descriptor_open() {
    in_own_process("closing::what_outlives_a_loop_keeps_no_descriptor_open", &[], || {
        on_every_kernel_driver(|case| {
            let before = open_descriptors();
            let event_loop = case.event_loop();
            let waker = event_loop.run_until_complete(std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())));
            let waker = waker.expect("the loop runs");
            let task = event_loop.spawn(std::future::pending::<()>());
            let (handle, timer) = (
                event_loop.handle(),
                event_loop.call_later(Duration::from_secs(3600), || {}),
            );
            drop(event_loop);
            assert_eq!(open_descriptors(), before);
            // They can still be used.
            assert!(handle.call_soon_threadsafe(|| {}).is_err());
            waker.wake();
            timer.cancel();
            assert!(task.is_finished());
        });
    });
}

/// What blocks a thread, as std does it: asleep, on a condition, in an accept, in a read.
fn block_in_every_way() {
    const SHORT: Duration = Duration::from_millis(30);
    let begin = Instant::now();
    std::thread::sleep(SHORT);
    assert!(begin.elapsed() >= SHORT, "woken early");

    let lock = Mutex::new(());
    let guard = lock.lock().expect("not poisoned");
    let begin = Instant::now();
    let (_guard, wait) = Condvar::new().wait_timeout(guard, SHORT).expect("not poisoned");
    assert!(wait.timed_out() && begin.elapsed() >= SHORT, "woken early");

    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("an address");
    let late = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        let mut client = StdStream::connect(addr).expect("connect");
        std::thread::sleep(SHORT);
        client.write_all(&[7]).expect("write");
    });
    let (mut server, _) = listener.accept().expect("accept");
    assert_eq!(server.read(&mut [0; 8]).expect("read"), 1);
    late.join().expect("no panic");
}

/// How often a call is interrupted that the kernel does not start again by itself, while these peers close one by one.
fn count_interruptions(period: Duration, peers: Vec<StdStream>) -> usize {
    let closing = std::thread::spawn(move || {
        for peer in peers {
            std::thread::sleep(Duration::from_millis(1));
            let _ = peer.shutdown(std::net::Shutdown::Both);
        }
    });
    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let mut silent = StdStream::connect(listener.local_addr().expect("an address")).expect("connect");
    silent.set_read_timeout(Some(period)).expect("a timeout");
    let end = Instant::now() + period;
    let mut interruptions = 0;
    while Instant::now() < end {
        let error = silent.read(&mut [0]).expect_err("nobody says anything");
        interruptions += usize::from(error.kind() == io::ErrorKind::Interrupted);
    }
    closing.join().expect("no panic");
    interruptions
}

/// Some 20 ms after a ring is closed, the kernel takes it off the books of the thread that used it, by a task work that
/// interrupts what the thread sleeps in. That cannot be helped, short of waiting for it. The kernel starts most calls
/// again by itself; one with a time limit of its socket's (`set_read_timeout`) can fail with `Interrupted`.
/// It happens once: nothing that was in the ring comes after it.
#[test]
fn a_thread_blocks_as_before_after_its_loop() {
    // A process of its own: this one may have been asked to be interrupted.
    let settings = [("WINDLASS_TEST_ITIMER", "0")];
    in_own_process("closing::a_thread_blocks_as_before_after_its_loop", &settings, || {
        on_every_kernel_driver(|case| {
            for reads in [0, 1, 100] {
                let (event_loop, clients, _) = loop_with_reads(case, reads);
                drop(clients);
                drop(event_loop);
                block_in_every_way();
                let (event_loop, clients, _) = loop_with_reads(case, reads);
                let duplicate = |client: &TcpStream| client.as_fd().try_clone_to_owned().expect("a duplicate");
                let peers = clients
                    .iter()
                    .map(|client| StdStream::from(duplicate(client)))
                    .collect();
                drop(event_loop);
                drop(clients);
                let interruptions = count_interruptions(Duration::from_millis(200), peers);
                assert!(interruptions <= 1, "{interruptions} interruptions by {reads} reads");
            }
        });
    });
}

/// A loop that never ran and one with nothing left to do close at once. One that waits for something does so for 100 ms at a
/// time; half of the closes are quicker than that also where the machine is busy.
#[test]
fn closing_is_quick() {
    on_every_kernel_driver(|case| {
        for has_run in [false, true] {
            let mut took: Vec<Duration> = Vec::new();
            for _ in 0..25 {
                let event_loop = case.event_loop();
                if has_run {
                    event_loop.run_until_complete(pair()).expect("the loop runs");
                }
                let begin = Instant::now();
                event_loop.close();
                took.push(begin.elapsed());
            }
            took.sort();
            assert!(took[12] < Duration::from_millis(90), "has run: {has_run}: {took:?}");
        }
    });
}

thread_local! {
    static FIRST: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
    static LOOP: RefCell<Option<EventLoop>> = const { RefCell::new(None) };
    static LAST: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

/// A loop, and streams of it, in thread-locals: whichever destructor comes first, everything lands and closes.
#[test]
fn a_loop_in_a_thread_local_closes_with_its_thread() {
    in_own_process("closing::a_loop_in_a_thread_local_closes_with_its_thread", &[], || {
        on_every_driver(|case| {
            for order in 0..4 {
                let before = open_descriptors();
                let thread = std::thread::spawn(move || {
                    // Destructors run in the order of first use or its reverse, depending on the platform.
                    if order & 1 == 0 {
                        FIRST.with_borrow_mut(Vec::clear);
                    }
                    if order & 2 == 0 {
                        LAST.with_borrow_mut(Vec::clear);
                    }
                    let (event_loop, clients, _) = loop_with_reads(case, 10);
                    LOOP.set(Some(event_loop));
                    FIRST.set(clients);
                    LOOP.with_borrow(|event_loop| {
                        let event_loop = event_loop.as_ref().expect("it was just set");
                        let (client, server) = event_loop.run_until_complete(pair()).expect("the loop runs");
                        LAST.with_borrow_mut(|last| last.extend([client, server]));
                        event_loop.spawn(async {
                            // A task that looks at the thread-locals when it is dropped with the loop.
                            let _look = LookAtLocals;
                            std::future::pending::<()>().await;
                        });
                        event_loop.run_until_complete(yield_now()).expect("the loop runs");
                    });
                });
                thread.join().expect("no panic at the thread's end");
                assert_eq!(open_descriptors(), before, "a descriptor is left");
            }
        });
    });
}

struct LookAtLocals;

impl Drop for LookAtLocals {
    fn drop(&mut self) {
        let _ = FIRST.try_with(|streams| streams.try_borrow().map(|streams| streams.len()));
        let _ = LAST.try_with(|streams| streams.try_borrow().map(|streams| streams.len()));
    }
}
