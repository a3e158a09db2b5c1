//! Other threads that use a loop: calls, wakes, and futures sent to it, also after the loop was dropped.

#![expect(
    clippy::waker_clone_wake,
    reason = "waking by value is an entry of the vtable of its own"
)]

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use windlass::task::yield_now;
use windlass::time::sleep;
use windlass::{EventLoop, LoopClosed, LoopHandle, spawn};

use crate::support::{Case, exceptions_of, on_every_driver, on_every_kernel_driver, poll_with, rounds, waker_calling};

const MS: Duration = Duration::from_millis(1);

/// A loop that runs on its own thread until it is stopped.
struct LoopThread {
    handle: LoopHandle,
    thread: thread::JoinHandle<windlass::Counters>,
}

fn start_loop_thread(case: Case) -> LoopThread {
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        let event_loop = case.event_loop();
        send.send(event_loop.handle()).unwrap();
        event_loop.run_forever().unwrap();
        event_loop.counters()
    });
    LoopThread {
        handle: receive.recv().unwrap(),
        thread,
    }
}

impl LoopThread {
    fn stop(self) -> windlass::Counters {
        self.handle.stop().unwrap();
        self.thread.join().unwrap()
    }
}

/// Adds one to its count when dropped, on any thread.
struct CountDropAnywhere(Arc<AtomicUsize>);

impl Drop for CountDropAnywhere {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Records the thread on which it is dropped.
struct DroppedOn(Arc<Mutex<Vec<ThreadId>>>);

impl Drop for DroppedOn {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(thread::current().id());
    }
}

// Calls.

#[test]
fn a_call_wakes_a_sleeping_loop_at_once() {
    on_every_kernel_driver(|case| {
        // With a far timer, the loop would wake by itself, but much too late.
        let far_timer = |on: bool| {
            let running = start_loop_thread(case);
            if on {
                let set = || drop(windlass::call_later(Duration::from_secs(3600), || {}));
                running.handle.call_soon_threadsafe(set).unwrap();
            }
            running
        };
        for timer in [false, true] {
            let running = far_timer(timer);
            let mut delays: Vec<_> = (0..21)
                .map(|_| {
                    thread::sleep(2 * MS);
                    let (send, receive) = mpsc::channel();
                    let start = Instant::now();
                    let call = move || send.send(()).unwrap();
                    running.handle.call_soon_threadsafe(call).unwrap();
                    receive.recv().unwrap();
                    start.elapsed()
                })
                .collect();
            // A loaded machine delays some of the calls. A loop that only polled periodically would delay most.
            delays.sort();
            assert!(delays[5] < 50 * MS, "{delays:?}");
            let turns = running.stop().turns;
            assert!(turns < 200, "it did not sleep in between: {turns} turns");
        }
    });
}

#[test]
fn a_wake_from_another_thread_ends_an_unbounded_sleep() {
    // The null driver, whose clock is virtual, sleeps on a condition variable.
    on_every_driver(|case| {
        for _ in 0..rounds().min(200) {
            let (send, receive) = mpsc::channel::<Waker>();
            let done = Arc::new(AtomicUsize::new(0));
            let waking = thread::spawn({
                let done = done.clone();
                move || {
                    let waker = receive.recv().unwrap();
                    done.store(1, SeqCst);
                    waker.wake();
                }
            });
            case.run(poll_fn(move |cx| {
                let _ = send.send(cx.waker().clone());
                match done.load(SeqCst) {
                    0 => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            }));
            waking.join().unwrap();
        }
    });
}

#[test]
fn calls_from_one_thread_run_in_order() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        let (send, receive) = mpsc::channel();
        for i in 0..rounds() {
            let send = send.clone();
            let call = move || send.send(i).unwrap();
            running.handle.call_soon_threadsafe(call).unwrap();
        }
        drop(send);
        assert!(receive.iter().eq(0..rounds()));
        running.stop();
    });
}

#[test]
fn a_burst_from_many_threads_loses_no_call() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        let threads = if cfg!(miri) { 3 } else { 8 };
        let (send, receive) = mpsc::channel();
        let senders: Vec<_> = (0..threads)
            .map(|thread| {
                let (handle, send) = (running.handle.clone(), send.clone());
                thread::spawn(move || {
                    for i in 0..rounds() {
                        let send = send.clone();
                        handle
                            .call_soon_threadsafe(move || send.send((thread, i)).unwrap())
                            .unwrap();
                    }
                })
            })
            .collect();
        drop(send);
        let mut next = vec![0; threads];
        for (thread, i) in receive {
            assert_eq!(i, next[thread], "calls of one thread out of order");
            next[thread] += 1;
        }
        assert!(next.iter().all(|&count| count == rounds()), "{next:?}");
        for sender in senders {
            sender.join().unwrap();
        }
        running.stop();
    });
}

