//! `JoinSet`, errors that were never read, and combinators that wait for the groups inside of the futures they drop.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use windlass::task::{self, Builder, CancelToken, Either, JoinSet, TaskGroup, yield_now};
use windlass::time::{sleep, timeout};
use windlass::{counters, spawn, spawn_blocking};

use crate::groups::until_receives_in_flight;
use crate::panics::{assert_one_exception, run_and_collect_exceptions};
use crate::support::{CountDrop, exceptions_of, on_every_driver, pair, poll_with};
use crate::tasks::{add_one, counter};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Waits for bytes that never arrive, and counts its end.
async fn stuck_read(ended: Rc<Cell<usize>>) -> io::Result<()> {
    let _ended = CountDrop(ended);
    let (_client, server) = pair().await;
    server.read(vec![0; 64]).await.0?;
    unreachable!("the peer does not write");
}

#[test]
fn children_fail_independently_and_results_come_in_the_order_of_completion() {
    on_every_driver(|case| {
        case.run(async {
            let mut set = JoinSet::new();
            set.spawn(async {
                sleep(3 * MS).await;
                Ok(3)
            });
            set.spawn(async { Err("first") });
            let panicking = set.spawn(async { panic!("second") });
            let aborted = set.spawn(async {
                sleep(HOUR).await;
                Ok(4)
            });
            assert_eq!(set.len(), 4);
            assert_eq!(set.join_next().await.unwrap().unwrap(), Err("first"));
            let error = set.join_next().await.unwrap().unwrap_err();
            assert!(error.is_panic() && error.id() == panicking.id());
            assert_eq!(set.join_next().await.unwrap().unwrap(), Ok(3));
            aborted.abort();
            let error = set.join_next_with_id().await.unwrap().unwrap_err();
            assert!(error.is_cancelled() && error.id() == aborted.id() && aborted.is_finished());
            assert!(set.join_next().await.is_none() && set.is_empty());
            // The set can be used again.
            let id = set.spawn(async { Ok(5) }).id();
            assert_eq!(set.join_next_with_id().await.unwrap().unwrap(), (id, Ok(5)));
        });
    });
}

#[test]
fn a_dropped_join_next_loses_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let mut set = JoinSet::new();
            for number in 0..100 {
                set.spawn(async move {
                    for _ in 0..number % 7 {
                        yield_now().await;
                    }
                    number
                });
            }
            let mut seen = Vec::new();
            while !set.is_empty() {
                // Dropped after one poll.
                let polled = poll_fn(|cx| {
                    let next = pin!(set.join_next());
                    std::task::Poll::Ready(std::future::Future::poll(next, cx))
                });
                match polled.await {
                    std::task::Poll::Ready(result) => seen.push(result.unwrap().unwrap()),
                    std::task::Poll::Pending => yield_now().await,
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        });
    });
}

#[test]
fn the_waker_of_join_next_is_woken_by_each_child() {
    on_every_driver(|case| {
        case.run(async {
            let mut set: JoinSet<u32> = JoinSet::new();
            set.spawn(async {
                sleep(2 * MS).await;
                1
            });
            set.spawn(pending());
            assert!(poll_with(std::task::Waker::noop(), pin!(set.join_next())).is_pending());
            assert_eq!(set.join_next().await.unwrap().unwrap(), 1);
            assert!(set.try_join_next().is_none());
            set.abort_all();
            assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn dropping_a_set_cancels_its_tasks_and_its_task_waits_for_them() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let owner = spawn({
                let ended = ended.clone();
                async move {
                    let set = JoinSet::new();
                    for _ in 0..3 {
                        set.spawn(stuck_read(ended.clone()));
                    }
                    until_receives_in_flight(3).await;
                }
            });
            owner.await.unwrap();
            assert_eq!(ended.get(), 3);
            assert_eq!(counters().in_flight, 0);
        });
    });
}

#[test]
fn shutdown_waits_for_operations_and_detach_all_cancels_nothing() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let mut set = JoinSet::new();
            for _ in 0..3 {
                set.spawn(stuck_read(ended.clone()));
            }
            until_receives_in_flight(3).await;
            set.shutdown().await;
            assert_eq!((ended.get(), counters().in_flight, set.len()), (3, 0, 0));

            let mut set = JoinSet::new();
            let done = counter();
            for delay in [0, 2] {
                let done = done.clone();
                set.spawn(async move {
                    sleep(delay * MS).await;
                    add_one(&done);
                });
            }
            yield_now().await;
            set.detach_all();
            assert!(set.is_empty());
            drop(set);
            while done.get() < 2 {
                sleep(MS).await;
            }
        });
    });
}

