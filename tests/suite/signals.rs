//! Signals reach every listener, and none is lost. Each test raises real signals, so it runs in its own process.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use windlass::signal::{Signal, SignalKind, ctrl_c, shutdown, signal};
use windlass::time::{sleep, timeout};

use crate::child::{UNDISTURBED, in_own_process};
use crate::support::{
    assert_idle, on_every_driver, on_every_kernel_driver, open_descriptors, poll_once, poll_with, rounds, waker_calling,
};

/// An event that should come at once is considered lost after this time.
const LONG: Duration = Duration::from_secs(60);

const USER1: SignalKind = SignalKind::user_defined1();
const USER2: SignalKind = SignalKind::user_defined2();

/// Sends a signal to this process; any one of its threads handles it.
fn send(kind: SignalKind) {
    // SAFETY: kill(2) takes two integers; each test handles the signals that it sends.
    assert_eq!(unsafe { libc::kill(libc::getpid(), kind.as_raw()) }, 0);
}

/// Sends a signal to this thread, whose handler has run when this returns.
fn send_here(kind: SignalKind) {
    // SAFETY: raise(3) takes an integer; each test handles the signals that it sends.
    assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
}

/// Whether no signal is pending for the listener.
async fn nothing_received(signal: &mut Signal) -> bool {
    poll_once(pin!(signal.recv())).await.is_pending()
}

#[test]
fn a_signal_is_received_once() {
    in_own_process("signals::a_signal_is_received_once", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut one = signal(USER1).expect("a signal");
                let mut two = signal(USER2).expect("a signal");
                assert!(nothing_received(&mut one).await);
                send(USER1);
                assert_eq!(one.recv().await, Some(()));
                assert!(nothing_received(&mut one).await, "received twice");
                assert!(nothing_received(&mut two).await, "another signal");

                // While a task waits.
                let waiting = windlass::spawn(async move { two.recv().await });
                sleep(Duration::from_millis(5)).await;
                send(USER2);
                assert_eq!(waiting.await.expect("no panic"), Some(()));

                // A signal that came before the listener existed is not delivered to it.
                send(USER1);
                assert_eq!(one.recv().await, Some(()));
                let mut late = signal(USER1).expect("a signal");
                assert!(nothing_received(&mut late).await);
                assert_eq!(late.kind(), USER1);
            });
        });
    });
}

#[test]
fn ctrl_c_can_be_awaited_repeatedly() {
    in_own_process("signals::ctrl_c_can_be_awaited_repeatedly", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                for _ in 0..3 {
                    let mut waiting = pin!(ctrl_c());
                    assert!(poll_once(waiting.as_mut()).await.is_pending());
                    send(SignalKind::interrupt());
                    waiting.await.expect("a result");
                }
                // Without a listener the signal is ignored; it does not end the process.
                send(SignalKind::interrupt());
                sleep(Duration::from_millis(5)).await;
            });
        });
    });
}

#[test]
fn shutdown_is_ctrl_c_or_sigterm() {
    in_own_process("signals::shutdown_is_ctrl_c_or_sigterm", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut shutdown = shutdown().expect("a listener");
                assert!(poll_once(pin!(shutdown.recv())).await.is_pending());
                for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
                    send(kind);
                    assert_eq!(shutdown.recv().await, Some(()));
                    assert!(poll_once(pin!(shutdown.recv())).await.is_pending(), "received twice");

                    // While a future runs; and before a future that is ready at once, so that a busy loop notices the
                    // signal too.
                    assert_eq!(shutdown.run_until_shutdown(async { 7 }).await, Some(7));
                    send_here(kind);
                    assert_eq!(shutdown.run_until_shutdown(sleep(Duration::MAX)).await, None);
                    send_here(kind);
                    sleep(Duration::from_millis(1)).await;
                    let mut rounds = 0;
                    while shutdown.run_until_shutdown(std::future::ready(())).await.is_some() {
                        windlass::task::yield_now().await;
                        rounds += 1;
                        assert!(rounds < 10_000, "never received");
                    }
                }
            });
        });
    });
}

#[test]
fn every_listener_of_every_loop_receives_a_signal() {
    in_own_process("signals::every_listener_of_every_loop_receives_a_signal", &[], || {
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
                // All listeners have received the previous signal and wait for the next.
                for _ in 0..threads.len() * EACH {
                    is_ready.recv_timeout(LONG).expect("each listener receives");
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
fn a_storm_of_signals_coalesces_but_the_last_is_received() {
    in_own_process(
        "signals::a_storm_of_signals_coalesces_but_the_last_is_received",
        &[],
        || {
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
                        let mut received = 0;
                        // A signal is always received after the last one was sent.
                        while sent.load(Ordering::SeqCst) < storm || received == 0 {
                            let one = timeout(LONG, listener.recv()).await;
                            assert_eq!(one.expect("a signal is lost"), Some(()));
                            received += 1;
                        }
                        assert!(received <= storm + 1, "{received} received of {storm}");
                    }
                    thread.join().expect("no panic");
                });
            });
        },
    );
}

