//! Task cancellation: shields, tokens, nested timeouts, cleanup on cancel; and nested event loops.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, ready};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use windlass::task::{self, Builder, CancelToken, on_cancel, shield, yield_now};
use windlass::time::{Elapsed, Instant, sleep, sleep_until, timeout, timeout_at};
use windlass::{EventLoop, call_later, counters, spawn};

use crate::groups::until_receives_in_flight;
use crate::panics::{assert_one_exception, run_and_collect_exceptions};
use crate::support::{CountDrop, PanicOnDrop, exceptions_of, on_every_driver, pair, poll_with, turns, waker_calling};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

// A cancel takes effect at the next await, and a timeout is a cancel.

#[test]
fn a_cancel_takes_effect_at_the_next_await() {
    on_every_driver(|case| {
        case.run(async {
            let steps: Rc<RefCell<Vec<&str>>> = Rc::default();
            let (log, own) = (steps.clone(), Rc::new(RefCell::new(None::<windlass::JoinHandle<()>>)));
            let task = spawn({
                let own = own.clone();
                async move {
                    log.borrow_mut().push("before");
                    own.borrow().as_ref().unwrap().cancel();
                    log.borrow_mut().push("on to the next await");
                    yield_now().await;
                    log.borrow_mut().push("never");
                }
            });
            own.replace(Some(task));
            turns(4).await;
            assert_eq!(*steps.borrow(), ["before", "on to the next await"]);
            assert!(own.take().unwrap().await.unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn cancelling_a_finished_or_unstarted_task_is_harmless() {
    on_every_driver(|case| {
        case.run(async {
            let task = spawn(async { 1 });
            turns(2).await;
            for _ in 0..3 {
                task.cancel();
            }
            turns(2).await;
            assert_eq!(task.await.unwrap(), 1);
            let group = task::TaskGroup::new();
            let child = group.spawn(async { unreachable!("it never starts") });
            child.cancel();
            group.cancel();
            assert!(child.await.unwrap_err().is_cancelled());
            group.join().await.unwrap();
            let token = CancelToken::new();
            token.cancel();
            token.cancel();
            token.cancelled().await;
            assert_eq!(counters().tasks, 1);
        });
    });
}

#[test]
fn nested_timeouts_expire_separately() {
    on_every_driver(|case| {
        case.run(async move {
            assert_eq!(
                timeout(HOUR, timeout(MS, pending::<()>())).await,
                Ok(Err(Elapsed)),
                "the inner timeout"
            );
            assert_eq!(
                timeout(MS, timeout(HOUR, pending::<()>())).await,
                Err(Elapsed),
                "the outer timeout"
            );
            let deadline = Instant::now() + 2 * MS;
            let both = timeout_at(deadline, timeout_at(deadline, pending::<()>()));
            assert_eq!(both.await, Ok(Err(Elapsed)), "both at once: the inner timeout");
            // Code after the inner timeout is still under the outer one.
            let start = Instant::now();
            let outer = timeout(5 * MS, async {
                assert!(timeout(MS, pending::<()>()).await.is_err());
                pending::<()>().await;
            });
            assert!(outer.await.is_err());
            assert!(case.is_kernel() || start.elapsed() == 5 * MS);
            // A result that is ready at the deadline is returned.
            let deadline = Instant::now() + MS;
            let result = timeout_at(
                deadline,
                timeout_at(deadline, async {
                    sleep_until(deadline).await;
                    "in time"
                }),
            );
            assert_eq!(result.await, Ok(Ok("in time")));
            assert_eq!(counters().timers, 0);
        });
    });
}

#[test]
fn a_timeout_can_be_rescheduled() {
    on_every_driver(|case| {
        case.run(async move {
            // Rescheduled to a later time by a callback while the task sleeps. On a busy machine the callback may run
            // after the first deadline; then try again.
            let mut is_in_time = false;
            for _ in 0..100 {
                let work = Rc::new(RefCell::new(Box::pin(timeout(5 * MS, sleep(20 * MS)))));
                let first = work.borrow().deadline().expect("a deadline");
                let in_time = Rc::new(Cell::new(false));
                call_later(MS, {
                    let (work, in_time) = (work.clone(), in_time.clone());
                    move || {
                        work.borrow_mut().as_mut().reschedule(Instant::now() + HOUR);
                        in_time.set(Instant::now() < first);
                    }
                });
                let waited = std::future::poll_fn(|cx| work.borrow_mut().as_mut().poll(cx)).await;
                if !in_time.get() {
                    sleep(2 * MS).await;
                    continue;
                }
                assert_eq!(waited, Ok(()));
                assert_eq!(counters().timers, 1, "the timeout's own timer");
                drop(work);
                assert_eq!(counters().timers, 0);
                is_in_time = true;
                break;
            }
            assert!(is_in_time, "no callback ran within 5 ms");

            // Rescheduled to an earlier time.
            let work = Rc::new(RefCell::new(Box::pin(timeout(HOUR, pending::<()>()))));
            let start = Instant::now();
            assert!(
                work.borrow()
                    .deadline()
                    .is_some_and(|deadline| deadline <= start + HOUR)
            );
            call_later(MS, {
                let work = work.clone();
                move || work.borrow_mut().as_mut().reschedule(start + 2 * MS)
            });
            let waited = std::future::poll_fn(|cx| work.borrow_mut().as_mut().poll(cx)).await;
            assert_eq!(waited, Err(Elapsed));
            assert!(start.elapsed() >= 2 * MS);

            // Rescheduled before the sleep begins, and after it is over.
            let mut nap = sleep(HOUR);
            nap.reset(Instant::now() + MS);
            (&mut nap).await;
            nap.reset(Instant::now() + MS);
            assert!(poll_with(Waker::noop(), Pin::new(&mut nap)).is_pending());
            nap.await;
        });
    });
}

// Shields.

#[test]
fn cancelling_the_waiter_leaves_the_shielded_task_running() {
    on_every_driver(|case| {
        case.run(async {
            let finished = counter();
            let gate = CancelToken::new();
            let waiter = spawn({
                let (finished, gate) = (finished.clone(), gate.clone());
                async move {
                    shield(async move {
                        gate.cancelled().await;
                        add_one(&finished);
                    })
                    .await
                }
            });
            turns(3).await;
            waiter.cancel();
            assert!(waiter.await.unwrap_err().is_cancelled());
            turns(3).await;
            assert_eq!(finished.get(), 0);
            gate.cancel();
            turns(3).await;
            assert_eq!(finished.get(), 1);

            // Its result is still available.
            let mut shielded = shield(async {
                sleep(SECOND).await;
                Ok::<_, io::Error>("saved")
            });
            assert!(timeout(MS, &mut shielded).await.is_err());
            assert_eq!(shielded.await.unwrap().unwrap(), "saved");
            let handle = spawn(async { 5 }).shield().into_handle();
            assert_eq!(handle.await.unwrap(), 5);
        });
    });
}

#[test]
fn an_unobserved_error_is_reported() {
    on_every_driver(|case| {
        // The handle is dropped while the task runs.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            drop(shield(async {
                sleep(2 * MS).await;
                Err::<(), _>("shielded and lost")
            }));
            sleep(5 * MS).await;
        });
        assert_one_exception(&exceptions, &["shielded and lost", "task_cancellation.rs"]);
        // The handle is dropped after the task has failed.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = Builder::new()
                .name("doomed")
                .spawn(async { Err::<(), _>(io::Error::other("detached")) });
            turns(2).await;
            task.detach();
        });
        assert_one_exception(&exceptions, &["detached", "'doomed'", "task_cancellation.rs"]);
        // A panic is reported too; an error that was observed is not.
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            drop(shield(async { panic!("panics too") }));
            assert_eq!(shield(async { Err::<(), _>("seen") }).await.unwrap(), Err("seen"));
            turns(4).await;
        });
        assert_one_exception(&exceptions, &["panics too"]);
    });
}