#[test]
fn join_all_returns_outputs_or_panics() {
    on_every_driver(|case| {
        case.run(async {
            let set: JoinSet<u64> = [3u64, 1, 2]
                .into_iter()
                .map(|delay| async move {
                    for _ in 0..delay {
                        yield_now().await;
                    }
                    delay
                })
                .collect();
            assert_eq!(set.join_all().await, [1, 2, 3]);
            let ended = counter();
            let set = JoinSet::new();
            set.spawn({
                let ended = ended.clone();
                async move {
                    let _ended = CountDrop(ended);
                    pending::<()>().await;
                }
            });
            set.spawn(async { std::panic::panic_any(7u8) });
            let error = spawn(set.join_all()).await.unwrap_err();
            assert_eq!(*error.try_into_panic().unwrap().downcast::<u8>().unwrap(), 7);
            assert_eq!(ended.get(), 1);
        });
    });
}

#[test]
fn a_named_child_shows_its_name() {
    on_every_driver(|case| {
        let (_, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let set: JoinSet<()> = JoinSet::new();
            Builder::new()
                .name("doomed")
                .spawn_in_set(&set, async { panic!("in a set") });
            yield_now().await;
        });
        assert_one_exception(&exceptions, &["in a set", "'doomed'", "join_sets.rs"]);
    });
}

// Spawning in a group that has failed.

#[test]
fn a_spawn_in_a_failed_group_is_reported_once_and_the_handle_says_why() {
    on_every_driver(|case| {
        let (_, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let group = TaskGroup::new();
            group.spawn(async { Err::<(), _>("failed") });
            yield_now().await;
            let polled = counter();
            for _ in 0..3 {
                let polled = polled.clone();
                let error = group.spawn(async move { add_one(&polled) }).await.unwrap_err();
                assert!(error.is_refused() && error.is_cancelled(), "{error}");
                assert!(error.to_string().contains("group had failed"), "{error}");
            }
            assert_eq!(polled.get(), 0);
            assert_eq!(group.join().await.unwrap_err().failures().len(), 1);
        });
        assert_one_exception(&exceptions, &["was not started", "JoinSet", "join_sets.rs"]);
    });
}

#[test]
fn a_spawn_in_a_cancelled_group_is_refused_quietly() {
    on_every_driver(|case| {
        let (_, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let group = TaskGroup::new();
            group.cancel();
            assert!(group.spawn(async {}).await.unwrap_err().is_refused());
            group.join().await.unwrap();
        });
        assert_eq!(exceptions, [""; 0]);
    });
}

// Nothing outlives its block.

/// A group whose children hold the kernel, and count their end.
async fn stuck_group(ended: Rc<Cell<usize>>) {
    let group = task::group(async |group| {
        for _ in 0..3 {
            group.spawn(stuck_read(ended.clone()));
        }
        pending::<()>().await;
    });
    group.await.unwrap();
}

fn assert_ended(ended: &Cell<usize>) {
    assert_eq!(ended.get(), 3, "a child of the group still runs");
    assert_eq!(counters().in_flight, 0, "an operation of the group is in flight");
    ended.set(0);
}

#[test]
fn a_combinator_returns_when_the_children_of_a_dropped_group_have_ended() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let stop = || until_receives_in_flight(3);

            assert!(matches!(
                task::select(stop(), stuck_group(ended.clone())).await,
                Either::Left(())
            ));
            assert_ended(&ended);
            assert!(matches!(
                task::select(stuck_group(ended.clone()), stop()).await,
                Either::Right(())
            ));
            assert_ended(&ended);

            // A group deeper inside of the future that is dropped.
            let nested = async { task::select(pending::<()>(), stuck_group(ended.clone())).await };
            assert!(matches!(task::select(stop(), nested).await, Either::Left(())));
            assert_ended(&ended);

            let failing = async {
                stop().await;
                Err::<(), _>("stop")
            };
            let group = async {
                stuck_group(ended.clone()).await;
                Ok(())
            };
            assert_eq!(task::try_join((failing, group)).await, Err("stop"));
            assert_ended(&ended);

            type Boxed = std::pin::Pin<Box<dyn std::future::Future<Output = Result<(), &'static str>>>>;
            let boxed = |ended: Rc<Cell<usize>>| -> [Boxed; 2] {
                let failing = async {
                    until_receives_in_flight(3).await;
                    Err("stop")
                };
                let group = async {
                    stuck_group(ended).await;
                    Ok(())
                };
                [Box::pin(group), Box::pin(failing)]
            };
            assert_eq!(task::race(boxed(ended.clone())).await, Err("stop"));
            assert_ended(&ended);
            assert_eq!(task::try_join_all(boxed(ended.clone())).await, Err("stop"));
            assert_ended(&ended);

            let token = CancelToken::new();
            let canceller = spawn({
                let token = token.clone();
                async move {
                    until_receives_in_flight(3).await;
                    token.cancel();
                }
            });
            assert!(token.run_until_cancelled(stuck_group(ended.clone())).await.is_none());
            assert_ended(&ended);
            canceller.await.unwrap();
        });
    });
}

