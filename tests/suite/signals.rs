//! Signals reach every listener, and none is lost. Each test sends real ones, so it has a process of its own.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use windlass::signal::{Signal, SignalKind, ctrl_c, shutdown, signal};
use windlass::time::{sleep, timeout};

use crate::child::{UNDISTURBED, in_own_process};
use crate::support::{
    assert_idle, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, poll_with, rounds, waker_calling,
};

/// What should come at once and has not come after this, will not come.
const LONG: Duration = Duration::from_secs(60);

const USER1: SignalKind = SignalKind::user_defined1();
const USER2: SignalKind = SignalKind::user_defined2();

/// Sends a signal to this process, as another would. One of its threads gets it.
fn send(kind: SignalKind) {
    // SAFETY: kill(2) takes two numbers; the tests handle what they send.
    assert_eq!(unsafe { libc::kill(libc::getpid(), kind.as_raw()) }, 0);
}

/// Sends a signal to this thread: its handler has run when this returns.
fn send_here(kind: SignalKind) {
    // SAFETY: raise(3) takes a number; the tests handle what they send.
    assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
}

/// Whether nothing is to be heard.
async fn is_silent(signal: &mut Signal) -> bool {
    poll_once(pin!(signal.recv())).await.is_pending()
}

#[test]
fn a_signal_is_heard() {
    in_own_process("signals::a_signal_is_heard", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut one = signal(USER1).expect("a signal");
                let mut two = signal(USER2).expect("a signal");
                assert!(is_silent(&mut one).await);
                send(USER1);
                assert_eq!(one.recv().await, Some(()));
                assert!(is_silent(&mut one).await, "once sent, once heard");
                assert!(is_silent(&mut two).await, "another signal");

                // While somebody waits.
                let waiting = windlass::spawn(async move { two.recv().await });
                sleep(Duration::from_millis(5)).await;
                send(USER2);
                assert_eq!(waiting.await.expect("no panic"), Some(()));

                // What came before the listener is not for it.
                send(USER1);
                assert_eq!(one.recv().await, Some(()));
                let mut late = signal(USER1).expect("a signal");
                assert!(is_silent(&mut late).await);
                assert_eq!(late.kind(), USER1);
            });
        });
    });
}

#[test]
fn ctrl_c_is_heard_again_and_again() {
    in_own_process("signals::ctrl_c_is_heard_again_and_again", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                for _ in 0..3 {
                    let mut waiting = pin!(ctrl_c());
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                    send(SignalKind::interrupt());
                    waiting.await.expect("heard");
                }
                // Nobody listens, and nobody dies.
                send(SignalKind::interrupt());
                sleep(Duration::from_millis(5)).await;
            });
        });
    });
}

#[test]
fn a_request_to_end_is_ctrl_c_or_sigterm() {
    in_own_process("signals::a_request_to_end_is_ctrl_c_or_sigterm", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut shutdown = shutdown().expect("a listener");
                assert!(poll_once(pin!(shutdown.recv())).await.is_pending());
                for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
                    send(kind);
                    assert_eq!(shutdown.recv().await, Some(()));
                    assert!(poll_once(pin!(shutdown.recv())).await.is_pending(), "heard once");

                    // While a future runs; and before one that is ready at once, so that a busy loop hears it too.
                    assert_eq!(shutdown.run_until_shutdown(async { 7 }).await, Some(7));
                    send_here(kind);
                    assert_eq!(shutdown.run_until_shutdown(sleep(Duration::MAX)).await, None);
                    send_here(kind);
                    sleep(Duration::from_millis(1)).await;
                    let mut rounds = 0;
                    while shutdown.run_until_shutdown(std::future::ready(())).await.is_some() {
                        windlass::task::yield_now().await;
                        rounds += 1;
                        assert!(rounds < 10_000, "never heard");
                    }
                }
            });
        });
    });
}

#[test]
fn every_listener_of_every_loop_hears_it() {
    in_own_process("signals::every_listener_of_every_loop_hears_it", &[], || {
        on_every_kernel_driver(|case| {
            const TIMES: usize = 5;
            const EACH: usize = 10;
            let (ready, is_ready) = mpsc::channel();
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let ready = ready.clone();
                    std::thread::spawn(move || {
                        case.run(async {
                            let listen = || {
                                let (ready, mut listener) = (ready.clone(), signal(USER1).expect("a signal"));
                                windlass::spawn(async move {
                                    for _ in 0..TIMES {
                                        ready.send(()).expect("the test waits");
                                        assert_eq!(listener.recv().await, Some(()));
                                    }
                                })
                            };
                            let listeners: Vec<_> = (0..EACH).map(|_| listen()).collect();
                            for listener in listeners {
                                listener.await.expect("no panic");
                            }
                        });
                    })
                })
                .collect();
            for _ in 0..TIMES {
                // All have heard the last one, and listen.
                for _ in 0..threads.len() * EACH {
                    is_ready.recv_timeout(LONG).expect("each of them hears");
                }
                send(USER1);
            }
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    });
}