#[test]
fn dropping_cancel_on_drop_makes_the_task_wait() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let read = spawn({
                let held = CountDrop(ended.clone());
                async move {
                    let _held = held;
                    let (_client, server) = pair().await;
                    server.read(vec![0; 8]).await.0.map(drop)
                }
            });
            until_receives_in_flight(1).await;
            let parent = spawn(async move {
                assert!(timeout(MS, read.cancel_on_drop()).await.is_err());
                5
            });
            assert_eq!(parent.await.unwrap(), 5);
            assert_eq!((ended.get(), counters().in_flight), (1, 0));
            assert_eq!(spawn(async { 6 }).cancel_on_drop().await.unwrap(), 6);
            let kept = spawn(after(1)).cancel_on_drop().into_handle();
            assert_eq!(kept.await.unwrap(), 1);
            // No task is left over.
            assert_eq!(counters().tasks, 1);
        });
    });
}

async fn after(millis: u32) -> u32 {
    sleep(millis * MS).await;
    millis
}

// Tokens.

#[test]
fn cancelling_a_token_cancels_its_descendants() {
    on_every_driver(|case| {
        case.run(async {
            let root = CancelToken::new();
            let (left, right) = (root.child(), root.child());
            let leaf = left.child();
            let waiting_tasks: Vec<_> = [&root, &left, &right, &leaf]
                .map(|token| spawn(token.cancelled()))
                .into_iter()
                .collect();
            turns(2).await;
            left.cancel();
            turns(2).await;
            let ended: Vec<_> = waiting_tasks.iter().map(|wait| wait.is_finished()).collect();
            assert_eq!(ended, [false, true, false, true]);
            root.clone().cancel();
            for wait in waiting_tasks {
                timeout(HOUR, wait).await.unwrap().unwrap();
            }
            assert!(right.is_cancelled() && right.child().is_cancelled());

            let top = CancelToken::new();
            let below = top.child().child().child();
            let wait = spawn(below.cancelled());
            turns(2).await;
            top.cancel();
            timeout(5 * SECOND, wait).await.unwrap().unwrap();
        });
    });
}