#[test]
fn a_burst_to_a_sleeping_loop_is_one_notification() {
    on_every_kernel_driver(|case| {
        let running = start_loop_thread(case);
        let counters = |handle: &LoopHandle| {
            let asked = handle.spawn(async { windlass::counters().driver.completions });
            asked.unwrap().wait().unwrap()
        };
        let mut notifications = 0;
        for _ in 0..50 {
            let before = counters(&running.handle);
            thread::sleep(20 * MS);
            // The first call wakes the loop and blocks it until the others are sent.
            let (go_on, wait) = mpsc::channel::<()>();
            running.handle.call_soon_threadsafe(move || _ = wait.recv()).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..1_000 {
                let ran = ran.clone();
                let call = move || _ = ran.fetch_add(1, SeqCst);
                running.handle.call_soon_threadsafe(call).unwrap();
            }
            // Read before the loop goes on, so that reading it costs no notification of its own.
            let asked = running
                .handle
                .spawn(async { windlass::counters().driver.completions })
                .unwrap();
            drop(go_on);
            let after = asked.wait().unwrap();
            assert_eq!(ran.load(SeqCst), 1_000);
            notifications = after - before;
            // Zero: on a loaded machine the loop was not asleep yet.
            if notifications > 0 {
                break;
            }
        }
        assert_eq!(notifications, 1, "one read of the eventfd");
        running.stop();
    });
}

#[test]
fn a_stop_from_another_thread_ends_a_sleeping_loop() {
    on_every_driver(|case| {
        for _ in 0..rounds().min(50) {
            let running = start_loop_thread(case);
            running.stop();
        }
        let event_loop = case.event_loop();
        event_loop.handle().stop().unwrap();
        event_loop.run_forever().unwrap();
    });
}

#[test]
fn a_call_from_the_loops_own_thread_runs_in_a_later_turn() {
    on_every_driver(|case| {
        case.run(async {
            let handle = LoopHandle::current().unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            let call = {
                let ran = ran.clone();
                move || _ = ran.fetch_add(1, SeqCst)
            };
            handle.call_soon_threadsafe(call).unwrap();
            assert_eq!(ran.load(SeqCst), 0);
            // It joins the next turn behind the tasks that are ready, including this one.
            yield_now().await;
            yield_now().await;
            assert_eq!(ran.load(SeqCst), 1);
        });
        assert!(LoopHandle::current().is_none());
    });
}

// Wakers.

#[test]
fn wakers_are_woken_and_dropped_on_other_threads() {
    on_every_driver(|case| {
        let dropped_on = Arc::new(Mutex::new(Vec::new()));
        let event_loop = case.event_loop();
        let (send, receive) = mpsc::channel::<Waker>();
        let waking = thread::spawn(move || {
            // Keeps some wakers, wakes some by reference and some by value.
            let mut kept = Vec::new();
            for (i, waker) in receive.into_iter().enumerate() {
                match i % 3 {
                    0 => waker.wake(),
                    1 => waker.wake_by_ref(),
                    _ => {
                        waker.wake_by_ref();
                        kept.push(waker.clone());
                    }
                }
            }
            kept
        });
        let tasks: Vec<_> = (0..rounds().min(500))
            .map(|_| {
                let (send, held) = (send.clone(), DroppedOn(dropped_on.clone()));
                let mut polls = 0;
                event_loop.spawn(async move {
                    let held = held;
                    poll_fn(move |cx| {
                        polls += 1;
                        send.send(cx.waker().clone()).unwrap();
                        match polls {
                            5.. => Poll::Ready(()),
                            _ => Poll::Pending,
                        }
                    })
                    .await;
                    held
                })
            })
            .collect();
        drop(send);
        let count = tasks.len();
        event_loop
            .run_until_complete(async {
                for task in tasks {
                    drop(task.await.unwrap());
                }
            })
            .unwrap();
        let kept = waking.join().unwrap();
        assert_eq!(*dropped_on.lock().unwrap(), vec![thread::current().id(); count]);
        // The last references of finished tasks, while the loop lives and after it was dropped.
        let (now, later) = kept.split_at(kept.len() / 2);
        let (now, later) = (now.to_vec(), later.to_vec());
        drop(kept);
        thread::spawn(move || now.into_iter().for_each(Waker::wake))
            .join()
            .unwrap();
        drop(event_loop);
        thread::spawn(move || later.into_iter().for_each(Waker::wake))
            .join()
            .unwrap();
    });
}