#[test]
fn the_last_signal_of_each_burst_is_received() {
    in_own_process("signals::the_last_signal_of_each_burst_is_received", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut listener = signal(USER1).expect("a signal");
                for round in 0..rounds() {
                    for _ in 0..=round % 3 {
                        send(USER1);
                    }
                    let received = timeout(LONG, listener.recv()).await;
                    assert_eq!(received.expect("a signal is lost"), Some(()), "round {round}");
                    // The kernel may run the handler on a thread that is scheduled late.
                    while timeout(Duration::from_millis(0), listener.recv()).await.is_ok() {}
                }
            });
        });
    });
}

#[test]
fn a_cancelled_wait_loses_no_signal() {
    in_own_process("signals::a_cancelled_wait_loses_no_signal", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut listener = signal(USER1).expect("a signal");
                for _ in 0..20 {
                    let cancelled = timeout(Duration::from_millis(1), listener.recv()).await;
                    assert!(cancelled.is_err(), "nothing was sent");
                    // Polled and dropped while the signal arrives.
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
fn an_uncatchable_signal_is_an_error() {
    in_own_process("signals::an_uncatchable_signal_is_an_error", &[], || {
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
                    let error = signal(SignalKind::from_raw(number)).expect_err("this signal cannot be caught");
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
                    drop(signal(SignalKind::terminate()).expect("SIGTERM can be caught"));
                } else {
                    let error = signal(SignalKind::terminate()).expect_err("the null driver has no signals");
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
fn the_last_listener_releases_every_resource() {
    in_own_process("signals::the_last_listener_releases_every_resource", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let (tasks, fds) = (windlass::counters().tasks, open_descriptors());
                for round in 0..rounds().min(1_000) {
                    let one = signal(USER1).expect("a signal");
                    let mut two = signal(USER2).expect("a signal");
                    let three = signal(USER2).expect("a signal");
                    assert!(open_descriptors() <= fds + 2, "more than one notification channel");
                    drop((one, three));
                    if round % 16 == 0 {
                        send(USER2);
                        assert_eq!(two.recv().await, Some(()));
                    }
                    drop(two);
                    assert_eq!(windlass::counters().tasks, tasks);
                    assert_eq!(open_descriptors(), fds, "round {round}");
                }
                // The handler of a closed hub notifies no loop.
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
                assert!(nothing_received(&mut listener).await);
            };
            event_loop.run_until_complete(run).expect("the loop runs");
            // Outside of any run.
            let run = async { signal(USER2).expect("a signal") };
            drop(event_loop.run_until_complete(run).expect("the loop runs"));
            send_here(USER1);
            event_loop.close();
            case.run(async {
                assert_eq!(
                    listener.recv().await,
                    Some(()),
                    "the signal came before the loop closed"
                );
                assert_eq!(listener.recv().await, None, "a listener without a loop ends");
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
fn a_listener_can_be_polled_on_another_loop() {
    in_own_process("signals::a_listener_can_be_polled_on_another_loop", &[], || {
        on_every_kernel_driver(|case| {
            let theirs = case.event_loop();
            let run = async { signal(USER1).expect("a signal") };
            let mut listener = theirs.run_until_complete(run).expect("the loop runs");
            case.run(async {
                assert!(nothing_received(&mut listener).await);
                send_here(USER1);
                sleep(Duration::from_millis(5)).await;
                assert_eq!(listener.recv().await, Some(()));
                // Its own loop closes while a task of another loop waits.
                let waiting = windlass::spawn(async move { listener.recv().await });
                sleep(Duration::from_millis(5)).await;
                theirs.close();
                let end = timeout(LONG, waiting).await;
                assert_eq!(end.expect("the listener ends").expect("no panic"), None);
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
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe; the structure is plain data.
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

#[test]
fn signals_are_streams() {
    in_own_process("signals::signals_are_streams", &[], || {
        on_every_kernel_driver(|case| {
            case.run(async {
                let mut one = signal(USER1).expect("a signal");
                assert!(poll_once(pin!(one.next())).await.is_pending());
                send(USER1);
                assert_eq!(one.next().await, Some(()));
                assert!(nothing_received(&mut one).await, "received twice");

                let mut stop = shutdown().expect("a listener");
                assert!(poll_once(pin!(stop.next())).await.is_pending());
                send(SignalKind::terminate());
                assert_eq!(stop.next().await, Some(()));
                assert!(poll_once(pin!(stop.next())).await.is_pending());
            });
        });
    });
}