#[test]
fn a_token_cancels_its_future_and_loses_no_result() {
    on_every_driver(|case| {
        case.run(async {
            let token = CancelToken::new();
            assert_eq!(token.run_until_cancelled(after(1)).await, Some(1));
            let drops = counter();
            let held = CountDrop(drops.clone());
            let cut = spawn({
                let token = token.child();
                async move {
                    let work = async move {
                        let _held = held;
                        pending::<()>().await
                    };
                    token.run_until_cancelled(work).await
                }
            });
            // Complete in the turn of the cancel: the result is returned.
            let (promise, placeholder) = windlass::promise::<u8>();
            let in_time = spawn({
                let token = token.clone();
                async move { token.run_until_cancelled(placeholder).await }
            });
            turns(2).await;
            promise.resolve(3).unwrap();
            turns(1).await;
            token.cancel();
            assert_eq!(cut.await.unwrap(), None);
            assert_eq!(in_time.await.unwrap(), Some(Ok(3)));
            assert_eq!(drops.get(), 1);
            let never = token.run_until_cancelled(async { unreachable!("never polled") });
            assert_eq!(never.await, None::<()>);
        });
    });
}

#[test]
fn dropped_tokens_and_waits_are_unregistered() {
    on_every_driver(|case| {
        case.run(async {
            let root = CancelToken::new();
            for _ in 0..100 {
                let child = root.child();
                drop(child.child());
                let mut wait = pin!(root.cancelled());
                assert!(poll_with(Waker::noop(), wait.as_mut()).is_pending());
            }
            assert!(format!("{root:?}").contains("waiters: 0, children: 0"), "{root:?}");
            let guard = root.child().drop_guard();
            let kept = guard.disarm();
            assert!(!kept.is_cancelled());
            drop(kept.clone().drop_guard());
            assert!(kept.is_cancelled() && !root.is_cancelled());

            // A long chain of which only the last token is held, cancelled from the top and not.
            let mut end = CancelToken::new();
            let top = end.clone();
            for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
                end = end.child();
            }
            top.cancel();
            assert!(end.is_cancelled());
            drop(top);
            drop(end);
            let mut end = CancelToken::new();
            for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
                end = end.child();
            }
            drop(end);
        });
    });
}

#[test]
fn a_panicking_waker_does_not_affect_other_waiters_of_a_token() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let token = CancelToken::new();
            let mut wait = token.cancelled();
            let waker = waker_calling(|| panic!("waker down"));
            assert!(poll_with(&waker, Pin::new(&mut wait)).is_pending());
            let other = spawn(token.cancelled());
            // A waker that cancels again and creates a child while it is woken.
            let mut reentrant = token.cancelled();
            let again = waker_calling({
                let token = token.clone();
                move || {
                    token.cancel();
                    assert!(token.child().is_cancelled());
                }
            });
            assert!(poll_with(&again, Pin::new(&mut reentrant)).is_pending());
            turns(2).await;
            token.cancel();
            other.await.unwrap();
        });
        assert_one_exception(&exceptions, &["waker down"]);
    });
}

// Cleanup on cancel.

/// A task that arms a cleanup and then waits.
fn with_cleanup<F: Future<Output = ()> + 'static>(within: Duration, cleanup: F) -> windlass::JoinHandle<()> {
    spawn(async move {
        let armed = on_cancel(within, cleanup);
        sleep(HOUR).await;
        armed.disarm();
    })
}