#[test]
fn a_waker_may_hold_the_last_reference_after_the_loop_is_dropped() {
    on_every_driver(|case| {
        let dropped_on = Arc::new(Mutex::new(Vec::new()));
        let waker = Rc::new(RefCell::new(None));
        let event_loop = case.event_loop();
        let held = DroppedOn(dropped_on.clone());
        drop(event_loop.spawn({
            let waker = waker.clone();
            async move {
                let _held = held;
                poll_fn(|cx| {
                    waker.replace(Some(cx.waker().clone()));
                    Poll::<()>::Pending
                })
                .await;
            }
        }));
        event_loop.turn().unwrap();
        let last: Waker = waker.take().unwrap();
        // Woken, so that the task is scheduled when its loop is dropped.
        last.wake_by_ref();
        let clone = last.clone();
        thread::spawn(move || clone.wake()).join().unwrap();
        drop(event_loop);
        assert_eq!(
            *dropped_on.lock().unwrap(),
            [thread::current().id()],
            "the loop did not drop the future"
        );
        thread::spawn(move || {
            last.wake_by_ref();
            drop(last.clone());
            last.wake();
        })
        .join()
        .unwrap();
    });
}

#[test]
fn calls_race_with_the_end_of_the_loop() {
    on_every_driver(|case| {
        for round in 0..rounds().div_ceil(5).min(200) {
            let (send, receive) = mpsc::channel::<(Waker, LoopHandle)>();
            let drops = Arc::new(AtomicUsize::new(0));
            let waking = thread::spawn({
                let drops = drops.clone();
                move || {
                    let (waker, handle) = receive.recv().unwrap();
                    let mut sent = 0;
                    loop {
                        waker.wake_by_ref();
                        waker.clone().wake();
                        let held = CountDropAnywhere(drops.clone());
                        sent += 1;
                        if handle.call_soon_threadsafe(move || drop(held)).is_err() {
                            return sent;
                        }
                        // On a loaded machine the loop's thread would start only after thousands of calls.
                        if sent % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                }
            });
            let event_loop = case.event_loop();
            let handle = event_loop.handle();
            drop(event_loop.spawn(poll_fn(move |cx| {
                let _ = send.send((cx.waker().clone(), handle.clone()));
                Poll::<()>::Pending
            })));
            for _ in 0..1 + round % 5 {
                event_loop.turn().unwrap();
            }
            drop(event_loop);
            let sent = waking.join().unwrap();
            assert_eq!(drops.load(SeqCst), sent, "a closure was neither run nor dropped");
        }
    });
}

// A loop that was dropped.

#[test]
fn calls_to_a_dropped_loop_return_an_error_and_drop_the_closure() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let handle = event_loop.handle();
        let drops = Arc::new(AtomicUsize::new(0));
        let held = CountDropAnywhere(drops.clone());
        handle.call_soon_threadsafe(move || drop(held)).unwrap();
        assert!(!handle.is_closed());
        drop(event_loop);
        assert_eq!(drops.load(SeqCst), 1, "the loop did not drop the pending closure");
        assert!(handle.is_closed());
        for count in 2..10 {
            let held = CountDropAnywhere(drops.clone());
            let call = move || drop(held);
            assert_eq!(handle.call_soon_threadsafe(call), Err(LoopClosed));
            assert_eq!(drops.load(SeqCst), count);
        }
        assert_eq!(handle.stop(), Err(LoopClosed));
        let held = CountDropAnywhere(drops.clone());
        assert!(handle.spawn(async move { drop(held) }).is_err());
        let held = CountDropAnywhere(drops.clone());
        assert!(handle.spawn_with(move || async move { drop(held) }).is_err());
        assert_eq!(drops.load(SeqCst), 11);
        assert_eq!(
            std::io::Error::from(LoopClosed).kind(),
            std::io::ErrorKind::NotConnected
        );
    });
}

// Futures sent to a loop.