#[test]
fn a_timeout_returns_when_the_children_of_its_group_have_ended() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            // The clock of the null driver advances only when nothing else is left to do.
            let mut limited = pin!(timeout(HOUR, stuck_group(ended.clone())));
            let soon = async {
                until_receives_in_flight(3).await;
            };
            assert!(matches!(task::select(soon, limited.as_mut()).await, Either::Left(())));
            limited.as_mut().reschedule(windlass::time::Instant::now());
            assert!(limited.await.is_err());
            assert_ended(&ended);
        });
    });
}

#[test]
fn a_pinned_loser_goes_on() {
    on_every_driver(|case| {
        case.run(async {
            let ended = counter();
            let mut group = pin!(stuck_group(ended.clone()));
            assert!(matches!(
                task::select(until_receives_in_flight(3), group.as_mut()).await,
                Either::Left(())
            ));
            assert_eq!((ended.get(), counters().in_flight), (0, 3));
        });
    });
}

#[test]
fn a_member_that_drops_its_own_set_does_not_wait_for_itself() {
    on_every_driver(|case| {
        case.run(async {
            let slot = Rc::new(Cell::new(None));
            let set = JoinSet::new();
            let (ended, slot_inside) = (counter(), slot.clone());
            set.spawn({
                let ended = ended.clone();
                async move {
                    let set: JoinSet<()> = slot_inside.take().unwrap();
                    let lose = async move {
                        let _set = set;
                        pending::<()>().await;
                    };
                    task::select(yield_now(), lose).await;
                    add_one(&ended);
                    pending::<()>().await;
                }
            });
            slot.set(Some(set));
            while counters().tasks > 1 {
                sleep(MS).await;
            }
            // Cancelled at its next suspension point, which was after the `select`.
            assert_eq!(ended.get(), 1);
        });
    });
}

// Errors that were never read.

#[derive(Debug)]
struct Unknown;

#[test]
fn an_error_of_a_dropped_handle_is_reported_once_per_spawn_location() {
    on_every_driver(|case| {
        let (_, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            for number in 0..12 {
                drop(spawn(async move {
                    Err::<(), _>(io::Error::other(format!("error {number}")))
                }));
            }
            // Read errors are not reported, nor are values.
            assert!(spawn(async { Err::<(), _>("read") }).await.unwrap().is_err());
            drop(spawn(async { Ok::<_, io::Error>(()) }));
            drop(spawn(async { Some(Err::<(), ()>(())) }));
            // The task has ended when its handle is dropped.
            let ended = spawn(async { Err::<(), _>(Unknown) });
            yield_now().await;
            drop(ended);
        });
        assert_eq!(exceptions.len(), 3, "{exceptions:?}");
        assert!(
            exceptions[0].contains("error 0") && exceptions[0].contains("never read"),
            "{exceptions:?}"
        );
        assert!(exceptions[0].contains("join_sets.rs"), "{exceptions:?}");
        let unknown = exceptions.iter().position(|text| text.contains("Unknown")).unwrap();
        assert!(exceptions[unknown].contains("detach"), "{exceptions:?}");
        let tenth = exceptions.iter().position(|text| text.contains("error 9")).unwrap();
        assert!(exceptions[tenth].contains("number 10"), "{exceptions:?}");
    });
}

#[test]
fn the_total_of_unread_errors_is_reported_when_the_loop_closes() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        event_loop
            .run_until_complete(async {
                for _ in 0..3 {
                    drop(spawn(async { Err::<(), _>("counted") }));
                }
                yield_now().await;
            })
            .unwrap();
        assert_eq!(exceptions.borrow().len(), 1);
        drop(event_loop);
        let exceptions = exceptions.take();
        assert!(exceptions[1].contains("3 tasks spawned at"), "{exceptions:?}");
    });
}

