//! Closing a loop: all operations complete, quickly, and the thread's blocking calls work as before.

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

/// Counts its drops.
struct Dropped(Rc<Cell<usize>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A loop with `count` reads in flight, the other ends of the streams, and the number of tasks dropped.
fn loop_with_reads(case: Case, count: usize) -> (EventLoop, Vec<TcpStream>, Rc<Cell<usize>>) {
    let event_loop = case.event_loop();
    let dropped = Rc::new(Cell::new(0));
    let dropped_count = dropped.clone();
    let clients = event_loop.run_until_complete(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let mut clients = Vec::new();
        for _ in 0..count {
            let (client, server) = pair_of(&listener).await;
            let mark = Dropped(dropped_count.clone());
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
fn closing_the_loop_completes_a_thousand_reads() {
    in_own_process("closing::closing_the_loop_completes_a_thousand_reads", &[], || {
        on_every_driver(|case| {
            let count = rounds().min(1_000);
            for _ in 0..3 {
                let before = open_descriptors();
                let (event_loop, clients, dropped) = loop_with_reads(case, count);
                assert_eq!(event_loop.counters().in_flight, count);
                let reported = Rc::new(Cell::new(0));
                event_loop.set_exception_handler({
                    let reported = reported.clone();
                    move |exception| {
                        println!("{exception}");
                        reported.set(reported.get() + 1);
                    }
                });
                drop(event_loop);
                assert_eq!(dropped.get(), count, "every task is dropped");
                assert_eq!(reported.get(), 0, "an operation did not complete");
                if case.is_kernel() {
                    // The clients' ends are open; the servers' ends and the loop's descriptors are not.
                    assert_eq!(open_descriptors(), before + count);
                }
                drop(clients);
                assert_eq!(open_descriptors(), before, "a descriptor is still open");
            }
        });
    });
}

/// Handles and wakers that outlive their loop keep memory, but no descriptor.
#[test]
fn handles_that_outlive_a_loop_keep_no_descriptor_open() {
    in_own_process(
        "closing::handles_that_outlive_a_loop_keep_no_descriptor_open",
        &[],
        || {
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
                // They are still safe to use.
                assert!(handle.call_soon_threadsafe(|| {}).is_err());
                waker.wake();
                timer.cancel();
                assert!(task.is_finished());
            });
        },
    );
}

/// Blocks the thread in std: in a sleep, on a condition variable, in an accept, in a read.
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

/// How often a blocking call that the kernel does not restart is interrupted while these peers close one by one.
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
        let error = silent.read(&mut [0]).expect_err("no data arrives");
        interruptions += usize::from(error.kind() == io::ErrorKind::Interrupted);
    }
    closing.join().expect("no panic");
    interruptions
}

/// About 20 ms after a ring is closed, the kernel detaches it from the thread that used it, by task work that
/// interrupts a blocking call of that thread. Only waiting for it could avoid that. The kernel restarts most calls
/// itself; a call with a socket timeout (`set_read_timeout`) can fail with `Interrupted`. This happens once: no
/// operation of the ring interrupts the thread afterwards.
#[test]
fn blocking_calls_work_after_the_loop_is_closed() {
    // In a process of its own, without the timer signal that this run may have asked for.
    let settings = [("WINDLASS_TEST_ITIMER", "0")];
    in_own_process(
        "closing::blocking_calls_work_after_the_loop_is_closed",
        &settings,
        || {
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
                    assert!(interruptions <= 1, "{interruptions} interruptions after {reads} reads");
                }
            });
        },
    );
}

/// A loop that never ran and one without operations close at once. A close that waits does so in steps of 100 ms; at
/// least half of the closes are faster than that even on a busy machine.
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

/// A loop and its streams in thread-locals: in any order of destructors, all operations complete and all descriptors
/// close.
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
                            // A task that accesses the thread-locals when it is dropped with the loop.
                            let _access = AccessLocals;
                            std::future::pending::<()>().await;
                        });
                        event_loop.run_until_complete(yield_now()).expect("the loop runs");
                    });
                });
                thread.join().expect("no panic at the thread's end");
                assert_eq!(open_descriptors(), before, "a descriptor is still open");
            }
        });
    });
}

struct AccessLocals;

impl Drop for AccessLocals {
    fn drop(&mut self) {
        let _ = FIRST.try_with(|streams| streams.try_borrow().map(|streams| streams.len()));
        let _ = LAST.try_with(|streams| streams.try_borrow().map(|streams| streams.len()));
    }
}