#[test]
fn a_future_sent_to_a_loop_returns_its_result() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        for i in 0..rounds().min(200) {
            let remote = running.handle.spawn(async move {
                yield_now().await;
                i * 2
            });
            assert_eq!(remote.unwrap().wait().unwrap(), i * 2);
        }
        // Not `Send`, so the closure creates it on the loop's thread.
        let remote = running.handle.spawn_with(|| {
            let local = Rc::new(Cell::new(20));
            async move {
                sleep(MS).await;
                local.get() + 1
            }
        });
        assert_eq!(remote.unwrap().wait().unwrap(), 21);
        running.stop();
    });
}

#[test]
fn a_panic_of_a_sent_future_is_returned() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        let remote = running.handle.spawn(async { panic!("remote panic") });
        let error = remote.unwrap().wait().unwrap_err();
        assert_eq!(
            error.try_into_panic().unwrap().downcast_ref::<&str>(),
            Some(&"remote panic")
        );
        // So is a panic of the closure that creates the future.
        let remote = running
            .handle
            .spawn_with(|| -> std::future::Ready<()> { panic!("panic in the closure") });
        let error = remote.unwrap().wait().unwrap_err();
        assert_eq!(
            error.try_into_panic().unwrap().downcast_ref::<&str>(),
            Some(&"panic in the closure")
        );
        running.stop();
    });
}

#[test]
fn a_panic_of_a_detached_remote_future_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let turns = || event_loop.run_until_complete(sleep(5 * MS)).unwrap();
        drop(event_loop.handle().spawn(async { panic!("dropped before") }));
        turns();
        assert_eq!(exceptions.borrow().len(), 1);
        let remote = event_loop.handle().spawn(async { panic!("dropped after") });
        turns();
        assert!(remote.as_ref().unwrap().is_finished());
        thread::spawn(move || drop(remote)).join().unwrap();
        turns();
        assert_eq!(exceptions.borrow().len(), 2);
        // A panic that the handle returned is not reported.
        let remote = event_loop.handle().spawn(async { panic!("taken") });
        turns();
        assert!(thread::spawn(move || remote.unwrap().wait().is_err()).join().unwrap());
        turns();
        let exceptions = exceptions.borrow();
        assert_eq!(exceptions.len(), 2);
        assert!(exceptions[0].contains("dropped before") && exceptions[1].contains("dropped after"));
    });
}

#[test]
fn a_sent_future_can_be_cancelled_remotely() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        for round in 0..rounds().min(100) {
            let drops = Arc::new(AtomicUsize::new(0));
            let held = CountDropAnywhere(drops.clone());
            let remote = running.handle.spawn(async move {
                let _held = held;
                pending::<()>().await;
            });
            let remote = remote.unwrap();
            if round % 2 == 0 {
                // Wait until it has started.
                running.handle.spawn(yield_now()).unwrap().wait().unwrap();
                assert!(!remote.is_finished());
            }
            remote.cancel();
            remote.cancel();
            assert!(remote.wait().unwrap_err().is_cancelled());
            assert_eq!(drops.load(SeqCst), 1);
        }
        // Too late to cancel.
        let remote = running.handle.spawn(async { 5 }).unwrap();
        while !remote.is_finished() {
            thread::yield_now();
        }
        remote.cancel();
        assert_eq!(remote.wait().unwrap(), 5);
        running.stop();
    });
}

#[test]
fn waiting_for_a_remote_handle_can_time_out_and_resume() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        // Not a sleep, which the null driver's virtual clock would skip.
        let gate: Arc<Mutex<(u32, Option<Waker>)>> = Arc::default();
        let remote = running.handle.spawn({
            let gate = gate.clone();
            poll_fn(move |cx| {
                let mut gate = gate.lock().unwrap();
                gate.1 = Some(cx.waker().clone());
                match gate.0 {
                    0 => Poll::Pending,
                    value => Poll::Ready(value),
                }
            })
        });
        let start = Instant::now();
        let remote = remote.unwrap().wait_timeout(10 * MS).expect_err("the gate is closed");
        assert!(start.elapsed() >= 10 * MS);
        let remote = remote.wait_timeout(Duration::ZERO).expect_err("still");
        let waker = {
            let mut gate = gate.lock().unwrap();
            gate.0 = 4;
            gate.1.take()
        };
        // Without a waker it has not been polled yet, and finds the gate open.
        if let Some(waker) = waker {
            waker.wake();
        }
        assert_eq!(
            remote.wait_timeout(Duration::MAX).expect("the gate is open").unwrap(),
            4
        );
        running.stop();
    });
}

