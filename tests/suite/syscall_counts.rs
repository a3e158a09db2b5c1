//! The number of system calls, and the latency that the loop reaches with them: idle loops, short sleeps, busy loops.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use windlass::net::TcpListener;
use windlass::task::yield_now;
use windlass::time::{sleep, timeout};

use crate::child::{UNDISTURBED, in_own_process};
use crate::readiness::with_std_peer;
use crate::support::{assert_idle, is_wine, limit_descriptors, on_every_kernel_driver, pair, pair_of};

/// A thousand tasks that wait for bytes cost nothing while none arrive.
#[test]
fn an_idle_loop_makes_no_system_call() {
    in_own_process(
        "syscall_counts::an_idle_loop_makes_no_system_call",
        &UNDISTURBED,
        || {
            limit_descriptors(4_000);
            on_every_kernel_driver(|case| {
                case.run(async {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
                    let mut clients = Vec::new();
                    let mut served = Vec::new();
                    for number in 0..1_000 {
                        let (client, server) = pair_of(&listener).await;
                        // Some connections have been used before, some have not.
                        if number % 2 == 0 {
                            client.write_all([7u8]).await.0.expect("write");
                            server.read_exact([0u8]).await.0.expect("read");
                        }
                        clients.push(client);
                        served.push(windlass::spawn(async move { server.read([0u8; 8]).await.0 }));
                    }
                    windlass::spawn(async move { listener.accept().await.expect("accept") });
                    sleep(Duration::from_millis(20)).await;
                    assert_idle().await;
                    // The tasks are idle, not lost.
                    for client in &clients {
                        client.write_all([8u8]).await.0.expect("write");
                    }
                    for task in served {
                        let result = timeout(Duration::from_secs(60), task).await.expect("a result in time");
                        assert_eq!(result.expect("no panic").expect("read"), 1);
                    }
                });
            });
        },
    );
}

/// mio's timeout has a resolution of one millisecond; a sleep is finer.
#[test]
fn a_sleep_may_be_shorter_than_a_millisecond() {
    if is_wine() {
        return println!("-- SKIPPED: Wine sleeps for whole milliseconds");
    }
    in_own_process(
        "syscall_counts::a_sleep_may_be_shorter_than_a_millisecond",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                case.run(async {
                    // With and without a descriptor that is being watched.
                    let _pair = pair().await;
                    for length in [200, 1_200] {
                        let length = Duration::from_micros(length);
                        // Rounded up, each sleep would last until the next whole millisecond plus the kernel's delay.
                        // On a loaded machine many do, but not all of them.
                        let most = length + Duration::from_micros(650);
                        let (mut short, mut quickest) = (0, Duration::MAX);
                        for _ in 0..2_000 {
                            let begin = Instant::now();
                            sleep(length).await;
                            let took = begin.elapsed();
                            assert!(took >= length, "{took:?} instead of {length:?}");
                            quickest = quickest.min(took);
                            short += usize::from(took < most);
                            if short == 50 {
                                break;
                            }
                        }
                        assert_eq!(
                            short, 50,
                            "of 2,000 sleeps of {length:?}; the shortest took {quickest:?}"
                        );
                    }
                });
            });
        },
    );
}

/// Bytes that arrive during a short sleep are delivered at once, not at its end.
#[test]
fn arriving_bytes_end_a_sleep_of_any_length() {
    on_every_kernel_driver(|case| {
        case.run(async {
            let (stream, mut peer) = with_std_peer();
            let (go, is_time) = mpsc::channel::<()>();
            let (say_when, sent) = mpsc::channel();
            let sending = std::thread::spawn(move || {
                while is_time.recv().is_ok() {
                    std::thread::sleep(Duration::from_micros(50));
                    peer.write_all(&[7]).expect("write");
                    say_when.send(Instant::now()).expect("the receiver exists");
                }
            });
            let (mut in_time, mut received) = (0, 0);
            // A loaded machine wakes one of the threads too late, which proves nothing. A driver that ignores
            // descriptors while it sleeps would receive none of the bytes in time.
            for _ in 0..4_000 {
                if received >= 25 {
                    break;
                }
                go.send(()).expect("the sender waits");
                let deadline = Instant::now() + Duration::from_micros(900);
                let read = timeout(Duration::from_micros(900), stream.read([0u8])).await;
                let is_received = read.is_ok();
                if !is_received {
                    stream.read_exact([0u8]).await.0.expect("read");
                }
                let sent_at = sent.recv().expect("it was sent");
                if sent_at + Duration::from_micros(300) < deadline {
                    in_time += 1;
                    received += usize::from(is_received);
                }
            }
            assert!(received >= 25, "only {received} of {in_time} bytes ended the sleep");
            drop(go);
            sending.join().expect("no panic");
        });
    });
}

