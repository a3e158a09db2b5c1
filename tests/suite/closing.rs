//! The end of a loop: everything lands, quickly, and the thread is as it was before.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use windlass::EventLoop;
use windlass::net::TcpStream;
use windlass::task::yield_now;

use crate::child::in_own_process;
use crate::support::{Case, on_every_driver, on_every_kernel_driver, open_descriptors, pair, rounds};

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
        let mut clients = Vec::new();
        for _ in 0..count {
            let (client, server) = pair().await;
            let mark = Dropped(given_back.clone());
            windlass::spawn(async move {
                let _mark = mark;
                server.read(vec![0; 64]).await.0
            });
            clients.push(client);
        }
        while windlass::counters().in_air < count {
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
            let count = rounds().min(1_000);
            for _ in 0..3 {
                let before = open_descriptors();
                let (event_loop, clients, dropped) = loop_with_reads(case, count);
                assert_eq!(event_loop.counters().in_air, count);
                let told = Rc::new(Cell::new(0));
                event_loop.set_exception_handler({
                    let told = told.clone();
                    move |exception| {
                        println!("{exception}");
                        told.set(told.get() + 1);
                    }
                });
                let begin = Instant::now();
                drop(event_loop);
                let took = begin.elapsed();
                assert!(took < Duration::from_secs(1), "closing took {took:?}");
                assert_eq!(dropped.get(), count, "every task is gone");
                assert_eq!(told.get(), 0, "something did not land");
                if case.is_kernel() {
                    // The clients' ends are open, and with them the eventfd of the loop that they remember; no server's
                    // end is.
                    assert_eq!(open_descriptors(), before + count + 1);
                }
                drop(clients);
                assert_eq!(open_descriptors(), before, "a descriptor is left");
            }
        });
    });
}

/// Calls a system call that blocks, and tells of EINTR, which std mostly hides.
fn uninterrupted(what: &str, call: impl FnOnce() -> isize) -> Result<isize, i32> {
    let result = call();
    let error = io::Error::last_os_error();
    if result >= 0 {
        return Ok(result);
    }
    assert_ne!(error.raw_os_error(), Some(libc::EINTR), "{what} was interrupted");
    Err(error.raw_os_error().unwrap_or(0))
}

/// What blocks a thread: asleep, in accept, in a read, on a condition.
fn block_in_every_way() {
    const SHORT: Duration = Duration::from_millis(20);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: SHORT.as_nanos() as i64,
    };
    // SAFETY: the kernel reads the local timespec.
    let slept = uninterrupted("nanosleep", || unsafe {
        libc::nanosleep(&time, std::ptr::null_mut()) as isize
    });
    assert_eq!(slept, Ok(0));

    let listener = StdListener::bind("127.0.0.1:0").expect("bind");
    let patience = libc::timeval {
        tv_sec: 0,
        tv_usec: SHORT.as_micros() as i64,
    };
    // SAFETY: the kernel reads the local timeval, whose size is given.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    // SAFETY: no address is asked for.
    let accepted = uninterrupted("accept", || unsafe {
        libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) as isize
    });
    assert_eq!(accepted, Err(libc::EAGAIN));

    let client = StdStream::connect(listener.local_addr().expect("an address")).expect("connect");
    client.set_read_timeout(Some(SHORT)).expect("a timeout");
    let mut byte = 0u8;
    // SAFETY: the kernel may write one byte to the local variable.
    let read = uninterrupted("read", || unsafe {
        libc::read(client.as_raw_fd(), (&raw mut byte).cast(), 1)
    });
    assert_eq!(read, Err(libc::EAGAIN));

    let lock = Mutex::new(());
    let guard = lock.lock().expect("not poisoned");
    let begin = Instant::now();
    let (_guard, wait) = Condvar::new().wait_timeout(guard, SHORT).expect("not poisoned");
    assert!(wait.timed_out() && begin.elapsed() >= SHORT);
    let begin = Instant::now();
    std::thread::sleep(SHORT);
    assert!(begin.elapsed() >= SHORT);
}

/// Closing a ring with work in it makes the kernel queue more for the thread, and that interrupts whatever the thread
/// sleeps in next.
#[test]
fn a_thread_blocks_undisturbed_after_its_loop() {
    // A process of its own: this one may have been asked to be interrupted.
    let settings = [("WINDLASS_TEST_ITIMER", "0")];
    in_own_process("closing::a_thread_blocks_undisturbed_after_its_loop", &settings, || {
        on_every_kernel_driver(|case| {
            for reads in [0, 1, 100] {
                let (event_loop, clients, _) = loop_with_reads(case, reads);
                drop(clients);
                drop(event_loop);
                block_in_every_way();
                let (event_loop, clients, _) = loop_with_reads(case, reads);
                drop(event_loop);
                block_in_every_way();
                drop(clients);
            }
        });
    });
}

/// A loop that never ran, one that ran out of things, one that was stopped by a panic: all close in no time.
#[test]
fn closing_is_quick() {
    on_every_kernel_driver(|case| {
        let begin = Instant::now();
        for round in 0..50 {
            let event_loop = case.event_loop();
            if round % 2 == 0 {
                event_loop.run_until_complete(pair()).expect("the loop runs");
            }
            event_loop.close();
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(2), "50 loops took {took:?}");
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