#[test]
fn a_loop_that_closes_cancels_sent_futures() {
    on_every_driver(|case| {
        // Before the future was started, and while it waited.
        for begun in [false, true] {
            let event_loop = case.event_loop();
            let drops = Arc::new(AtomicUsize::new(0));
            let held = CountDropAnywhere(drops.clone());
            let remote = event_loop.handle().spawn(async move {
                let _held = held;
                pending::<u32>().await
            });
            let remote = remote.unwrap();
            if begun {
                event_loop.turn().unwrap();
                event_loop.turn().unwrap();
            }
            let waiting = thread::spawn(move || remote.wait());
            drop(event_loop);
            assert!(waiting.join().unwrap().unwrap_err().is_cancelled());
            assert_eq!(drops.load(SeqCst), 1);
        }
    });
}

#[test]
fn a_remote_handle_can_be_awaited_on_any_loop() {
    on_every_driver(|case| {
        // On the same loop.
        let sum = case.run(async {
            let handle = LoopHandle::current().unwrap();
            let first = handle.spawn(async { 1 }).unwrap();
            let second = handle.spawn(async {
                yield_now().await;
                2
            });
            first.await.unwrap() + second.unwrap().await.unwrap()
        });
        assert_eq!(sum, 3);
        // On another loop.
        let running = start_loop_thread(case);
        let handle = running.handle.clone();
        let answers = case.run(async move {
            let mut answers = 0;
            for _ in 0..rounds().min(100) {
                answers += handle.spawn(async { 1 }).unwrap().await.unwrap();
            }
            answers
        });
        assert_eq!(answers, rounds().min(100));
        running.stop();
    });
}

#[test]
fn blocking_on_the_own_loop_is_refused() {
    on_every_driver(|case| {
        case.run(async {
            let remote = LoopHandle::current().unwrap().spawn(async {}).unwrap();
            let refused = catch_unwind(AssertUnwindSafe(|| drop(remote.wait())));
            let payload = refused.unwrap_err();
            assert!(payload.downcast_ref::<&str>().unwrap().contains("await"));
        });
    });
}

#[test]
fn a_panicking_waker_of_a_remote_handle_is_reported() {
    on_every_driver(|case| {
        let event_loop: EventLoop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let mut remote = event_loop.handle().spawn(async { 3 }).unwrap();
        let panics = waker_calling(|| panic!("waker panics"));
        assert!(poll_with(&panics, Pin::new(&mut remote)).is_pending());
        event_loop
            .run_until_complete(async {
                spawn(sleep(MS)).await.unwrap();
                assert_eq!(remote.await.unwrap(), 3);
            })
            .unwrap();
        assert_eq!(exceptions.borrow().len(), 1, "{exceptions:?}");
    });
}

#[test]
fn a_dropped_remote_handle_detaches_the_future() {
    on_every_driver(|case| {
        let running = start_loop_thread(case);
        let (send, receive) = mpsc::channel();
        drop(running.handle.spawn(async move {
            yield_now().await;
            send.send(7).unwrap();
        }));
        assert_eq!(receive.recv(), Ok(7));
        running.stop();
    });
}

/// The calling thread is inside a write to an eventfd, where the kernel defers signalling other eventfds.
#[cfg(unix)]
#[test]
fn each_call_wakes_an_outer_loop() {
    on_every_kernel_driver(|case| {
        let event_loop = case.event_loop();
        let pollable = event_loop.pollable().unwrap();
        let called = Arc::new(AtomicUsize::new(0));
        for round in 1..=20 {
            event_loop.turn_nowait().unwrap();
            event_loop.flush().unwrap();
            let (handle, called_there) = (event_loop.handle(), called.clone());
            let call = move || _ = called_there.fetch_add(1, SeqCst);
            thread::spawn(move || handle.call_soon_threadsafe(call).unwrap());
            while called.load(SeqCst) < round {
                assert!(is_readable_within(&pollable, 60_000), "call {round} did not wake it");
                event_loop.turn_nowait().unwrap();
                event_loop.flush().unwrap();
            }
        }
    });
}

#[cfg(unix)]
fn is_readable_within(fd: &impl AsRawFd, millis: i32) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: the kernel reads and writes one local entry.
        match unsafe { libc::poll(&mut polled, 1, millis) } {
            -1 => assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::Interrupted),
            count => return count == 1,
        }
    }
}