#[test]
fn a_cancelled_task_is_joined_when_it_has_cleaned_up() {
    on_every_driver(|case| {
        case.run(async {
            let cleaned = counter();
            let task = with_cleanup(SECOND, {
                let cleaned = cleaned.clone();
                async move {
                    let (client, server) = pair().await;
                    client.write_all("bye").await.0.unwrap();
                    server.read_exact(vec![0; 3]).await.0.unwrap();
                    sleep(2 * MS).await;
                    add_one(&cleaned);
                }
            });
            turns(2).await;
            task.cancel();
            turns(3).await;
            assert!(!task.is_finished() && cleaned.get() == 0);
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(cleaned.get(), 1);

            // A group waits for the cleanups of its children.
            let result = task::group(async |group| {
                let cleaned = cleaned.clone();
                group.spawn(async move {
                    let _armed = on_cancel(SECOND, async move {
                        sleep(2 * MS).await;
                        add_one(&cleaned);
                    });
                    pending::<()>().await;
                });
                yield_now().await;
                Err::<(), _>("down")
            });
            assert!(result.await.is_err());
            assert_eq!((cleaned.get(), counters().tasks), (2, 1));

            // So does the task of a timeout: the timeout drops the future, and the task continues.
            let task = spawn({
                let cleaned = cleaned.clone();
                async move {
                    let work = on_cancel(SECOND, async move {
                        sleep(2 * MS).await;
                        add_one(&cleaned);
                    });
                    assert!(timeout(MS, work.during(pending::<()>())).await.is_err());
                }
            });
            task.await.unwrap();
            assert_eq!(cleaned.get(), 3);
        });
    });
}

#[test]
fn a_finished_future_runs_no_cleanup() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let never = || async { unreachable!("there is nothing to clean up") };
            assert_eq!(on_cancel(SECOND, never()).during(after(1)).await, 1);
            on_cancel(SECOND, never()).disarm();
            assert_eq!(on_cancel(SECOND, async { 7 }).run().await, 7);
            // Cancelled in the middle of the cleanup: the loop runs the rest of it.
            let steps = counter();
            let cleanup = on_cancel(SECOND, {
                let steps = steps.clone();
                async move {
                    for _ in 0..3 {
                        add_one(&steps);
                        turns(2).await;
                    }
                }
            });
            let task = spawn(cleanup.run());
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(steps.get(), 3);
            // Cancelled before it began: no cleanup was armed.
            let task = with_cleanup(SECOND, never());
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
            turns(3).await;
            // A task that panics runs its cleanup.
            let cleaned = counter();
            let task = spawn({
                let cleaned = cleaned.clone();
                async move {
                    let _armed = on_cancel(SECOND, async move { add_one(&cleaned) });
                    panic!("down");
                }
            });
            assert!(task.await.unwrap_err().is_panic());
            assert_eq!(cleaned.get(), 1);
        });
        assert!(exceptions.is_empty(), "{exceptions:?}");
    });
}

#[test]
fn a_cleanup_that_times_out_or_fails_is_reported() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let start = Instant::now();
            let task = with_cleanup(5 * MS, pending());
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
            assert!(start.elapsed() >= 5 * MS);
        });
        assert_one_exception(&exceptions, &["cleanup", "task_cancellation.rs", "5ms"]);
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = spawn(async {
                let _armed = on_cancel(SECOND, async { Err::<(), _>("cannot clean") });
                pending::<()>().await;
            });
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_one_exception(&exceptions, &["cannot clean", "cleanup"]);
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let task = with_cleanup(SECOND, async { panic!("cleanup down") });
            turns(2).await;
            task.cancel();
            assert!(task.await.unwrap_err().is_cancelled());
        });
        assert_one_exception(&exceptions, &["cleanup down"]);
    });
}