/// With a far deadline, one system call returns the bytes.
#[test]
fn a_wakeup_is_one_system_call() {
    in_own_process("syscall_counts::a_wakeup_is_one_system_call", &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            // On io_uring reads and writes are submitted with the same call; tests/allocations.rs counts those.
            if !case.tries_first() {
                return;
            }
            case.run(async {
                windlass::spawn(sleep(Duration::from_secs(3_600)));
                let (stream, mut peer) = with_std_peer();
                let wakes = 200u64;
                let sending = std::thread::spawn(move || {
                    for _ in 0..wakes {
                        std::thread::sleep(Duration::from_micros(300));
                        peer.write_all(&[7]).expect("write");
                    }
                    peer
                });
                let before = windlass::counters().driver.enters;
                let mut received = 0;
                while received < wakes {
                    received += stream.read([0u8; 8]).await.0.expect("read") as u64;
                }
                let enters = windlass::counters().driver.enters - before;
                assert!(enters <= wakes + 10, "{enters} system calls for {wakes} wakeups");
                sending.join().expect("no panic");
            });
        });
    });
}

/// The largest number of turns that a busy loop took to deliver a byte, the system calls of all turns, and their
/// duration.
struct Busy {
    latest: u64,
    turns: u64,
    enters: u64,
    took: Duration,
}

/// Sends bytes to a loop that always has a task ready and spends `work` in each turn.
async fn keep_busy(bytes: usize, work: impl Fn() + 'static) -> Busy {
    let (stream, mut peer) = with_std_peer();
    let received_at = Rc::new(Cell::new(None));
    windlass::spawn({
        let received_at = received_at.clone();
        async move {
            while stream.read([0u8; 8]).await.0.expect("read") > 0 {
                received_at.set(Some(windlass::counters().turns));
            }
        }
    });
    // Lets the driver learn the length of a turn.
    for _ in 0..200 {
        work();
        yield_now().await;
    }
    let (before, begin) = (windlass::counters(), Instant::now());
    let mut latest = 0;
    for _ in 0..bytes {
        received_at.set(None);
        let sent_at = windlass::counters().turns;
        peer.write_all(&[7]).expect("write");
        loop {
            work();
            yield_now().await;
            let waited = windlass::counters().turns - sent_at;
            if let Some(received_at) = received_at.get() {
                latest = latest.max(received_at - sent_at);
                break;
            }
            assert!(waited < 1_000, "the busy loop never polled the kernel");
        }
    }
    let after = windlass::counters();
    Busy {
        latest,
        turns: after.turns - before.turns,
        enters: after.driver.enters - before.driver.enters,
        took: begin.elapsed(),
    }
}

#[test]
fn short_turns_poll_the_kernel_now_and_then() {
    if is_wine() {
        return println!("-- SKIPPED: Wine's sockets are slow, so there are no short turns");
    }
    in_own_process(
        "syscall_counts::short_turns_poll_the_kernel_now_and_then",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                let busy = case.run(keep_busy(200, || {}));
                assert!(busy.latest <= 65, "a byte was delivered after {} turns", busy.latest);
                if case.tries_first() {
                    let Busy {
                        turns, enters, took, ..
                    } = busy;
                    // Every 64 turns, or every 50 us.
                    let most = turns / 64 + took.as_micros() as u64 / 50 + 10;
                    assert!(
                        enters <= most,
                        "{enters} system calls in {turns} turns and {took:?}: too many"
                    );
                    assert!(enters * 64 >= turns - 64, "{enters} system calls in {turns} turns");
                }
            });
        },
    );
}

#[test]
fn long_turns_poll_the_kernel_each_time() {
    in_own_process(
        "syscall_counts::long_turns_poll_the_kernel_each_time",
        &UNDISTURBED,
        || {
            on_every_kernel_driver(|case| {
                let work = || {
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_micros(100) {
                        std::hint::spin_loop();
                    }
                };
                let busy = case.run(keep_busy(100, work));
                assert!(
                    busy.latest <= 3,
                    "a byte was delivered after {} turns of 100 us",
                    busy.latest
                );
            });
        },
    );
}