#[test]
fn a_storm_coalesces_and_loses_nothing() {
    in_own_process("signals::a_storm_coalesces_and_loses_nothing", &[], || {
        on_every_kernel_driver(|case| {
            let storm = 10 * rounds();
            let sent = Arc::new(AtomicUsize::new(0));
            case.run(async {
                let mut listeners = [signal(USER1).expect("a signal"), signal(USER1).expect("a signal")];
                let thread = std::thread::spawn({
                    let sent = sent.clone();
                    move || {
                        for number in 1..=storm {
                            sent.store(number, Ordering::SeqCst);
                            send(USER1);
                            if number % 64 == 0 {
                                std::thread::yield_now();
                            }
                        }
                    }
                });
                for listener in &mut listeners {
                    let mut heard = 0;
                    // After the last one there is always one more to hear.
                    while sent.load(Ordering::SeqCst) < storm || heard == 0 {
                        let one = timeout(LONG, listener.recv()).await;
                        assert_eq!(one.expect("a signal is lost"), Some(()));
                        heard += 1;
                    }
                    assert!(heard <= storm + 1, "{heard} heard of {storm}");
                }
                thread.join().expect("no panic");
            });
        });
    });
}

#[test]
fn the_last_of_each_burst_is_heard() {
    in_own_process("signals::the_last_of_each_burst_is_heard", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut listener = signal(USER1).expect("a signal");
                for round in 0..rounds() {
                    for _ in 0..=round % 3 {
                        send(USER1);
                    }
                    let heard = timeout(LONG, listener.recv()).await;
                    assert_eq!(heard.expect("a signal is lost"), Some(()), "round {round}");
                    // The kernel may run the handler on a thread that is slow to get to it.
                    while timeout(Duration::from_millis(0), listener.recv()).await.is_ok() {}
                }
            });
        });
    });
}

#[test]
fn a_cancelled_wait_loses_nothing() {
    in_own_process("signals::a_cancelled_wait_loses_nothing", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut listener = signal(USER1).expect("a signal");
                for _ in 0..20 {
                    let cancelled = timeout(Duration::from_millis(1), listener.recv()).await;
                    assert!(cancelled.is_err(), "nothing was sent");
                    // Polled and dropped just as it comes.
                    let mut waiting = Box::pin(listener.recv());
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                    send(USER1);
                    windlass::task::yield_now().await;
                    drop(waiting);
                    sleep(Duration::from_millis(1)).await;
                    assert_eq!(listener.recv().await, Some(()));
                }
            });
        });
    });
}

#[test]
fn what_cannot_be_heard_is_an_error() {
    in_own_process("signals::what_cannot_be_heard_is_an_error", &[], || {
        on_every_driver(|case| {
            let before = open_descriptors();
            case.run(async {
                let tasks = windlass::counters().tasks;
                let fds = open_descriptors();
                for number in [
                    libc::SIGKILL,
                    libc::SIGSTOP,
                    libc::SIGSEGV,
                    libc::SIGILL,
                    libc::SIGFPE,
                    0,
                    -1,
                    127,
                    128,
                    1_000,
                    i32::MAX,
                    i32::MIN,
                ] {
                    let error = signal(SignalKind::from_raw(number)).expect_err("not a signal to hear");
                    let is_known = case.is_kernel() || error.kind() == io::ErrorKind::Unsupported;
                    assert!(
                        error.kind() == io::ErrorKind::InvalidInput || is_known,
                        "{number}: {error:?}"
                    );
                    assert!(
                        error.to_string().contains(&number.to_string()) || is_known,
                        "{number}: {error}"
                    );
                }
                if case.is_kernel() {
                    drop(signal(SignalKind::terminate()).expect("this one can be heard"));
                } else {
                    let error = signal(SignalKind::terminate()).expect_err("there is no kernel");
                    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                    assert_eq!(ctrl_c().await.expect_err("none").kind(), io::ErrorKind::Unsupported);
                }
                assert_eq!(windlass::counters().tasks, tasks);
                assert_eq!(open_descriptors(), fds);
            });
            assert_eq!(open_descriptors(), before);
        });
    });
}