#[test]
fn a_closing_loop_waits_for_cleanups() {
    on_every_driver(|case| {
        let cleaned = counter();
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        for _ in 0..3 {
            let cleaned = cleaned.clone();
            drop(event_loop.spawn(async move {
                let _armed = on_cancel(SECOND, async move {
                    let (client, server) = pair().await;
                    client.write_all("bye").await.0.unwrap();
                    server.read_exact(vec![0; 3]).await.0.unwrap();
                    sleep(2 * MS).await;
                    add_one(&cleaned);
                });
                pending::<()>().await;
            }));
        }
        // A cleanup that is running when the loop closes.
        let task = event_loop.spawn({
            let cleaned = cleaned.clone();
            async move {
                let _armed = on_cancel(SECOND, async move {
                    sleep(5 * MS).await;
                    add_one(&cleaned);
                });
                yield_now().await;
            }
        });
        event_loop.run_until_complete(turns(5)).unwrap();
        assert_eq!(cleaned.get(), 0);
        drop(event_loop);
        assert_eq!(cleaned.get(), 4);
        assert!(task.is_finished());
        assert!(exceptions.borrow().is_empty(), "{exceptions:?}");

        // A cleanup that never ends, and one that is still held after its loop is gone.
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let held = Rc::new(RefCell::new(None));
        drop(event_loop.spawn({
            let held = held.clone();
            async move {
                let _armed = on_cancel(3 * MS, pending::<()>());
                held.replace(Some(on_cancel(MS, ready(()))));
                pending::<()>().await;
            }
        }));
        event_loop.run_until_complete(turns(2)).unwrap();
        drop(event_loop);
        assert_eq!(exceptions.borrow().len(), 1, "{exceptions:?}");
        drop(held);
    });
}

#[test]
fn a_cleanup_may_capture_a_value_whose_drop_panics() {
    on_every_driver(|case| {
        let ((), exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let armed = on_cancel(SECOND, {
                let held = PanicOnDrop("captured");
                async move {
                    crate::support::keep_forever(held);
                }
            });
            drop(armed);
            turns(3).await;
        });
        assert!(exceptions.is_empty(), "{exceptions:?}");
    });
}

// Nested loops, and loops on several threads.

#[test]
fn running_a_loop_inside_of_a_loop_is_refused() {
    on_every_driver(|case| {
        case.run(async move {
            let error = windlass::run(async {}).unwrap_err();
            assert!(error.to_string().contains("spawn a task instead"), "{error}");
            let inner = case.event_loop();
            let error = inner.run_until_complete(async {}).unwrap_err();
            assert!(error.to_string().contains("already running"), "{error}");
            assert!(inner.turn().is_err() && inner.run_forever().is_err());
            // Neither the refused loop nor the outer one is affected.
            assert_eq!(counters().tasks, 1);
            drop(inner);
            assert_eq!(spawn(async { 5 }).await.unwrap(), 5);
        });
    });
}

#[test]
fn two_loops_on_two_threads_have_their_own_tasks() {
    on_every_driver(|case| {
        let (to_other, from_main) = std::sync::mpsc::channel::<windlass::LoopHandle>();
        let other = std::thread::spawn(move || {
            let event_loop: EventLoop = case.event_loop();
            event_loop
                .run_until_complete(async move {
                    let main = from_main.recv().unwrap();
                    let remote = main.spawn_with(|| async {
                        let sum = task::group(async |group| {
                            let handles = (0..10u64).map(|number| group.spawn(async move { number }));
                            let handles: Vec<_> = handles.collect();
                            let mut sum = 0;
                            for handle in handles {
                                sum += handle.await.unwrap();
                            }
                            sum
                        });
                        (sum.await.unwrap(), counters().tasks)
                    });
                    let here = task::group(async |group| {
                        let child = group.spawn(async { 2 });
                        child.await.unwrap()
                    });
                    let here = here.await.unwrap();
                    assert_eq!(counters().tasks, 1, "only this loop's tasks");
                    (here, remote.unwrap().await.unwrap())
                })
                .unwrap()
        });
        let event_loop = case.event_loop();
        to_other.send(event_loop.handle()).unwrap();
        let stopper = event_loop.handle();
        let joined = std::thread::spawn(move || {
            let answer = other.join();
            stopper.stop().unwrap();
            answer.unwrap()
        });
        event_loop.run_forever().unwrap();
        let answer = joined.join().unwrap();
        assert_eq!(answer.0, 2);
        assert_eq!(answer.1.0, 45);
    });
}

#[test]
fn tokens_need_no_loop() {
    let hits = Rc::new(Cell::new(0));
    let token = CancelToken::default();
    let mut wait = token.child().cancelled();
    let waker = waker_calling({
        let hits = hits.clone();
        move || add_one(&hits)
    });
    assert!(poll_with(&waker, Pin::new(&mut wait)).is_pending());
    token.cancel();
    assert_eq!(hits.get(), 1, "a wait keeps its token alive");
    assert!(poll_with(&waker, Pin::new(&mut wait)).is_ready());
}