/// Waits until there are this many exceptions.
async fn until_exceptions(exceptions: &RefCell<Vec<String>>, count: usize) {
    while exceptions.borrow().len() < count {
        sleep(MS).await;
    }
}

#[test]
fn an_error_of_a_blocking_job_whose_handle_was_dropped_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        event_loop
            .run_until_complete(async {
                for number in 0..12 {
                    drop(spawn_blocking(move || Err::<(), _>(format!("error {number}"))));
                }
                until_exceptions(&exceptions, 2).await;
                // The job has ended when its handle is dropped.
                let mut ended = spawn_blocking(|| Err::<(), _>(io::Error::other("late")));
                while !ended.is_finished() {
                    sleep(MS).await;
                }
                drop(ended);
                until_exceptions(&exceptions, 3).await;
                // Read errors are not reported, nor are values and cancelled jobs.
                ended = spawn_blocking(|| Err(io::Error::other("read")));
                assert!(ended.await.unwrap().is_err());
                drop(spawn_blocking(|| Some(1)));
                assert!(spawn_blocking(|| Ok::<_, String>(2)).await.is_ok());
            })
            .unwrap();
        let exceptions = exceptions.take();
        assert_eq!(exceptions.len(), 3, "{exceptions:?}");
        for part in ["a blocking job, spawned at", "join_sets.rs", "never read"] {
            assert!(exceptions[0].contains(part), "{exceptions:?}");
        }
        assert!(exceptions[1].contains("number 10"), "{exceptions:?}");
        assert!(exceptions[2].contains("late"), "{exceptions:?}");
    });
}

#[test]
fn an_error_of_a_future_from_another_thread_is_reported() {
    on_every_driver(|case| {
        let event_loop = case.event_loop();
        let exceptions = exceptions_of(&event_loop);
        let handle = event_loop.handle();
        event_loop
            .run_until_complete(async {
                // Dropped before the future ends, and after it.
                drop(handle.spawn(async { Err::<(), _>("early") }).unwrap());
                until_exceptions(&exceptions, 1).await;
                let ended = handle.spawn_with(|| async { Err::<(), _>("late") }).unwrap();
                while !ended.is_finished() {
                    yield_now().await;
                }
                assert_eq!(exceptions.borrow().len(), 1);
                drop(ended);
                until_exceptions(&exceptions, 2).await;
                drop(handle.with(|_| Err::<(), _>("of a function")).unwrap());
                until_exceptions(&exceptions, 3).await;
                assert!(
                    handle
                        .spawn(async { Err::<(), _>("read") })
                        .unwrap()
                        .await
                        .unwrap()
                        .is_err()
                );
            })
            .unwrap();
        let exceptions = exceptions.take();
        assert_eq!(exceptions.len(), 3, "{exceptions:?}");
        for (exception, error) in exceptions.iter().zip(["early", "late", "of a function"]) {
            for part in [
                error,
                "a future from another thread, spawned at",
                "join_sets.rs",
                "never read",
            ] {
                assert!(exception.contains(part), "{exceptions:?}");
            }
        }
    });
}

#[test]
fn an_error_left_in_a_dropped_set_is_reported() {
    on_every_driver(|case| {
        let (_, exceptions) = run_and_collect_exceptions(&case.event_loop(), async {
            let set = JoinSet::new();
            set.spawn(async { Err::<(), _>("left in the set") });
            yield_now().await;
        });
        assert_one_exception(&exceptions, &["left in the set", "never read"]);
    });
}

// Errors that are not `Send`.

#[test]
fn a_group_takes_children_whose_error_is_a_boxed_error() {
    async fn parse(text: &str) -> Result<u8, Box<dyn Error>> {
        text.parse::<u8>().map_err(|_| io::Error::other("not a number").into())
    }
    on_every_driver(|case| {
        case.run(async {
            let sum = task::group(async |group| {
                let (one, two) = (group.spawn(parse("1")), group.spawn(parse("2")));
                Ok::<_, Box<dyn Error>>(one.await? + two.await?)
            });
            assert_eq!(sum.await.unwrap(), 3);
            let error = task::group(async |group| {
                group.spawn(parse("x"));
            });
            assert_eq!(
                error.await.unwrap_err().failures()[0].error().unwrap().to_string(),
                "not a number"
            );
        });
    });
}