#[test]
fn the_last_listener_takes_everything_along() {
    in_own_process("signals::the_last_listener_takes_everything_along", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (tasks, fds) = (windlass::counters().tasks, open_descriptors());
                for round in 0..rounds().min(1_000) {
                    let one = signal(USER1).expect("a signal");
                    let mut two = signal(USER2).expect("a signal");
                    let three = signal(USER2).expect("a signal");
                    assert!(open_descriptors() <= fds + 2, "one bell for all");
                    drop((one, three));
                    if round % 16 == 0 {
                        send(USER2);
                        assert_eq!(two.recv().await, Some(()));
                    }
                    drop(two);
                    assert_eq!(windlass::counters().tasks, tasks);
                    assert_eq!(open_descriptors(), fds, "round {round}");
                }
                // The handler of a room that is gone rings nobody.
                send(USER1);
                send(USER2);
            });
        });
    });
}

#[test]
fn a_listener_outlives_the_run_and_the_loop() {
    in_own_process("signals::a_listener_outlives_the_run_and_the_loop", &[], || {
        on_every_kernel_driver(|case| {
            let before = open_descriptors();
            let event_loop = case.event_loop();
            let run = async { signal(USER1).expect("a signal") };
            let mut listener = event_loop.run_until_complete(run).expect("the loop runs");
            send_here(USER1);
            let run = async {
                assert_eq!(listener.recv().await, Some(()), "sent between two runs");
                assert!(is_silent(&mut listener).await);
            };
            event_loop.run_until_complete(run).expect("the loop runs");
            // Outside of any run.
            let run = async { signal(USER2).expect("a signal") };
            drop(event_loop.run_until_complete(run).expect("the loop runs"));
            send_here(USER1);
            event_loop.close();
            case.run(async {
                assert_eq!(listener.recv().await, Some(()), "it came before the end");
                assert_eq!(listener.recv().await, None, "nobody hears for it any more");
                assert_eq!(listener.recv().await, None);
            });
            send_here(USER1);
            drop(listener);
            send_here(USER1);
            assert_eq!(open_descriptors(), before);
        });
    });
}

#[test]
fn a_listener_polled_on_another_loop() {
    in_own_process("signals::a_listener_polled_on_another_loop", &[], || {
        on_every_kernel_driver(|case| {
            let theirs = case.event_loop();
            let run = async { signal(USER1).expect("a signal") };
            let mut listener = theirs.run_until_complete(run).expect("the loop runs");
            case.run(async {
                assert!(is_silent(&mut listener).await);
                send_here(USER1);
                sleep(Duration::from_millis(5)).await;
                assert_eq!(listener.recv().await, Some(()));
                // Its own loop ends while another waits.
                let waiting = windlass::spawn(async move { listener.recv().await });
                sleep(Duration::from_millis(5)).await;
                theirs.close();
                let end = timeout(LONG, waiting).await;
                assert_eq!(end.expect("nobody is left waiting").expect("no panic"), None);
            });
        });
    });
}

#[test]
fn other_handlers_are_still_called() {
    static THEIRS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count(_signal: libc::c_int) {
        THEIRS.fetch_add(1, Ordering::SeqCst);
    }
    in_own_process("signals::other_handlers_are_still_called", &[], || {
        // SAFETY: the handler adds to an atomic, which is safe in a handler; the structure is plain data.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        on_every_kernel_driver(|case| {
            let before = THEIRS.load(Ordering::SeqCst);
            case.run(async {
                let mut ours = signal(USER1).expect("a signal");
                send(USER1);
                assert_eq!(ours.recv().await, Some(()));
            });
            assert_eq!(THEIRS.load(Ordering::SeqCst), before + 1);
        });
    });
}

#[test]
fn a_waker_may_drop_listeners() {
    in_own_process("signals::a_waker_may_drop_listeners", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut first = signal(USER1).expect("a signal");
                let others: Rc<RefCell<Vec<Signal>>> = Rc::default();
                others
                    .borrow_mut()
                    .extend((0..3).map(|_| signal(USER1).expect("a signal")));
                let waker = waker_calling({
                    let others = others.clone();
                    move || drop(others.take())
                });
                assert_eq!(poll_with(&waker, pin!(first.recv()).as_mut()), Poll::Pending);
                let mut cx = std::task::Context::from_waker(&waker);
                assert_eq!(first.poll_recv(&mut cx), Poll::Pending);
                send(USER1);
                while !others.borrow().is_empty() {
                    sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(first.recv().await, Some(()));
            });
        });
    });
}

#[test]
fn a_loop_that_only_listens_is_idle() {
    in_own_process("signals::a_loop_that_only_listens_is_idle", &UNDISTURBED, || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut listener = signal(USER1).expect("a signal");
                send(USER1);
                assert_eq!(listener.recv().await, Some(()));
                let waiting = windlass::spawn(async move { listener.recv().await });
                sleep(Duration::from_millis(5)).await;
                assert_idle().await;
                waiting.cancel();
            });
        });
    });
}
